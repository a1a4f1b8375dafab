# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The lint check of C++ includes finds circles and crowded folders."""

import importlib.util
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_SPEC = importlib.util.spec_from_file_location("check", _ROOT / ".ci" / "check_includes.py")
check = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(check)


def _faults(root: Path, files: dict[str, list[str]]) -> list[str]:
    for name, includes in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("".join(f'#include "{path}"\n' for path in includes))
    return check.find_faults(root)


def test_the_sources_have_no_fault():
    assert check.find_faults(_ROOT / "cc") == []


def test_a_header_and_its_source_are_one_file(tmp_path):
    assert _faults(tmp_path, {"a/x.h": [], "a/x.cc": ["a/x.h"], "b/y.cc": ["a/x.h"]}) == []


def test_a_circle_of_files(tmp_path):
    files = {"a/x.h": [], "a/x.cc": ["a/x.h", "a/y.h"], "a/y.h": ["a/x.h"]}
    (fault,) = _faults(tmp_path, files)
    assert "files include each other" in fault
    assert "a/x.cc includes a/y.h" in fault


def test_a_circle_of_folders(tmp_path):
    files = {"a/p/x.h": ["a/q/y.h"], "a/q/y.h": [], "a/q/z.h": ["a/p/v.h"], "a/p/v.h": []}
    (fault,) = _faults(tmp_path, files)
    assert "folders include each other" in fault
    assert "a/p/x.h includes a/q/y.h" in fault


def test_a_circle_of_top_folders(tmp_path):
    files = {"a/p/x.h": ["b/y.h"], "b/y.h": [], "b/q/z.h": ["a/r/v.h"], "a/r/v.h": []}
    (fault,) = _faults(tmp_path, files)
    assert "top folders include each other" in fault


def test_a_crowded_folder(tmp_path):
    (fault,) = _faults(tmp_path, {f"a/x{i}.h": [] for i in range(check.MOST_FILES + 1)})
    assert f"{check.MOST_FILES + 1} C++ files" in fault
