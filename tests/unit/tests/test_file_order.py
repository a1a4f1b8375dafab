# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The order of test files in a run in several processes."""

from pathlib import Path
from types import SimpleNamespace

from tests import file_order

_ROOT = Path(__file__).resolve().parents[3]
_COUNTS = {
    "tests/cluster/a/test_one.py": 1,
    "tests/cluster/a/test_many.py": 3,
    "tests/unit/b/test_most.py": 4,
    "tests/unit/b/test_first.py": 2,
    "tests/unit/b/test_last.py": 2,
    "tests/fault/c/test_some.py": 2,
    file_order.LONG[1]: 1,
}
_ORDER = [
    file_order.LONG[1],
    "tests/cluster/a/test_many.py",
    "tests/unit/b/test_most.py",
    "tests/fault/c/test_some.py",
    "tests/unit/b/test_first.py",
    "tests/cluster/a/test_one.py",
    "tests/unit/b/test_last.py",
]


def test_files_that_start_processes_and_others_come_in_turn():
    assert file_order.in_turn(file for file, n in _COUNTS.items() for _ in range(n)) == _ORDER


def test_tests_of_a_file_stay_together_and_in_order():
    tests = [(file, i) for i in range(4) for file, n in _COUNTS.items() if i < n]
    items = [SimpleNamespace(nodeid=f"{file}::test[{i}::x]") for file, i in tests]
    file_order.sort(items)
    expected = [f"{file}::test[{i}::x]" for file in _ORDER for i in range(_COUNTS[file])]
    assert [item.nodeid for item in items] == expected


def test_long_files_are_there():
    assert [file for file in file_order.LONG if not (_ROOT / file).is_file()] == []
