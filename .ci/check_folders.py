#!/usr/bin/env python3
# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check that no folder of tf_fuse/ is crowded: a reader names all of its modules by their names.

A folder is its own modules, without `__init__.py` and those of its subfolders. Generated modules
do not count. Usage: check_folders.py [FOLDER], by default tf_fuse/.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

MOST_MODULES = 12


def find_faults(root: Path) -> list[str]:
    """Return one text per crowded folder."""
    crowds = Counter(path.parent for path in root.rglob("*.py") if _counts(path))
    return [
        f"{folder}: {count} modules, at most {MOST_MODULES} are allowed"
        for folder, count in sorted(crowds.items())
        if count > MOST_MODULES
    ]


def _counts(path: Path) -> bool:
    return path.name != "__init__.py" and not path.name.endswith("_pb2.py")


if __name__ == "__main__":
    default = Path(__file__).resolve().parents[1] / "tf_fuse"
    found = find_faults(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
    sys.exit("\n".join(found) or 0)
