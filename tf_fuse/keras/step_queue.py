# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Steps that workers run while the coordinator reads on."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_fuse._tensorflow.variables import parameter_server_strategy

# A worker has one step under way and one that waits, so it does not wait for the coordinator.
_STEPS_PER_WORKER = 2


class Batch:
    """What steps return that a worker runs in one call.

    Args:
      result: of `ClusterCoordinator.schedule`.
    """

    def __init__(self, result: Any):
        self._result = result

    def fetch(self) -> Any:
        """Wait for the steps, and return what they returned, as local tensors.

        Raises:
          tf.errors.OpError: a step failed.
        """
        return self._result.get()

    def numpy(self) -> Any:
        """Return what `fetch` does, as NumPy arrays; Keras and callbacks ask a tensor for it."""
        import keras

        return keras.tree.map_structure(keras.ops.convert_to_numpy, self.fetch())

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the one array that the steps returned."""
        import numpy as np

        return np.asarray(self.numpy(), *args, **kwargs)


class StepQueue:
    """Runs a step function on the workers of a `ParameterServerStrategy`.

    A step gets its batch from the coordinator, and runs on whichever worker is free. If that worker
    is lost, another one runs the step again with the same batch.
    """

    def __init__(
        self, strategy: Any, step: Callable[[Any], Any], join: Callable[[Any, Any], Any] | None
    ):
        """Make the coordinator, or take the one that the strategy has.

        Args:
          strategy: the `ParameterServerStrategy`.
          step: gets a batch.
          join: of what steps of one call have returned, and what the next one has; None for the
            last one's.
        """
        import tensorflow as tf

        self._strategy = strategy
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        workers = parameter_server_strategy.worker_count(strategy.extended)
        self._most = _STEPS_PER_WORKER * workers
        self._begun: collections.deque[Batch] = collections.deque()
        self._newest: Any = None

        @tf.autograph.experimental.do_not_convert
        def run_steps(batches: Sequence[Any]) -> Any:
            outputs = None
            for number, batch in enumerate(batches):
                output = strategy.run(step, args=(batch,))
                outputs = join(outputs, output) if join and number else output
            return outputs

        self._run_steps = tf.function(run_steps)

    def begin(self, batches: Sequence[Any], spec: Any = None) -> Batch:
        """Give batches to the next free worker, which runs a step of each; return at once.

        Args:
          batches: read from a dataset.
          spec: the dataset's `element_spec`; None for that of the first batch with any number of
            rows. Steps are traced for it: kernels round in other ways where they know a shape.
        """
        import keras

        batches = keras.tree.map_structure(_tensor, list(batches))
        if spec is None:
            spec = keras.tree.map_structure(_any_rows, batches[0])
        else:
            spec = keras.tree.map_structure(_spec, spec)
        with parameter_server_strategy.being_scheduled(self._strategy.extended):
            traced = self._run_steps.get_concrete_function([spec] * len(batches))
        return Batch(self._coordinator.schedule(traced, args=(batches,)))

    def add(self, batches: Sequence[Any], spec: Any) -> None:
        """Begin steps as `begin` does; wait for the oldest ones if many have begun.

        Raises:
          tf.errors.OpError: an earlier step failed; the others are given up.
        """
        with self._giving_up_after_errors():
            self._begun.append(self.begin(batches, spec))
            while len(self._begun) > self._most or self._newest is None:
                self._fetch()

    def newest(self) -> Any:
        """Return what the newest step returned that has been fetched."""
        return self._newest

    def is_busy(self) -> bool:
        """Return whether steps have begun since `join`."""
        return self._newest is not None

    def join(self) -> Any:
        """Wait for all steps; return what the last one returned.

        Raises:
          tf.errors.OpError: a step failed.
        """
        with self._giving_up_after_errors():
            while self._begun:
                self._fetch()
            self._coordinator.join()
        newest, self._newest = self._newest, None
        return newest

    def _fetch(self) -> None:
        self._newest = self._begun.popleft().fetch()

    @contextlib.contextmanager
    def _giving_up_after_errors(self) -> Iterator[None]:
        import tensorflow as tf

        try:
            yield
        except BaseException as error:
            self._begun.clear()
            self._newest = None
            if isinstance(error, tf.errors.OpError):
                # Or the coordinator raises it once more when the next step begins.
                with contextlib.suppress(tf.errors.OpError):
                    self._coordinator.join()
            raise


def _tensor(one: Any) -> Any:
    """A part of a batch, as a tensor."""
    import tensorflow as tf

    # The sample weight that a generator lacks; only Keras's own iterators need it.
    if one is None or isinstance(one, tf.experimental.Optional):
        return None
    return one if tf.is_tensor(one) else tf.convert_to_tensor(one)


def _spec(one: Any) -> Any:
    import tensorflow as tf

    return None if isinstance(one, tf.OptionalSpec) else one


def _any_rows(one: Any) -> Any:
    """The spec of a tensor of a batch, with any number of rows."""
    import tensorflow as tf

    if one is None:
        return None
    spec = tf.type_spec_from_value(one)
    shape = [None, *spec.shape[1:]] if spec.shape.rank else spec.shape
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return type(spec)(shape, spec.dtype)
