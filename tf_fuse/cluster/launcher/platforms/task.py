# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run the task of a job that a platform has started.

The platform shows what its tasks write, as `srun --label` or `kubectl logs` do, and so nothing is
put before their lines here. A file of a task's own is for whoever names a folder.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ... import end_limits
from ...child_process import end_all, first_to_end
from ...interruption import Interrupted, interruptible
from ..guardian import Guardian
from ..job_health import JobHealth
from ..log_follower import LogFollower, log_of
from ..step_counts import StepCount
from ..task_program import TaskProgram, exit_status

_COUNTER = "collective_steps"


def run_server(name: str, options: Sequence[str], config: str, log_dir: Path) -> int:
    """Run the task's server as a process of its own, whose output goes to a file, too.

    Args:
      name: of the task.
      options: of `tf-fuse run`.
      config: TF_CONFIG.
      log_dir: folder of the log.

    Returns:
      As `run_program`.
    """
    command = [sys.executable, "-u", "-m", "tf_fuse", "run", *options]
    return _run(name, command, {"TF_CONFIG": config}, None, log_dir)


def run_program(
    name: str,
    command: Sequence[str],
    config: str,
    is_replica: bool,
    health: tuple[str, int] | None = None,
    log_dir: Path | None = None,
) -> int:
    """Run a program; SIGINT and SIGTERM end it.

    Args:
      name: of the task, "job:index".
      command: the program's file and its arguments.
      config: TF_CONFIG.
      is_replica: whether it trains itself, so that its steps count.
      health: address and port where probes are answered; None for nowhere.
      log_dir: folder of a file that takes its output, too, after that of an earlier run; None for
        none.

    Returns:
      The program's exit status; 128 and the signal's number if one ended it.

    Raises:
      OSError: the port is taken, or the address is not of this machine.
    """
    counts = {name: StepCount(_COUNTER)} if is_replica else {}
    variables = {"TF_CONFIG": config}
    for count in counts.values():
        variables |= count.variable
    answers = health and JobHealth(
        *health, _COUNTER, lambda: {task: one.read() for task, one in counts.items()}
    )
    line = [sys.executable, "-u", *command]
    return _run(name, line, variables, answers, log_dir)


def _run(
    name: str,
    command: Sequence[str],
    variables: Mapping[str, str],
    health: JobHealth | None,
    log_dir: Path | None,
) -> int:
    limits = end_limits.current()
    log = log_dir and log_of(log_dir, name)
    follower = log and LogFollower(sys.stdout, names_tasks=False)
    if log and follower:
        follower.follow([log])
    status: int | None = None
    try:
        with interruptible(), Guardian() as guardian, contextlib.ExitStack() as stack:
            if follower:
                stack.enter_context(follower)
            program = TaskProgram(name, command, variables, log, guardian)
            stack.callback(end_all, [program], limits.program_s)
            if health:
                health.has_started = True
            try:
                first_to_end([program.pid])
            except Interrupted:
                if follower:
                    follower.wait_at_most(limits.output_s)
                raise
            status = exit_status(program.wait())
    except Interrupted as interrupted:  # After the program, its status stays.
        status = interrupted.status if status is None else status
    if follower and follower.is_stuck():  # Python would wait, too.
        os._exit(status)
    return status
