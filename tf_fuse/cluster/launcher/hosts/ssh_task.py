# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run one task of a job on another host by ssh, as a process of this one.

    tf-fuse ssh-task HOST FOLDER COMMAND...

stands for COMMAND, which `host_task` runs on the host, in the folder there: it writes what that
writes, and has its status. The command on the host ends when its standard input does: when this
process is to end (SIGTERM, or the pipe of COMMAND's option --lifeline-fd closes) or has been
killed. What the host reports goes to the pipe of COMMAND's option --ready-fd, and into the
launcher's memory for the task. The host has the same Python, at the same path. Of this process's
environment, `_PASSED` and PYTHONPATH go there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...child_process import PipedProcess
from .. import guardian
from ..step_counts import VARIABLE, HostReports
from . import host_task

COMMAND: Final = "ssh-task"  # of tf-fuse
OPTIONS: Final = (
    "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
    # A host that has lost its power is an error after a minute.
    "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4",
)  # fmt: skip
_PASSED: Final = ("TF_", "GRPC_", "KERAS_")  # how names of variables begin; as --help says
_OF_HERE: Final = (guardian.VARIABLE,)  # Processes on the host have a mark of their own.
_END_S = 5.0


def prefix(host: str) -> list[str]:
    """Return what to put before a command to run it on a host, in this process's folder there."""
    return [sys.executable, "-u", "-m", "tf_fuse", COMMAND, host, os.getcwd()]


def _remote_command(folder: str, command: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the line of the shell on the host."""
    passed = [
        f"{name}={value}"
        for name, value in sorted(environ.items())
        if (name.startswith(_PASSED) or name == "PYTHONPATH") and name not in _OF_HERE
    ]
    words = ["exec", "env", *passed, *command]
    return f"cd {shlex.quote(folder)} && " + " ".join(map(shlex.quote, words))


def _take(arguments: list[str], option: str) -> int | None:
    """Remove an option with a file descriptor from a command line; return the descriptor."""
    if option not in arguments:
        return None
    place = arguments.index(option)
    number = int(arguments[place + 1])
    del arguments[place : place + 2]
    return number


def _report_in(line: str) -> dict[str, Any] | None:
    """Return the report that a line of the host has; None if it has another text."""
    with contextlib.suppress(ValueError):
        if line.startswith(host_task.REPORT):
            found = json.loads(line.removeprefix(host_task.REPORT))
            return found if isinstance(found, dict) else None
    return None


def main(arguments: Sequence[str]) -> int:
    """Run a command on a host; return its status, or 255 if the host cannot be reached."""
    host, folder, *command = arguments
    lifeline, ready = _take(command, "--lifeline-fd"), _take(command, host_task.READY)
    environ = dict(os.environ)
    memory = environ.pop(VARIABLE, None)
    reports = HostReports(memory) if memory else None
    options = [host_task.READY] if ready is not None else []
    words = [sys.executable, "-u", "-m", "tf_fuse", host_task.COMMAND, *options, *command]
    ssh = PipedProcess(f"ssh to {host}")

    def end() -> None:
        ssh.ask_to_end()
        late = threading.Timer(_END_S, ssh.kill)
        late.daemon = True
        late.start()

    def watch(descriptor: int) -> None:
        while os.read(descriptor, 1):
            pass
        end()

    ssh.start(["ssh", *OPTIONS, host, _remote_command(folder, words, environ)], environ, None)
    signal.signal(signal.SIGTERM, lambda *_: end())
    if lifeline is not None:
        threading.Thread(target=watch, args=(lifeline,), daemon=True).start()
    for line in ssh.lines():
        report = _report_in(line)
        if report is None:  # of the shell there
            print(line, end="", flush=True)
            continue
        if reports is not None:
            reports.write(report)
        if ready is not None and host_task.IS_READY in report:
            with contextlib.suppress(BrokenPipeError):  # nobody waits any more
                os.write(ready, report[host_task.IS_READY].encode())
            os.close(ready)
            ready = None
    status = ssh.wait()
    return status if status >= 0 else 128 - status
