# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Have several calls of one worker under way (the option `steps_in_flight`).

TensorFlow's coordinator begins a worker's next call when the one before has ended and its result
has arrived. With the option, a worker computes one step while the rows and gradients of others
travel. One thread of a worker takes calls from the queue, makes datasets, and waits for a lost
worker, as TensorFlow's does; other threads run the calls:

    queue --> thread of the worker --> threads that run calls, at most `steps_in_flight`
                      ^                     |
                      +-- calls that a lost worker did not end

A call that fails because its worker was lost waits until no other call of that worker is under way;
then all of them go back to the queue, and TensorFlow's code waits for the worker. So it waits once,
and makes the worker's datasets again once, whatever the number of calls.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tf_fuse import options
from tf_fuse._tensorflow.eager import context_servers
from tf_fuse._tensorflow.variables import coordinator_worker
from tf_fuse.sharded_variable.peers import PROTOCOL

_log = logging.getLogger("tf_fuse")
_OPTION = "steps_in_flight"
_ANSWER_S = 30.0


def extend() -> None:
    """Extend the threads of `ClusterCoordinator`, once per process."""
    coordinator_worker.extend(_run)


def per_worker() -> int:
    """Return how many calls of a worker may be under way in this program."""
    from tensorflow.python.eager import context

    return int(options.value_of(context.context(), _OPTION) or 1)


def _run(stock: Callable[[], None], worker: Any) -> None:
    """Run the calls of a worker until the coordinator ends."""
    count = per_worker()
    if count == 1 or not _takes_several(worker.device_name):
        stock()
    else:
        _Calls(worker, count).run()


def _takes_several(task: str) -> bool:
    """Return whether a worker's server ends calls that run together.

    TensorFlow's own server runs calls on the threads that the functions need, as many as the
    machine has cores: as many calls as that wait for ever.
    """
    from tensorflow.python.eager import context

    from tf_fuse.monitoring import tasks
    from tf_fuse.v1 import fuse_recv_pb2

    protocol = context_servers.server_def(context.context()).protocol
    why: object = f"this process runs the protocol {protocol!r}, not {PROTOCOL!r}"
    if protocol == PROTOCOL:
        question = fuse_recv_pb2.QUESTION_TASKS
        answer = tasks.ask_task(task, f"{task}/device:CPU:0", question, _ANSWER_S)
        if isinstance(answer, bytes):
            return True
        why = answer
    _log.warning(
        "steps_in_flight has no effect on %s, which runs one step at a time: %s", task, why
    )
    return False


class _Lost(Exception):
    """A call did not end because its worker was lost."""


class _Failed:
    """A call that a lost worker did not end: fails once more, where that is waited for."""

    def __init__(self, closure: Any, error: BaseException):
        self._closure = closure
        self._error: BaseException | None = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._closure, name)

    def execute_on(self, worker: Any) -> None:
        """Raise the error; the next time, run the call."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        self._closure.execute_on(worker)


class _Wake:
    """Stands in a worker's queue so that its thread looks at what has failed."""

    tag: Any = None


class _Thread:
    """Stands for TensorFlow's worker on a thread that runs calls.

    The thread does not wait for a lost worker.
    """

    def __init__(self, worker: Any):
        self._worker = worker
        self.executor = coordinator_worker.new_executor()
        self.failure_handler = self
        self.lost: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    @contextlib.contextmanager
    def wait_on_failure(
        self,
        on_failure_fn: Callable[[BaseException], None],
        on_transient_failure_fn: Callable[[], None],
        on_recovery_fn: Callable[[], None],
        worker_device_name: str,
    ) -> Iterator[None]:
        """As TensorFlow's handler, but note the error of a lost worker in place of waiting."""
        del on_failure_fn, on_recovery_fn

        def is_lost(error: BaseException) -> None:
            self.lost = error
            raise _Lost

        with (
            contextlib.suppress(_Lost),
            self._worker.failure_handler.wait_on_failure(
                on_failure_fn=is_lost,
                on_transient_failure_fn=on_transient_failure_fn,
                worker_device_name=worker_device_name,
            ),
        ):
            yield


class _Calls:
    """The calls of one worker.

    Args:
      worker: TensorFlow's.
      count: of calls that may be under way.
    """

    def __init__(self, worker: Any, count: int):
        self._worker = worker
        self._count = count
        self._queue = coordinator_worker.queue_of(worker)
        self._free = threading.Semaphore(count)
        self._begun: queue.SimpleQueue[tuple[Any, int] | None] = queue.SimpleQueue()
        self._failed: list[tuple[Any, BaseException, int]] = []
        # How often the worker was lost and came back: what began before that and failed says
        # nothing of the worker that is there now.
        self._lives = 0
        recovered = worker._on_worker_recovery

        def count_lives() -> None:
            self._lives += 1
            recovered()

        worker._on_worker_recovery = count_lives

    def run(self) -> None:
        """Take calls from the queue until the coordinator ends; have threads run them."""
        worker = self._worker
        for number in range(self._count):
            name = f"tf_fuse-calls-of-worker-{worker.worker_index}-{number}"
            threading.Thread(target=self._run_calls, name=name, daemon=True).start()
        worker._maybe_delay()
        while coordinator_worker.is_running(worker):
            self._free.acquire()
            if self._failed:
                self._recover()
            closure = self._queue.get(tag=worker.worker_index)
            if not coordinator_worker.is_running(worker) or closure is None:
                if closure is not None:
                    closure.mark_cancelled()
                break
            if coordinator_worker.makes_resource(closure):
                worker._process_resource_closure(closure)
                self._free.release()
            elif isinstance(closure, _Wake):
                self._free.release()
            elif self._failed:  # on this worker, which is lost
                self._queue.put_back(closure)
                self._free.release()
            else:
                self._begun.put((closure, self._lives))
            # As in TensorFlow: what a call holds is not held while the next one is waited for.
            del closure
        for _ in range(self._count):
            self._begun.put(None)

    def _run_calls(self) -> None:
        """Run calls, one after the other."""
        thread = _Thread(self._worker)
        while (begun := self._begun.get()) is not None:
            closure, lives = begun
            coordinator_worker.process(thread, closure)
            lost, thread.lost = thread.lost, None
            if lost is not None:
                self._failed.append((closure, lost, lives))
            del closure, begun
            self._free.release()
            if lost is not None:
                self._queue.put(_Wake(), tag=self._worker.worker_index)

    def _recover(self) -> None:
        """Put failed calls back when no other runs; wait until the worker is back if it is lost."""
        for _ in range(self._count - 1):  # (The thread that calls this has one.)
            self._free.acquire()
        failed, self._failed = self._failed, []
        now = [(closure, error) for closure, error, lives in failed if lives == self._lives]
        for closure, _, lives in failed:
            if lives != self._lives:
                self._queue.put_back(closure)
        for closure, _ in now[1:]:
            self._queue.put_back(closure)
        if now:
            # TensorFlow's code puts it back, waits, and makes the worker's datasets again.
            coordinator_worker.process(self._worker, _Failed(*now[0]))
        for _ in range(self._count - 1):
            self._free.release()
