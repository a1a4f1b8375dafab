# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Start a program as a distributed job on this machine, watch it, and end it (`tf-fuse launch`).

With parameter servers the program is the coordinator: it runs once, with the TF_CONFIG of the task
`chief:0`, beside servers that `serve.py` runs. Without, it runs once for each worker of a
`MultiWorkerMirroredStrategy`. Programs find the cluster by TensorFlow's `TFConfigClusterResolver`.

The launcher waits for processes by their file descriptors (pidfd_open(2)), and for signals by the
exception that their handler raises: nothing is polled but the logs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from .. import end_limits
from ..child_process import end_all, first_to_end
from ..interruption import Interrupted, interruptible
from ..local_cluster import LocalCluster
from ..ports import HeldPorts
from ..serve import FUSED_PROTOCOL
from ..task_process import ONE_HOST, ClusterStartError, Host, tf_config
from . import status_line
from .guardian import Guardian
from .hosts.deal import deal
from .job_health import JobHealth
from .log_follower import LogFollower, log_of
from .step_counts import StepCount
from .task_program import TaskProgram, exit_status

EXIT_FAILED = 1
_CHIEF = "chief:0"
_HERE = Host()


class _LostError(Exception):
    """A process ended that the job needs; the text says which, and how.

    Attributes:
      status: the launcher's, if the job does not start again.
    """

    def __init__(self, text: str, status: int):
        super().__init__(text)
        self.status = status


@dataclasses.dataclass(frozen=True)
class Job:
    """What `launch` starts.

    Attributes:
      command: the program's file and its arguments.
      workers: number of workers, 1 or more.
      ps: number of parameter servers, 0 or more.
      log_dir: folder that exists, for the logs of the tasks; if the job starts again, those are in
        a folder "restart-1" there, and so on. None for a temporary folder, which stays for the user
        only if the job has failed, or a first signal has ended it.
      max_restarts: how often lost processes start again, together.
      hosts: as of `hosts.deal`; none for this machine. The program of a job with servers runs
        here.
      health: address and port where probes are answered; None for nowhere.
      protocol: of the tasks' servers.
    """

    command: Sequence[str]
    workers: int
    ps: int
    log_dir: Path | None
    max_restarts: int = 0
    hosts: Sequence[str] = ()
    health: tuple[str, int] | None = None
    protocol: str = FUSED_PROTOCOL


def launch(job: Job) -> int:
    """Run a job until its program ends.

    SIGINT and SIGTERM end the program, and then the tasks, as `end_limits` say; a second one ends
    all at once. A lost worker of a job with servers starts again and takes part; if another process
    is lost, all of the job starts again, and the program goes on from its last checkpoint.

    The logs' lines go to standard output, each with its task; on a terminal, a line below them says
    what each task does.

    Args:
      job: what to run.

    Returns:
      The program's exit status; 128 and the signal's number if one ended the program or the job; 1
      if the tasks could not be started, or a lost one may not start again.

    Raises:
      OSError: the port of `job.health` is taken, or its address is not of this machine.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    log_dir = job.log_dir or Path(tempfile.gettempdir(), f"tf_fuse_launch_{uuid.uuid4().hex}")
    follower = LogFollower(sys.stdout)
    status: int | None = None
    try:
        with interruptible(), Guardian(None if job.log_dir else log_dir) as guardian:
            if not job.log_dir:
                log_dir.mkdir(mode=0o700)
            launcher = _Launcher(job, log_dir, guardian, follower)
            with status_line.shown(launcher.tasks), follower:
                status = launcher.run()
                if launcher.is_interrupted:
                    follower.wait_at_most(end_limits.current().output_s)
                if status and not job.log_dir:
                    guardian.keep_folder()
                    follower.say(f"tf-fuse launch: the logs stay in {log_dir}")
    except Interrupted as interrupted:  # before the job ran, or after that
        status = interrupted.status if status is None else status
    if follower.is_stuck():  # Python would wait, too.
        os._exit(status)
    return status


class _Launcher:
    """A job that runs."""

    def __init__(self, job: Job, log_dir: Path, guardian: Guardian, follower: LogFollower):
        self._job = job
        self._guardian = guardian
        self._follower = follower
        self._first_log_dir = self._log_dir = log_dir
        self._restarts = 0
        self._cluster: LocalCluster | None = None
        self._programs: dict[str, int] = {}
        self._has_succeeded = self.is_interrupted = False
        counter = "steps" if job.ps else "collective_steps"
        # Servers take part in the steps of workers; those on hosts say what memory they use.
        sizes = {"worker": job.workers, "ps": job.ps if job.hosts else 0}
        self._counts = {
            f"{kind}:{index}": StepCount(counter)
            for kind, size in sizes.items()
            for index in range(size)
        }
        self._health = job.health and JobHealth(*job.health, counter, self._steps)

    def tasks(self) -> dict[str, status_line.Task]:
        """Return the tasks that have been started; any thread may ask."""
        cluster = self._cluster
        pids = {**(cluster.pids if cluster else {}), **self._programs}
        steps = self._steps()
        if self._job.ps and steps:  # The program's steps are calls of workers.
            steps[_CHIEF] = sum(steps.values())
        far = self._counts if self._job.hosts else {}
        # A program may use no collectives, or start a cluster of its own: 0 says nothing of it.
        return {
            name: status_line.Task(
                pid,
                steps.get(name) or None,
                name not in far,
                far[name].usage() if name in far else None,
            )
            for name, pid in pids.items()
        }

    def _steps(self) -> dict[str, int]:
        """Return the steps so far of each worker; any thread may ask."""
        return {
            name: count.read() for name, count in self._counts.items() if name.startswith("worker")
        }

    def run(self) -> int:
        """Run the job, again if it may; return the exit status."""
        while True:
            try:
                return self._run_once()
            except Interrupted as interrupted:
                self.is_interrupted = True
                if self._has_succeeded:  # What is left of the job ends anyway.
                    return 0
                self._say(f"ended by {interrupted.name}")
                return interrupted.status
            except OSError as error:  # The disk may be full.
                self._say(f"error: {error}")
                return EXIT_FAILED
            except ClusterStartError as error:
                self._say(f"error: {error}")
                if not self._may_restart("a task did not start", "the job starts again"):
                    return EXIT_FAILED
            except _LostError as error:
                if not self._may_restart(str(error), "the job starts again"):
                    return error.status

    def _run_once(self) -> int:
        if self._restarts:
            self._log_dir = self._first_log_dir / f"restart-{self._restarts}"
            self._log_dir.mkdir(exist_ok=True)
        sizes = {"worker": self._job.workers, "ps": self._job.ps, "chief": int(self._job.ps > 0)}
        names = [f"{kind}:{index}" for kind, size in sizes.items() for index in range(size)]
        self._follower.follow([log_of(self._log_dir, name) for name in names])
        try:
            return self._run_servers() if self._job.ps else self._run_workers()
        finally:
            self._guardian.end_processes()

    def _run_servers(self) -> int:
        with contextlib.ExitStack() as stack:
            cluster = LocalCluster(
                self._job.workers,
                self._job.ps,
                self._job.protocol,
                self._log_dir,
                # What servers log at the level INFO is TensorFlow's alone.
                env={
                    "TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1"),
                    **self._guardian.variables,
                },
                task_env={name: count.variable for name, count in self._counts.items()},
                hosts=deal(self._job.hosts, self._job.workers, self._job.ps),
            )
            stack.callback(cluster.close, end_limits.current().tasks_s)
            self._cluster = cluster
            self._say_ready()
            addresses = {**cluster.cluster_spec, "chief": [cluster.chief_address]}
            program = self._start_program(_CHIEF, addresses)
            stack.callback(end_all, [program], end_limits.current().program_s)
            stack.callback(self._set_ready, False)
            while True:
                ended = first_to_end([program.pid, *cluster.pids.values()])
                if ended == program.pid:
                    self._expect_success(program)
                    self._has_succeeded = True
                    return 0
                name = next(name for name, pid in cluster.pids.items() if pid == ended)
                text = f"{name} ended, {_describe(cluster.status(name))}"
                if name.startswith("ps"):
                    raise _LostError(text, EXIT_FAILED)
                if not self._may_restart(text, "it starts again"):
                    return EXIT_FAILED
                try:
                    cluster.restart(name)
                except ClusterStartError:
                    if not program.has_ended():
                        raise

    def _run_workers(self) -> int:
        with contextlib.ExitStack() as stack:
            ports = stack.enter_context(HeldPorts(self._job.workers))
            hosts = deal(self._job.hosts, self._job.workers, servers=0)
            names = [f"worker:{index}" for index in range(self._job.workers)]
            places = [hosts.get(name, Host()) for name in names]
            pairs = zip(places, ports.numbers, strict=True)
            addresses = {"worker": [f"{host.address}:{port}" for host, port in pairs]}
            running: dict[int, TaskProgram] = {}
            started: list[TaskProgram] = []
            stack.callback(end_all, started, end_limits.current().program_s)
            for name, host in zip(names, places, strict=True):
                program = self._start_program(name, addresses, host)
                started.append(program)
                running[program.pid] = program
            self._say_ready()
            stack.callback(self._set_ready, False)
            while running:
                self._expect_success(running.pop(first_to_end(list(running))))
            self._has_succeeded = True
            return 0

    def _start_program(
        self, name: str, cluster: Mapping[str, Sequence[str]], host: Host = _HERE
    ) -> TaskProgram:
        kind, index = name.split(":")
        config = tf_config(cluster, kind, int(index), self._job.protocol)
        log = log_of(self._log_dir, name)
        command = [*host.command, sys.executable, "-u", *self._job.command]
        variables = {"TF_CONFIG": config}
        if not self._job.hosts:
            variables |= ONE_HOST
        if name in self._counts:
            variables |= self._counts[name].variable
        program = TaskProgram(name, command, variables, log, self._guardian)
        self._programs = {**self._programs, name: program.pid}
        return program

    def _expect_success(self, program: TaskProgram) -> None:
        """Wait for the end of a program.

        Raises:
          _LostError: its status is not 0, and the job may start again.
        """
        if code := program.wait():
            raise _LostError(f"{program.name} ended, {_describe(code)}", exit_status(code))

    def _may_restart(self, text: str, then: str) -> bool:
        """Say what has ended, and whether something starts again; return whether it may."""
        if self._restarts == self._job.max_restarts:
            self._say(f"{text}; --max-restarts is {self._job.max_restarts}")
            return False
        self._restarts += 1
        self._say(f"{text}: {then} ({self._restarts} of {self._job.max_restarts})")
        return True

    def _say(self, text: str) -> None:
        self._follower.say(f"tf-fuse launch: {text}")

    def _say_ready(self) -> None:
        servers = f", {self._job.ps} server(s)" if self._job.ps else ""
        self._say(f"{self._job.workers} worker(s){servers}; logs in {self._first_log_dir}")
        self._set_ready(True)

    def _set_ready(self, is_ready: bool) -> None:
        """Let probes know whether the program runs; it does not while a job starts again."""
        if self._health:
            self._health.has_started = is_ready


def _describe(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    names = {one.value: one.name for one in signal.Signals}
    return f"by {names.get(-status, f'signal {-status}')}"
