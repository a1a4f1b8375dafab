# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How long each part of a job may take to end after the first SIGINT or SIGTERM."""

from __future__ import annotations

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True)
class EndLimits:
    """Limits in seconds, one after the other.

    Attributes:
      total_s: this process ends then, whatever still waits; the tasks end with it.
      program_s: for programs, after SIGTERM.
      tasks_s: for servers and workers, after that.
      left_s: for the kernel to end what was killed by the job's mark; waited for twice.
      output_s: for whoever reads the output.
      guardian_s: for the process that removes what is left.
    """

    total_s: float
    program_s: float
    tasks_s: float
    left_s: float
    output_s: float
    guardian_s: float

    @property
    def sum_s(self) -> float:
        """What all parts take if each needs its limit."""
        waits = (self.program_s, self.tasks_s, 2 * self.left_s, self.output_s, self.guardian_s)
        return sum(waits)

    def with_program(self, seconds: float) -> EndLimits:
        """Return limits with another one for programs, and a total that fits."""
        total = self.total_s - self.program_s + seconds
        return dataclasses.replace(self, total_s=total, program_s=seconds)


JOB: Final = EndLimits(
    total_s=10.0, program_s=4.0, tasks_s=2.5, left_s=0.5, output_s=1.0, guardian_s=1.0
)
# Of the command of a container: what stops that waits, and may kill it soon.
CONTAINER: Final = EndLimits(
    total_s=2.0, program_s=1.0, tasks_s=0.25, left_s=0.1, output_s=0.2, guardian_s=0.2
)
_limits = JOB


def current() -> EndLimits:
    """Return the limits of this process."""
    return _limits


def use(limits: EndLimits) -> None:
    """Set the limits of this process."""
    global _limits
    _limits = limits
