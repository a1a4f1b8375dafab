# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend Keras's loops: the coordinator reads batches, and workers run the steps.

Keras's own loops stay: they call callbacks, count steps and end epochs. Only what they call for one
step is replaced, and the iterator that they read from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tf_fuse._tensorflow import feature_names, features
from tf_fuse._tensorflow.keras import trainer
from tf_fuse._tensorflow.variables import parameter_server_strategy
from tf_fuse.keras import atomic_adds, checks
from tf_fuse.keras.step_queue import Batch, StepQueue


def install() -> None:
    """Extend Keras's trainer, once per process.

    Raises:
      RuntimeError: Keras does not run on TensorFlow.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "tf_fuse.keras needs Keras on TensorFlow, but its backend is "
            f"{keras.backend.backend()!r}: set KERAS_BACKEND=tensorflow"
        )
    if features.works(feature_names.KERAS_FIT):
        trainer.extend(
            {
                "_make_function": _make_function,
                "make_predict_function": _make_predict_function,
                "_get_metrics_result_or_logs": _results,
                "__init__": _read_here,
                "potentially_ragged_concat": _concat,
                "_direct_assign": atomic_adds.assign,
                "compile": checks.compile_model,
                "_maybe_symbolic_build": checks.build,
            }
        )
        parameter_server_strategy.extend_init(checks.connect)


class _Reader:
    """Stands for the strategy in Keras's iterator: it does not distribute the dataset."""

    @staticmethod
    def experimental_distribute_dataset(dataset: Any) -> Any:
        """Return the dataset."""
        return dataset


def _read_here(
    stock: Callable[..., None], self: Any, distribute_strategy: Any = None, *args: Any, **more: Any
) -> None:
    """Extend `TFEpochIterator.__init__`."""
    import tensorflow as tf

    if not checks.has_servers(distribute_strategy):
        stock(self, distribute_strategy, *args, **more)
        return
    if isinstance(more.get("x"), tf.distribute.DistributedDataset):
        raise ValueError(
            "model.fit under ParameterServerStrategy takes a tf.data.Dataset, not one that "
            "strategy.experimental_distribute_dataset has made"
        )
    stock(self, _Reader, *args, **more)
    endless = self._distributed_dataset.cardinality() == tf.data.INFINITE_CARDINALITY
    if endless and self.steps_per_epoch is None:
        raise ValueError("the dataset is endless: give steps_per_epoch (or steps)")


def _make_function(stock: Callable[..., Any], self: Any, step_function: Any) -> Any:
    """Extend `TensorFlowTrainer._make_function`: returns what runs a step of an iterator."""
    if not checks.has_servers(self.distribute_strategy):
        if step_function == self.train_step:
            checks.warn_of_local_model(self)
        return stock(self, step_function)
    checks.check_step(self)
    return _Steps(self, step_function)


class _Steps:
    """Runs steps of training or evaluation on workers; Keras calls it with its iterator.

    Attributes:
      queue: of the steps that have begun.
    """

    def __init__(self, model: Any, step_function: Any):
        def step(batch: Any) -> Any:
            iterations = [model.optimizer.iterations] if model.optimizer else []
            with atomic_adds.atomic_adds([*model.metrics_variables, *iterations]):
                return step_function(batch)

        self.queue = StepQueue(model.distribute_strategy, step, join=None)
        self._model = model

    def __call__(self, iterator: Any) -> dict[str, Any]:
        """Give the next `steps_per_execution` batches to a worker.

        Returns:
          What the newest step returned that has ended and been fetched.

        Raises:
          StopIteration: there are no more batches.
          tf.errors.OpError: an earlier step failed.
        """
        import tensorflow as tf

        batches = _next_batches(iterator, self._model.steps_per_execution)
        if not isinstance(iterator, tf.data.Iterator):  # of train_on_batch or test_on_batch
            self.queue.add(batches, spec=None)
            return self.queue.join()
        self.queue.add(batches, iterator.element_spec)
        return self.queue.newest()


def _next_batches(iterator: Iterator[Any], count: int) -> list[Any]:
    batches: list[Any] = []
    while len(batches) < count:
        try:
            batches.append(next(iterator))
        except StopIteration:
            if not batches:
                raise
            break
    return batches


def _results(stock: Callable[..., Any], self: Any, logs: Any) -> Any:
    """Extend `Trainer._get_metrics_result_or_logs`: waits for all steps."""
    for function in (self.train_function, self.test_function):
        if isinstance(function, _Steps) and function.queue.is_busy():
            logs = function.queue.join()
    return stock(self, logs)


def _make_predict_function(stock: Callable[..., Any], self: Any, force: bool = False) -> Any:
    """Extend `TensorFlowTrainer.make_predict_function`."""
    if not checks.has_servers(self.distribute_strategy):
        return stock(self, force)
    if self.predict_function is None or force:
        checks.check_step(self)
        queue = StepQueue(self.distribute_strategy, self.predict_step, _append)
        self.predict_function = queue.begin
    return self.predict_function


def _append(outputs: Any, output: Any) -> Any:
    """What Keras makes of the predictions of two steps of one call: the same operations."""
    import keras
    import tensorflow as tf

    return keras.tree.map_structure(lambda *parts: tf.concat(parts, axis=0), outputs, output)


def _concat(stock: Callable[..., Any], tensors: Any) -> Any:
    """Extend `potentially_ragged_concat`: fetches predictions, in the order of the input."""
    import keras

    if not tensors or not isinstance(tensors[0], Batch):
        return stock(tensors)
    found = [one.fetch() for one in tensors]
    return keras.tree.map_structure_up_to(found[0], lambda *parts: stock(list(parts)), *found)
