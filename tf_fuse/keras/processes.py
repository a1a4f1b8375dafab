# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mend Keras's loops under `MultiWorkerMirroredStrategy` in a cluster.

Keras's own loops stay. Each function below extends one that is wrong if several processes train.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

from tf_fuse._tensorflow import feature_names, features
from tf_fuse._tensorflow.keras import processes, trainer
from tf_fuse.keras import backups, checks

_log = logging.getLogger("tf_fuse")


@functools.cache
def install() -> None:
    """Extend Keras's trainer, once per process."""
    if features.works(feature_names.KERAS_PROCESSES):
        processes.extend(
            {
                "reduce_per_replica": _mean,
                "reduce_values": _loss,
                "maybe_symbolic_build": _build,
                "make_function": _make_function,
                "__init__": _distribute,
                "predict": _predict,
            }
        )


def _mean(stock: Callable[..., Any], values: Any, strategy: Any, reduction: str) -> Any:
    """Extend `reduce_per_replica`: each log is the mean over all replicas."""
    import keras

    if reduction not in ("auto", "mean") or not processes.are_several(strategy):
        return stock(values, strategy, reduction)
    return keras.tree.map_structure(lambda one: strategy.reduce("MEAN", one, axis=None), values)


def _build(stock: Callable[..., None], self: Any, iterator: Any = None, **batch: Any) -> None:
    """Extend `_maybe_symbolic_build`: reads no batch, if the dataset knows its shapes.

    A batch that is read here is lost if it comes from a generator.
    """
    import keras

    strategy = trainer.strategy_of(self)
    if not processes.are_several(strategy):
        stock(self, iterator, **batch)
        return
    checks.check_variables(self)
    if iterator is not None:
        backups.note_epochs(self, iterator)
    if checks.build_without_call(self):
        return
    if iterator is None:
        stock(self, iterator, **batch)
        return
    spec = iterator.tf_fuse_element_spec
    if spec is None:  # A function of the program makes the dataset of each process.
        spec = processes.spec_of_data(iterator)
    flat = keras.tree.flatten(spec)
    if all(_is_known(one) for one in flat):
        first = keras.tree.pack_sequence_as(spec, [_shape_of(one) for one in flat])
    elif batches := processes.first_batches(iterator):  # of a generator, kept
        first = batches[0]
    else:
        _, _, batches = next(iter(iterator))
        first = keras.tree.map_structure(
            lambda value: strategy.experimental_local_results(value)[0], next(batches)
        )
    stock(self, data_batch=first)


def _is_known(spec: Any) -> bool:
    """Whether a spec has the shape of a batch, but for the number of rows."""
    import tensorflow as tf

    if isinstance(spec, tf.OptionalSpec) or spec is None:
        return True
    shape = getattr(spec, "shape", None)
    return shape is not None and shape.rank is not None and shape[1:].is_fully_defined()


def _shape_of(spec: Any) -> Any:
    import tensorflow as tf

    return None if isinstance(spec, tf.OptionalSpec) else spec


def _make_function(stock: Callable[..., Any], self: Any, step_function: Any) -> Any:
    """Extend `_make_function`: a step begins only if some process has a batch for it.

    Keras asks for the batch inside of the step's function. After the last batch it can have counted
    the step in `optimizer.iterations` before it finds that there is none, in some processes only.
    """
    import tensorflow as tf

    if not processes.are_several(self.distribute_strategy):
        return stock(self, step_function)
    if self.jit_compile:
        _log.warning("jit_compile is off for %s: XLA cannot compile collectives on CPUs", self.name)
        self.jit_compile = False
    run_steps = stock(self, step_function)

    def run(iterator: Any) -> Any:
        if not isinstance(iterator, tf.distribute.DistributedIterator):
            return run_steps(iterator)
        # Of an iterator of another type, Keras takes up to `steps_per_execution` batches.
        return run_steps(itertools.chain([next(iterator)], iterator))

    return run


def _loss(
    stock: Callable[..., Any],
    values: Any,
    sample_weight: Any = None,
    reduction: str | None = "sum_over_batch_size",
) -> Any:
    """Extend `reduce_values`: a process that has no row of a batch has a loss of 0.

    Keras leaves the empty losses of rows, whose mean is NaN.
    """
    import tensorflow as tf

    is_sum = tuple(values.shape) == (0,) and reduction not in (None, "none")
    if is_sum and processes.are_several(tf.distribute.get_strategy()):
        return tf.reduce_sum(values)
    return stock(values, sample_weight, reduction)


class _Distributor:
    """Stands for the strategy in Keras's iterator: it distributes copies of batches.

    Attributes:
      element_spec: of the dataset; None before there is one.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy
        self.element_spec: Any = None

    def experimental_distribute_dataset(self, dataset: Any) -> Any:
        """Distribute a dataset over the replicas."""
        dataset = _without_optionals(dataset)
        self.element_spec = dataset.element_spec
        _check_rows(dataset, self._strategy.num_replicas_in_sync)
        return self._strategy.experimental_distribute_dataset(_in_own_memory(dataset))


def _distribute(
    stock: Callable[..., None], self: Any, distribute_strategy: Any = None, *args: Any, **more: Any
) -> None:
    """Extend `TFEpochIterator.__init__`."""
    if not processes.are_several(distribute_strategy):
        stock(self, distribute_strategy, *args, **more)
        return
    processes.warn_if_untried()
    x = more.get("x")
    if callable(x) and not hasattr(x, "__iter__") and not hasattr(x, "__getitem__"):
        raise ValueError(
            "under MultiWorkerMirroredStrategy fit, evaluate and predict take data, not a function "
            "that makes it: give them the whole dataset, which AutoShardPolicy shards"
        )
    if processes.is_sliced(x):
        raise ValueError(
            "fit, evaluate and predict take a tf.data.Dataset, not one that "
            "strategy.experimental_distribute_dataset has made: they distribute it"
        )
    if more.get("steps_per_epoch") is None:
        _check_length(more.get("x"))
    if more.get("shuffle"):
        _warn_of_orders(more.get("x"))
    distributor = _Distributor(distribute_strategy)
    stock(self, distributor, *args, **more)
    self.tf_fuse_element_spec = distributor.element_spec


def _check_length(x: Any) -> None:
    """Refuse a dataset if Keras would train only a part of it: Keras counts whole batches."""
    import tensorflow as tf

    if not isinstance(x, tf.data.Dataset) or x.cardinality() < 0:
        return
    policy = x.options().experimental_distribute.auto_shard_policy
    if policy == tf.data.experimental.AutoShardPolicy.OFF:
        raise ValueError(
            "with AutoShardPolicy.OFF each process steps through all parts of all batches, but "
            "Keras would stop after as many steps as there are batches: repeat() the dataset, and "
            "give steps_per_epoch (steps, validation_steps)"
        )


def _check_rows(dataset: Any, parts: int) -> None:
    """Refuse batches that the strategy cannot divide."""
    import tensorflow as tf

    policy = dataset.options().experimental_distribute.auto_shard_policy
    if parts == 1 or policy == tf.data.experimental.AutoShardPolicy.OFF:
        return
    specs = tf.nest.flatten(dataset.element_spec)
    scalars = [one for one in specs if isinstance(one, tf.TensorSpec) and one.shape.rank == 0]
    if scalars:
        remedy = "call batch() on the dataset"
        if len(scalars) < len(specs):
            remedy += ", or repeat a number that belongs to the whole batch for each of its rows"
        raise ValueError(
            f"a batch cannot be divided among {parts} replicas: {len(scalars)} of its "
            f"{len(specs)} tensors have no rows (the first is {scalars[0]}): {remedy}"
        )


def _warn_of_orders(x: Any) -> None:
    """Warn if each process shuffles in an order of its own."""
    import tensorflow as tf

    in_own_order = (tf.data.Dataset, tf.distribute.DistributedDataset, Iterator)
    if not isinstance(x, in_own_order) and not processes.is_seeded():
        _log.warning(
            "fit shuffles in another order in each process, so some rows train twice in an epoch "
            "and others not at all: call keras.utils.set_random_seed with the same number in all "
            "processes, or fit with shuffle=False"
        )


def _without_optionals(dataset: Any) -> Any:
    """Put None in place of what a generator yields as None: the strategy cannot divide those."""
    import tensorflow as tf

    specs = tf.nest.flatten(dataset.element_spec)
    if not any(isinstance(one, tf.OptionalSpec) for one in specs):
        return dataset

    def replaced(*batch: Any) -> Any:
        pairs = zip(tf.nest.flatten(batch), specs, strict=True)
        flat = [None if isinstance(spec, tf.OptionalSpec) else one for one, spec in pairs]
        return tf.nest.pack_sequence_as(dataset.element_spec, flat)

    return dataset.map(replaced)


def _in_own_memory(dataset: Any) -> Any:
    """Copy batches that may lie in the program's own NumPy arrays.

    The strategy slices batches, and TensorFlow's kernels then write their results over the slices.
    The batches of a generator lie in the program's arrays if these begin at an address that
    TensorFlow takes: the next epoch would train on what a step left there.
    """
    import tensorflow as tf

    source = tf.data.experimental.to_variant(dataset)
    if tf.raw_ops.ComputeBatchSize(input_dataset=source) >= 0:
        return dataset  # `batch` of TensorFlow has made the batches.

    def copy(*batch: Any) -> Any:
        flat = [
            tf.nest.map_structure(_copy, one, expand_composites=True)
            for one in tf.nest.flatten(batch)
        ]
        return tf.nest.pack_sequence_as(dataset.element_spec, flat)

    return dataset.map(copy)


def _copy(tensor: Any) -> Any:
    """Copy a tensor of rows; `tf.identity` would not."""
    import tensorflow as tf

    if tensor is None or tensor.dtype == tf.variant or tensor.shape.rank == 0:
        return tensor
    return tf.ensure_shape(tf.gather(tensor, tf.range(tf.shape(tensor)[0])), tensor.shape)


def _predict(stock: Callable[..., Any], self: Any, x: Any, *args: Any, **more: Any) -> Any:
    """Extend `predict`: processes share batches, not files, which keeps the order of the rows."""
    import tensorflow as tf

    if not processes.are_several(self.distribute_strategy):
        return stock(self, x, *args, **more)
    if tf.config.functions_run_eagerly():
        raise ValueError(
            "predict in several processes needs tf.functions: do not call "
            "tf.config.run_functions_eagerly(True); model.compile(run_eagerly=True) works"
        )
    if isinstance(x, tf.data.Dataset):
        policies = tf.data.experimental.AutoShardPolicy
        if x.options().experimental_distribute.auto_shard_policy in (policies.AUTO, policies.FILE):
            options = tf.data.Options()
            options.experimental_distribute.auto_shard_policy = policies.DATA
            x = x.with_options(options)
    return stock(self, x, *args, **more)
