# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ranks of collectives as processes, which a test drives; the cases are in `cases.py`.

    with collective_ranks.Ranks(["grpc+fuse"] * 3) as ranks:
        results = ranks.run("reduce", specs=[...])  # by rank

A rank stays until the caller ends it, so many cases share one. It is forked from a process that has
imported TensorFlow and not begun to use it (as TensorFlow's own multi-process tests do): importing
takes seconds, forking does not. `tf_fuse` is imported behind the fork, in ranks of `grpc+fuse`.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[3]
_REMOVED_PREFIXES = ("TF_FUSE_", "GRPC_", "TF_CONFIG", "PYTHON")
_PORT_ATTEMPTS = 5
# No wait is longer: a hang is a failure that shows the stacks of the rank.
DEADLINE_S = 250.0
_START_S = 200.0
# What a rank logs in the middle of many calls.
BEGUN = "tf_fuse test: calls are under way"


class Ended:
    """What `wait` gives for a rank whose process has ended."""


@dataclasses.dataclass(frozen=True)
class Error:
    """What a case raised: class, TensorFlow's code (None: another error) and text."""

    kind: str
    code: int | None
    text: str


@dataclasses.dataclass(frozen=True)
class Reduce:
    """One all-reduce: its tensors, in a group of the first `n` ranks."""

    n: int
    dtype: str
    elements: int
    merge: str = "Add"
    final: str = "Id"
    kind: str = "mixed"
    subdivs: int = 0

    def __str__(self) -> str:
        return "-".join(str(x) for x in dataclasses.astuple(self))


class _Zygote:
    """The process that ranks are forked from; one for all modules of a test run."""

    def __init__(self) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="tf_fuse_ranks_")
        env = {k: v for k, v in os.environ.items() if not k.startswith(_REMOVED_PREFIXES)}
        env |= {
            "PYTHONPATH": str(_ROOT),
            "PYTHONUNBUFFERED": "1",
            "CUDA_VISIBLE_DEVICES": "-1",
            "no_proxy": "localhost,127.0.0.1",
            "NO_PROXY": "localhost,127.0.0.1",
            # A program of ranks meets its peers; a dead one is an error.
            "GRPC_FAIL_FAST": "use_caller",
        }
        self.address = str(Path(self.folder.name) / "zygote")
        self._listener = Listener(self.address, family="AF_UNIX")
        self.log = Path(self.folder.name) / "zygote.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("rank.py")), self.address],
                env=env,
                stdin=subprocess.PIPE,  # it ends when this process does
                stdout=log,
                stderr=log,
            )
        self._lock = threading.Lock()
        self._count = 0
        self._connection = self._accept()
        assert self._connection.recv() == "ready", self.log.read_text()
        atexit.register(self._end)

    def _end(self) -> None:
        self._connection.close()
        self._listener.close()
        self.folder.cleanup()

    def _accept(self) -> Connection:
        listener: Any = self._listener
        listener._listener._socket.settimeout(_START_S)
        return self._listener.accept()

    def fork(self, spec: Mapping[str, Any]) -> tuple[int, Connection, Path]:
        """A new rank: its process, the way to it, and where it logs."""
        with self._lock:
            self._count += 1
            log = Path(self.folder.name) / f"{self._count}.log"
            self._connection.send({**spec, "log": str(log)})
            pid = self._connection.recv()
            return pid, self._accept(), log

    def reap(self, pid: int) -> None:
        """Waits until a rank's process is gone."""
        with self._lock:
            self._connection.send({"reap": pid})
            self._connection.recv()


_zygote: _Zygote | None = None


def _the_zygote() -> _Zygote:
    global _zygote
    if _zygote is None:
        _zygote = _Zygote()
    return _zygote


class _Rank:
    """One rank, of the caller's side."""

    def __init__(self, spec: Mapping[str, Any]):
        self.pid, self._connection, self.log_path = _the_zygote().fork(spec)
        self.ended = False

    def send(self, command: Mapping[str, Any]) -> None:
        # `wait` says so of a rank that has died meanwhile.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(command)

    def wait(self, deadline: float) -> Any:
        """The next result; `Ended` if there will be none.

        Raises:
          TimeoutError: none came in time.
        """
        try:
            if not self._connection.poll(max(0.0, deadline - time.monotonic())):
                raise TimeoutError("no answer in time")
            return self._connection.recv()
        except (EOFError, ConnectionResetError):
            self.ended = True
            return Ended

    def state(self) -> str:
        """An answer that is there; else what the rank logged, with its threads' stacks."""
        with contextlib.suppress(TimeoutError):
            return f"{self.wait(0.0)}"
        return f"no answer; its log ends:\n{self.stacks()}"

    def stacks(self) -> str:
        """What the rank logged, with the stacks of its Python threads."""
        os.kill(self.pid, signal.SIGUSR1)
        time.sleep(1)  # only to show them: the test has failed
        return self.log()[-6000:]

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def end(self) -> None:
        self._connection.close()
        if not self.ended:
            os.kill(self.pid, signal.SIGKILL)
        _the_zygote().reap(self.pid)


class Ranks:
    """The ranks of one group of servers; see above."""

    def __init__(
        self,
        protocols: Sequence[str],
        env: Mapping[str, str] | Sequence[Mapping[str, str]] = (),
        devices: int = 1,
        server: bool = True,
        places: Sequence[Mapping[str, Any]] = (),
        patient: bool = False,
    ):
        """Starts them.

        Args:
          protocols: of each rank.
          env: variables, of all or of each rank.
          devices: of each rank.
          server: whether the rank starts its server itself, not by a strategy.
          places: for each rank "host", the name or address that all know it by, and what
            `rank.enter` takes; empty for this host.
          patient: whether TensorFlow takes no rank for dead that was silent for some seconds: on a
            busy machine a rank may be. For tests that end none.
        """
        self.size = len(protocols)
        self._envs = [dict(env or {})] * self.size if not isinstance(env, (list, tuple)) else (
            [dict(one) for one in env] or [{}] * self.size
        )  # fmt: skip
        self._specs = [
            {"rank": i, "protocol": p, "devices": devices, "server": server, "patient": patient,
             "place": dict(places[i]) if places else {}}
            for i, p in enumerate(protocols)
        ]  # fmt: skip
        for attempt in range(_PORT_ATTEMPTS):
            self._ranks = self._fork()
            started = self.wait(seconds=_START_S)
            if started == ["ready"] * self.size:
                return
            text = "\n".join(rank.log()[-3000:] for rank in self._ranks)
            self.close()
            if "Could not start gRPC server" not in text or attempt == _PORT_ATTEMPTS - 1:
                raise AssertionError(f"ranks did not start: {started}\n{text}")

    def _fork(self) -> list[_Rank]:
        from examples import standalone

        self._ports = standalone.cluster_package().ports.HeldPorts(self.size)
        addresses = [
            f"{spec['place'].get('host', '127.0.0.1')}:{port}"
            for spec, port in zip(self._specs, self._ports.numbers, strict=True)
        ]
        self._full_specs = []
        for spec, env in zip(self._specs, self._envs, strict=True):
            if not spec["server"]:
                env = env | {
                    "TF_CONFIG": json.dumps(
                        {
                            "cluster": {"worker": addresses},
                            "task": {"type": "worker", "index": spec["rank"]},
                            "rpc_layer": spec["protocol"],
                        }
                    )
                }
            self._full_specs.append({**spec, "addresses": addresses, "env": env})
        return [_Rank(spec) for spec in self._full_specs]

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def start(self, case: str, ranks: Iterable[int] | None = None, **args: Any) -> None:
        """Lets ranks begin a case, and returns at once."""
        for rank in self._some(ranks):
            self._ranks[rank].send({"case": case, "args": args})

    def wait(self, ranks: Iterable[int] | None = None, seconds: float = DEADLINE_S) -> list[Any]:
        """What the case of each rank returned: an `Error` if it raised, `Ended` if the rank died.

        Raises:
          AssertionError: a rank hangs; the text has what all of them say.
        """
        deadline = time.monotonic() + seconds
        some = self._some(ranks)
        try:
            return [self._ranks[rank].wait(deadline) for rank in some]
        except TimeoutError as error:
            # The one that hangs may wait for another one, which answered or hangs elsewhere.
            texts = [f"rank {rank}: {self._ranks[rank].state()}" for rank in some]
            raise AssertionError(f"{error}\n" + "\n".join(texts)) from None

    def run(self, case: str, ranks: Iterable[int] | None = None, **args: Any) -> list[Any]:
        """Runs a case in ranks, and waits for the results.

        Raises:
          AssertionError: a rank hangs, has ended, or raised something else than TensorFlow's.
        """
        some = self._some(ranks)
        self.start(case, some, **args)
        results = self.wait(some)
        for rank, result in zip(some, results, strict=True):
            bad = result is Ended or (isinstance(result, Error) and result.code is None)
            assert not bad, f"rank {rank}: {result}\n{self._ranks[rank].log()[-6000:]}"
        return results

    def values(self, case: str, ranks: Iterable[int] | None = None, **args: Any) -> list[Any]:
        """As `run`, for a case that must not raise at all."""
        results = self.run(case, ranks, **args)
        for result in results:
            assert not isinstance(result, Error), result
        return results

    def counted(self, case: str, **args: Any) -> tuple[list[Any], list[dict[str, int]]]:
        """As `values`; also what the counters of each rank grew by (zeros left out)."""
        before = self.values("counters")
        results = self.values(case, **args)
        after = self.values("counters")
        grown = [
            {k: b[k] - a.get(k, 0) for k in b if b[k] != a.get(k, 0)}
            for a, b in zip(before, after, strict=True)
        ]
        return results, grown

    def begun(self, rank: int) -> None:
        """Waits until a rank is in the middle of many calls (`Member.attempt`)."""
        deadline = time.monotonic() + DEADLINE_S
        while BEGUN not in self.log(rank):
            assert time.monotonic() < deadline, self.log(rank)[-6000:]
            time.sleep(0.02)

    def answers(self, rank: int, seconds: float = 0.2) -> bool:
        """Whether `wait` has a result of a rank, now or within a time."""
        return self._ranks[rank]._connection.poll(seconds)

    def kill(self, rank: int) -> None:
        """SIGKILL; returns when the process is gone."""
        os.kill(self._ranks[rank].pid, signal.SIGKILL)
        _the_zygote().reap(self._ranks[rank].pid)
        self._ranks[rank].ended = True

    def restart(self, rank: int) -> None:
        """A new process in place of a killed one, at the same address."""
        self._ranks[rank] = _Rank(self._full_specs[rank])
        started = self.wait([rank], _START_S)
        assert started == ["ready"], f"{started}\n{self.log(rank)[-3000:]}"

    def pause(self, rank: int) -> None:
        """SIGSTOP; returns when all of its threads have stopped."""
        pid = self._ranks[rank].pid
        os.kill(pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{pid}/task")
        while not all(_has_stopped(task) for task in tasks.iterdir()):
            os.sched_yield()

    def resume(self, rank: int) -> None:
        """SIGCONT."""
        os.kill(self._ranks[rank].pid, signal.SIGCONT)

    def log(self, rank: int) -> str:
        """What a rank has logged so far."""
        return self._ranks[rank].log()

    def close(self) -> None:
        """Ends all ranks; may be repeated."""
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            rank.end()
        self._ports.close()

    def _some(self, ranks: Iterable[int] | None) -> list[int]:
        return list(range(self.size) if ranks is None else ranks)


def connect(address: str) -> Connection:
    """The rank's side of a connection."""
    return Client(address, family="AF_UNIX")


def _has_stopped(task: Path) -> bool:
    try:
        state = (task / "stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:  # The thread has ended.
        return True
    return state in "TZX"
