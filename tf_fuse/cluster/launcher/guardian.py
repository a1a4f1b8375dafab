# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""End what a job leaves behind, also if its launcher is killed.

    python guardian.py JOB

runs as a process of its own, which outlives the launcher for a moment. It kills the process groups
of the programs, and each process with the job's name in its environment: those that a program has
started in a session of their own, too.

Only the standard library is imported: this file runs outside of its package.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

_VARIABLE = "TF_FUSE_JOBS"  # the jobs that a process belongs to; a job may launch another one
_SECONDS = 2.0  # for the kernel to end what was killed


class Guardian:
    """The processes of one job: none outlives this object or this process.

    Attributes:
      variables: of the environment that marks a process, and those that it starts, as the job's.
    """

    def __init__(self) -> None:
        self._job = uuid.uuid4().hex
        jobs = [*filter(None, [os.environ.get(_VARIABLE)]), self._job]
        self.variables = {_VARIABLE: ",".join(jobs)}
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(__file__).resolve()), self._job],
            stdin=subprocess.PIPE,
            # Whoever reads this process's output waits for this process alone.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C does not reach it.
        )

    def __enter__(self) -> Guardian:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end_processes()
        assert self._process.stdin is not None  # opened as a pipe
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()

    def watch(self, group: int) -> None:
        """Watch a process group of the job."""
        self._tell(b"+%d\n" % group)

    def forget(self, group: int) -> None:
        """Leave out a group whose last process has ended, before its number can be another's."""
        self._tell(b"-%d\n" % group)

    def end_processes(self) -> None:
        """Kill all processes with the job's mark, after the programs have ended."""
        _kill_marked(self._job)

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None  # opened as a pipe
        with contextlib.suppress(BrokenPipeError):  # Somebody has killed it: the job goes on.
            self._process.stdin.write(line)
            self._process.stdin.flush()


def _marked(job: bytes) -> Iterator[int]:
    """Yield the processes of this user that a job's mark is on; one that has ended has none."""
    start = _VARIABLE.encode() + b"="
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for variable in (folder / "environ").read_bytes().split(b"\0"):
                if variable.startswith(start) and job in variable[len(start) :].split(b","):
                    yield int(folder.name)


def _kill_marked(job: str) -> None:
    """Kill the processes that a job's mark is on, and those that they start meanwhile."""
    deadline = time.monotonic() + _SECONDS
    while marked := list(_marked(job.encode())):
        for pid in marked:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:  # One waits for a disk, and ends after that.
            return
        time.sleep(0.01)


def _guard(job: str) -> None:
    """Kill what is left when the other end of the pipe has closed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        (groups.add if line.startswith(b"+") else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    _kill_marked(job)


if __name__ == "__main__":
    _guard(sys.argv[1])
