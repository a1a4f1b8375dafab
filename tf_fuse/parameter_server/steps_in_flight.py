# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Have several calls of one worker under way (the option `steps_in_flight`).

TensorFlow's coordinator begins a worker's next call when the one before has ended and its result
has arrived. With the option, a worker computes one step while the rows and gradients of others
travel. One thread of a worker takes calls from the queue, makes datasets, and waits for a lost
worker, as TensorFlow's does; other threads run the calls:

    queue --> thread of the worker --> `steps_in_flight` threads that run calls, in turn
                      ^                     |
                      +-- calls that a lost worker did not end

In turn: a call begins when the one that is `steps_in_flight` before it has ended, not when any has.
So the weights that a call reads lack the updates of at most the steps_in_flight - 1 calls before
it. As many later calls may be applied before it: between its reads and its own update, at most
2 * (steps_in_flight - 1) other calls of the worker change a variable.

A call that fails because its worker was lost waits until no other call of that worker is under way;
then all of them go back to the queue, and TensorFlow's code waits for the worker. So it waits once,
and makes the worker's datasets again once, whatever the number of calls.

The first call of each function runs alone. It makes the worker set up the function's parts on the
servers, and `EagerClusterFunctionLibraryRuntime` keeps them in a vector that other threads may not
read while it grows: TensorFlow's worker would send garbage, or crash.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from tf_fuse import options
from tf_fuse._tensorflow.eager import context_servers
from tf_fuse._tensorflow.variables import coordinator_worker
from tf_fuse.sharded_variable.peers import PROTOCOL

_log = logging.getLogger("tf_fuse")
_OPTION = "steps_in_flight"
_ANSWER_S = 30.0


# How many calls each worker of a coordinator may have under way, of those that were made.
_counts: set[int] = set()


def extend(count: int) -> None:
    """Extend the threads of `ClusterCoordinator`, once per process.

    Args:
      count: what the option is set to; a coordinator that runs already keeps what it has.
    """
    coordinator_worker.extend(_run)
    if coordinator_worker.is_any_running() and count not in _counts:
        _log.warning(
            "steps_in_flight=%d has no effect on the ClusterCoordinator that is there already: set "
            "the option before the coordinator is made",
            count,
        )


def per_worker() -> int:
    """Return how many calls of a worker may be under way in this program."""
    from tensorflow.python.eager import context

    return int(options.value_of(context.context(), _OPTION) or 1)


def _run(stock: Callable[[], None], worker: Any) -> None:
    """Run the calls of a worker until the coordinator ends."""
    count = per_worker()
    _counts.add(count)
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

    def mark_cancelled(self) -> None:
        """Nobody waits for it."""


class _Incidents:
    """Errors of a worker's calls that TensorFlow counts and then ignores, up to a number of them.

    One lost connection to a server fails all calls that are under way, and counts once.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self._kind: type[BaseException] | None = None

    def add(self, error: BaseException) -> None:
        """Note an error that was counted."""
        self.count += 1
        self._kind = type(error)

    def is_known(self, error: BaseException, count: int) -> bool:
        """Return whether such an error was counted after `count` others."""
        return self.count > count and self._kind is type(error)


class _Thread:
    """A thread that runs calls, and what stands for TensorFlow's worker there.

    It does not wait for a lost worker.

    Attributes:
      idle: is held while a call runs, or while none may begin.
      begun: the next call, and how often the worker had been lost; None to end.
      lost: the error of a call whose worker was lost.
    """

    def __init__(self, worker: Any, incidents: _Incidents):
        self._worker = worker
        self._incidents = incidents
        self.idle = threading.Semaphore()
        self.begun: queue.SimpleQueue[tuple[Any, int] | None] = queue.SimpleQueue()
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
        before = self._incidents.count
        try:
            yield
        except Exception as raised:
            error = raised
        else:
            return

        def is_lost(error: BaseException) -> None:
            self.lost = error
            raise _Lost

        def is_ignored() -> None:
            self._incidents.add(error)
            on_transient_failure_fn()

        with self._incidents.lock:
            if self._incidents.is_known(error, before):
                on_transient_failure_fn()
                return
            with (
                contextlib.suppress(_Lost),
                self._worker.failure_handler.wait_on_failure(
                    on_failure_fn=is_lost,
                    on_transient_failure_fn=is_ignored,
                    worker_device_name=worker_device_name,
                ),
            ):
                raise error


class _Calls:
    """The calls of one worker.

    Args:
      worker: TensorFlow's.
      count: of calls that may be under way.
    """

    def __init__(self, worker: Any, count: int):
        self._worker = worker
        self._queue = coordinator_worker.queue_of(worker)
        incidents = _Incidents()
        self._threads = [_Thread(worker, incidents) for _ in range(count)]
        self._failed: list[tuple[Any, BaseException, int]] = []
        # What the worker has run.
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        # How often the worker was lost and came back: what began before that and failed says
        # nothing of the worker that is there now.
        self._lives = 0
        coordinator_worker.when_recovered(worker, self._count_lives)

    def _count_lives(self) -> None:
        self._lives += 1
        self._known.clear()

    def run(self) -> None:
        """Take calls from the queue until the coordinator ends; have threads run them."""
        worker = self._worker
        for number, thread in enumerate(self._threads):
            name = f"tf_fuse-calls-of-worker-{worker.worker_index}-{number}"
            target = functools.partial(self._run_calls, thread)
            threading.Thread(target=target, name=name, daemon=True).start()
        coordinator_worker.delay(worker)
        in_turn = itertools.cycle(self._threads)
        thread = next(in_turn)
        while coordinator_worker.is_running(worker):
            thread.idle.acquire()
            if self._failed:
                with self._others_idle(thread):
                    self._recover()
            closure = self._queue.get(tag=worker.worker_index)
            if not coordinator_worker.is_running(worker) or closure is None:
                if closure is not None:
                    closure.mark_cancelled()
                break
            if self._may_begin(thread, closure):
                thread.begun.put((closure, self._lives))
                thread = next(in_turn)
            else:
                thread.idle.release()
            # As in TensorFlow: what a call holds is not held while the next one is waited for.
            del closure
        for thread in self._threads:
            thread.begun.put(None)

    def _run_calls(self, thread: _Thread) -> None:
        """Run the calls of a thread, one after the other."""
        while (begun := thread.begun.get()) is not None:
            closure, lives = begun
            coordinator_worker.process(thread, closure)
            lost, thread.lost = thread.lost, None
            if lost is not None:
                self._failed.append((closure, lost, lives))
            del closure, begun
            thread.idle.release()
            if lost is not None:
                self._queue.put(_Wake(), tag=self._worker.worker_index)

    def _may_begin(self, thread: _Thread, closure: Any) -> bool:
        """Return whether a call may begin on a thread; if not, do what is to be done with it."""
        if isinstance(closure, _Wake):
            return False
        if coordinator_worker.makes_resource(closure):
            with self._others_idle(thread):
                coordinator_worker.make_resource(self._worker, closure)
            return False
        if coordinator_worker.function_of(closure) not in self._known:
            with self._others_idle(thread):
                self._run_first(closure)
            return False
        if self._failed:  # on this worker, which is lost
            self._queue.put_back(closure)
            return False
        return True

    def _run_first(self, closure: Any) -> None:
        """Run the first call of a function; no other call runs."""
        if self._failed:  # on this worker, which is lost
            self._queue.put_back(closure)
            return
        with contextlib.suppress(TypeError):  # of a function that no set can hold weakly
            self._known.add(coordinator_worker.function_of(closure))
        coordinator_worker.process(self._worker, closure)

    @contextlib.contextmanager
    def _others_idle(self, thread: _Thread) -> Iterator[None]:
        """Wait until no other thread runs a call, and begin none meanwhile."""
        others = [one for one in self._threads if one is not thread]
        for one in others:
            one.idle.acquire()
        try:
            yield
        finally:
            for one in others:
                one.idle.release()

    def _recover(self) -> None:
        """Put failed calls back, and wait until the worker is back if it is lost; no call runs."""
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
