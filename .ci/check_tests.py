#!/usr/bin/env python3
# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check that tests/unit mirrors the folders, and that a test file has the name of what it tests.

tests/unit/FOLDER/test_MODULE.py and test_MODULE_ASPECT.py test a module of tf_fuse/FOLDER, of
cc/FOLDER or of FOLDER itself; or the whole folder, if MODULE is its name. A test leaves out `_` in
front of a module's name, and may leave out `_op` and `_pass` at the end of it. Usage:
check_tests.py [REPOSITORY].
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

# Folders of tests/unit that have another name than what they mirror: `packaging` tests setup.py
# and the files beside it.
_MIRRORED = {".": ("tf_fuse", "cc"), "ci": (".ci",), "packaging": (".",)}
_LEFT_OUT = ("_op", "_pass")


def find_faults(root: Path) -> list[str]:
    """Return one text per test file that stands in a wrong folder or has a wrong name."""
    unit = root / "tests" / "unit"
    return [
        f"{path.relative_to(root)}: {fault}"
        for path in sorted(unit.rglob("test_*.py"))
        if (fault := _fault(root, path.parent.relative_to(unit).as_posix(), path.stem))
    ]


def _fault(root: Path, folder: str, test: str) -> str:
    names = _MIRRORED.get(folder, (f"tf_fuse/{folder}", f"cc/{folder}", folder))
    mirrored = [name for name in names if (root / name).is_dir()]
    if not mirrored:
        return f"expected one of the folders {', '.join(names)}, and there is none"
    subject = test.removeprefix("test_") + "_"
    whole = "tf_fuse" if folder == "." else folder.rpartition("/")[2].lstrip("_")
    modules = {whole, *(module for name in mirrored for module in _modules(root / name))}
    if any(subject.startswith(module + "_") for module in modules):
        return ""
    return (
        f"expected test_MODULE.py or test_MODULE_ASPECT.py of a module of {', '.join(mirrored)}, "
        f"or test_{whole}_ASPECT.py"
    )


def _modules(folder: Path) -> Iterator[str]:
    """Yield the names of a folder's modules, as names of tests have them."""
    for path in folder.iterdir():
        name = path.name.partition(".")[0].lstrip("_")
        if path.is_file() and name and path.name != "__init__.py":
            yield name
            yield from (name.removesuffix(end) for end in _LEFT_OUT if name.endswith(end))


if __name__ == "__main__":
    default = Path(__file__).resolve().parents[1]
    found = find_faults(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
    sys.exit("\n".join(found) or 0)
