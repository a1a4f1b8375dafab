# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a program as the task of a job that a platform has started."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from ..child_process import end_all, first_to_end
from ..interruption import Interrupted, interruptible
from .guardian import Guardian
from .job_health import JobHealth
from .program import GRACE_S, Program, exit_status
from .step_counts import StepCount

_COUNTER = "collective_steps"


def run_program(
    name: str,
    command: Sequence[str],
    config: str,
    is_replica: bool,
    health: tuple[str, int] | None = None,
) -> int:
    """Run a program; SIGINT and SIGTERM end it.

    Args:
      name: of the task, "job:index".
      command: the program's file and its arguments.
      config: TF_CONFIG.
      is_replica: whether it trains itself, so that its steps count.
      health: address and port where probes are answered; None for nowhere.

    Returns:
      The program's exit status; 128 and the signal's number if one ended it.

    Raises:
      OSError: the port is taken, or the address is not of this machine.
    """
    counts = {name: StepCount(_COUNTER)} if is_replica else {}
    with Guardian() as guardian, interruptible():
        try:
            with contextlib.ExitStack() as stack:
                answers = health and JobHealth(
                    *health, _COUNTER, lambda: {task: one.read() for task, one in counts.items()}
                )
                line = [sys.executable, "-u", *command]
                variables = {"TF_CONFIG": config}
                for count in counts.values():
                    variables |= count.variable
                program = Program(name, line, variables, None, guardian)
                stack.callback(end_all, [program], GRACE_S)
                if answers:
                    answers.has_started = True
                first_to_end([program.pid])
                return exit_status(program.wait())
        except Interrupted as interrupted:
            return interrupted.status
