# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The lint check of folders finds crowded ones."""

import importlib.util
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_SPEC = importlib.util.spec_from_file_location("folders", _ROOT / ".ci" / "check_folders.py")
check = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(check)


def _faults(root: Path, *names: str) -> list[str]:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return check.find_faults(root)


def _modules(folder: str, count: int) -> list[str]:
    return [f"{folder}/x{number}.py" for number in range(count)]


def test_the_package_has_no_fault():
    assert check.find_faults(_ROOT / "tf_fuse") == []


def test_as_many_modules_as_are_allowed(tmp_path):
    more = ["a/__init__.py", "a/y_pb2.py", "a/y.pyi", "a/b/y.py"]
    assert _faults(tmp_path, *_modules("a", check.MOST_MODULES), *more) == []


def test_a_crowded_folder(tmp_path):
    (fault,) = _faults(tmp_path, *_modules("a/b", check.MOST_MODULES + 1))
    assert fault == f"{tmp_path}/a/b: 13 modules, at most 12 are allowed"
