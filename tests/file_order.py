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

# Files that take long though they have few tests: those of clusters and of one process in turn.
LONG = (
    "tests/cluster/all_passes/test_gradient_programs.py",
    "tests/fault/parameter_server/test_everything_faults.py",
    "tests/cluster/keras/test_processes.py",
    "tests/cluster/report/test_running_job.py",
    "tests/cluster/layout/test_execution.py",
    "tests/fault/parameter_server/test_keras_backup_faults.py",
    "tests/unit/layout/keras/test_model.py",
    "tests/cluster/cli/test_launch_quickstarts.py",
    "tests/unit/layout/execution/test_execute.py",
    "tests/cluster/examples/test_wide_deep.py",
    "tests/unit/packaging/test_setup_wheel.py",
    "tests/unit/layout/execution/kernels/test_halo.py",
    "tests/fault/parameter_server/test_keras_fit_faults.py",
    "tests/unit/layout/execution/test_execute_control_flow.py",
    "tests/cluster/monitoring/test_normal_logs.py",
    "tests/unit/layout/execution/test_execute_communicating_bodies.py",
    "tests/fault/launch/test_launch_faults.py",
    "tests/unit/_importing/test_with_tensorflow.py",
    "tests/fault/soak/test_soak.py",
    "tests/fault/transport/test_silent_hosts.py",
    "tests/cluster/docs/test_tutorial.py",
    "tests/unit/layout/execution/kernels/test_random_numbers.py",
    "tests/unit/layout/execution/kernels/test_distinct_rows.py",
)


def in_turn(files: Iterable[str]) -> list[str]:
    """Return the files, each once: long ones, then one that starts processes, one that does not.

    Args:
      files: of each test its file, as in "tests/unit/test_native.py". Of each kind those with the
        most tests come first.
    """
    counts = Counter(files)
    ordered = sorted(counts.keys() - LONG, key=lambda file: (-counts[file], file))
    unit = [file for file in ordered if file.startswith("tests/unit/")]
    others = [file for file in ordered if not file.startswith("tests/unit/")]
    long = [file for file in LONG if file in counts]
    return [file for file in chain(long, *zip_longest(others, unit)) if file is not None]


def sort(items: list[Any]) -> None:
    """Sort tests of pytest in that order; those of a file keep their order."""
    places = {file: i for i, file in enumerate(in_turn(map(_file, items)))}
    items.sort(key=lambda item: places[_file(item)])


def _file(item: Any) -> str:
    return item.nodeid.partition("::")[0]
