# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read what `ClusterCoordinator` knows of calls, and make datasets again on workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tf_fuse._tensorflow import feature_names
from tf_fuse._tensorflow.members import ON_OBJECTS, Member, Stored, Takes

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
_RESULT = f"{_VALUES}:RemoteValueImpl"
MEMBERS = (
    Member(
        f"{_COORDINATOR}:ClusterCoordinator",
        "_cluster",
        Stored(),
        "schedules calls",
        _FEATURES,
    ),
    Member(
        f"{_COORDINATOR}:Cluster",
        "schedule",
        Takes("self", "function", "args", "kwargs"),
        "schedules a traced function without the strategy's scope, in which TensorFlow would trace "
        "it; entering that scope takes half of the time",
        _FEATURES,
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


def schedule(coordinator: Any, concrete: Any, args: tuple[Any, ...]) -> Any:
    """Schedule a concrete function, as `ClusterCoordinator.schedule` does.

    Returns:
      What `ClusterCoordinator.schedule` returns.
    """
    return coordinator._cluster.schedule(concrete, args=args, kwargs={})


def is_done(result: Any) -> bool:
    """Return whether a call has ended, and what it returned is on this machine.

    Before that, its worker may be lost, and then the call runs again.

    Args:
      result: of `ClusterCoordinator.schedule`.
    """
    has_ended = result._status_available_event.is_set()
    return bool(has_ended and (result._has_fetched_to_local or result._error is not None))


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

    def __init__(self, concrete: Any, used: Callable[[int], int]):
        self.structured_outputs = concrete.structured_outputs
        self._concrete = concrete
        self._used = used

    def __call__(self) -> Any:
        import tensorflow as tf

        worker = getattr(_DISPATCH.resolve(), _DISPATCH.name)().worker_index
        return self._concrete(tf.constant(self._used(worker), tf.int64))


def datasets_on_workers(coordinator: Any, concrete: Any, used: Callable[[int], int]) -> Any:
    """Return datasets, one for each worker: an iterable of iterators on the workers.

    Args:
      coordinator: the `ClusterCoordinator`.
      concrete: function that makes a worker's dataset; gets how many elements to leave out.
      used: returns that number for a worker; a thread of the coordinator calls it when a worker
        makes its iterator, and again after it was lost.
    """
    datasets = coordinator.create_per_worker_dataset(concrete)
    datasets._dataset_fn = _DatasetFunction(concrete, used)
    return datasets
