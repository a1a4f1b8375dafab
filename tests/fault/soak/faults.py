# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The faults of a soak test, on the tasks of a `LocalCluster`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import socket
import threading
import time
from typing import Any

import psutil

# Of one deck; decks are shuffled and dealt one after the other, so no kind is forgotten. "lost" are
# faults after which stock TensorFlow needs a new coordinator.
DECK = {
    "cancelled": 12,
    "connection_dropped": 8,
    "server_stopped": 6,
    "worker_stopped": 6,
    "worker_killed": 3,
    "server_killed": 1,
}
# Never killed: their memory has the whole test to grow. The others are.
KEPT = ("worker:0", "ps:0")
_KILLED = {"worker": "worker:1", "ps": "ps:1"}
_STOP_S = (0.02, 0.4)
_RESTARTS = 3
_PIDFD_GETFD = 438  # the number of the system call on every architecture


class Deck:
    """Faults in a random order that depends on the seed alone."""

    def __init__(self, seed: int, kinds: dict[str, int]):
        """Makes a deck; `kinds` is how often each kind is in it."""
        self.random = random.Random(seed)
        self._kinds = [kind for kind, count in sorted(kinds.items()) for _ in range(count)]
        self._left: list[str] = []

    def deal(self) -> str:
        """The next fault."""
        if not self._left:
            self._left = list(self._kinds)
            self.random.shuffle(self._left)
        return self._left.pop()


class Faults:
    """Lets faults happen to a cluster.

    Attributes:
      counts: kind to how often it happened.
    """

    def __init__(self, cluster: Any, randoms: random.Random):
        """Acts on `cluster`; moments and victims are drawn from `randoms`."""
        self._cluster, self._random = cluster, randoms
        self._restarting: threading.Thread | None = None
        self._error: Exception | None = None
        self.counts: dict[str, int] = {}

    def count(self, kind: str) -> None:
        """Notes that a fault happened."""
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def happen(self, kind: str) -> None:
        """Lets a fault happen now, and returns when it is over; restarts go on in the background.

        Raises:
          ClusterStartError: a task could not be started again.
        """
        self.wait()
        time.sleep(self._random.uniform(0, 0.05))  # another moment of the steps under way
        getattr(self, f"_{kind}")()
        self.count(kind)

    def wait(self) -> None:
        """Returns when all tasks run again."""
        if self._restarting:
            self._restarting.join()
            self._restarting = None
        if self._error:
            raise self._error

    def _worker_stopped(self) -> None:
        self._stopped("worker")

    def _server_stopped(self) -> None:
        self._stopped("ps")

    def _stopped(self, job: str) -> None:
        task = self._random.choice([t for t in self._cluster.tasks if t.startswith(job)])
        self._cluster.stop(task)
        time.sleep(self._random.uniform(*_STOP_S))
        self._cluster.cont(task)

    def _worker_killed(self) -> None:
        self._killed("worker")

    def _server_killed(self) -> None:
        self._killed("ps")

    def _killed(self, job: str) -> None:
        self._cluster.kill(_KILLED[job])
        self._restarting = threading.Thread(target=self._restart, args=(_KILLED[job],))
        self._restarting.start()

    def _restart(self, task: str) -> None:
        for left in reversed(range(_RESTARTS)):
            try:
                self._cluster.restart(task)
                return
            # A connection of anybody's may have the port for a moment.
            except Exception as error:
                if not left:
                    self._error = error

    def _connection_dropped(self) -> None:
        """Ends one connection between two tasks, as a router that forgets it does."""
        tasks = list(self._cluster.tasks)
        self._random.shuffle(tasks)
        ports = {
            int(a.rpartition(":")[2]) for job in self._cluster.cluster_spec.values() for a in job
        }
        for task in tasks:
            pid = self._cluster.pids[task]
            with contextlib.suppress(psutil.Error, OSError):
                if connections := _connections(pid, ports):
                    drop(pid, self._random.choice(connections).fd)
                    return


def _connections(pid: int, ports: set[int]) -> list[Any]:
    """The connections of a process to others that listen at one of the ports, sorted."""
    return sorted(
        c
        for c in psutil.Process(pid).net_connections("tcp")
        if c.raddr and c.raddr.port in ports and c.status == psutil.CONN_ESTABLISHED
    )


def drop_all(pid: int, port: int) -> int:
    """Drops all connections of a process to a port of this machine; returns how many there were.

    Raises:
      OSError: as `drop`.
    """
    connections = _connections(pid, {port})
    for connection in connections:
        drop(pid, connection.fd)
    return len(connections)


def drop(pid: int, fd: int) -> None:
    """Shuts a socket of another process down, in both directions; arguments as of `take`."""
    with take(pid, fd) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def take(pid: int, fd: int) -> socket.socket:
    """Returns a socket of another process, which keeps it.

    Args:
      pid: of a process that this one may trace, as its parent or root may.
      fd: the socket's descriptor there.

    Raises:
      OSError: the process, or its descriptor, is gone; or this is not allowed (EPERM).
    """
    process = os.pidfd_open(pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        own = libc.syscall(_PIDFD_GETFD, process, fd, 0)
        if own < 0:
            number = ctypes.get_errno()
            raise OSError(
                number, f"cannot take descriptor {fd} of process {pid}: {os.strerror(number)}"
            )
        return socket.socket(fileno=own)
    finally:
        os.close(process)


def may_drop() -> str:
    """Why connections cannot be dropped here; empty if they can."""
    try:
        with socket.socket() as probe:
            try:
                drop(os.getpid(), probe.fileno())
            except OSError as error:
                # Not connected: it could be taken, and there was nothing to shut down.
                return "" if error.errno == 107 else str(error)
    except AttributeError as error:
        return str(error)
    return ""
