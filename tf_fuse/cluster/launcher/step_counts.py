# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Count the steps of a task: tf_fuse adds them up in memory that the launcher reads, too."""

from __future__ import annotations

import os
import sys
from typing import Final

# Of the task's environment: the file. As in cc/base/metrics.cc, which maps it.
VARIABLE: Final = "TF_FUSE_STEPS_FILE"
COUNTERS: Final = ("steps", "collective_steps")  # as `tf_fuse.metrics` names them
_NAME = "tf_fuse_steps"
_BYTES = 8  # of each counter


class StepCount:
    """A number that a task on this machine counts up.

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
        self._file = os.memfd_create(_NAME)
        self._place = COUNTERS.index(counter) * _BYTES
        os.ftruncate(self._file, len(COUNTERS) * _BYTES)
        self.variable = {VARIABLE: f"/proc/{os.getpid()}/fd/{self._file}"}

    def read(self) -> int:
        """Return the number of steps so far; of all processes that the task has had."""
        return int.from_bytes(os.pread(self._file, _BYTES, self._place), sys.byteorder)
