# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Start, watch and end processes: the tasks of a cluster, and programs.

Whatever starts a task of a cluster does it by these classes: `LocalCluster`, `tf-fuse launch` here
and by ssh, calibration, the examples and the benchmarks. (`tf-fuse bench` and `doctor` run a
program to its end by `subprocess.run`: the tasks are those of the program's `LocalCluster`.)
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

# Popen's arguments for a process group of its own; Python 3.10 has none for it. (If this process
# dies, the kernel wakes a *stopped* child, whose group is orphaned: it can see its lifeline cut.)
_OWN_GROUP: dict[str, Any] = (
    {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
)


class ChildProcess:
    """A process that this one starts, in a group of its own: Ctrl-C reaches this process alone.

    Attributes:
      name: for messages; of a task "job:index".
    """

    def __init__(self, name: str):
        self.name = name
        self._process: subprocess.Popen | None = None
        self._ends = threading.Lock()

    @property
    def process(self) -> subprocess.Popen:
        """The process, running or not; RuntimeError before the first start."""
        if self._process is None:
            raise RuntimeError(f"task {self.name} was never started")
        return self._process

    @property
    def pid(self) -> int:
        """The id of the process, running or not; RuntimeError before the first start."""
        return self.process.pid

    def run(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path | None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Start the process; it reads nothing.

        Args:
          command: its command line.
          env: its whole environment.
          log: file to add its output to; None for the output of this process.
          pass_fds: file descriptors that it inherits.
        """
        self._start(command, env, log, pass_fds, stdin=subprocess.DEVNULL)

    def _start(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path | None,
        pass_fds: Sequence[int] = (),
        **options: Any,
    ) -> None:
        """Start the process; standard output goes to the log, unless `options` say more."""
        with contextlib.ExitStack() as stack:
            output = None if log is None else stack.enter_context(log.open("ab"))
            files: dict[str, Any] = {"stdout": output, "stderr": output, **options}
            self._process = subprocess.Popen(
                command, env=env, pass_fds=pass_fds, **files, **_OWN_GROUP
            )

    def has_ended(self) -> bool:
        """Return whether the process has ended; `wait` still returns its status."""
        return self.process.returncode is not None or first_to_end([self.pid], 0.0) != 0

    def wait(self) -> int:
        """Wait for the end of the process; kill what is left of its group; return its status.

        Several threads may wait.
        """
        if self.process.returncode is None:
            first_to_end([self.pid])
        with self._ends:
            if self.process.returncode is None:
                # Before its status is asked for, the number of its group cannot be another's.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, signal.SIGKILL)
            return self.process.wait()

    def ask_to_end(self) -> None:
        """Send SIGTERM, unless the process has ended."""
        if self._process is not None and not self.has_ended():
            os.kill(self.pid, signal.SIGTERM)

    def signal(self, number: int) -> None:
        """Send a signal to the running process.

        Raises:
          RuntimeError: the process has ended.
        """
        if self.has_ended():
            raise RuntimeError(
                f"task {self.name} (pid {self.pid}) has ended with status {self.wait()}, so it "
                f"cannot take signal {signal.Signals(number).name}"
            )
        os.kill(self.pid, number)

    def stop(self) -> None:
        """Stop the running process with SIGSTOP, and return when it has stopped.

        Raises:
          RuntimeError: the process has ended.
        """
        self.signal(signal.SIGSTOP)
        # Without WNOWAIT this would take the status of a process that ends meanwhile from `wait`.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        """Kill the process with SIGKILL, also a stopped one, and wait for its end."""
        if self._process is not None:
            if not self.has_ended():
                os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def is_stopped(self) -> bool:
        """Return whether a signal has stopped the process."""
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            return False


class PipedProcess(ChildProcess):
    """A process that reads lines of this one, and answers by lines.

    It ends when its standard input does: also when this process has ended, however that was.
    """

    def start(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path | None,
        folder: str | os.PathLike[str] | None = None,
        answers: bool = True,
    ) -> None:
        """Start the process.

        Args:
          command: its command line.
          env: its whole environment.
          log: file to add its standard error to; None for that of this process.
          folder: where it runs; None for that of this process.
          answers: whether this process reads its standard output, which else goes to the log.
        """
        pipe = subprocess.PIPE
        pipes: dict[str, Any] = {"stdin": pipe, "stdout": pipe} if answers else {"stdin": pipe}
        self._start(command, env, log, cwd=folder, text=True, errors="replace", **pipes)

    def send(self, line: str) -> None:
        """Write a line to the process.

        Raises:
          BrokenPipeError: it has ended, or reads no more.
        """
        pipe = self.process.stdin
        assert pipe is not None  # opened as a pipe
        if pipe.closed:
            raise BrokenPipeError(f"the standard input of {self.name} is closed")
        pipe.write(line + "\n")
        pipe.flush()

    def receive(self) -> str:
        """Return the next line that the process writes, with its end; "" after the last one."""
        pipe = self.process.stdout
        assert pipe is not None  # opened as a pipe
        line = "" if pipe.closed else pipe.readline()
        if not line:
            pipe.close()
        return line

    def lines(self) -> Iterator[str]:
        """Yield all lines that `receive` returns from now on."""
        return iter(self.receive, "")

    def ask_to_end(self) -> None:
        """Close the standard input of the process."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()


def first_to_end(pids: Sequence[int], seconds: float | None = None) -> int:
    """Wait until one of the processes has ended, but not longer; return its id, or 0 for none.

    Nothing is polled (pidfd_open(2)); a handler of a signal may raise.
    """
    files: dict[int, int] = {}
    try:
        for pid in pids:
            try:
                files[os.pidfd_open(pid)] = pid
            except ProcessLookupError:  # Its status was asked for.
                return pid
        poll = select.poll()
        for file in files:
            poll.register(file, select.POLLIN)
        ready = poll.poll(None if seconds is None else seconds * 1000)
        return files[ready[0][0]] if ready else 0
    finally:
        for file in files:
            os.close(file)


def end_all(children: Sequence[ChildProcess], grace_s: float) -> None:
    """End every process: ask all, wait for them, then kill those that are stopped or slow.

    Args:
      children: running, or not.
      grace_s: seconds that they have together.
    """
    started = [one for one in children if one._process is not None]
    for child in started:
        child.ask_to_end()
    deadline = time.monotonic() + grace_s
    for child in started:
        while not child.has_ended() and not child.is_stopped():
            if (left := deadline - time.monotonic()) <= 0:
                break
            first_to_end([child.pid], left)
    for child in started:
        child.kill()
