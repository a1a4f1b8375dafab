#!/usr/bin/env python3
# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check the `#include`s of cc/: no circle between files or folders, and no crowded folder.

A header and the source file of its name count as one file, so two pairs that need each other are
a circle. A folder is its own files, without those of its subfolders; the folders directly in cc/
are checked with their subfolders, too. Usage: check_includes.py [FOLDER], by default cc/.
"""

from __future__ import annotations

import graphlib
import itertools
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

MOST_FILES = 20
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def read_includes(root: Path) -> dict[str, set[str]]:
    """Return the files of `root` that each of its files includes, by path in `root`."""
    paths = {path.relative_to(root).as_posix() for path in root.rglob("*") if _is_source(path)}
    return {
        path: paths & set(_INCLUDE.findall((root / path).read_text(encoding="utf-8")))
        for path in paths
    }


def find_circle(
    includes: dict[str, set[str]], part_of: Callable[[str], str]
) -> list[tuple[str, str]]:
    """Return the includes that make a circle among the parts of the files, or an empty list."""
    edges: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    for source in sorted(includes):
        for target in sorted(includes[source]):
            if part_of(source) != part_of(target):
                edges[part_of(source)].setdefault(part_of(target), (source, target))
    try:
        graphlib.TopologicalSorter({part: list(to) for part, to in edges.items()}).prepare()
    except graphlib.CycleError as error:
        parts = error.args[1][::-1]
        return [edges[a][b] for a, b in itertools.pairwise(parts)]
    return []


def find_faults(root: Path) -> list[str]:
    """Return one text per crowded folder, and one per kind of circle."""
    includes = read_includes(root)
    crowds = Counter(_folder(path) for path in includes)
    faults = [
        f"{root / folder}: {count} C++ files, at most {MOST_FILES} are allowed"
        for folder, count in sorted(crowds.items())
        if count > MOST_FILES
    ]
    parts = {
        "files": lambda path: path.rsplit(".", 1)[0],
        "folders": _folder,
        "top folders": lambda path: path.split("/", 1)[0],
    }
    for kind, part_of in parts.items():
        if circle := find_circle(includes, part_of):
            lines = "".join(f"\n    {source} includes {target}" for source, target in circle)
            faults.append(f"{root}: {kind} include each other:{lines}")
    return faults


def _is_source(path: Path) -> bool:
    return path.suffix in (".h", ".cc")


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


if __name__ == "__main__":
    default = Path(__file__).resolve().parents[1] / "cc"
    found = find_faults(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
    sys.exit("\n".join(found) or 0)
