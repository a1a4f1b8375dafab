# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Start clusters of processes on the loopback interface, for tests, demos and benchmarks."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from . import end_limits
from .child_process import end_all
from .ports import HeldPorts
from .serve import FUSED_PROTOCOL
from .task_process import GRACE_S, ONE_HOST, Host, PortTakenError, TaskProcess

_PORT_ATTEMPTS = 5


class LocalCluster:
    """Workers and parameter servers as processes of this machine.

    The calling process is the coordinator, not a member of the cluster: pass `resolver()` to
    `tf.distribute.ParameterServerStrategy`, which adds the calling process as the job `chief`.

    No process outlives the caller, however the caller ends: each task holds the read end of a pipe
    whose write end only the caller has. (A caller that forks without exec shares that end with its
    child; start such children before the cluster.)

        with LocalCluster(workers=2, ps=1) as cluster:
            strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())

    Attributes:
      log_dir: folder with one file per task, e.g. `worker-0.log`.
    """

    def __init__(
        self,
        workers: int = 1,
        ps: int = 1,
        protocol: str | Mapping[str, str] = FUSED_PROTOCOL,
        log_dir: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        *,
        task_env: Mapping[str, Mapping[str, str]] | None = None,
        start_timeout_s: float = 120.0,
        inter_op: int | None = None,
        intra_op: int | None = None,
        cpus: int | None = None,
        session_config: str | None = None,
        hosts: Mapping[str, Host] | None = None,
    ):
        """Start every task, and return when all of them accept calls.

        Args:
          workers: number of workers, at least 1.
          ps: number of parameter servers, at least 0.
          protocol: what the servers speak, "grpc" or "grpc+fuse"; or a mapping from task
            ("worker:0") or job ("ps") to it, a task's own entry before its job's.
          log_dir: folder for the logs, created when absent, where those of an earlier cluster are
            added to; None for a temporary one, which is removed on `close`, but kept when the
            `with` block ends by an exception.
          env: environment variables for the tasks, added to the caller's.
          task_env: by task ("worker:0") or job ("ps"), variables added to those for it alone; a
            task's own after its job's.
          start_timeout_s: seconds until all tasks must be ready.
          inter_op: inter_op_parallelism_threads of each server; None for TensorFlow's default.
          intra_op: intra_op_parallelism_threads of each server; None for TensorFlow's default.
          cpus: logical CPU devices of each server; None for one.
          session_config: each server's ConfigProto in protobuf's text format.
          hosts: by task ("worker:0") or job ("ps"), where those run; a task's own before its
            job's, and this machine's loopback interface for all others. "chief" is where the
            calling process runs, and the address that the tasks use for it.

        Raises:
          ValueError: a number is out of range, a task has no protocol, or `task_env` or `hosts`
            names an unknown task.
          ClusterStartError: a task died or was not ready in time; the message has the end of its
            log.
        """
        if workers < 1 or ps < 0:
            raise ValueError(
                f"a cluster needs workers >= 1 and ps >= 0, got workers={workers} and ps={ps}"
            )
        counts = {"worker": workers, "ps": ps}
        names = [(job, index) for job, count in counts.items() for index in range(count)]
        self._protocol = protocol
        protocols = {f"{job}:{index}": _protocol_of(protocol, job, index) for job, index in names}
        task_env = task_env or {}
        unknown = sorted(task_env.keys() - {*counts, *protocols})
        if unknown:
            raise ValueError(f"task_env names {unknown}; this cluster has {list(protocols)}")
        self._hosts = dict(hosts or {})
        unknown = sorted(self._hosts.keys() - {*counts, *protocols, "chief"})
        if unknown:
            raise ValueError(f"hosts names {unknown}; this cluster has {list(protocols)} and chief")
        self._keep_logs = log_dir is not None
        self.log_dir = Path(log_dir or tempfile.mkdtemp(prefix="tf_fuse_cluster_"))
        self.log_dir.mkdir(parents=True, exist_ok=True)
        options: list[str] = []
        if inter_op is not None:
            options += ["--inter-op", str(inter_op)]
        if intra_op is not None:
            options += ["--intra-op", str(intra_op)]
        if cpus is not None:
            options += ["--cpus", str(cpus)]
        if session_config is not None:
            options += ["--session-config", session_config]
        self._tasks: dict[str, TaskProcess] = {}
        for job, index in names:
            log_path = self.log_dir / f"{job}-{index}.log"
            name = f"{job}:{index}"
            self._tasks[name] = TaskProcess(
                job, index, protocols[name], log_path, options, self._host(job, index).command
            )
        self._env = {
            name: {
                **os.environ,
                **({} if self._hosts else ONE_HOST),
                **(env or {}),
                **task_env.get(task.job, {}),
                **task_env.get(name, {}),
            }
            for name, task in self._tasks.items()
        }
        self._start_timeout_s = start_timeout_s
        self._cluster: dict[str, list[str]] = {}
        self._chief_port = 0
        self._ports = HeldPorts(0)
        try:
            self._start_all(counts)
        except BaseException:
            self._keep_logs = True  # the error names them
            self.close(end_limits.current().tasks_s)  # A signal may have ended the start.
            raise

    def _start_all(self, counts: Mapping[str, int]) -> None:
        """Start the tasks; start again with other ports if another process took one meanwhile."""
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._ports.close()
            self._ports = HeldPorts(sum(counts.values()) + 1)
            ports = iter(self._ports.numbers)
            self._cluster = {
                job: [f"{self._host(job, i).address}:{next(ports)}" for i in range(count)]
                for job, count in counts.items()
                if count
            }
            self._chief_port = next(ports)
            deadline = time.monotonic() + self._start_timeout_s
            try:
                for name, task in self._tasks.items():
                    task.start(self._cluster, self._env[name])
                for task in self._tasks.values():
                    task.wait_ready(deadline)
                return
            except PortTakenError:
                end_all(list(self._tasks.values()), GRACE_S)
                if attempt == _PORT_ATTEMPTS:
                    raise

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._keep_logs = True
        self.close()

    @property
    def cluster_spec(self) -> dict[str, list[str]]:
        """Job name to the addresses of its tasks, by index; the coordinator is not in it."""
        return {job: list(tasks) for job, tasks in self._cluster.items()}

    @property
    def tasks(self) -> list[str]:
        """The tasks' names, workers first: ["worker:0", ..., "ps:0", ...]."""
        return list(self._tasks)

    @property
    def pids(self) -> dict[str, int]:
        """Task name to the id of its process (the last one, for a task that ended)."""
        return {name: task.pid for name, task in self._tasks.items()}

    @property
    def protocols(self) -> dict[str, str]:
        """Task name to the protocol its server speaks."""
        return {name: task.protocol for name, task in self._tasks.items()}

    @property
    def chief_address(self) -> str:
        """Where a coordinator can listen that is another process than the caller."""
        return f"{self._host('chief', 0).address}:{self._chief_port}"

    def resolver(self, rpc_layer: str | None = None) -> Any:
        """Return a cluster resolver for `tf.distribute.ParameterServerStrategy`.

        Args:
          rpc_layer: the coordinator's protocol; None for the cluster's, which is the entry "chief"
            when protocols were given per task.

        Returns:
          A `tf.distribute.cluster_resolver.SimpleClusterResolver`.

        Raises:
          ValueError: protocols were given per task, without one for the chief.
        """
        import tensorflow as tf

        layer = rpc_layer or _protocol_of(self._protocol, "chief", 0)
        simple = tf.distribute.cluster_resolver.SimpleClusterResolver
        if "chief" not in self._hosts:
            return simple(tf.train.ClusterSpec(self._cluster), rpc_layer=layer)
        spec = tf.train.ClusterSpec({**self._cluster, "chief": [self.chief_address]})
        return simple(spec, rpc_layer=layer, task_type="chief", task_id=0)

    def cpu_seconds(self) -> dict[str, float]:
        """Return user and system CPU seconds of each task's process so far (10 ms steps)."""
        return {name: task.cpu_s() for name, task in self._tasks.items()}

    def logs(self, task: str) -> str:
        """Return everything that a task has written to stdout and stderr."""
        return self._task(task).log()

    def status(self, task: str) -> int:
        """Wait until a task's process has ended; return its exit status."""
        return self._task(task).wait()

    def kill(self, task: str) -> None:
        """Kill a task's process (SIGKILL), and wait for its end."""
        self._task(task).kill()

    def stop(self, task: str) -> None:
        """Stop a task's process (SIGSTOP): it keeps its connections but does not answer."""
        self._task(task).stop()

    def cont(self, task: str) -> None:
        """Let a stopped task go on (SIGCONT)."""
        self._task(task).signal(signal.SIGCONT)

    def restart(self, task: str) -> None:
        """Restart a task on its port, killing it first if it still runs; wait until it is ready.

        Raises:
          ClusterStartError: it died or was not ready in time, or its port was taken meanwhile.
        """
        process = self._task(task)
        process.kill()
        process.start(self._cluster, self._env[task])
        process.wait_ready(time.monotonic() + self._start_timeout_s)

    def close(self, grace_s: float = GRACE_S) -> None:
        """End every task, also a stopped one, and remove temporary logs; may be repeated.

        Args:
          grace_s: seconds that the tasks have to end by themselves.
        """
        _forget_tasks({address for tasks in self._cluster.values() for address in tasks})
        end_all(list(self._tasks.values()), grace_s)
        self._ports.close()
        if not self._keep_logs:
            shutil.rmtree(self.log_dir, ignore_errors=True)

    def _host(self, job: str, index: int) -> Host:
        return self._hosts.get(f"{job}:{index}", self._hosts.get(job, Host()))

    def _task(self, name: str) -> TaskProcess:
        if name not in self._tasks:
            raise KeyError(f"no task {name!r} in this cluster; it has {self.tasks}")
        return self._tasks[name]


def _forget_tasks(addresses: Collection[str]) -> None:
    """Keep TensorFlow in this process from calling tasks that are about to end.

    Whenever Python drops a function, TensorFlow removes it from every task of the cluster, and logs
    five lines for each task that has gone. So a function that is there now and is dropped while
    this process is connected to such tasks stays in the context, until the process is connected to
    others. Functions that are traced later, and all that tf_fuse keeps about a function, go at
    once.

    Args:
      addresses: of the tasks.
    """
    # (Nothing is imported here: a process that has not used TensorFlow is connected to nothing.)
    features = sys.modules.get("tf_fuse._tensorflow.features")
    removal = sys.modules.get("tf_fuse._tensorflow.eager.function_removal")
    if features is not None and removal is not None and features.works("local cluster"):
        removal.keep_functions_of(set(addresses))


def _protocol_of(protocol: str | Mapping[str, str], job: str, index: int) -> str:
    if isinstance(protocol, str):
        return protocol
    for key in (f"{job}:{index}", job):
        if key in protocol:
            return protocol[key]
    unknown = sorted(k for k in protocol if not re.fullmatch(r"(worker|ps|chief)(:\d+)?", k))
    raise ValueError(
        f"no protocol for {job}:{index}: give one for '{job}:{index}' or for '{job}'; got "
        f"{dict(protocol)}" + (f", where {unknown} name no task" if unknown else "")
    )
