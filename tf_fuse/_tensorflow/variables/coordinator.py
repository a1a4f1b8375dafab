# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read what `ClusterCoordinator` knows of calls, and make datasets again on workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_fuse._tensorflow import feature_names
from tf_fuse._tensorflow.members import ON_OBJECTS, Member, Stored, Takes

_VALUES = "tensorflow.python.distribute.coordinator.values"
_CONTEXT = "tensorflow.python.distribute.coordinator.coordinator_context"
_FEATURES = (feature_names.KERAS_FIT,)
_DISPATCH = Member(
    _CONTEXT,
    "get_current_dispatch_context",
    Takes(),
    "knows the worker whose thread asks",
    _FEATURES,
)
MEMBERS = (
    Member(
        f"{_VALUES}:RemoteValueImpl",
        "_status_available_event",
        Stored(),
        "is set when the call has ended",
        _FEATURES,
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


def is_done(result: Any) -> bool:
    """Return whether the call has ended whose result `ClusterCoordinator.schedule` returned."""
    return bool(result._status_available_event.is_set())


def wait(result: Any, seconds: float) -> None:
    """Wait until a call has ended, but not longer."""
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
