# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The order in which several processes (`-n`) take test files.

Tests of clusters wait for processes much of their time, those of one process compute: side by side
they keep all cores busy. The last files are short ones, so that all processes end at about the same
time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import chain, zip_longest
from typing import Any

# Files of few tests that take minutes.
LONG = (
    "tests/cluster/all_passes/test_gradient_programs.py",
    "tests/fault/parameter_server/test_everything_faults.py",
    "tests/fault/parameter_server/test_keras_backup_faults.py",
    "tests/cluster/report/test_running_job.py",
    "tests/cluster/keras/test_processes.py",
    "tests/cluster/layout/test_execution.py",
)


def in_turn(files: Iterable[str]) -> list[str]:
    """Return the files, each once: long ones, then one that starts processes, one that does not.

    Args:
      files: of each test its file, as in "tests/unit/test_frame.py". Of each kind those with the
        most tests come first.
    """
    counts = Counter(files)
    ordered = sorted(counts.keys() - LONG, key=lambda file: (-counts[file], file))
    unit = [file for file in ordered if file.startswith("tests/unit/")]
    others = [file for file in ordered if not file.startswith("tests/unit/")]
    long = [file for file in LONG if file in counts]
    return [file for file in chain(long, *zip_longest(others, unit)) if file is not None]


def sort(items: list[Any]) -> None:
    """Sort tests of pytest in that order; those of a file stay as they are."""
    places = {file: i for i, file in enumerate(in_turn(map(_file, items)))}
    items.sort(key=lambda item: places[_file(item)])


def _file(item: Any) -> str:
    return item.nodeid.partition("::")[0]
