# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training with many optimizers and programs, with `shard_weight_update` and in stock TensorFlow.

In ranks of `grpc` nothing of tf_fuse is loaded.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.all_passes import every_size, update_value_models
from tests.cluster.shard_update import training_steps as shard_update_programs


class ShardUpdateMatrixCases:
    """Cases of `collectives.cases.Member`."""

    rank: int
    ranks: int
    ours: bool

    def optimizer(
        self, library: str, name: str, options: Mapping[str, Any], steps: int = 4, **switches: bool
    ) -> dict[str, Any]:
        """Trains a model of uneven layers.

        Args:
          library: "keras", "tf_keras", "tf_keras.legacy", or "v1" for `tf.compat.v1.train`.
          name: of the optimizer's class.
          options: of the optimizer.
          steps: of training.
          switches: options of tf_fuse besides those that are on.

        Returns:
          The losses, the values of all variables in the order in which they were made, what was
          decided about each function, and how many updates are one operation.
        """
        return self._run(lambda s: step_of(s, library, name, options), steps, switches)

    def step_of_program(self, name: str, steps: int = 4, **switches: bool) -> dict[str, Any]:
        """Runs a step of `training_steps`.

        Args:
          name: of the function that makes it.
          steps: how often.
          switches: as of `optimizer`.

        Returns:
          As `optimizer`.
        """
        return self._run(lambda s: getattr(shard_update_programs, name)(s)[0], steps, switches)

    def fitted(
        self, library: str, name: str, policy: str = "float32", execution: int = 1, **switches: bool
    ) -> dict[str, Any]:
        """Trains by `fit`.

        Args:
          library: as of `optimizer`, but "v1".
          name: of the optimizer's class.
          policy: of the layers' types; with "mixed_float16" the loss is scaled.
          execution: steps per call of the function.
          switches: as of `optimizer`.

        Returns:
          As `optimizer`; the losses are those of epochs.
        """
        if self.ours:
            switch(**switches)
        strategy = self._strategy = getattr(self, "_strategy", None) or (
            tf.distribute.MultiWorkerMirroredStrategy()
        )
        return fit(strategy, library, name, policy, execution)

    def _run(
        self, make: Callable[[Any], Any], steps: int, switches: Mapping[str, bool]
    ) -> dict[str, Any]:
        if self.ours:
            switch(**switches)
        strategy = self._strategy = getattr(self, "_strategy", None) or (
            tf.distribute.MultiWorkerMirroredStrategy()
        )
        return train(strategy, make, steps)


def train(strategy: Any, make: Callable[[Any], Any], steps: int) -> dict[str, Any]:
    """Trains on data; each replica has its own.

    Args:
      strategy: of the replicas.
      make: gets the strategy, and makes a step of inputs and targets that returns the loss.
      steps: how many.

    Returns:
      As `ShardUpdateMatrixCases.optimizer`.
    """
    before, fused = len(decisions()), _fused()
    x, y = (_per_replica(strategy, width) for width in (10, 1))
    losses = []
    with every_size.made_variables() as made:
        step = make(strategy)
        for _ in range(steps):
            losses += [float(one).hex() for one in strategy.experimental_local_results(step(x, y))]
    return {
        "losses": losses,
        "values": [np.asarray(variable.numpy()) for variable in made],
        "decided": [told(decision) for decision in decisions()[before:]],
        "fused": _fused() - fused,
    }


def _fused() -> int:
    """How many updates are one operation, of all functions so far."""
    from tensorflow.python.eager import context

    fuser = getattr(context.context(), "_tf_fuse_fuser", None)
    return sum(len(d.outline.clusters) for d in fuser.decisions) if fuser is not None else 0


def fit(
    strategy: Any, library: str, name: str, policy: str = "float32", execution: int = 1
) -> dict[str, Any]:
    """See `ShardUpdateMatrixCases.fitted`."""
    keras = importlib.import_module("tf_keras" if library.startswith("tf_keras") else "keras")
    before = len(decisions())
    keras.utils.set_random_seed(3)
    with every_size.made_variables() as made:
        with strategy.scope():
            layers = [
                keras.layers.Dense(37, activation="tanh", dtype=policy),
                keras.layers.Dense(1, dtype=policy),
            ]
            model = keras.Sequential([keras.Input([10]), *layers])
            optimizer = optimizer_of(keras, library, name, {})
            if policy == "mixed_float16" and library == "keras":
                optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
            elif policy == "mixed_float16":
                optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
            model.compile(optimizer, "mse", steps_per_execution=execution)
        rng = np.random.default_rng(7)
        x, y = rng.standard_normal([72, 10]), rng.standard_normal([72, 1])
        batch = 8 * strategy.num_replicas_in_sync
        history = model.fit(x, y, batch_size=batch, epochs=2, verbose=0, shuffle=False)
    return {
        "losses": [float(loss).hex() for loss in history.history["loss"]],
        "values": [np.asarray(variable.numpy()) for variable in made],
        "decided": [told(decision) for decision in decisions()[before:]],
    }


def _per_replica(strategy: Any, width: int) -> Any:
    def values(replica: Any) -> Any:
        rng = np.random.default_rng([replica.replica_id_in_sync_group, width])
        return tf.constant(rng.standard_normal([16, width]), tf.float32)

    return strategy.experimental_distribute_values_from_function(values)


def switch(**switches: Any) -> None:
    """Switches the option on; `switches` are others of tf_fuse.

    TensorFlow keeps options that are not given: all that any test sets must be named here.
    """
    options = {
        "compile_weight_update": False,
        "fuse_weight_update": True,
        "shard_weight_update": True,
        "shard_weight_update_always": True,
        "shard_weight_update_exact": False,
        "shard_weight_update_gather": "end",
    }
    tf.config.optimizer.set_experimental_options({**options, **switches})


def decisions() -> list[Any]:
    """What was decided so far; nothing without the plugin."""
    from tensorflow.python.eager import context

    updates = getattr(context.context(), "_tf_fuse_updates", None)
    return [] if updates is None else updates.decisions


def told(decision: Any) -> dict[str, Any]:
    """Of a function with an all-reduce, why gradients are left alone, and what is held."""
    buckets = decision.plan.buckets if decision.plan else []
    clusters = [cluster for bucket in buckets for cluster in bucket.clusters]
    reasons = [bucket.reason for bucket in buckets] + [cluster.reason for cluster in clusters]
    held = decision.shard_group.held if decision.shard_group else ()
    here, whole = decision.shard_group.bytes() if decision.shard_group else (0, 0)
    return {
        "reason": decision.reason or "",
        "detail": decision.detail,
        "reasons": sorted({reason for reason in reasons if reason}),
        "inexact": sum(not cluster.exact for cluster in clusters if cluster.reason is None),
        "sharded": sum(cluster.reason is None for cluster in clusters),
        "slots": len(held),
        "elements": sum(one.size for one in held),
        "here": here,
        "whole": whole,
    }


def step_of(
    strategy: Any,
    library: str,
    name: str,
    options: Mapping[str, Any],
    model: str = "",
    sizes: Sequence[int] = (),
) -> Any:
    """A step of a model with three uneven weights and a tiny one; or of `update_value_models`.

    Args:
      strategy: has the variables.
      library: see `ShardUpdateMatrixCases.optimizer`.
      name: likewise.
      options: likewise.
      model: of `update_value_models`; "" for the other one.
      sizes: of biases, besides those that `update_value_models` has.
    """
    keras = importlib.import_module("tf_keras" if library.startswith("tf_keras") else "keras")
    if model:
        sizes = sorted({*update_value_models.SIZES, *sizes})
        make = functools.partial(optimizer_of, keras, library, name, options)
        return update_value_models.Training(strategy, model, make, sizes).step
    keras.utils.set_random_seed(3)
    with strategy.scope():
        layers = [keras.layers.Dense(37, activation="tanh"), keras.layers.Dense(1)]
        network = keras.Sequential([keras.Input([10]), *layers])
        optimizer = optimizer_of(keras, library, name, options)
        if hasattr(optimizer, "build"):
            optimizer.build(network.trainable_variables)
    weights = network.trainable_variables
    if library == "v1":
        weights = [variable.value for variable in weights]

    def replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((network(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    return tf.function(lambda x, y: strategy.run(replica, args=(x, y)))


def optimizer_of(keras: Any, library: str, name: str, options: Mapping[str, Any]) -> Any:
    """An optimizer of a library, see `ShardUpdateMatrixCases.optimizer`."""
    if library == "v1":
        return getattr(tf.compat.v1.train, name)(0.05, **options)
    module = keras.optimizers.legacy if library.endswith("legacy") else keras.optimizers
    return getattr(module, name)(0.05, **options)
