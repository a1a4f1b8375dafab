# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read variables from the tasks whose replicas train together.

What a task holds can be read without its help: its server runs graphs for whoever asks, and its
devices are those of its own program. So a program that reads a variable alone, as the chief does
that saves a checkpoint, needs nobody else to take part, as in stock TensorFlow.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tf_fuse._tensorflow.eager import error_messages as tensorflow_errors
from tf_fuse._tensorflow.eager.context_servers import collective_server_def

PROTOCOL = "grpc+fuse"
_JOBS = ("chief", "worker")
_TIMEOUT_VARIABLE = "TF_FUSE_STATE_TIMEOUT_S"
_TIMEOUT_S = 120.0
# Behind TensorFlow's own time limits, which have better texts.
_GRACE_S = 2.0


@dataclass(frozen=True)
class Peers:
    """All replicas' devices, by rank, and which of them are here.

    Attributes:
      devices: full names, in the order in which collectives rank them.
      own: ranks of this process.
      target: of sessions on this process's server.
      beside: how many replicas are on the host of this process, by the addresses.
    """

    devices: tuple[str, ...]
    own: tuple[int, ...]
    target: str
    beside: int = 1

    @classmethod
    def of(cls, context: Any) -> Peers | str:
        """Return the peers of a program with MultiWorkerMirroredStrategy; or why there is none."""
        server = collective_server_def(context)
        if server is None:
            return "the program has no MultiWorkerMirroredStrategy"
        if server.protocol != PROTOCOL:
            return f"the workers run the protocol {server.protocol!r}, not {PROTOCOL!r}"
        tasks = sorted(
            (job.name, task, address)
            for job in server.cluster.job
            for task, address in job.tasks.items()
            if job.name in _JOBS
        )
        if context.list_logical_devices("GPU"):
            return "its workers have GPUs, and only CPUs are supported"
        if len(tasks) < 2:
            return "there is one replica"
        devices = tuple(f"/job:{job}/replica:0/task:{task}/device:CPU:0" for job, task, _ in tasks)
        here = [i for i, t in enumerate(tasks) if t[:2] == (server.job_name, server.task_index)]
        if not here:
            return f"/job:{server.job_name}/task:{server.task_index} does not train"
        hosts = [address.rpartition(":")[0] for _, _, address in tasks]
        beside = hosts.count(hosts[here[0]])
        return cls(devices, tuple(here), f"{PROTOCOL}://{tasks[here[0]][2]}", beside)

    @classmethod
    def here(cls, devices: Sequence[str]) -> Peers | str:
        """Return the peers of a program with MirroredStrategy; or why there is none."""
        if len(devices) < 2:
            return "there is one replica"
        if not all("/device:CPU:" in device for device in devices):
            return f"its replicas are on {list(devices)}, and only CPUs are supported"
        return cls(tuple(devices), tuple(range(len(devices))), "", len(devices))


class Reader:
    """Runs small graphs on the tasks of a peers. Thread-safe."""

    def __init__(self, peers: Peers, ranks: Collection[int] | None = None):
        """Connect when it is first used, to all or to some ranks."""
        self.peers = peers
        self._pid = os.getpid()
        self._ranks = range(len(peers.devices)) if ranks is None else ranks
        self._lock = threading.Lock()
        self._graph: Any = None
        self._session: Any = None
        self._fetches: dict[Hashable, Any] = {}
        # What the tasks know already.
        self._known: set[Hashable] = set()

    def run(self, key: Hashable, build: Callable[[], Any], seconds: float | None = None) -> Any:
        """Run what `build` adds to the graph, which is asked once for each key.

        Args:
          key: names what is run.
          build: adds nodes to the default graph, and returns what to fetch.
          seconds: how long it may take; None: `timeout_seconds`.

        Returns:
          What was fetched.

        Raises:
          tf.errors.OpError: as of `Session.run`; UnavailableError or DeadlineExceededError if a
            task that is asked has died or does not answer.
        """
        import tensorflow as tf
        from tensorflow.core.protobuf import config_pb2

        with self._alone(seconds):
            if self._graph is None:
                self._graph = tf.Graph()
            if key not in self._fetches:
                with self._graph.as_default():
                    self._fetches[key] = build()
            limit = timeout_seconds() if seconds is None else seconds
            options = config_pb2.RunOptions(timeout_in_ms=int(1000 * limit))
            try:
                if self._session is None:
                    self._known.clear()
                    self._check_health(limit)
                    self._session = _within(limit, self._connected)
                session, fetch = self._session, self._fetches[key]
                if key in self._known:
                    return session.run(fetch, options=options)
                # The first run also sends the new nodes, which `timeout_in_ms` does not limit.
                result = _within(limit, lambda: session.run(fetch, options=options))
                self._known.add(key)
                return result
            except tf.errors.OpError:
                # The next one connects anew: a task may have come back.
                self._session, session = None, self._session
                if session is not None:
                    # A task that does not answer would be waited for.
                    threading.Thread(target=_close, args=[session], daemon=True).start()
                raise

    @contextlib.contextmanager
    def _alone(self, seconds: float | None) -> Iterator[None]:
        """Keep other threads from the session, or raise an error if one keeps it too long."""
        from tensorflow.python.framework import errors

        if not self._lock.acquire(timeout=-1 if seconds is None else seconds):
            raise errors.DeadlineExceededError(
                None,
                None,
                f"another thread has waited for {[self.peers.devices[r] for r in self._ranks]} "
                f"longer than {seconds:g} s",
            )
        try:
            yield
        finally:
            self._lock.release()

    def _connected(self) -> Any:
        import tensorflow as tf

        return tf.compat.v1.Session(self.peers.target, graph=self._graph, config=self._config())

    def _check_health(self, seconds: float) -> None:
        """Raise an error if a task is not there: a session would wait until it is."""
        from tensorflow.python.eager import context

        for rank in sorted({*self._ranks} - {*self.peers.own}):
            task = self.peers.devices[rank].partition("/device:")[0]
            context.context().check_collective_ops_peer_health(task, int(1000 * seconds))

    def connect(self) -> None:
        """Connect now: a task that has died by then would be waited for.

        Raises:
          tf.errors.OpError: as of `run`.
        """
        import tensorflow as tf

        def build() -> Any:
            asked = []
            for rank in self._ranks:
                with tf.device(self.peers.devices[rank]):
                    # Not a constant, which would be sent from here.
                    asked.append(tf.raw_ops.Timestamp())
            return asked

        self.run("connect", build)

    def abandon(self) -> None:
        """For the end of the program: nothing is closed, which a dead task would make long."""
        if os.getpid() != self._pid:
            return  # A forked child has neither the session's threads, nor who holds the lock.
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            tensorflow_errors.abandon(session)

    def _config(self) -> Any:
        from tensorflow.core.protobuf import config_pb2

        config = config_pb2.ConfigProto(operation_timeout_in_ms=int(1000 * timeout_seconds()))
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        # TensorFlow waits for all tasks that are not filtered out, also for dead ones.
        devices = [self.peers.devices[r] for r in sorted({*self._ranks, *self.peers.own})]
        config.device_filters.extend(device.partition("/device:")[0] for device in devices)
        return config


def _close(session: Any) -> None:
    from tensorflow.python.framework import errors

    with contextlib.suppress(errors.OpError):
        session.close()


def _within(seconds: float, work: Callable[[], Any]) -> Any:
    """Return what `work` returns, if it does within a time; else it is left to itself."""
    from tensorflow.python.framework import errors

    results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((work(), None))
        except BaseException as error:
            results.put((None, error))

    threading.Thread(target=run, name="tf_fuse reader", daemon=True).start()
    try:
        result, error = results.get(timeout=seconds + _GRACE_S)
    except queue.Empty:
        raise errors.DeadlineExceededError(
            None, None, f"a task has not answered within {seconds:g} s ({_TIMEOUT_VARIABLE})"
        ) from None
    if error is not None:
        raise error
    return result


def timeout_seconds() -> float:
    """Return how long another task may take to answer."""
    return float(os.environ.get(_TIMEOUT_VARIABLE, _TIMEOUT_S))
