# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read what `ClusterCoordinator` knows of calls, and make datasets again on workers."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from tf_fuse._tensorflow import feature_names
from tf_fuse._tensorflow.members import ON_OBJECTS, Member, Stored, Takes
from tf_fuse._tensorflow.variables import coordinator_results

_VALUES = "tensorflow.python.distribute.coordinator.values"
_CONTEXT = "tensorflow.python.distribute.coordinator.coordinator_context"
_COORDINATOR = "tensorflow.python.distribute.coordinator.cluster_coordinator"
_FEATURES = (feature_names.KERAS_FIT,)
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
_DATASET = Member(
    f"{_VALUES}:PerWorkerDatasetFromDatasetFunction",
    "_dataset_fn",
    Stored(),
    "A worker that was lost makes its dataset again without the batches that were used.",
    _FEATURES,
    ON_OBJECTS,
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
    _DATASET,
    _DISPATCH,
)


class Scheduler:
    """Schedules calls of a concrete function, as `ClusterCoordinator.schedule` does.

    It does not enter the strategy's scope, in which TensorFlow would trace the function, and does
    not look at what the function returns each time: together these take most of the time.

    Args:
      coordinator: the `ClusterCoordinator`.
      concrete: the function.
      as_arrays: whether its results, a list of tensors, become NumPy arrays on this machine.
      late: whether they do while the worker runs its next call.
    """

    def __init__(
        self, coordinator: Any, concrete: Any, as_arrays: bool = False, late: bool = False
    ):
        self._queue = coordinator._cluster.closure_queue
        self._concrete = concrete
        self._result_class = coordinator_results.class_of(as_arrays, late)
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
        result = coordinator_results.result_of(closure, self._queue, self._result_class)
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


def is_on_workers(dataset: Any) -> bool:
    """Return whether an object is what `create_per_worker_dataset` makes, or its iterator."""
    import tensorflow as tf

    kinds = (_DATASET.resolve(), tf.distribute.coordinator.PerWorkerValue)
    return isinstance(dataset, kinds)
