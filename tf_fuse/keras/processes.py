# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mend Keras's loops under `MultiWorkerMirroredStrategy` in a cluster.

Keras's own loops stay. Each function below extends one that is wrong if several processes train.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

from tf_fuse._tensorflow import feature_names, features
from tf_fuse._tensorflow.keras import processes

_log = logging.getLogger("tf_fuse")


@functools.cache
def install() -> None:
    """Extend Keras's trainer, once per process."""
    if features.works(feature_names.KERAS_PROCESSES):
        processes.extend(
            {
                "reduce_per_replica": _mean,
                "_maybe_symbolic_build": _build,
                "_make_function": _without_xla,
                "predict": _in_order,
                "fit": _one_order,
                "capture_call_time_value": _capture,
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

    strategy = self._distribute_strategy
    if iterator is None or not processes.are_several(strategy):
        stock(self, iterator, **batch)
        return
    spec = iterator.data_adapter.get_tf_dataset().element_spec
    flat = keras.tree.flatten(spec)
    if all(_is_known(one) for one in flat):
        first = keras.tree.pack_sequence_as(spec, [_shape_of(one) for one in flat])
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


def _without_xla(stock: Callable[..., Any], self: Any, step_function: Any) -> Any:
    """Extend `_make_function`."""
    if self.jit_compile and processes.are_several(self.distribute_strategy):
        _log.warning("jit_compile is off for %s: XLA cannot compile collectives on CPUs", self.name)
        self.jit_compile = False
    return stock(self, step_function)


def _in_order(stock: Callable[..., Any], self: Any, x: Any, *args: Any, **more: Any) -> Any:
    """Extend `predict`: processes share batches, not files."""
    import tensorflow as tf

    if isinstance(x, tf.data.Dataset) and processes.are_several(self.distribute_strategy):
        policies = tf.data.experimental.AutoShardPolicy
        if x.options().experimental_distribute.auto_shard_policy in (policies.AUTO, policies.FILE):
            options = tf.data.Options()
            options.experimental_distribute.auto_shard_policy = policies.DATA
            x = x.with_options(options)
    return stock(self, x, *args, **more)


def _one_order(stock: Callable[..., Any], self: Any, x: Any = None, *args: Any, **more: Any) -> Any:
    """Extend `fit`."""
    import tensorflow as tf

    is_array = not isinstance(x, (tf.data.Dataset, tf.distribute.DistributedDataset, Iterator))
    is_seeded = processes.is_seeded() or not more.get("shuffle", True)
    if is_array and not is_seeded and processes.are_several(self.distribute_strategy):
        _log.warning(
            "fit shuffles in another order in each process, so some rows train twice in an epoch "
            "and others not at all: call keras.utils.set_random_seed with the same number in all "
            "processes, or fit with shuffle=False"
        )
    return stock(self, x, *args, **more)


def _capture(stock: Callable[..., Any], self: Any, *args: Any, **more: Any) -> Any:
    """Extend `FuncGraph.capture_call_time_value`: the function captures for its branches.

    TensorFlow's conditionals do not pass on what a branch captures in this way, as a branch does if
    it calls a function that has collectives: Keras's loop of `steps_per_execution`.
    """
    graph = processes.graph_of_function(self)
    if graph is self:
        return stock(self, *args, **more)
    with graph.as_default():
        return stock(graph, *args, **more)
