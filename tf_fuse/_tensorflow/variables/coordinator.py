# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read what `ClusterCoordinator` knows of calls, and make datasets again on workers."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_fuse._tensorflow import feature_names
from tf_fuse._tensorflow.members import ON_OBJECTS, Member, Stored, Takes
from tf_fuse._tensorflow.variables import coordinator_worker

_VALUES = "tensorflow.python.distribute.coordinator.values"
_CONTEXT = "tensorflow.python.distribute.coordinator.coordinator_context"
_COORDINATOR = "tensorflow.python.distribute.coordinator.cluster_coordinator"
_FEATURES = (feature_names.KERAS_FIT,)
_MOMENT_S = 0.0005
_DISPATCH = Member(
    _CONTEXT,
    "get_current_dispatch_context",
    Takes(),
    "knows the worker whose thread asks",
    _FEATURES,
)
_CLOSURE = Member(
    _COORDINATOR,
    "Closure",
    Takes("function", "cancellation_mgr", "args", "kwargs"),
    "is a call; copies of one take a quarter of the time of new ones",
    _FEATURES,
)
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
    Member(
        f"{_COORDINATOR}:ClusterCoordinator",
        "_cluster",
        Stored(),
        "schedules calls",
        _FEATURES,
    ),
    Member(f"{_COORDINATOR}:Cluster", "closure_queue", Stored(), "holds the calls", _FEATURES),
    _CLOSURE,
    *(
        Member(f"{_COORDINATOR}:Closure", name, shape, why, _FEATURES)
        for name, shape, why in (
            ("_args", Stored(), "differ between calls of one function"),
            ("_output_remote_value_ref", Stored(), "is None until the call has a result"),
            ("_output_type_spec", Stored(), "is that of the result"),
        )
    ),
    *(
        Member(f"{_COORDINATOR}:_CoordinatedClosureQueue", name, shape, why, _FEATURES)
        for name, shape, why in (
            ("put", Takes("self", "closure", "tag"), "schedules a call"),
            ("_cancellation_mgr", Stored(), "is another one after a call has failed"),
        )
    ),
    Member(
        f"{_COORDINATOR}:_CoordinatedClosureQueue",
        "put_back",
        Takes("self", "closure"),
        "A call that runs again has taken a batch of its worker.",
        _FEATURES,
        ON_OBJECTS,
    ),
    *(
        Member(_RESULT, name, Stored(), why, _FEATURES)
        for name, why in (
            ("_status_available_event", "is set when the call has ended"),
            ("_has_fetched_to_local", "says that the worker may be lost: its results are here"),
            ("_has_fetched_to_local_lock", "is held while results come from the worker"),
            ("_error", "is what the call raised"),
            ("_values", "are tensors on the worker that ran the call"),
        )
    ),
    _REMOTE_VALUE,
    _EXECUTOR_SCOPE,
    Member(_RESULT, "_copy_to_local", Takes("self"), "brings the result here", _FEATURES),
    Member(
        f"{_VALUES}:PerWorkerDatasetFromDatasetFunction",
        "_dataset_fn",
        Stored(),
        "A worker that was lost makes its dataset again without the batches that were used.",
        _FEATURES,
        ON_OBJECTS,
    ),
    _DISPATCH,
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


@functools.cache
def _result_class(is_array: bool, stays: bool) -> type[Any]:
    """Return the class of results that are fetched as `_fetching` does.

    Args:
      is_array: whether they become NumPy arrays; TensorFlow makes tensors of them by an operation,
        which takes half as much time again.
      stays: whether they become that only by `arrays_of`.
    """

    class Result(_REMOTE_VALUE.resolve().RemoteValueImpl):  # type: ignore[misc]
        def _copy_to_local(self) -> Any:
            if stays:
                return list(self._values)
            with _fetching():
                if is_array:
                    return [one.numpy() for one in self._values]
                return super()._copy_to_local()

    return Result


class Scheduler:
    """Schedules calls of a concrete function, as `ClusterCoordinator.schedule` does.

    It does not enter the strategy's scope, in which TensorFlow would trace the function, and does
    not look at what the function returns each time: together these take most of the time.

    Args:
      coordinator: the `ClusterCoordinator`.
      concrete: the function.
      as_arrays: whether its results, a list of tensors, become NumPy arrays on this machine.
      stay: whether they do only when `arrays_of` fetches them, and stay on the worker until then.
    """

    def __init__(
        self, coordinator: Any, concrete: Any, as_arrays: bool = False, stay: bool = False
    ):
        self._queue = coordinator._cluster.closure_queue
        self._concrete = concrete
        self._result_class = _result_class(as_arrays, stay)
        self._manager: Any = None
        self._first: Any = None

    def schedule(self, args: tuple[Any, ...]) -> Any:
        """Schedule a call; return what `ClusterCoordinator.schedule` returns.

        Args:
          args: of the function: tensors, and values that differ between workers.
        """
        manager = self._queue._cancellation_mgr
        if manager is not self._manager:
            self._first = _CLOSURE.resolve().Closure(self._concrete, manager)
            self._manager = manager
        closure = copy.copy(self._first)
        closure._args = args
        result = self._result_class(None, closure._output_type_spec)
        closure._output_remote_value_ref = weakref.ref(result)
        self._queue.put(closure)
        return result


def count_put_back(coordinator: Any) -> Callable[[], int]:
    """Return what counts the calls that run again, as a worker or a server was lost."""
    queue = coordinator._cluster.closure_queue
    if not hasattr(queue.put_back, "tf_fuse_count"):
        stock, counter = queue.put_back, itertools.count(1)

        @functools.wraps(stock)
        def put_back(closure: Any) -> None:
            put_back.tf_fuse_count = next(counter)  # type: ignore[attr-defined]
            stock(closure)

        put_back.tf_fuse_count = 0  # type: ignore[attr-defined]
        queue.put_back = put_back
    counted = queue.put_back
    return lambda: int(counted.tf_fuse_count)


def is_done(result: Any) -> bool:
    """Return whether a call has ended, and what it returned is on this machine.

    Before that, its worker may be lost, and then the call runs again.

    Args:
      result: of `ClusterCoordinator.schedule`.
    """
    has_ended = result._status_available_event.is_set()
    return bool(has_ended and (result._has_fetched_to_local or result._error is not None))


def arrays_of(results: Sequence[Any]) -> list[Any]:
    """Fetch the results of some calls of one worker together, in one array.

    Args:
      results: of calls that have ended, scheduled with `stay`; each is one tensor of one axis.

    Returns:
      Their arrays.

    Raises:
      tf.errors.OpError: the worker is lost.
    """
    import numpy as np
    import tensorflow as tf

    tensors = [result._values[0] for result in results]
    with _fetching(), tf.device(tensors[0].device):
        together = tf.concat(tensors, axis=0).numpy()
    ends = itertools.accumulate(one.shape[0] for one in tensors)
    return np.split(together, list(ends)[:-1])


def is_lost(error: Exception) -> bool:
    """Return whether an error of `arrays_of` says that the worker, or what it held, is gone."""
    import tensorflow as tf

    if isinstance(error, tf.errors.InvalidArgumentError):  # from the process that came after it
        return any(text in str(error) for text in ("tensor remote_handle", "context_id"))
    gone = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    return isinstance(error, gone)


def has_result(result: Any) -> bool:
    """Return whether a call has ended without an error."""
    return is_done(result) and result._error is None


def worker_of(result: Any) -> int:
    """Return the number of the worker that ran a call; the call has returned a list of tensors.

    The worker could return its number only if each call sent it there.
    """
    import tensorflow as tf

    return int(tf.DeviceSpec.from_string(result._values[0].device).task)


def wait(result: Any, seconds: float) -> None:
    """Wait until a call may be done, but not longer."""
    if result._status_available_event.is_set():
        with result._has_fetched_to_local_lock:
            pass
        if not is_done(result):  # A thread is about to take the lock, or runs the call again.
            time.sleep(min(seconds, _MOMENT_S))
    else:
        result._status_available_event.wait(seconds)


class _DatasetFunction:
    """Stands for the concrete function that makes the dataset of a worker."""

    def __init__(self, concrete: Any, arguments: Callable[[int], Sequence[Any]]):
        self.structured_outputs = concrete.structured_outputs
        self._concrete = concrete
        self._arguments = arguments

    def __call__(self) -> Any:
        worker = getattr(_DISPATCH.resolve(), _DISPATCH.name)().worker_index
        return self._concrete(*self._arguments(worker))


def datasets_on_workers(
    coordinator: Any, concrete: Any, arguments: Callable[[int], Sequence[Any]]
) -> Any:
    """Return datasets, one for each worker: an iterable of iterators on the workers.

    Args:
      coordinator: the `ClusterCoordinator`.
      concrete: function that makes a worker's dataset.
      arguments: returns its arguments for a worker; a thread of the coordinator calls it when a
        worker makes its iterator, and again after it was lost.
    """
    datasets = coordinator.create_per_worker_dataset(concrete)
    datasets._dataset_fn = _DatasetFunction(concrete, arguments)
    return datasets
