# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Start and watch one task of a local cluster: its process, log and ready signal."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

from . import serve
from .child_process import ChildProcess

SERVE_PATH = Path(serve.__file__).resolve()
GRACE_S = 5.0  # for tasks whose lifeline was cut
# Of the environment of a task whose clients are all on this machine: it listens there alone, also
# if its cluster names no other task. As in cc/server/loopback.cc.
ONE_HOST: Final = {"TF_FUSE_ONE_HOST": "1"}
_LOG_TAIL_LINES = 40


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


class TaskProcess(ChildProcess):
    """A task's process, which ends when this one does, however that ends.

    Attributes:
      job: job name.
      protocol: what the task's server speaks.
      log_path: file that takes the process's output, after all that it has.
    """

    def __init__(
        self,
        job: str,
        index: int,
        protocol: str,
        log_path: Path,
        options: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ):
        """Describe it; `start` starts it.

        Args:
          job: job name.
          index: place in the job.
          protocol: what the task's server speaks.
          log_path: file that takes the process's output.
          options: further arguments for `serve.py`.
          prefix: what to put before its command; it must become the task's process (exec), so that
            signals reach that.
        """
        super().__init__(f"{job}:{index}")
        self.job, self.protocol, self.log_path = job, protocol, log_path
        self._index, self._options, self._prefix = index, options, prefix
        self._log_begin = log_path.stat().st_size if log_path.exists() else 0
        self._lifeline_fd = self._ready_fd = -1
        self._last_cpu_s = 0.0

    def start(self, cluster: Mapping[str, Sequence[str]], env: Mapping[str, str]) -> None:
        """Start the process; `wait_ready` waits for its server.

        Args:
          cluster: job name to addresses.
          env: the process's whole environment; TF_CONFIG is added.
        """
        # Python's pipes are not inherited unless named in pass_fds, so no sibling holds an end.
        lifeline_child, self._lifeline_fd = os.pipe()
        self._ready_fd, ready_child = os.pipe()
        command = [*self._prefix, sys.executable, "-u", str(SERVE_PATH), *self._options]
        command += ["--lifeline-fd", str(lifeline_child), "--ready-fd", str(ready_child)]
        config = tf_config(cluster, self.job, self._index, self.protocol)
        try:
            self.run(
                command,
                {**env, "TF_CONFIG": config},
                self.log_path,
                pass_fds=(lifeline_child, ready_child),
            )
        except BaseException:
            self.ask_to_end()
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
                status = self.wait()
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
        if not self.log_path.exists():
            return ""
        return self.log_path.read_bytes()[self._log_begin :].decode(errors="replace")

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

    def kill(self) -> None:
        """Kill the process with SIGKILL, also a stopped one, and wait for its end."""
        super().kill()
        self.ask_to_end()

    def ask_to_end(self) -> None:
        """Cut the lifeline, so that the process exits by itself."""
        for fd in (self._lifeline_fd, self._ready_fd):
            if fd >= 0:
                os.close(fd)
        self._lifeline_fd = self._ready_fd = -1
