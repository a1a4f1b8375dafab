# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Datasets that workers read themselves: a function of an `InputContext` makes each."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

from tf_fuse._tensorflow.variables import coordinator as coordinators
from tf_fuse.keras.step_queue import StepQueue

_log = logging.getLogger("tf_fuse")


class WorkerData:
    """One dataset per worker.

    Attributes:
      queue: whose calls read the datasets.
      element_spec: of the batches.
      name: of datasets for which the same steps are traced.
      steps: of all workers in an epoch; None if an epoch ends with the datasets.
    """

    def __init__(self, strategy: Any, function: Callable[[Any], Any], steps: int | None):
        """Trace the function.

        Raises:
          TypeError: it does not return a `tf.data.Dataset`.
          ValueError: its dataset is endless, and `steps` is None; or it uses one of this process.
        """
        import tensorflow as tf

        self.queue = StepQueue(strategy)
        self.steps = steps

        def make(used: Any) -> Any:
            context = tf.distribute.InputContext(
                num_input_pipelines=self.queue.workers,
                input_pipeline_id=tf.distribute.coordinator.experimental_get_current_worker_index(),
                num_replicas_in_sync=strategy.num_replicas_in_sync,
            )
            with _explaining_tensors():
                dataset = function(context)
            if not isinstance(dataset, tf.data.Dataset):
                raise TypeError(
                    f"the function given to fit or evaluate must return a tf.data.Dataset of "
                    f"batches; {function!r} returned {type(dataset).__name__}"
                )
            return dataset.skip(used)

        traced = tf.function(make, autograph=False)
        self._concrete = traced.get_concrete_function(tf.TensorSpec([], tf.int64))
        if any(_is_dataset(one) for one in self._concrete.graph.external_captures):
            raise ValueError(
                "the function of an InputContext uses a dataset that was made outside of it, which "
                "cannot be sent to workers: make the dataset inside of the function"
            )
        if not steps and self._cardinality(make) == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                "the dataset of a worker is endless: give steps_per_epoch (or steps, "
                "validation_steps)"
            )
        self.element_spec = self._concrete.structured_outputs.element_spec
        self.name = repr(self.element_spec)

    def _cardinality(self, make: Callable[[Any], Any]) -> int:
        """Ask a worker how many batches its dataset has."""
        import tensorflow as tf

        def count() -> Any:
            return make(tf.constant(0, tf.int64)).cardinality()

        with self.queue.giving_up_after_errors():
            return int(self.queue.trace(count, [], packing=None)().fetch())

    def __iter__(self) -> WorkerIterator:
        return WorkerIterator(self)

    def make_iterators(self, used: Callable[[int], int]) -> Any:
        """Make an iterator on each worker; return the `PerWorkerValues`.

        Args:
          used: how many batches of its dataset a worker leaves out.
        """
        coordinator = self.queue.coordinator
        return iter(coordinators.datasets_on_workers(coordinator, self._concrete, used))


class WorkerIterator:
    """One pass over the datasets of the workers.

    Attributes:
      data: the datasets.
      made: steps that were made before this process began, and count.
    """

    def __init__(self, data: WorkerData):
        self.data = data
        self.made = 0
        self._iterators: Any = None
        self._used = [0] * data.queue.workers
        self._ended: set[int] = set()

    def __next__(self) -> Any:
        """Return the specs of a batch: Keras builds the model from them."""
        return self.data.element_spec

    def leave_out(self, made: list[int]) -> int:
        """Go on where another process ended.

        Args:
          made: by each worker, its steps.

        Returns:
          How many steps are left out.
        """
        if self.data.steps is None:
            if len(made) != len(self._used):
                _log.warning(
                    "the epoch begins anew: the backup is of data that %d workers read, not %d",
                    len(made), len(self._used),
                )  # fmt: skip
                return 0
            self._used = list(made)
        self.made = sum(made)
        return self.made

    def used(self, queue: StepQueue) -> list[int]:
        """Return how many batches each worker has used by calls that have ended."""
        done: list[int] = queue.done(
            lambda calls: [
                used + sum(one.steps() for one in calls if one.worker() == worker)
                for worker, used in enumerate(self._used)
            ]
        )
        return done

    def iterators(self, queue: StepQueue) -> Any:
        """Return the argument for calls of a queue: for each worker its iterator."""
        if self._iterators is None:
            # A worker that was lost repeats only the batches of the call that it did not end.
            self._iterators = self.data.make_iterators(lambda worker: self.used(queue)[worker])
        return self._iterators

    def spec(self) -> Any:
        """Return the spec of a worker's iterator."""
        import tensorflow as tf

        return tf.data.IteratorSpec(self.data.element_spec)

    def most(self, queue: StepQueue) -> int:
        """Return how many calls may be under way.

        A worker that is through ends calls at once. So there are not more than others can run.
        """
        return queue.workers - len(self._ended) if self._ended else queue.most()

    def take(self, worker: int, steps: int) -> bool:
        """Count what a call has used.

        Args:
          worker: that ran it.
          steps: that it ran.

        Returns:
          Whether the call was in vain: its worker was known to be through.
        """
        self._used[worker] += steps
        if steps:
            return False
        in_vain = worker in self._ended
        self._ended.add(worker)
        return in_vain

    def waits_for(self) -> list[int]:
        """Return the workers that are not through."""
        return [one for one in range(len(self._used)) if one not in self._ended]


@contextlib.contextmanager
def _explaining_tensors() -> Iterator[None]:
    """Say why a function must not index a list by `input_pipeline_id`."""
    try:
        yield
    except TypeError as error:
        if not any(text in str(error) for text in ("SymbolicTensor", "slice indices")):
            raise
        raise TypeError(
            f"{error} (input_pipeline_id of the InputContext is a tensor, which no list and no "
            "int() takes: shard a dataset, for instance of the files' names)"
        ) from error


def _is_dataset(tensor: Any) -> bool:
    """Return whether a tensor of this process is a dataset."""
    import tensorflow as tf

    if tensor.dtype != tf.variant or tf.is_symbolic_tensor(tensor):
        return False
    try:
        tf.raw_ops.DatasetCardinality(input_dataset=tensor)
    except tf.errors.InvalidArgumentError:
        return False
    return True
