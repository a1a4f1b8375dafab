# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run one task of a job on this host, for a launcher on another one.

    tf-fuse host-task [--ready-fd] COMMAND...

runs COMMAND until that ends, or this process's standard input does: then nobody wants the task any
more. What the command writes goes to standard error. Standard output has reports, each a line:

    tf_fuse task: {"steps": 20, "collective_steps": 0, "at_ms": 5100, "cpu_ms": 2300, ...}

one each second, as `step_counts` names the numbers. With --ready-fd the command gets a descriptor
by that option, and a report has the line that it writes there.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Sequence
from typing import Any, Final

import psutil

from ... import end_limits
from ...child_process import end_all
from ...interruption import Interrupted, interruptible
from ..guardian import Guardian
from ..step_counts import COUNTERS, StepCount
from ..task_program import TaskProgram, exit_status

COMMAND: Final = "host-task"  # of tf-fuse
READY: Final = "--ready-fd"
REPORT: Final = "tf_fuse task: "
IS_READY: Final = "ready"
_REPORT_S = 1.0
# The launcher waits longer for the process that stands for this one.
_SOONER_S = 1.0
_STDIN = 0


def main(arguments: Sequence[str]) -> int:
    """Run a command; return its status, or 128 and a signal's number if one ended it."""
    command = list(arguments)
    reports = os.dup(1)
    os.dup2(2, 1)  # This process and the command write there, whatever they print.
    grace_s = max(0.0, end_limits.current().program_s - _SOONER_S)
    count = StepCount(COUNTERS[0])
    try:
        with interruptible(), Guardian() as guardian, contextlib.ExitStack() as stack:
            ready = -1
            passed: tuple[int, ...] = ()
            if command[:1] == [READY]:
                ready, child = os.pipe()
                stack.callback(os.close, ready)
                command, passed = [*command[1:], READY, str(child)], (child,)
            try:
                task = TaskProgram("task", command, count.variable, None, guardian, passed)
            finally:
                for descriptor in passed:
                    os.close(descriptor)
            stack.callback(end_all, [task], grace_s)
            return _follow(task, _Reports(reports, task.pid, count), ready)
    except Interrupted as interrupted:
        return interrupted.status


class _Reports:
    """Writes reports of a task."""

    def __init__(self, out: int, pid: int, count: StepCount):
        self._out, self._count = out, count
        self._process = psutil.Process(pid)

    def write(self, **more: Any) -> bool:
        """Write one; return whether somebody can read it."""
        report: dict[str, Any] = {**self._count.read_all(), **more}
        report["at_ms"] = int(time.monotonic() * 1000)
        with contextlib.suppress(psutil.NoSuchProcess), self._process.oneshot():
            cpu = self._process.cpu_times()
            report["cpu_ms"] = int((cpu.user + cpu.system) * 1000)
            report["memory_bytes"] = self._process.memory_info().rss
        try:
            os.write(self._out, f"{REPORT}{json.dumps(report)}\n".encode())
        except BrokenPipeError:
            return False
        return True


def _follow(task: TaskProgram, reports: _Reports, ready: int) -> int:
    """Report what a task does until it ends; return its status, or that of SIGTERM if it must."""
    ended = os.pidfd_open(task.pid)
    poll = select.poll()
    for file in (_STDIN, ended, *([ready] if ready >= 0 else [])):
        poll.register(file, select.POLLIN)
    said = b""
    try:
        while True:
            found = [file for file, _ in poll.poll(_REPORT_S * 1000)]
            if ended in found:
                reports.write()
                return exit_status(task.wait())
            if _STDIN in found and not os.read(_STDIN, 4096):
                return 128 + signal.SIGTERM
            more = {}
            if ready in found:
                said += (chunk := os.read(ready, 4096))
                if not chunk or said.endswith(b"\n"):
                    poll.unregister(ready)
                    more = {IS_READY: said.decode()}
            if not reports.write(**more):
                return 128 + signal.SIGTERM
    finally:
        os.close(ended)
