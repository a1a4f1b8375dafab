# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find mistakes of programs before TensorFlow does, and say what to write instead."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from tf_fuse._tensorflow import feature_names, features
from tf_fuse._tensorflow.keras import models, processes, trainer
from tf_fuse._tensorflow.keras.variable import value_of

_log = logging.getLogger("tf_fuse")

_NAMES = 3  # that an error lists

# By the id of a model: the thread that runs it, and a mark of its outermost call.
_running: dict[int, tuple[int, object]] = {}


def has_servers(strategy: Any) -> bool:
    """Return whether a strategy is a `ParameterServerStrategy`."""
    import tensorflow as tf

    return isinstance(strategy, tf.distribute.ParameterServerStrategy)


def has_cluster(strategy: Any) -> bool:
    """Return whether a strategy is one whose loops this package extends."""
    if has_servers(strategy):
        return True
    return features.works(feature_names.KERAS_PROCESSES) and processes.are_several(strategy)


def connect(
    stock: Callable[..., None], self: Any, cluster_resolver: Any, *args: Any, **kwargs: Any
) -> None:
    """Extend `ParameterServerStrategy.__init__`: workers and servers would wait for themselves."""
    task = cluster_resolver.task_type
    if task in ("worker", "ps"):
        raise ValueError(
            f"this process is task {cluster_resolver.task_id} of the job {task!r}: it runs "
            "tf.distribute.Server(...).join(), and only the coordinator (job 'chief') makes the "
            "strategy and calls fit"
        )
    stock(self, cluster_resolver, *args, **kwargs)


def compile_model(stock: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
    """Extend `Trainer.compile`: works outside of the scope, too; checks where variables are."""
    import keras
    import tensorflow as tf

    strategy = trainer.strategy_of(self)
    if not has_cluster(strategy):
        if has_cluster(tf.distribute.get_strategy()):
            raise _no_scope(tf.distribute.get_strategy())
        stock(self, *args, **kwargs)
        return
    with strategy.scope():
        stock(self, *args, **kwargs)
    given = keras.tree.flatten([args, kwargs])
    _check_scope(strategy, [one for part in given for one in getattr(part, "variables", ())])
    check_variables(self)


def check_variables(model: Any) -> None:
    """Check that a model's variables were made in the scope of its strategy."""
    strategy = trainer.strategy_of(model)
    # Processes that train together can read variables of their own.
    is_read_only = not has_servers(strategy)
    _check_scope(strategy, model.trainable_variables if is_read_only else model.variables)


def run_alone(stock: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Extend `fit` and `evaluate`: two threads do not run them for one model.

    Raises:
      RuntimeError: another thread does.
    """
    if not has_servers(trainer.strategy_of(self)):
        return stock(self, *args, **kwargs)
    mine = (threading.get_ident(), object())
    thread, first = _running.setdefault(id(self), mine)
    if thread != mine[0]:
        raise RuntimeError(
            f"fit or evaluate of {self.name} runs in another thread: run one after the other, or "
            "train a model of its own in each thread"
        )
    is_outermost = first is mine[1]  # not evaluate inside of fit
    try:
        return stock(self, *args, **kwargs)
    except BaseException as error:
        # A callback's error, or an interrupt: no step runs on, and the next call counts none of
        # these.
        for step in ("test", "train") if is_outermost else ("test",):
            function = models.made(self, step)
            if hasattr(function, "give_up"):
                function.give_up()
        if (better := explained(error)) is not error:
            raise better from error
        raise
    finally:
        if is_outermost:
            del _running[id(self)]


def build(
    stock: Callable[..., None], self: Any, iterator: Any = None, data_batch: Any = None
) -> None:
    """Extend `TensorFlowTrainer._maybe_symbolic_build`, which reads a batch.

    A batch would begin a pass over the data, and each epoch would have the order of the next one.
    This builds by the shapes of the dataset, as Keras does without a strategy.
    """
    import keras

    if not has_servers(trainer.strategy_of(self)):
        stock(self, iterator, data_batch)
        return
    check_variables(self)
    if build_without_call(self):
        return
    # The loop finds, too, that the data has no batch: it ends at once, as in one process.
    with contextlib.suppress(StopIteration):
        if iterator is not None:
            data_batch = _specification(trainer.dataset_of(iterator))
        if iterator is not None and data_batch is None:
            _, _, batches = next(iter(iterator))
            data_batch = keras.tree.map_structure(_without_optional, next(batches))
        stock(self, data_batch=data_batch)


def _specification(dataset: Any) -> Any:
    """Return the types and shapes of a dataset's batches, if Keras can build a model by them."""
    import keras
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset):
        return None
    specs = keras.tree.flatten(dataset.element_spec)
    is_enough = all(type(one) is tf.TensorSpec and one.shape.rank is not None for one in specs)
    return dataset.element_spec if is_enough else None


def build_without_call(model: Any) -> bool:
    """Build the optimizer of a model without `call`, such as a GAN: Keras calls models to build.

    Returns:
      Whether it is such a model, all of whose layers are built.
    """
    import keras

    if type(model).call is not keras.Model.call or not all(one.built for one in model.layers):
        return False
    if model.optimizer is not None and not model.optimizer.built:
        with model.distribute_strategy.scope():
            model.optimizer.build(model.trainable_variables)
    return True


def _without_optional(part: Any) -> Any:
    """Put None in place of what a generator yields as None: Keras asks for its shape."""
    import tensorflow as tf

    return None if isinstance(part, tf.experimental.Optional) else part


def check_step(model: Any) -> None:
    """Check a model before its step is traced."""
    import tensorflow as tf

    strategy = model.distribute_strategy
    if trainer.strategy_of(model) is None:
        raise _no_scope(strategy)
    if model.run_eagerly or tf.config.functions_run_eagerly():
        raise ValueError(
            "run_eagerly=True does not work under ParameterServerStrategy: workers run "
            "tf.functions; compile the model with run_eagerly=False, and do not call "
            "tf.config.run_functions_eagerly(True)"
        )
    if strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"each worker has {strategy.num_replicas_in_sync} GPUs, but fit gives each batch to "
            "one device: start one worker for each GPU, with CUDA_VISIBLE_DEVICES=<its number>"
        )
    if model.jit_compile:
        _log.warning(
            "jit_compile is off for %s: XLA cannot compile functions that read variables of other "
            "tasks",
            model.name,
        )


def check_captures(function: Any) -> None:
    """Check a traced step: it needs no tensor of another trace.

    While a step is traced, its metrics hold tensors of the trace. A `tf.function` that reads one
    keeps the tensor, but the step may be traced again.
    """
    import tensorflow as tf

    if any(tf.is_symbolic_tensor(one) for one in function.graph.external_captures):
        raise ValueError(
            "a tf.function that train_step or test_step calls keeps a tensor of an earlier trace, "
            "as it does if it reads a metric: call result() and update_state() outside of the "
            "function, and give it what they return"
        )


def check_logs(model: Any, logs: Any) -> None:
    """Check what a step has returned."""
    if logs is None:
        raise TypeError(
            f"train_step or test_step of {model.name} returned None: return a dict of logs, such "
            "as self.get_metrics_result()"
        )


def explained(error: BaseException) -> BaseException:
    """Return an error that says what to write instead, where TensorFlow's does not."""
    import tensorflow as tf

    if isinstance(error, RuntimeError) and "merge_call" in str(error):
        return ValueError(
            "train_step updates variables in a tf.function or a loop of TensorFlow, which no "
            "strategy can trace: leave out @tf.function (fit makes one function of each step), "
            "write loops in Python"
        )
    if isinstance(error, tf.errors.OpError) and "/job:localhost/" in str(error):
        return ValueError(
            "the data reads a generator, a table or a variable that is older than the "
            "ParameterServerStrategy, which has given this process's devices other names: make "
            "both after the strategy"
        )
    return error


def warn_of_local_model(model: Any) -> None:
    """Warn that `fit` will not use the cluster to which this process is connected."""
    import tensorflow as tf

    jobs = {device.name.split("/")[1] for device in tf.config.list_logical_devices()}
    if trainer.strategy_of(model) is not None:
        return
    if "job:ps" in jobs:
        workers = "on the workers of the ParameterServerStrategy"
    elif jobs & {"job:worker", "job:chief"}:
        workers = "in all processes of the MultiWorkerMirroredStrategy"
    else:
        return
    _log.warning(
        "%s trains in this process alone: to train it %s, make it in `with strategy.scope():`",
        model.name,
        workers,
    )


def _no_scope(strategy: Any) -> ValueError:
    return ValueError(
        f"the model was not made under strategy.scope() of this {_name(strategy)}: make it, and "
        "compile it, in `with strategy.scope():`"
    )


def _name(strategy: Any) -> str:
    return "ParameterServerStrategy" if has_servers(strategy) else "MultiWorkerMirroredStrategy"


def _check_scope(strategy: Any, variables: Iterable[Any]) -> None:
    lost = [getattr(one, "path", one.name) for one in variables if not _is_in_scope(strategy, one)]
    if lost:
        where = "on parameter servers" if has_servers(strategy) else "variables of the strategy"
        raise ValueError(
            f"{len(lost)} variables are not {where} ({', '.join(lost[:_NAMES])}"
            f"{', ...' if len(lost) > _NAMES else ''}): make the model's layers, its optimizer and "
            "its metrics, and call it first, in `with strategy.scope():`"
        )


def _is_in_scope(strategy: Any, variable: Any) -> bool:
    value = value_of(variable)
    if has_servers(strategy):
        return all("/job:ps" in part.device for part in getattr(value, "variables", [value]))
    return bool(strategy.extended.variable_created_in_scope(value))
