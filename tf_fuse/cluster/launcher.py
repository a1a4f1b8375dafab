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
import ctypes
import dataclasses
import io
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from . import ssh_hosts, status_line
from .guardian import Guardian
from .local_cluster import LocalCluster
from .log_follower import LogFollower
from .ports import HeldPorts
from .serve import FUSED_PROTOCOL
from .task_process import ClusterStartError, Host, tf_config

EXIT_FAILED = 1
_HERE = Host()
_GRACE_S = 4.0  # for the program; then the tasks have five seconds
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)  # Loaded before a fork, which must not load anything.


class _Interrupted(BaseException):
    """A signal came that ends the job."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


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
        a folder "restart-1" there, and so on.
      max_restarts: how often lost processes start again, together.
      hosts: as of `ssh_hosts.deal`; none for this machine. The program of a job with servers runs
        here.
    """

    command: Sequence[str]
    workers: int
    ps: int
    log_dir: Path
    max_restarts: int = 0
    hosts: Sequence[str] = ()


def launch(job: Job) -> int:
    """Run a job until its program ends.

    SIGINT and SIGTERM end the program, and then the tasks, within ten seconds; a second one at
    once. A lost worker of a job with servers starts again and takes part; if another process is
    lost, all of the job starts again, and the program goes on from its last checkpoint.

    The logs' lines go to standard output, each with its task; on a terminal, a line below them says
    what each task does.

    Args:
      job: what to run.

    Returns:
      The program's exit status; 128 and the signal's number if one ended the program or the job; 1
      if the tasks could not be started, or a lost one may not start again.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with Guardian() as guardian, _interruptible():
            launcher = _Launcher(job, guardian)
            with status_line.shown(launcher.pids), LogFollower(job.log_dir, sys.stdout) as follower:
                status = launcher.run(follower.say)
    except _Interrupted as interrupted:  # before the job ran
        return 128 + interrupted.number
    if follower.is_stuck():  # Python would wait, too.
        os._exit(status)
    return status


def run_program(command: Sequence[str], config: str) -> int:
    """Run a program as the task of a job that a platform has started.

    SIGINT and SIGTERM end it, also if this is the first process of a container, which would ignore
    them.

    Args:
      command: the program's file and its arguments.
      config: TF_CONFIG.

    Returns:
      The program's exit status; 128 and the signal's number if one ended it.
    """
    with Guardian() as guardian, _interruptible():
        try:
            with contextlib.ExitStack() as stack:
                line = [sys.executable, "-u", *command]
                program = _Program("program:0", line, config, None, guardian)
                stack.callback(_end_all, [program])
                _wait_for_one([program.pid])
                return _exit_status(program.wait())
        except _Interrupted as interrupted:
            return 128 + interrupted.number


class _Launcher:
    """A job that runs."""

    def __init__(self, job: Job, guardian: Guardian):
        self._job = job
        self._guardian = guardian
        self._say: Callable[[str], None] = print
        self._log_dir = job.log_dir
        self._restarts = 0
        self._cluster: LocalCluster | None = None
        self._programs: dict[str, int] = {}

    def pids(self) -> dict[str, int]:
        """Return the ids of the processes that have been started, by task; any thread may ask."""
        cluster = self._cluster
        return {**(cluster.pids if cluster else {}), **self._programs}

    def run(self, say: Callable[[str], None]) -> int:
        """Run the job, again if it may; return the exit status.

        Args:
          say: gets lines about the job.
        """
        self._say = lambda text: say(f"tf-fuse launch: {text}")
        while True:
            try:
                return self._run_once()
            except _Interrupted as interrupted:
                self._say(f"ended by {signal.Signals(interrupted.number).name}")
                return 128 + interrupted.number
            except ClusterStartError as error:
                self._say(f"error: {error}")
                return EXIT_FAILED
            except _LostError as error:
                if not self._may_restart(str(error), "the job starts again"):
                    return error.status
                self._log_dir = self._job.log_dir / f"restart-{self._restarts}"
                self._log_dir.mkdir(exist_ok=True)

    def _run_once(self) -> int:
        if not self._job.ps:
            return self._run_workers()
        with contextlib.ExitStack() as stack:
            cluster = LocalCluster(
                self._job.workers,
                self._job.ps,
                FUSED_PROTOCOL,
                self._log_dir,
                # What servers log at the level INFO is TensorFlow's alone.
                env={"TF_CPP_MIN_LOG_LEVEL": os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")},
                hosts=ssh_hosts.deal(self._job.hosts, self._job.workers, self._job.ps),
            )
            stack.callback(cluster.close)
            self._cluster = cluster
            self._say_ready()
            addresses = {**cluster.cluster_spec, "chief": [cluster.chief_address]}
            program = self._start_program("chief:0", addresses)
            stack.callback(_end_all, [program])
            while True:
                ended = _wait_for_one([program.pid, *cluster.pids.values()])
                if ended == program.pid:
                    return self._status_of(program)
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
            hosts = ssh_hosts.deal(self._job.hosts, self._job.workers, servers=0)
            names = [f"worker:{index}" for index in range(self._job.workers)]
            places = [hosts.get(name, Host()) for name in names]
            pairs = zip(places, ports.numbers, strict=True)
            addresses = {"worker": [f"{host.address}:{port}" for host, port in pairs]}
            running: dict[int, _Program] = {}
            started: list[_Program] = []
            stack.callback(_end_all, started)
            for name, host in zip(names, places, strict=True):
                program = self._start_program(name, addresses, host)
                started.append(program)
                running[program.pid] = program
            self._say_ready()
            while running:
                program = running.pop(_wait_for_one(list(running)))
                if status := self._status_of(program):
                    return status
            return 0

    def _start_program(
        self, name: str, cluster: Mapping[str, Sequence[str]], host: Host = _HERE
    ) -> _Program:
        kind, index = name.split(":")
        config = tf_config(cluster, kind, int(index), FUSED_PROTOCOL)
        log = self._log_dir / f"{kind}-{index}.log"
        command = [sys.executable, "-u", *self._job.command]
        if host.command:  # There it is a task of a job that somebody else has started.
            command = [*host.command, sys.executable, "-m", "tf_fuse", "launch"]
            command += ["--lifeline-fd", "0", *self._job.command]
        program = _Program(name, command, config, log, self._guardian)
        self._programs = {**self._programs, name: program.pid}
        return program

    def _status_of(self, program: _Program) -> int:
        """Return 0 for a program that ended well.

        Raises:
          _LostError: it did not, and the job may start again.
        """
        code = program.wait()
        if code == 0:
            return 0
        raise _LostError(f"{program.name} ended, {_describe(code)}", _exit_status(code))

    def _may_restart(self, text: str, then: str) -> bool:
        """Say what has ended, and whether something starts again; return whether it may."""
        if self._restarts == self._job.max_restarts:
            self._say(f"{text}; --max-restarts is {self._job.max_restarts}")
            return False
        self._restarts += 1
        self._say(f"{text}: {then} ({self._restarts} of {self._job.max_restarts})")
        return True

    def _say_ready(self) -> None:
        servers = f", {self._job.ps} server(s)" if self._job.ps else ""
        self._say(f"{self._job.workers} worker(s){servers}; logs in {self._job.log_dir}")


class _Program:
    """The program, as one task.

    Attributes:
      name: of the task, "job:index".
      pid: of its process.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        config: str,
        log: Path | None,
        guardian: Guardian,
    ):
        """Start it; its output goes to the log, or to that of this process."""
        self.name = name
        self._guardian = guardian

        def prepare() -> None:
            _die_with_parent()
            guardian.watch_this_group()

        with contextlib.ExitStack() as stack:
            output = None if log is None else stack.enter_context(log.open("ab"))
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output and subprocess.STDOUT,
                env={**os.environ, "TF_CONFIG": config},
                preexec_fn=prepare,
            )
        self.pid = self._process.pid

    def has_ended(self) -> bool:
        """Return whether the process has ended; its status can still be asked for."""
        if self._process.returncode is not None:
            return True
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, options) is not None

    def wait(self) -> int:
        """Return the exit status of the process, which has ended; end those that it started."""
        if self._process.returncode is None:
            # Before its status is asked for, the number of its group is nobody else's.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._guardian.forget(self.pid)
        return self._process.wait()

    def terminate(self) -> None:
        """Ask the process to end."""
        if not self.has_ended():
            os.kill(self.pid, signal.SIGTERM)


def _end_all(programs: Sequence[_Program]) -> None:
    """End all programs by SIGTERM; and those that are late, and what they left, by SIGKILL."""
    for program in programs:
        program.terminate()
    deadline = time.monotonic() + _GRACE_S
    for program in programs:
        while not program.has_ended() and (left := deadline - time.monotonic()) > 0:
            _wait_for_one([program.pid], left)
    for program in programs:
        program.wait()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raise `_Interrupted` in this thread, the main one, when the first SIGINT or SIGTERM comes.

    The next one ends this process at once; the tasks end with it, since they watch its pipes.
    """

    def first(number: int, frame: FrameType | None) -> None:
        del frame
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, second)
        raise _Interrupted(number)

    def second(number: int, frame: FrameType | None) -> None:
        del frame
        os._exit(128 + number)

    before = {one: signal.signal(one, first) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_for_one(pids: Sequence[int], seconds: float | None = None) -> int:
    """Wait until one of the processes has ended, but not longer; return its id, or 0 for none."""
    files = {os.pidfd_open(pid): pid for pid in pids}
    try:
        ready, _, _ = select.select(list(files), [], [], seconds)
        return files[ready[0]] if ready else 0
    finally:
        for file in files:
            os.close(file)


def _exit_status(code: int) -> int:
    """Return the exit status of a shell for the return code of a process of Python."""
    return code if code >= 0 else 128 - code


def _describe(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    names = {one.value: one.name for one in signal.Signals}
    return f"by {names.get(-status, f'signal {-status}')}"


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when the launcher ends, however that ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgrp()  # Ctrl-C reaches the launcher alone, which ends the program in order.
