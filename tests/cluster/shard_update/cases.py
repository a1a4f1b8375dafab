# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training steps whose update is sharded by hand: what `shard_update` plans, switched on here."""

from __future__ import annotations

import hashlib
import importlib
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.shard_update import training_steps as shard_update_programs


class ShardUpdateCases:
    """Cases of `collectives.cases.Member`."""

    rank: int
    ranks: int
    _groups = 1

    def in_groups(self, groups: int) -> None:
        """Shard the updates of the following cases in so many groups of replicas."""
        self._groups = groups

    def update(
        self,
        library: str,
        optimizer: str,
        sharded: bool,
        steps: int,
        options: dict[str, Any] | None = None,
        exact: bool = False,
    ) -> dict[str, Any]:
        """Trains a model of uneven layers under MultiWorkerMirroredStrategy.

        Args:
          library: "keras", "tf_keras", "tf_keras.legacy", or "v1" for `tf.compat.v1.train`.
          optimizer: name of the class.
          sharded: whether the plan is carried out.
          steps: of training.
          options: of the optimizer.
          exact: whether the plan leaves alone what would not be bit-equal.

        Returns:
          The weights, a digest of them, the losses, why gradients were left alone, how many
          clusters are sharded and not exact, the elements of all slots that are sharded, and those
          that this rank has.
        """
        keras = importlib.import_module("tf_keras" if library.startswith("tf_keras") else "keras")
        strategy = self._the_strategy()
        keras.utils.set_random_seed(3)
        with strategy.scope():
            layers = [keras.layers.Dense(n, activation="tanh") for n in (37, 5)]
            model = keras.Sequential([keras.Input([10]), *layers, keras.layers.Dense(1)])
            chosen = _optimizer(keras, library, optimizer, options or {})
            if hasattr(chosen, "build"):
                chosen.build(model.trainable_variables)

        variables = model.trainable_variables
        if library == "v1":
            variables = [variable.value for variable in variables]

        def replica(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            gradients = tape.gradient(loss, variables)
            chosen.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        step = tf.function(lambda x, y: strategy.run(replica, args=(x, y)))
        name = f"{library}.{optimizer}.{sorted((options or {}).items())}/"
        told = self._train(step, steps, name, sharded, exact)
        return _with_weights(told, model.trainable_variables)

    def reduction(self, name: str, sharded: bool) -> dict[str, Any]:
        """Updates weights by what is left of a reduction of their gradients.

        Args:
          name: of _REDUCTIONS.
          sharded: whether the plan is carried out.

        Returns:
          As `update`.
        """
        strategy = self._the_strategy()
        rng = np.random.default_rng(5)
        with strategy.scope():
            weights = [
                tf.Variable(rng.standard_normal(shape), dtype=tf.float32)
                for shape in ([9, 5, 7], [3, 2], [1, 1])
            ]

        def replica_step(x: Any, y: Any) -> Any:
            context = tf.distribute.get_replica_context()
            flat = tf.reshape(x * y, [-1])
            loss = tf.add_n([tf.reduce_sum(tf.cumsum(tf.abs(w))) for w in weights])
            gradients = context.all_reduce("sum", [_stretched(flat, w.shape) for w in weights])
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.assign_sub(gradient * _REDUCTIONS[name](gradient))
            return loss

        step = tf.function(lambda x, y: strategy.run(replica_step, args=(x, y)))
        told = self._train(step, 2, f"{name}/", sharded)
        return _with_weights(told, weights)

    def program(self, name: str, sharded: bool) -> dict[str, Any]:
        """Runs a step of `training_steps`.

        Args:
          name: of the function that makes it.
          sharded: whether the plan is carried out.

        Returns:
          As `update`.
        """
        strategy = self._the_strategy()
        step, weights = getattr(shard_update_programs, name)(strategy)
        return _with_weights(self._train(step, 4, f"{name}/", sharded), weights)

    def _the_strategy(self) -> Any:
        """One for all cases: making one restarts what the collectives know."""
        if getattr(self, "_strategy", None) is None:
            self._strategy = tf.distribute.MultiWorkerMirroredStrategy()
        return self._strategy

    def _train(
        self, step: Any, steps: int, name: str, sharded: bool, exact: bool = False
    ) -> dict[str, Any]:
        """Runs a step on this rank's data."""
        rng = np.random.default_rng(self.rank)
        x = tf.constant(rng.standard_normal([16, 10]), tf.float32)
        y = tf.constant(rng.standard_normal([16, 1]), tf.float32)
        function = step.get_concrete_function(x, y)
        from tf_fuse.shard_update.replicas import Replicas

        told: dict[str, Any] = {"reasons": [], "inexact": 0, "whole": 0, "own": 0}
        if sharded:
            replicas = Replicas(self.ranks, {"": self.rank}, self._groups)
            told = _carry_out(function, replicas, f"{name}{self._groups}/", exact)
        return {"losses": [float(step(x, y)).hex() for _ in range(steps)], **told}


# Of a gradient, to what it is broadcast against; whether the order of additions matters.
_REDUCTIONS: dict[str, Any] = {
    "all": lambda g: tf.cast(tf.reduce_all(g > -9.0, axis=-1, keepdims=True), tf.float32),
    "any": lambda g: tf.cast(tf.reduce_any(g > 1.0, axis=0), tf.float32),
    "max": tf.reduce_max,
    "max_of_rows": lambda g: tf.reduce_max(g, axis=-1, keepdims=True),
    "max_of_columns": lambda g: tf.reduce_max(g, axis=0),
    "mean": tf.reduce_mean,
    "mean_of_rows": lambda g: tf.reduce_mean(g, axis=-1, keepdims=True),
    "min": lambda g: tf.reduce_min(g, keepdims=True),
    "norm": lambda g: tf.raw_ops.EuclideanNorm(input=g, axis=[0], keep_dims=True),
    "product": lambda g: tf.reduce_prod(0.1 + tf.abs(g), axis=0),
    "sum_of_first_and_last": lambda g: tf.reduce_sum(g, axis=[0, -1], keepdims=True),
}


def _stretched(flat: Any, shape: Any) -> Any:
    """A tensor of a shape, made of all elements of a vector."""
    size = shape.num_elements()
    return tf.reshape(tf.tile(flat, [-(-size // flat.shape[0])])[:size], shape)


def _with_weights(told: dict[str, Any], weights: Any) -> dict[str, Any]:
    values = [weight.numpy() for weight in weights]
    bits = b"".join(one.tobytes() for one in values)
    return {"values": values, "weights": hashlib.sha256(bits).hexdigest(), **told}


def _optimizer(keras: Any, library: str, name: str, options: dict[str, Any]) -> Any:
    if library == "v1":
        return getattr(tf.compat.v1.train, name)(0.05, **options)
    module = keras.optimizers.legacy if library.endswith("legacy") else keras.optimizers
    return getattr(module, name)(0.05, **options)


def _carry_out(function: Any, replicas: Any, prefix: str, exact: bool) -> dict[str, Any]:
    """Gives a function its new body, and its slots their shards."""
    from tensorflow.python.eager import context as context_module
    from tensorflow.python.ops import handle_data_util

    from tf_fuse.shard_update.pipeline import shard_update
    from tf_fuse.shard_update.plan import PlanOptions
    from tf_fuse.shard_update.verify.verifier import Original

    context = context_module.context()
    definition = function.function_def
    names = [argument.name for argument in definition.signature.input_arg]

    def body(name: str) -> Any:
        return context.get_function_def(name) if context.has_function(name) else None

    def is_variable(tensor: Any) -> bool:
        data = handle_data_util.get_resource_handle_data(tensor)
        return tensor.dtype == tf.resource and data is not None and data.is_set

    graph = function.graph
    mirrored = [n for n, t in zip(names, graph.inputs, strict=True) if is_variable(t)]
    original = Original(definition, graph, body)
    plan = shard_update(original, replicas, mirrored, prefix, PlanOptions(exact=exact))
    captures = dict(
        zip(names[-len(function.captured_inputs) :], function.captured_inputs, strict=True)
    )
    whole = own = 0
    if plan.function is not None:
        context.remove_function(definition.signature.name)
        for one in [*plan.functions, plan.function]:
            context.add_function_def(one)
    for slot in plan.shards:
        dtype = tf.dtypes.as_dtype(slot.dtype)
        handle = captures[slot.argument]
        value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
        part = tf.reshape(value, [-1])[slot.begin : slot.end]
        holder = tf.raw_ops.VarHandleOp(
            dtype=dtype, shape=part.shape, shared_name=slot.shared_name, container=""
        )
        tf.raw_ops.AssignVariableOp(resource=holder, value=part)
        # Whoever reads the whole one now gets nothing of its shape.
        tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros([0], dtype))
        whole += int(np.prod(slot.shape))
        own += slot.own[1] - slot.own[0]
    made = [*plan.functions, plan.function] if plan.function is not None else []
    nodes = [node.name for one in made for node in one.node_def]
    clusters = [cluster for bucket in plan.buckets for cluster in bucket.clusters]
    reasons = [bucket.reason for bucket in plan.buckets] + [cluster.reason for cluster in clusters]
    return {
        "reasons": sorted({reason for reason in reasons if reason}),
        "early": any(name.endswith("_early") for name in nodes),
        "inexact": sum(not cluster.exact for cluster in clusters),
        "whole": whole,
        "own": own,
    }
