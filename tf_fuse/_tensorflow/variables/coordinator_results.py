# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fetch what calls of `ClusterCoordinator` returned, also while their workers run the next ones."""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

from tf_fuse._tensorflow import feature_names
from tf_fuse._tensorflow.members import Member, Stored, Takes
from tf_fuse._tensorflow.variables import coordinator_worker

_VALUES = "tensorflow.python.distribute.coordinator.values"
_QUEUE = "tensorflow.python.distribute.coordinator.cluster_coordinator:_CoordinatedClosureQueue"
_FEATURES = (feature_names.KERAS_FIT, feature_names.SCHEDULE)
_MOMENT_S = 0.0005
_COUNTS = "counts calls that have not ended"
_EXECUTOR_SCOPE = Member(
    "tensorflow.python.eager.context",
    "executor_scope",
    Takes("e"),
    "fetches results",
    _FEATURES,
)
_RESULT = f"{_VALUES}:RemoteValueImpl"
_REMOTE_VALUE = Member(
    _VALUES,
    "RemoteValueImpl",
    Takes("closure", "type_spec"),
    "is the result of a call; that of steps becomes NumPy arrays",
    _FEATURES,
)
MEMBERS = (
    *(
        Member(_RESULT, name, shape, why, _FEATURES)
        for name, shape, why in (
            ("_status_available_event", Stored(), "is set when the call has ended"),
            ("_has_fetched_to_local", Stored(), "says that the result is here"),
            ("_has_fetched_to_local_lock", Stored(), "is held while results come from the worker"),
            ("_error", Stored(), "is what the call raised"),
            ("_values", Stored(), "are tensors on the worker that ran the call"),
            ("_copy_to_local", Takes("self"), "brings the result here"),
            ("_set_error", Takes("self", "error"), "ends a call"),
        )
    ),
    *(
        Member(_QUEUE, name, shape, _COUNTS, _FEATURES)
        for name, shape in (
            ("inflight_closure_count", Stored()),
            ("_queue_lock", Stored()),
            ("mark_finished", Takes("self")),
            ("mark_failed", Takes("self", "e")),
        )
    ),
    _REMOTE_VALUE,
    _EXECUTOR_SCOPE,
    Member(
        "tensorflow.python.framework.ops:_EagerTensorBase",
        "_copy",
        Takes("self", "ctx", "device_name"),
        "brings a result here; `cpu`, which calls it, logs that it is deprecated",
        _FEATURES,
    ),
)

_of_thread = threading.local()


@contextlib.contextmanager
def _fetching() -> Iterator[None]:
    """Fetch tensors from a worker, which may be lost meanwhile.

    An executor keeps the error of a fetch, and whoever waits for it gets that error again: with the
    program's own executor, Keras when it reads the next batch. So fetches have one per thread.

    If the worker cannot send, TensorFlow may raise only that the receive was cancelled, which
    `ClusterCoordinator` does not take for a lost worker. The executor has the error of the sender.
    """
    import tensorflow as tf

    if not hasattr(_of_thread, "executor"):
        _of_thread.executor = coordinator_worker.new_executor()
    executor = _of_thread.executor
    try:
        with _EXECUTOR_SCOPE.resolve().executor_scope(executor):
            yield
    except tf.errors.OpError as error:
        try:
            executor.wait()
        except tf.errors.OpError as cause:
            if isinstance(error, tf.errors.CancelledError):
                raise cause from error
        finally:
            executor.clear_error()
        raise


class _Fetcher:
    """A thread that fetches what the calls of one worker returned, one after the other."""

    def __init__(self, worker: str):
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._has_room = threading.Lock()  # (`queue.Queue(1)` takes several times as long.)
        name = f"tf_fuse-results-of-{worker}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def add(self, result: Any) -> None:
        """Fetch a result soon; wait while another one waits."""
        self._has_room.acquire()
        self._results.put(result)

    def _run(self) -> None:
        while True:
            result = self._results.get()
            self._has_room.release()
            result.bring()
            del result  # before the next one comes


_fetchers: dict[str, _Fetcher] = {}
_fetchers_lock = threading.Lock()


def _fetcher(worker: str) -> _Fetcher:
    """Return what fetches for a worker, by the name of the thread that runs its calls."""
    with _fetchers_lock:
        if worker not in _fetchers:
            _fetchers[worker] = _Fetcher(worker)
        return _fetchers[worker]


@functools.cache
def class_of(as_arrays: bool, late: bool) -> type[Any]:
    """Return a class of results.

    Args:
      as_arrays: whether they become NumPy arrays; TensorFlow makes tensors of them by an operation,
        which takes half as much time again.
      late: whether they do while their worker runs its next call.
    """
    import tensorflow as tf

    base: Any = _REMOTE_VALUE.resolve().RemoteValueImpl
    handles = (tf.resource, tf.variant)

    class Result(base):
        """A result that is fetched before its worker runs another call."""

        def __init__(self, closure: Any, calls: Any):
            super().__init__(None, closure._output_type_spec)

        def _copy_to_local(self) -> Any:
            with _fetching():
                if as_arrays:
                    return [one.numpy() for one in self._values]
                return super()._copy_to_local()

        def is_done(self) -> bool:
            has_ended = self._status_available_event.is_set()
            return bool(has_ended and (self._has_fetched_to_local or self._error is not None))

        def wait(self, seconds: float) -> None:
            if not self._status_available_event.is_set():
                self._status_available_event.wait(seconds)
                return
            with self._has_fetched_to_local_lock:
                pass
            if not self.is_done():  # A thread is about to take the lock, or runs the call again.
                time.sleep(min(seconds, _MOMENT_S))

    class LateResult(base):
        """A result that is fetched while its worker runs its next call.

        Its call has not ended before it is here: if its worker is lost, the call runs again.
        """

        def __init__(self, closure: Any, calls: Any):
            super().__init__(closure, closure._output_type_spec)
            self._calls = calls
            self._is_here = threading.Event()
            self._asks_too_early: int | None = None

        def _set_values(self, tensors: Any) -> None:
            self._asks_too_early = threading.get_ident()
            super()._set_values(tensors)

        def get(self) -> Any:
            """Return what the call returned; the worker's thread, which goes on, gets nothing."""
            self._wait_and_maybe_error()
            if self._asks_too_early == threading.get_ident():
                self._asks_too_early = None
                if self._values is None:
                    self._end()
                    return None
                # That thread will count one call less, but this one has not ended.
                with self._calls._queue_lock:
                    self._calls.inflight_closure_count += 1
                _fetcher(threading.current_thread().name).add(self)
                return None
            self._is_here.wait()
            self._wait_and_maybe_error()
            return self._fetched_tensors

        def bring(self) -> None:
            """Fetch what the call returned, and say how the call has ended."""
            try:
                with _fetching():
                    self._fetched_tensors = self._copy_to_local()
            except Exception as error:
                self._fail(error)
                return
            self._end()
            self._calls.mark_finished()

        def _copy_to_local(self) -> Any:
            if as_arrays:
                return [one.numpy() for one in self._values]
            values = tf.nest.flatten(self._values)
            if all(isinstance(one, tf.Tensor) and one.dtype not in handles for one in values):
                # (An operation for each, as TensorFlow has, takes longer; its errors have classes.)
                with contextlib.suppress(RuntimeError):
                    here = [one._copy(device_name="CPU:0") for one in values]
                    return tf.nest.pack_sequence_as(self._values, here)
            return super()._copy_to_local()

        def _fail(self, error: Exception) -> None:
            if _is_lost(error):
                self._status_available_event.clear()
                self._calls.put_back(self._closure)
            else:
                self._set_error(error)
                self._calls.mark_failed(error)

        def _set_error(self, error: Exception) -> None:
            super()._set_error(error)
            self._end()

        def _end(self) -> None:
            self._closure = None  # nor what it got
            self._is_here.set()

        def is_done(self) -> bool:
            return self._is_here.is_set()

        def wait(self, seconds: float) -> None:
            self._is_here.wait(seconds)

    return LateResult if late else Result


def result_of(closure: Any, calls: Any, kind: type[Any]) -> Any:
    """Return the result that a call will have.

    Args:
      closure: the call, which has none yet.
      calls: the queue of the coordinator.
      kind: one of the classes.
    """
    result = kind(closure, calls)
    closure._output_remote_value_ref = weakref.ref(result)
    return result


def is_done(result: Any) -> bool:
    """Return whether a call has ended, and what it returned is on this machine.

    Before that, its worker may be lost, and then the call runs again.

    Args:
      result: of one of the classes.
    """
    return bool(result.is_done())


def wait(result: Any, seconds: float) -> None:
    """Wait until a call may be done, but not longer."""
    result.wait(seconds)


def worker_of(result: Any) -> int:
    """Return the number of the worker that ran a call; the call has returned a list of tensors.

    The worker could return its number only if each call sent it there.
    """
    import tensorflow as tf

    return int(tf.DeviceSpec.from_string(result._values[0].device).task)


def _is_lost(error: Exception) -> bool:
    """Return whether an error of a fetch says that the worker, or what it held, is gone."""
    import tensorflow as tf

    if isinstance(error, tf.errors.InvalidArgumentError):  # from the process that came after it
        return any(text in str(error) for text in ("tensor remote_handle", "context_id"))
    gone = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    return isinstance(error, gone)
