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
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TextIO

from .local_cluster import LocalCluster
from .ports import HeldPorts
from .serve import FUSED_PROTOCOL
from .task_process import ClusterStartError, tf_config

EXIT_FAILED = 1
_GRACE_S = 4.0  # for the program; then the tasks have five seconds
_LOOK_S = 0.2  # between two looks at the logs
_PIECE = 1 << 16  # bytes of a log that are read at once
_LOG = re.compile(r"(restart-\d+/)?(chief|worker|ps)-\d+\.log")
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
    """

    command: Sequence[str]
    workers: int
    ps: int
    log_dir: Path
    max_restarts: int = 0


def launch(job: Job, out: TextIO | None = None) -> int:
    """Run a job until its program ends.

    SIGINT and SIGTERM end the program, and then the tasks, within ten seconds; a second one at
    once. A lost worker of a job with servers starts again and takes part; if another process is
    lost, all of the job starts again, and the program goes on from its last checkpoint.

    Args:
      job: what to run.
      out: where to write the logs' lines, each with its task; None for the standard output.

    Returns:
      The program's exit status; 128 and the signal's number if one ended the program or the job; 1
      if the tasks could not be started, or a lost one may not start again.
    """
    out = out or sys.stdout
    with _interruptible(), _Follower(job.log_dir, out):
        return _Launcher(job, out).run()


class _Launcher:
    """A job that runs."""

    def __init__(self, job: Job, out: TextIO):
        self._job = job
        self._out = out
        self._log_dir = job.log_dir
        self._restarts = 0

    def run(self) -> int:
        """Run the job, again if it may; return the exit status."""
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
            )
            stack.callback(cluster.close)
            self._say_ready()
            program = _Program(
                "chief:0",
                self._job,
                self._log_dir,
                {**cluster.cluster_spec, "chief": [cluster.chief_address]},
            )
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
            addresses = {"worker": [f"localhost:{port}" for port in ports.numbers]}
            running: dict[int, _Program] = {}
            started: list[_Program] = []
            stack.callback(_end_all, started)
            for index in range(self._job.workers):
                program = _Program(f"worker:{index}", self._job, self._log_dir, addresses)
                started.append(program)
                running[program.pid] = program
            self._say_ready()
            while running:
                program = running.pop(_wait_for_one(list(running)))
                if status := self._status_of(program):
                    return status
            return 0

    def _status_of(self, program: _Program) -> int:
        """Return 0 for a program that ended well.

        Raises:
          _LostError: it did not, and the job may start again.
        """
        code = program.wait()
        if code == 0:
            return 0
        status = code if code > 0 else 128 - code
        raise _LostError(f"{program.name} ended, {_describe(code)}", status)

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

    def _say(self, text: str) -> None:
        print(f"tf-fuse launch: {text}", file=self._out, flush=True)


class _Program:
    """The program, as one task.

    Attributes:
      name: of the task, "job:index".
      pid: of its process.
    """

    def __init__(self, name: str, job: Job, log_dir: Path, cluster: Mapping[str, Sequence[str]]):
        self.name = name
        kind, index = name.split(":")
        config = tf_config(cluster, kind, int(index), FUSED_PROTOCOL)
        with (log_dir / f"{kind}-{index}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-u", *job.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TF_CONFIG": config},
                preexec_fn=_die_with_parent,
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


class _Follower:
    """Writes each line of the tasks' logs with its task, while they grow."""

    def __init__(self, folder: Path, out: TextIO):
        self._folder, self._out = folder, out
        if isinstance(out, io.TextIOWrapper):
            out.reconfigure(errors="backslashreplace")
        self._read: dict[Path, int] = {}
        self._tails: dict[Path, bytes] = {}
        for path in self._logs():  # of an earlier job
            self._read[path] = path.stat().st_size
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> _Follower:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._write(whole_lines=True)
        self._write(whole_lines=False)

    def _logs(self) -> list[Path]:
        """Return the logs of tasks, the one first that was written to before the others."""
        found = []
        for path in self._folder.rglob("*-*.log"):
            with contextlib.suppress(OSError):
                if _LOG.fullmatch(str(path.relative_to(self._folder))) and path.is_file():
                    found.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(found)]

    def _write(self, whole_lines: bool) -> None:
        """Write what is new; a log that cannot be read, or an output that is closed, is left."""
        for path in self._logs():
            with contextlib.suppress(OSError):
                self._write_log(path, whole_lines)
        with contextlib.suppress(OSError):
            self._out.flush()

    def _write_log(self, path: Path, whole_lines: bool) -> None:
        with path.open("rb") as log:
            begin = self._read.get(path, 0)
            if begin > os.fstat(log.fileno()).st_size:  # A new file of that name.
                begin = 0
            log.seek(begin)
            while data := log.read(_PIECE):
                self._read[path] = log.tell()
                lines = (self._tails.pop(path, b"") + data).split(b"\n")
                tail = lines.pop()
                if len(tail) > _PIECE:  # A line that does not end is written in pieces.
                    lines, tail = [*lines, tail], b""
                self._tails[path] = tail
                self._write_lines(path, lines)
        if not whole_lines and (tail := self._tails.pop(path, b"")):
            self._write_lines(path, [tail])

    def _write_lines(self, path: Path, lines: Sequence[bytes]) -> None:
        task = path.stem.replace("-", ":")
        for line in lines:
            print(f"[{task}] {line.decode(errors='replace')}", file=self._out)


def default_log_dir() -> Path:
    """Return a new folder for logs."""
    return Path(tempfile.mkdtemp(prefix="tf_fuse_launch_"))


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


def _describe(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    names = {one.value: one.name for one in signal.Signals}
    return f"by {names.get(-status, f'signal {-status}')}"


def _die_with_parent() -> None:
    """Ask the kernel to kill this process when the launcher ends, however that ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setpgrp()  # Ctrl-C reaches the launcher alone, which ends the program in order.
