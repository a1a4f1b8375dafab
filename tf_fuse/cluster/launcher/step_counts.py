# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Count the steps of a task: tf_fuse adds them up in memory that the launcher reads, too.

Hosts do not share memory. There `hosts.host_task` reads the counts and says them, with what the
task uses, to the process that stands for the task here, which writes them into the launcher's.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import Final

# Of the task's environment: the file. As in cc/base/metrics.cc, which maps its counters.
VARIABLE: Final = "TF_FUSE_STEPS_FILE"
COUNTERS: Final = ("steps", "collective_steps")  # as `tf_fuse.metrics` names them
_OF_HOST: Final = ("at_ms", "cpu_ms", "memory_bytes")  # of a task on another host
_PLACES: Final = (*COUNTERS, *_OF_HOST)
_NAME = "tf_fuse_steps"
_BYTES = 8  # of each number


@dataclasses.dataclass(frozen=True)
class Usage:
    """What a host has said last of a task.

    Attributes:
      at_s: when, on the host's clock.
      cpu_s: processor time of its process.
      memory_bytes: resident memory of its process.
    """

    at_s: float
    cpu_s: float
    memory_bytes: int


class StepCount:
    """A number that a task counts up.

    The memory ends with the processes that use it; there is nothing to remove.

    Attributes:
      variable: of the task's environment, by which tf_fuse finds it.
    """

    def __init__(self, counter: str):
        """Make it.

        Args:
          counter: of `COUNTERS`. (In a replica each operation outside of a function counts as a
            step, too, so that its steps are those with collectives.)
        """
        self._counter = counter
        self._file = os.memfd_create(_NAME)
        os.ftruncate(self._file, len(_PLACES) * _BYTES)
        self.variable = {VARIABLE: f"/proc/{os.getpid()}/fd/{self._file}"}

    def read(self) -> int:
        """Return the number of steps so far; of all processes that the task has had."""
        return _read(self._file, self._counter)

    def read_all(self) -> dict[str, int]:
        """Return all of `COUNTERS`."""
        return {name: _read(self._file, name) for name in COUNTERS}

    def usage(self) -> Usage | None:
        """Return what the task's host has said last; None if it has said nothing."""
        at, cpu, memory = (_read(self._file, name) for name in _OF_HOST)
        return Usage(at / 1000, cpu / 1000, memory) if at else None


class HostReports:
    """Writes what a host says of a task into the memory of the task's launcher."""

    def __init__(self, path: str):
        """Open it.

        Args:
          path: as `VARIABLE` has it.
        """
        self._file = os.open(path, os.O_RDWR)
        # The counts of the task's earlier processes; this one's begin at 0.
        self._before = {name: _read(self._file, name) for name in COUNTERS}

    def write(self, report: Mapping[str, int]) -> None:
        """Write the numbers of a report, by their names."""
        for name in _PLACES:
            if name in report:
                number = report[name] + self._before.get(name, 0)
                data = number.to_bytes(_BYTES, sys.byteorder)
                os.pwrite(self._file, data, _PLACES.index(name) * _BYTES)


def _read(file: int, name: str) -> int:
    return int.from_bytes(os.pread(file, _BYTES, _PLACES.index(name) * _BYTES), sys.byteorder)
