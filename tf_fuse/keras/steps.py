# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Steps of training and evaluation, as Keras's loops call them."""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_fuse._tensorflow.graphs import call_time_captures
from tf_fuse.keras import checks
from tf_fuse.keras.data import batches as batches_
from tf_fuse.keras.metric_sums import MetricSums
from tf_fuse.keras.packing import Packing
from tf_fuse.keras.step_queue import Call, StepQueue
from tf_fuse.keras.worker_data import WorkerIterator

_log = logging.getLogger("tf_fuse")
_LONGEST_PAUSE_S = 1.0
# Logs are computed so often at most, since that takes longer than to add what steps return.
_LOGS_S = 0.1
# So often the metrics' variables get the sums.
_VARIABLES_S = 1.0

_all: weakref.WeakSet[Steps] = weakref.WeakSet()


def settle() -> None:
    """Wait until no step runs, of any model.

    Raises:
      tf.errors.OpError: a step failed.
    """
    for one in list(_all):
        if one.is_busy():
            one.settle()


def count_begun(variable: Any) -> None:
    """Let a variable of Keras have what steps add that have begun, if it is of a metric."""
    for one in list(_all):
        if one.is_busy():
            one.count_begun(variable)


class Steps:
    """Runs steps of a model on workers; Keras calls it with an iterator of batches."""

    def __init__(self, model: Any, step_function: Callable[[Any], Any]):
        self._model = model
        self._step_function = step_function
        self._queue = StepQueue(model.distribute_strategy)
        self._sums = MetricSums(model)
        self._traced: dict[Any, Callable[..., Call]] = {}
        self._newest: Any = None  # logs
        self._is_behind = False  # of the sums
        self._computed_at = self._stored_at = 0.0
        # Of steps on data of workers, since the last `join`:
        self._asked = self._done = 0
        self._in_vain = 0
        self._iterator: WorkerIterator | None = None
        _all.add(self)

    def __call__(self, iterator: Any) -> Any:
        """Run `steps_per_execution` steps.

        Returns:
          Logs of the newest steps that have ended; those of some moments before, if steps are
            short.

        Raises:
          StopIteration: the data has ended.
          tf.errors.OpError: an earlier step failed.
        """
        import tensorflow as tf

        count = self._model.steps_per_execution
        with self._giving_up_after_errors():
            if isinstance(iterator, WorkerIterator):
                return self._run_on_workers_data(iterator, count)
            batches = batches_.read(iterator, count)
            if not isinstance(iterator, tf.data.Iterator):  # of train_on_batch or test_on_batch
                self._begin_on(batches, spec=None)
                return self.join()
            self._begin_on(batches, iterator.element_spec)
            while self._newest is None or self._queue.has_ended(in_order=True):
                self._fetch()
            while self._queue.is_full():
                self._queue.wait_for_room()
                if self._queue.has_ended(in_order=True):
                    self._fetch()
            return self._newest

    def is_busy(self) -> bool:
        """Return whether steps have begun since `join`."""
        return self._newest is not None

    def steps_of_workers(self) -> list[int] | None:
        """Return the steps that the epoch has made on data of workers, while none runs.

        Returns:
          Those of each worker; their sum alone if the epoch has a number of steps; None if the
            coordinator reads the data.
        """
        if self._iterator is None:
            return None
        if self._iterator.data.steps is None:
            return self._iterator.used(self._queue)
        return [self._done + self._queue.done(lambda calls: sum(one.steps() for one in calls))]

    def settle(self) -> None:
        """Wait until no step runs; what they returned is fetched later.

        Raises:
          tf.errors.OpError: a step failed.
        """
        with self._giving_up_after_errors():
            self._queue.coordinator.join()

    def count_begun(self, variable: Any) -> None:
        """Let a variable have what steps add that have begun, if it is of the model's metrics."""
        if any(one is variable for one in self._sums.variables):
            self.settle()
            for call in self._queue.done(list):
                self._sum(call)
            self._sums.end()

    def give_up(self) -> None:
        """Wait until no step runs, and forget what they returned: fit has failed."""
        self._queue.give_up()
        self._forget()

    def _forget(self) -> None:
        self._newest = None
        self._asked = self._done = 0
        self._iterator = None
        self._is_behind = False
        self._sums.give_up()

    def join(self) -> Any:
        """Wait for all steps, and write the metrics; return the logs of the last step.

        Raises:
          tf.errors.OpError: a step failed.
        """
        with self._giving_up_after_errors():
            while len(self._queue):
                self._fetch()
            self._queue.coordinator.join()
            if self._is_behind:
                self._compute_logs()
            self._sums.end()
        newest, self._newest = self._newest, None
        self._asked = self._done = 0
        self._iterator = None
        return newest

    def _begin_on(self, batches: Sequence[Any], spec: Any) -> None:
        """Begin a call with batches that the coordinator has read."""
        batches, specs = batches_.with_specs(batches, spec)
        strategy = self._queue.strategy

        def run(packing: Packing, batches: Sequence[Any]) -> Any:
            outputs = [strategy.run(self._step, args=(one,)) for one in batches]
            return packing.pack(_joined(outputs), steps=len(outputs))

        key = (spec is None, len(specs), repr(specs[0]))
        steps = None if spec is None else len(specs)
        self._queue.add(self._function(key, run, [specs], steps)(batches))

    def _run_on_workers_data(self, iterator: WorkerIterator, count: int) -> Any:
        """Return the logs of the next call that ends; begin others so that no worker waits."""
        steps = iterator.data.steps
        self._iterator = iterator
        made, iterator.made = iterator.made, 0
        self._done += made
        self._asked += made + count
        while True:
            while len(self._queue) < iterator.most(self._queue) and (
                steps is None or self._done + len(self._queue) * count < steps
            ):
                self._begin_on_workers_data(iterator, count)
            if not len(self._queue):
                if iterator.begin_again(self._queue):
                    continue
                raise StopIteration
            call, in_vain = self._queue.take(in_order=False, look=self._count)
            if done := call.steps():
                self._in_vain = 0
                self._done += done
                self._add(call, may_be_last=_may_end(iterator, count))
                # (A call that found less data than it asked for is not all that Keras asked for.)
                if steps is None or self._done >= min(steps, self._asked):
                    return self._newest
            elif in_vain:
                self._pause(iterator)

    def _pause(self, iterator: WorkerIterator) -> None:
        """Wait before the next call: a worker that is through takes what another one should."""
        self._in_vain += 1
        pause = 0.001 * 2 ** min(self._in_vain, 10)
        if pause >= _LONGEST_PAUSE_S and self._in_vain == 10:
            _log.warning(
                "the epoch waits for the rest of the data of workers %s", iterator.waits_for()
            )
        time.sleep(min(pause, _LONGEST_PAUSE_S))

    def _begin_on_workers_data(self, iterator: WorkerIterator, count: int) -> None:
        import tensorflow as tf

        spec, ends = iterator.spec(), _may_end(iterator, count)

        def run(packing: Packing, batches: Any) -> Any:
            outputs: list[Any] = []
            steps = tf.constant(0)
            for _ in range(count):
                if ends:
                    one, done = _step_or_nothing(
                        self._numbered_step,
                        batches.get_next_as_optional(),
                        outputs[-1] if outputs else None,
                    )
                    steps += tf.cast(done, tf.int32)
                else:
                    one = self._numbered_step(batches.get_next())
                    steps += 1
                outputs.append(one)
            return packing.pack(_joined(outputs), steps)

        key = (count, iterator.data.name, ends)
        begin = self._function(key, run, [spec], None if ends else count)
        self._queue.add(begin(iterator.iterators(self._queue)))

    def _step(self, batch: Any) -> Any:
        return self._sums.step(self._step_function, batch)

    def _numbered_step(self, numbered: Any) -> Any:
        """Run a step on a batch that has a number, and return that, too."""
        number, batch = numbered
        return {**self._queue.strategy.run(self._step, args=(batch,)), "taken": number}

    def _function(
        self, key: Any, run: Callable[..., Any], specs: Sequence[Any], steps: int | None
    ) -> Any:
        """Return what begins a call of a traced function.

        Args:
          key: of functions that are the same.
          run: gets the packing of what it returns, and the arguments.
          specs: of the arguments.
          steps: how many a call runs; None if only the call itself knows.
        """
        if key in self._traced:
            return self._traced[key]
        packing = Packing()
        # An evaluation is exact also if only the connection to a worker was lost.
        late = steps is not None and self._step_function == self._model.train_step
        try:
            begin = self._queue.trace(lambda *args: run(packing, *args), specs, packing, late)
        except Exception as error:
            if self._newest is not None:  # steps that return sums of more variables
                self.join()
            before = self._sums.variables
            if not self._sums.refuse(error):
                raise
            try:
                self._traced.clear()
                return self._function(key, run, specs, steps)
            except BaseException:
                self._sums.variables = before
                raise
        self._traced[key] = begin
        return begin

    def _fetch(self) -> None:
        self._add(self._queue.take(in_order=True, look=self._count)[0])

    def _count(self, call: Call) -> bool:
        """Count what a call has used of its worker's data; return whether it was in vain."""
        return self._iterator is not None and self._iterator.take(call)

    def _add(self, call: Call, may_be_last: bool = False) -> None:
        """Add what a call returned, and compute the logs if it is time, or if no call is left.

        Args:
          call: has ended; one that found no data adds nothing.
          may_be_last: whether those that are left may find no data; the last logs of an epoch are
            those of all its steps.
        """
        if not call.steps():
            return
        self._sum(call)
        self._is_behind = True
        is_time = self._newest is None or time.monotonic() - self._computed_at >= _LOGS_S
        if is_time or may_be_last or not len(self._queue):
            self._compute_logs()

    def _sum(self, call: Call) -> None:
        """Add what a call returned to the metrics, once."""
        assert call.packing is not None
        if call.steps() and not call.is_counted:
            self._sums.add(call.packing, call.fetch())
            call.is_counted = True

    def _compute_logs(self) -> None:
        now = time.monotonic()
        if self._newest is None:  # of the first call
            self._stored_at = now
        elif now - self._stored_at >= _VARIABLES_S:
            self._sums.store()
            self._stored_at = now
        self._newest = self._sums.logs()
        self._is_behind = False
        self._computed_at = now

    @contextlib.contextmanager
    def _giving_up_after_errors(self) -> Iterator[None]:
        import tensorflow as tf

        try:
            with self._queue.giving_up_after_errors():
                yield
        except StopIteration:
            raise
        except BaseException as error:
            on_workers = self._asked
            self._forget()
            if on_workers and isinstance(error, tf.errors.OutOfRangeError):
                raise ValueError(
                    "the dataset of a worker has ended before all steps of the epoch: repeat() it, "
                    "or leave out steps_per_epoch (steps, validation_steps), so that the epoch "
                    "ends when all workers are through"
                ) from error
            if (better := checks.explained(error)) is not error:
                raise better from error
            raise


def _may_end(iterator: WorkerIterator, count: int) -> bool:
    """Return whether a call of `count` steps can find less data than it asks for.

    As in one process, steps are rounded up to a multiple of `count` if there is data.
    """
    steps = iterator.data.steps
    return steps is None or iterator.data.may_end or steps % count > 0


def _joined(outputs: Sequence[Any]) -> dict[str, Any]:
    """Join what the steps of one call return."""
    joined = {"additions": [one["additions"] for one in outputs], "logs": outputs[-1]["logs"]}
    if "taken" in outputs[0]:
        joined["taken"] = [one["taken"] for one in outputs]
    return joined


def _step_or_nothing(step: Callable[[Any], Any], batch: Any, before: Any) -> tuple[Any, Any]:
    """Run a step if there is a batch.

    Args:
      step: gets it.
      batch: an optional.
      before: what the step before returned; None for zeros.

    Returns:
      What the step returns, or `before`; whether there is a batch.
    """
    import tensorflow as tf

    structure: Any = None
    specs: list[Any] = []

    def run() -> list[Any]:
        nonlocal structure
        call_time_captures.capture_outside(tf.compat.v1.get_default_graph())
        structure = step(batch.get_value())
        found = [tf.convert_to_tensor(one) for one in _present(structure)]
        specs.extend(tf.TensorSpec.from_tensor(one) for one in found)
        return found

    def leave() -> list[Any]:
        if before is not None:
            return [tf.convert_to_tensor(one) for one in _present(before)]
        return [tf.zeros([size or 0 for size in one.shape], one.dtype) for one in specs]

    has_batch = batch.has_value()
    tensors = iter(tf.cond(has_batch, run, leave))
    flat = [None if one is None else next(tensors) for one in tf.nest.flatten(structure)]
    return tf.nest.pack_sequence_as(structure, flat), has_batch


def _present(structure: Any) -> list[Any]:
    import tensorflow as tf

    return [one for one in tf.nest.flatten(structure) if one is not None]
