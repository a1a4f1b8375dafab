# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Start, watch and end one task of a local cluster: its process, log and ready signal."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from . import serve

SERVE_PATH = Path(serve.__file__).resolve()
_LOG_TAIL_LINES = 40
_GRACE_S = 5.0
# Popen's arguments for a process group of its own; Python 3.10 has none for it.
_OWN_GROUP: dict[str, Any] = (
    {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}
)


def tf_config(cluster: Mapping[str, Sequence[str]], job: str, index: int, protocol: str) -> str:
    """Return the TF_CONFIG of a task.

    Args:
      cluster: job name to addresses.
      job: job name of the task.
      index: place in the job.
      protocol: of the task's server.
    """
    config = {
        "cluster": {name: list(tasks) for name, tasks in cluster.items()},
        "task": {"type": job, "index": index},
        "rpc_layer": protocol,
    }
    return json.dumps(config, sort_keys=True)


class ClusterStartError(RuntimeError):
    """A task did not become ready; the message has its exit status and the end of its log."""


@dataclasses.dataclass(frozen=True)
class Host:
    """Where a task runs, if not on this machine's loopback interface.

    Attributes:
      address: by which the other tasks reach it.
      command: what to put before a task's command there, e.g. ["ip", "netns", "exec", NAME] for a
        network namespace. It must become the task's process (exec), so that signals reach that.
    """

    address: str = "localhost"
    command: Sequence[str] = ()


class PortTakenError(ClusterStartError):
    """The task's port was taken between the choice and the start."""


@dataclasses.dataclass
class TaskProcess:
    """A task's process.

    Attributes:
      job: job name.
      index: place in the job.
      protocol: what the task's server speaks.
      log_path: file that takes the process's output; a restarted task appends to it.
      options: further arguments for `serve.py`.
      prefix: what to put before its command; it must become the task's process (exec), so that
        signals reach that.
    """

    job: str
    index: int
    protocol: str
    log_path: Path
    options: Sequence[str] = ()
    prefix: Sequence[str] = ()
    _process: subprocess.Popen | None = None
    _lifeline_fd: int = -1
    _ready_fd: int = -1
    _last_cpu_s: float = 0.0

    @property
    def name(self) -> str:
        """The task as "job:index"."""
        return f"{self.job}:{self.index}"

    @property
    def process(self) -> subprocess.Popen:
        """The task's process, running or not; RuntimeError before the first start."""
        if self._process is None:
            raise RuntimeError(f"task {self.name} was never started")
        return self._process

    def start(self, cluster: Mapping[str, Sequence[str]], env: Mapping[str, str]) -> None:
        """Start the process; `wait_ready` waits for its server.

        Args:
          cluster: job name to addresses.
          env: the process's whole environment; TF_CONFIG is added.
        """
        # Python's pipes are not inherited unless named in pass_fds, so no sibling holds an end.
        lifeline_child, self._lifeline_fd = os.pipe()
        self._ready_fd, ready_child = os.pipe()
        command = [*self.prefix, sys.executable, "-u", str(SERVE_PATH), *self.options]
        command += ["--lifeline-fd", str(lifeline_child), "--ready-fd", str(ready_child)]
        try:
            with self.log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={
                        **env,
                        "TF_CONFIG": tf_config(cluster, self.job, self.index, self.protocol),
                    },
                    pass_fds=(lifeline_child, ready_child),
                    # A group of its own: Ctrl-C reaches the parent alone, which then closes in
                    # order; and a *stopped* task whose parent dies is woken by the kernel (its
                    # group is orphaned), so that it can see its lifeline cut.
                    **_OWN_GROUP,
                )
        except BaseException:
            self._close_pipes()
            raise
        finally:
            os.close(lifeline_child)
            os.close(ready_child)
        self._last_cpu_s = 0.0

    def wait_ready(self, deadline: float) -> None:
        """Wait until the task's server accepts calls.

        Args:
          deadline: on the clock of `time.monotonic`, in seconds.

        Raises:
          PortTakenError: the port was taken by another process.
          ClusterStartError: the process died, or the deadline passed.
        """
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._ready_fd], [], [], left)[0]:
                raise ClusterStartError(
                    f"task {self.name} was not ready in time; the end of its log "
                    f"({self.log_path}):\n{self.log_tail()}"
                )
            chunk = os.read(self._ready_fd, 4096)
            if not chunk:
                # End of file without a ready line: the process died (or is about to).
                status = self.process.wait()
                kind = PortTakenError if status == serve.EXIT_PORT_IN_USE else ClusterStartError
                raise kind(
                    f"task {self.name} ended with status {status} before it was ready; the end "
                    f"of its log ({self.log_path}):\n{self.log_tail()}"
                )
            line += chunk
        os.close(self._ready_fd)
        self._ready_fd = -1

    def log(self) -> str:
        """Return everything that the task has written to stdout and stderr."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log().splitlines()[-_LOG_TAIL_LINES:]) or "(the log is empty)"

    def cpu_s(self) -> float:
        """Return user and system CPU seconds of the running process, all threads; 10 ms resolution.

        For a process that has ended: the last value that was read of it.
        """
        try:
            times = psutil.Process(self.process.pid).cpu_times()
            self._last_cpu_s = times.user + times.system
        except psutil.NoSuchProcess:
            pass  # ended and reaped: the last value stays, as documented
        return self._last_cpu_s

    def signal(self, number: int) -> None:
        """Send a signal to the running process.

        Raises:
          RuntimeError: the process has ended.
        """
        if self.process.poll() is not None:
            raise RuntimeError(
                f"task {self.name} (pid {self.process.pid}) has ended with status "
                f"{self.process.returncode}, so it cannot take signal {signal.Signals(number).name}"
            )
        self.process.send_signal(number)

    def stop(self) -> None:
        """Stop the running process with SIGSTOP, and return when it has stopped.

        Raises:
          RuntimeError: the process has ended.
        """
        self.signal(signal.SIGSTOP)
        # Without WNOWAIT this would take the status of a process that ends meanwhile from Popen.
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        """Kill the process with SIGKILL, also a stopped one, and reap it, unless it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._close_pipes()

    def end(self) -> None:
        """Cut the lifeline, so that the process exits by itself."""
        self._close_pipes()

    def reap(self, deadline: float) -> None:
        """Wait for a process whose lifeline was cut; kill it if it is stopped or late."""
        if self._process is None:
            return
        if not self._is_stopped():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=max(0.0, deadline - time.monotonic()))
        if self._process.poll() is None:
            self.kill()

    def _is_stopped(self) -> bool:
        try:
            return psutil.Process(self.process.pid).status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            return False

    def _close_pipes(self) -> None:
        for fd in (self._lifeline_fd, self._ready_fd):
            if fd >= 0:
                os.close(fd)
        self._lifeline_fd = self._ready_fd = -1


def end_all(tasks: Sequence[TaskProcess]) -> None:
    """End every process: ask all, wait for them, then kill those that are stopped or slow."""
    for task in tasks:
        task.end()
    deadline = time.monotonic() + _GRACE_S
    for task in tasks:
        task.reap(deadline)
