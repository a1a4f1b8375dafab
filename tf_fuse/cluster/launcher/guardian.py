# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""End what a job leaves behind, also if its launcher is killed.

    python guardian.py JOB [FOLDER]

runs as a process of its own, which outlives the launcher for a moment. It kills the process groups
of the programs, and each process with the job's name in its environment: those that a program has
started in a session of their own, too. Then it removes the job's temporary folder, unless the
launcher has asked it to keep the folder.

Only the standard library is imported: this file runs outside of its package. It is not started as
a `ChildProcess`, which ends before the process that starts it: this one ends after that.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_KEEP = b"keep\n"
VARIABLE = "TF_FUSE_JOBS"  # the jobs that a process belongs to; a job may launch another one
_SECONDS = 2.0  # for the kernel to end what was killed, if the launcher does not wait


class Guardian:
    """The processes of one job: none outlives this object or this process.

    Attributes:
      variables: of the environment that marks a process, and those that it starts, as the job's.
    """

    def __init__(self, folder: Path | None = None):
        """Start the process that watches this one.

        Args:
          folder: of temporary files of the job, which goes with its processes; this process makes
            it afterwards, so that it is never without a guardian.
        """
        self._folder, self._keeps_folder = folder, False
        self._job = uuid.uuid4().hex
        jobs = [*filter(None, [os.environ.get(VARIABLE)]), self._job]
        self.variables = {VARIABLE: ",".join(jobs)}
        command = [sys.executable, "-I", str(Path(__file__).resolve()), self._job]
        self._process = subprocess.Popen(
            [*command, *([str(folder)] if folder else [])],
            stdin=subprocess.PIPE,
            # Whoever reads this process's output waits for this process alone.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C does not reach it.
        )

    def __enter__(self) -> Guardian:
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        from ..interruption import Interrupted

        # Who is interrupted inside has no logs yet, or has said whether they stay.
        if kind not in (None, Interrupted):
            self.keep_folder()
        self.end_processes()
        assert self._process.stdin is not None  # opened as a pipe
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_limits().guardian_s)
        except subprocess.TimeoutExpired:  # It is stopped, or waits for a disk.
            self._process.kill()
        if self._folder:  # Somebody may have killed the guardian.
            _remove(self._folder, self._keeps_folder)

    def watch(self, group: int) -> None:
        """Watch a process group of the job."""
        self._tell(b"+%d\n" % group)

    def forget(self, group: int) -> None:
        """Leave out a group whose last process has ended, before its number can be another's."""
        self._tell(b"-%d\n" % group)

    def keep_folder(self) -> None:
        """Leave the folder for the user, unless it is empty."""
        self._keeps_folder = True
        self._tell(_KEEP)

    def end_processes(self) -> None:
        """Kill all processes with the job's mark, after the programs have ended."""
        _kill_marked(self._job, _limits().left_s)

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None  # opened as a pipe
        with contextlib.suppress(BrokenPipeError):  # Somebody has killed it: the job goes on.
            self._process.stdin.write(line)
            self._process.stdin.flush()


def _marked(job: bytes) -> Iterator[int]:
    """Yield the processes of this user that a job's mark is on; one that has ended has none."""
    start = VARIABLE.encode() + b"="
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            for variable in (folder / "environ").read_bytes().split(b"\0"):
                if variable.startswith(start) and job in variable[len(start) :].split(b","):
                    yield int(folder.name)


def _limits() -> Any:
    """Return the limits of the launcher; its own process has none of this package."""
    from .. import end_limits

    return end_limits.current()


def _kill_marked(job: str, seconds: float = _SECONDS) -> None:
    """Kill the processes that a job's mark is on, and those that they start meanwhile."""
    deadline = time.monotonic() + seconds
    while marked := list(_marked(job.encode())):
        for pid in marked:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:  # One waits for a disk, and ends after that.
            return
        time.sleep(0.01)


def _remove(folder: Path, keeps_files: bool) -> None:
    """Remove a folder with all that is in it; if that is kept, only an empty folder."""
    with contextlib.suppress(OSError):
        if keeps_files:
            folder.rmdir()
        else:
            shutil.rmtree(folder)


def _guard(job: str, folder: Path | None = None) -> None:
    """Kill and remove what is left when the other end of the pipe has closed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    keeps_files = False
    for line in sys.stdin.buffer:
        if line == _KEEP:
            keeps_files = True
        else:
            (groups.add if line.startswith(b"+") else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    _kill_marked(job)
    if folder:
        _remove(folder, keeps_files)


if __name__ == "__main__":
    _guard(sys.argv[1], *map(Path, sys.argv[2:]))
