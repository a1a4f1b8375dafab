# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Datasets that workers read themselves: a function of an `InputContext` makes each."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_fuse._tensorflow.variables import coordinator as coordinators
from tf_fuse.keras.data.used import Used
from tf_fuse.keras.step_queue import Call, StepQueue

_log = logging.getLogger("tf_fuse")


class WorkerData:
    """One dataset per worker.

    Attributes:
      queue: whose calls read the datasets.
      element_spec: of the batches.
      name: of datasets for which the same steps are traced.
      steps: of all workers in an epoch; None if an epoch ends with the datasets.
      cardinality: of one worker's dataset; None if there are `steps`.
      may_end: whether a worker may come to the end of its dataset before all steps of an epoch, and
        leave the rest to others.
      arguments: returns what the function gets beside the context in a new pass, as tensors; gets
        the epoch if that goes on after a restart, else None.
    """

    def __init__(
        self,
        strategy: Any,
        function: Callable[..., Any],
        steps: int | None,
        *,
        may_end: bool = False,
        arguments: Callable[[int | None], list[Any]] = lambda _: [],
        example: Sequence[Any] = (),
    ):
        """Trace the function.

        Args:
          strategy: the `ParameterServerStrategy`.
          function: makes the dataset of a worker.
          steps: as the attribute.
          may_end: as the attribute.
          arguments: as the attribute.
          example: of what it returns.

        Raises:
          TypeError: it does not return a `tf.data.Dataset`.
          ValueError: its dataset is endless, and `steps` is None; or it uses one of this process.
        """
        import tensorflow as tf

        self.queue = StepQueue(strategy)
        self.steps = steps
        self.may_end = may_end
        self.arguments = arguments

        def make(*more: Any) -> Any:
            context = tf.distribute.InputContext(
                num_input_pipelines=self.queue.workers,
                input_pipeline_id=tf.distribute.coordinator.experimental_get_current_worker_index(),
                num_replicas_in_sync=strategy.num_replicas_in_sync,
            )
            with _explaining_tensors():
                dataset = function(context, *more)
            if not isinstance(dataset, tf.data.Dataset):
                raise TypeError(
                    f"the function given to fit or evaluate must return a tf.data.Dataset of "
                    f"batches; {function!r} returned {type(dataset).__name__}"
                )
            return dataset

        def make_rest(first: Any, others: Any, *more: Any) -> Any:
            rest = make(*more).enumerate().skip(first)
            return rest.filter(lambda number, batch: tf.reduce_all(number != others))

        traced = tf.function(make_rest, autograph=False)
        self._concrete = traced.get_concrete_function(
            tf.TensorSpec([], tf.int64),
            tf.TensorSpec([None], tf.int64),
            *(tf.TensorSpec.from_tensor(one) for one in example),
        )
        if any(_is_dataset(one) for one in self._concrete.graph.external_captures):
            raise ValueError(
                "the function of an InputContext uses a dataset that was made outside of it, which "
                "cannot be sent to workers: make the dataset inside of the function"
            )
        endless = tf.data.INFINITE_CARDINALITY
        self.cardinality = None if steps else self._cardinality(lambda: make(*example))
        if self.cardinality == endless:
            raise ValueError(
                "the dataset of a worker is endless: give steps_per_epoch (or steps, "
                "validation_steps)"
            )
        _, self.element_spec = self._concrete.structured_outputs.element_spec
        self.name = repr(self.element_spec)

    def _cardinality(self, make: Callable[[], Any]) -> int:
        """Ask a worker how many batches its dataset has."""

        def count() -> Any:
            return make().cardinality()

        with self.queue.giving_up_after_errors():
            return int(self.queue.trace(count, [], packing=None)().fetch())

    def __iter__(self) -> WorkerIterator:
        return WorkerIterator(self)

    def make_iterators(self, arguments: Sequence[Any], used: Callable[[int], Used]) -> Any:
        """Make an iterator on each worker; return the `PerWorkerValues`.

        Args:
          arguments: of the pass.
          used: which batches of its dataset a worker leaves out.
        """
        import tensorflow as tf

        def rest(worker: int) -> list[Any]:
            one = used(worker)
            others = tf.constant(sorted(one.others), tf.int64, [len(one.others)])
            return [tf.constant(one.first, tf.int64), others, *arguments]

        coordinator = self.queue.coordinator
        return iter(coordinators.datasets_on_workers(coordinator, self._concrete, rest))


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
        self._arguments: list[Any] = []
        self._epoch: int | None = None
        self._used = [Used() for _ in range(data.queue.workers)]
        self._ended: set[int] = set()
        self._put_back = 0

    def __next__(self) -> Any:
        """Return the specs of a batch: Keras builds the model from them."""
        return self.data.element_spec

    def leave_out(self, made: list[int], epoch: int) -> int:
        """Go on where another process ended.

        Args:
          made: by each worker, its steps.
          epoch: its number.

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
            self._used = [Used(one) for one in made]
            self._epoch = epoch
        self.made = sum(made)
        return self.made

    def used(self, queue: StepQueue) -> list[int]:
        """Return how many batches each worker has used by calls that have ended."""
        return [len(one) for one in self._all_used(queue)]

    def _all_used(self, queue: StepQueue) -> list[Used]:
        """Return what each worker has used by calls that have ended."""

        def look(calls: list[Call]) -> list[Used]:
            found = [one.copy() for one in self._used]
            for call in calls:
                found[call.worker()].add(call.taken())
            return found

        done: list[Used] = queue.done(look)
        return done

    def iterators(self, queue: StepQueue) -> Any:
        """Return the argument for calls of a queue: for each worker its iterator."""
        if self._iterators is None:
            if not self._arguments:
                self._arguments = self.data.arguments(self._epoch)
            self._put_back = queue.put_back()
            # A worker that was lost repeats only the batches of calls that it did not end.
            self._iterators = self.data.make_iterators(
                self._arguments, lambda worker: self._all_used(queue)[worker]
            )
        return self._iterators

    def begin_again(self, queue: StepQueue) -> bool:
        """Read what calls have taken that did not end, but ran again with other batches.

        Returns:
          Whether there may be such batches; all workers are through, and no call is under way.
        """
        if self._iterators is None or self._put_back == queue.put_back():
            return False
        self._iterators = None
        self._ended.clear()
        return True

    def spec(self) -> Any:
        """Return the spec of a worker's iterator, over batches and their numbers."""
        import tensorflow as tf

        return tf.data.IteratorSpec((tf.TensorSpec([], tf.int64), self.data.element_spec))

    def most(self, queue: StepQueue) -> int:
        """Return how many calls may be under way.

        A worker that is through ends calls at once. So there are not more than others can run.
        """
        return queue.workers - len(self._ended) if self._ended else queue.most()

    def take(self, call: Call) -> bool:
        """Count what a call has used.

        Returns:
          Whether the call was in vain: its worker was known to be through.
        """
        worker = call.worker()
        self._used[worker].add(call.taken())
        if call.steps():
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
