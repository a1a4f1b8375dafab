# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend Keras's loops: the coordinator reads batches, and workers run the steps.

Keras's own loops stay: they call callbacks, count steps and end epochs. Only what they call for one
step is replaced, and the iterator that they read from.
"""

from __future__ import annotations

import contextvars
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from tf_fuse._tensorflow import feature_names, features
from tf_fuse._tensorflow.keras import models, trainer
from tf_fuse._tensorflow.variables import coordinator as coordinators
from tf_fuse._tensorflow.variables import parameter_server_strategy
from tf_fuse.keras import backups, checks, metric_sums, steps
from tf_fuse.keras.data import batches, parts
from tf_fuse.keras.data.function_orders import PassOfFunction, key_of, number_of_pass
from tf_fuse.keras.data.orders import Passes
from tf_fuse.keras.step_queue import Call, StepQueue
from tf_fuse.keras.steps import Steps
from tf_fuse.keras.worker_data import WorkerData

_log = logging.getLogger("tf_fuse")


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
                "make_function": _make_function,
                "make_predict_function": _make_predict_function,
                "get_metrics_result_or_logs": _results,
                "__init__": _read_here,
                "potentially_ragged_concat": _concat,
                "direct_assign": _assign,
                "compile": checks.compile_model,
                "fit": checks.run_alone,
                "evaluate": checks.run_alone,
                "maybe_symbolic_build": _build,
                "apply": _apply,
                **dict.fromkeys(trainer.SAVERS, _save),
            }
        )
        parameter_server_strategy.extend_init(checks.connect)


class _Reader:
    """Stands for the strategy in Keras's iterator: it does not distribute the dataset."""

    @staticmethod
    def experimental_distribute_dataset(dataset: Any) -> Any:
        """Return the dataset, which may be older than the strategy."""
        return batches.in_cluster(dataset)


def _read_here(
    stock: Callable[..., None], self: Any, distribute_strategy: Any = None, *args: Any, **more: Any
) -> None:
    """Extend `TFEpochIterator.__init__`."""
    import tensorflow as tf

    if not checks.has_servers(distribute_strategy):
        stock(self, distribute_strategy, *args, **more)
        return
    x = more.get("x")
    if isinstance(x, tf.distribute.DistributedDataset):
        raise ValueError(
            "model.fit under ParameterServerStrategy takes a tf.data.Dataset, not one that "
            "strategy.experimental_distribute_dataset has made"
        )
    if coordinators.is_on_workers(x):
        raise ValueError(
            "model.fit under ParameterServerStrategy does not take what create_per_worker_dataset "
            "has made: give it the tf.data.Dataset, or a function of an InputContext that makes it"
        )
    if callable(x) and not hasattr(x, "__iter__") and not hasattr(x, "__getitem__"):
        _read_on_workers(stock, self, distribute_strategy, x, more)
        return
    stock(self, _Reader, *args, **more)
    # (Predictions, for which Keras names no `y`, keep the order of the input.)
    if "y" in more and parts.are_asked_for(x):
        _read_parts(self, distribute_strategy, x)
        return
    endless = trainer.dataset_of(self).cardinality() == tf.data.INFINITE_CARDINALITY
    if endless and trainer.steps_per_epoch(self) is None:
        raise ValueError("the dataset is endless: give steps_per_epoch (or steps)")
    _log_once(
        "data: the coordinator reads it, and gives each batch to the next free worker, once per "
        "epoch"
    )


def _read_on_workers(
    stock: Callable[..., None], self: Any, strategy: Any, function: Any, more: Any
) -> None:
    """Each worker reads the dataset that the program's function makes there."""
    import tensorflow as tf

    for name in ("y", "sample_weight", "class_weight"):
        if more.get(name) is not None:
            raise ValueError(
                f"{name} cannot be given with a function of an InputContext: its dataset must "
                "yield (x, y) or (x, y, sample_weight)"
            )
    data = WorkerData(
        strategy,
        PassOfFunction(function),
        more.get("steps_per_epoch"),
        arguments=lambda epoch: [number_of_pass(passes.begin(epoch))],
        example=[number_of_pass(0)],
    )
    passes = Passes(key_of(function), data.cardinality)
    nothing = tf.data.Dataset.from_generator(tuple, output_signature=data.element_spec)
    stock(self, _Reader, **{**more, "x": nothing, "batch_size": None, "shuffle": False})
    trainer.set_dataset(self, data)
    if data.steps is None:
        trainer.let_end_anywhere(self)
    _log_once(
        "data: each worker calls the function, and reads the dataset that it makes (input pipeline "
        "k of n is worker k of n)"
    )


def _read_parts(self: Any, strategy: Any, given: Any) -> None:
    """Each worker reads its part of a dataset."""
    # Keras may have mapped it, to weigh classes.
    policy, steps = parts.policy_of(given), trainer.steps_per_epoch(self)
    part = parts.of(trainer.dataset_of(self), policy)
    passes = Passes(given, None if steps else int(given.cardinality()))
    data = WorkerData(
        strategy,
        part,
        steps,
        arguments=lambda epoch: [part.order.serialized(passes.begin(epoch))],
        example=[part.order.serialized(0)],
        may_end=not part.is_endless,
    )
    trainer.set_dataset(self, data)
    if data.steps is None:
        trainer.let_end_anywhere(self)
    _log_once(f"data: each worker reads its part of the dataset (auto_shard_policy {policy.name})")


@functools.cache
def _log_once(text: str) -> None:
    _log.info(text)


def _build(stock: Callable[..., None], self: Any, iterator: Any = None, **batch: Any) -> None:
    """Extend `TensorFlowTrainer._maybe_symbolic_build`."""
    if iterator is not None:
        backups.note_epochs(self, iterator)
    checks.build(stock, self, iterator, **batch)


def _make_function(stock: Callable[..., Any], self: Any, step_function: Any) -> Any:
    """Extend `TensorFlowTrainer._make_function`: returns what runs a step of an iterator."""
    if not checks.has_servers(self.distribute_strategy):
        if step_function == self.train_step:
            checks.warn_of_local_model(self)
        return stock(self, step_function)
    checks.check_step(self)
    return Steps(self, step_function)


def _results(stock: Callable[..., Any], self: Any, logs: Any) -> Any:
    """Extend `Trainer._get_metrics_result_or_logs`: waits for all steps."""
    for function in (models.made(self, "train"), models.made(self, "test")):
        if isinstance(function, Steps) and function.is_busy():
            logs = function.join()
    return stock(self, logs)


def _make_predict_function(stock: Callable[..., Any], self: Any, force: bool = False) -> Any:
    """Extend `TensorFlowTrainer.make_predict_function`."""
    if not checks.has_servers(self.distribute_strategy):
        return stock(self, force)
    if models.made(self, "predict") is None or force:
        checks.check_step(self)
        models.set_made(self, "predict", _predict_function(self))
    return models.made(self, "predict")


def _predict_function(model: Any) -> Callable[[Any], Call]:
    """Return a function that predicts batches in one call and returns at once."""
    import tensorflow as tf

    queue, traced = StepQueue(model.distribute_strategy), {}

    def run(given: Sequence[Any]) -> Any:
        outputs = [queue.strategy.run(model.predict_step, args=(one,)) for one in given]
        return functools.reduce(_append, outputs)

    def predict(given: Sequence[Any]) -> Call:
        if any(isinstance(one, tf.TypeSpec) for one in tf.nest.flatten(given)):
            raise ValueError(
                "predict keeps the order of its input, which workers' own datasets do not have: "
                "give it a dataset or arrays, not a function"
            )
        given, specs = batches.with_specs(given, spec=None)
        key = (len(specs), repr(specs[0]))
        if key not in traced:
            traced[key] = queue.trace(run, [specs], packing=None)
        with queue.giving_up_after_errors():
            return traced[key](given)

    return predict


def _append(outputs: Any, output: Any) -> Any:
    """Append predictions of a step to those before by the operations that Keras uses."""
    import keras
    import tensorflow as tf

    return keras.tree.map_structure(lambda *parts: tf.concat(parts, axis=0), outputs, output)


def _concat(stock: Callable[..., Any], tensors: Any) -> Any:
    """Extend `potentially_ragged_concat`: fetches predictions, in the order of the input."""
    import keras

    if not tensors or not isinstance(tensors[0], Call):
        return stock(tensors)
    found = [one.fetch() for one in tensors]
    return keras.tree.map_structure_up_to(found[0], lambda *parts: stock(list(parts)), *found)


def _save(stock: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Extend what writes files of models, or of parts of them: callbacks call it in an epoch."""
    steps.settle()
    return stock(*args, **kwargs)


def _assign(stock: Callable[..., None], self: Any, value: Any) -> None:
    """Extend `Variable._direct_assign`: a callback may reset metrics in an epoch."""
    import tensorflow as tf

    if tf.executing_eagerly():
        steps.count_begun(self)
    metric_sums.assign(stock, self, value)


def _apply(
    stock: Callable[..., Any], self: Any, grads: Any, trainable_variables: Any = None
) -> Any:
    """Extend `TFOptimizer.apply`: it may assign to variables in branches of `tf.cond`.

    Each assignment merges replicas. In the context of `Strategy.run`, a branch cannot do that; in
    one that knows of no other replica, it can.
    """
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    is_in_branches = self.gradient_accumulation_steps or self.ema_overwrite_frequency
    if not is_in_branches or context is None or not checks.has_servers(context.strategy):
        return stock(self, grads, trainable_variables)
    ((device,),) = context.devices  # `check_step` refuses several.
    # What is merged runs in another thread; `metric_sums` sees its assignments by a variable of the
    # context.
    variables = contextvars.copy_context()

    def apply(strategy: Any) -> Any:
        replica = tf.distribute.ReplicaContext(strategy, replica_id_in_sync_group=0)
        with replica, tf.device(device):
            return variables.run(stock, self, grads, trainable_variables)

    return context.merge_call(apply)
