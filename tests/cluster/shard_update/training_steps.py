# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training steps of several kinds, for `cases`.

Each function takes the strategy, and returns a step of a batch and its targets, which gives the
loss, and the weights that it trains.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import tensorflow as tf


def _model(strategy: Any, library: str = "keras", **first: Any) -> tuple[Any, Any]:
    keras = importlib.import_module(library)
    keras.utils.set_random_seed(3)
    with strategy.scope():
        layers = [
            keras.layers.Dense(37, activation="tanh", **first),
            keras.layers.Dense(5, activation="tanh"),
            keras.layers.Dense(1),
        ]
        return keras, keras.Sequential([keras.Input([10]), *layers])


def _loss(model: Any, x: Any, y: Any) -> Any:
    return tf.reduce_mean((model(x, training=True) - y) ** 2)


def _gradients(model: Any, x: Any, y: Any, variables: Any) -> tuple[Any, Any]:
    with tf.GradientTape() as tape:
        loss = _loss(model, x, y)
    return loss, tape.gradient(loss, variables)


def _adam(strategy: Any, keras: Any, variables: Any, **options: Any) -> Any:
    with strategy.scope():
        optimizer = keras.optimizers.Adam(0.05, **options)
        optimizer.build(variables)
    return optimizer


def _trains(
    loss_of: Any,
    variables: Any,
    optimizer: Any,
    scale: Any = lambda loss: loss,
    unscale: Any = list,
) -> Any:
    """What a replica does in a plain step.

    Args:
      loss_of: returns the loss of a batch and its targets.
      variables: to train.
      optimizer: of them.
      scale: what is made of the loss before its gradients.
      unscale: what is made of the gradients.
    """

    def replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(x, y)
            scaled_loss = scale(loss)
        gradients = unscale(tape.gradient(scaled_loss, variables))
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return replica


def _loss_of(model: Any) -> Any:
    return lambda x, y: _loss(model, x, y)


def _layers_of(strategy: Any, dtype: str) -> tuple[Any, Any]:
    """A model of three layers of a type; its output is float32 in the loss."""
    keras, _ = _model(strategy)
    with strategy.scope():
        layers = [keras.layers.Dense(n, dtype=dtype) for n in (37, 5, 1)]
        return keras, keras.Sequential([keras.Input([10]), *layers])


def _loss_in_float32(model: Any) -> Any:
    return lambda x, y: tf.reduce_mean((tf.cast(model(x, training=True), tf.float32) - y) ** 2)


def _loss_scaling(strategy: Any, optimizers: Any, make: Any, variables: Any) -> Any:
    with strategy.scope():
        optimizer = make(optimizers.Adam(0.05), initial_scale=8.0, dynamic_growth_steps=2)
        optimizer.build(variables)
    return optimizer


def _step(strategy: Any, replica: Any) -> Any:
    return tf.function(lambda x, y: strategy.run(replica, args=(x, y)))


def frozen(strategy: Any) -> Any:
    """One layer is not trained."""
    keras, model = _model(strategy)
    model.layers[0].trainable = False
    variables = model.trainable_variables
    optimizer = _adam(strategy, keras, variables)

    return _step(strategy, _trains(_loss_of(model), variables, optimizer)), model.variables


def two_optimizers(strategy: Any) -> Any:
    """Each trains a part of the weights, with gradients reduced on their own."""
    keras, model = _model(strategy)
    parts = model.trainable_variables[:3], model.trainable_variables[3:]
    optimizers = [_adam(strategy, keras, part) for part in parts]

    def replica(x: Any, y: Any) -> Any:
        loss, gradients = _gradients(model, x, y, parts)
        for optimizer, mine, part in zip(optimizers, gradients, parts, strict=True):
            optimizer.apply_gradients(zip(mine, part, strict=True))
        return loss

    return _step(strategy, replica), model.trainable_variables


def several_packs(strategy: Any) -> Any:
    """Gradients are reduced in buckets of a few hundred bytes."""
    _, model = _model(strategy)
    weights = [variable.value for variable in model.trainable_variables]
    with strategy.scope():
        slots = [tf.Variable(tf.zeros(weight.shape)) for weight in weights]
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=400)

    def replica(x: Any, y: Any) -> Any:
        loss, gradients = _gradients(model, x, y, weights)
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce("sum", gradients, options=options)
        for gradient, slot, weight in zip(gradients, slots, weights, strict=True):
            slot.assign(0.9 * slot + gradient)
            weight.assign_sub(0.05 * slot)
        return loss

    return _step(strategy, replica), weights


def _table(strategy: Any, width: int) -> tuple[Any, Any, list[Any], Any]:
    """A table, a layer of so many units, their variables, and an optimizer."""
    keras, _ = _model(strategy)
    with strategy.scope():
        table = keras.layers.Embedding(11, 6)
        dense = keras.layers.Dense(width)
        table.build([16]), dense.build([16, 6])
    variables = table.trainable_variables + dense.trainable_variables
    return table, dense, variables, _adam(strategy, keras, variables)


def embedding(strategy: Any) -> Any:
    """Gradients of an embedding are sparse; they do not come with the dense ones."""
    table, dense, variables, optimizer = _table(strategy, 1)

    def loss_of(x: Any, y: Any) -> Any:
        rows = tf.cast(tf.abs(x[:, 0]) * 5.0, tf.int32)
        return tf.reduce_mean((dense(table(rows)) - y) ** 2)

    return _step(strategy, _trains(loss_of, variables, optimizer)), variables


def accumulation(strategy: Any) -> Any:
    """Gradients of two steps are added up on each replica before they are reduced."""
    keras, model = _model(strategy)
    variables = model.trainable_variables
    optimizer = _adam(strategy, keras, variables)
    with strategy.scope():
        count = tf.Variable(0)
        sums = [
            tf.Variable(
                tf.zeros(variable.shape),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
            for variable in variables
        ]

    def accumulate(x: Any, y: Any) -> Any:
        loss, gradients = _gradients(model, x, y, variables)
        for one, gradient in zip(sums, gradients, strict=True):
            one.assign_add(gradient)
        count.assign_add(1)
        return loss

    def apply() -> None:
        pairs = [(one.read_value(), v) for one, v in zip(sums, variables, strict=True)]
        optimizer.apply_gradients(pairs)
        for one in sums:
            one.assign(tf.zeros(one.shape))

    @tf.function
    def step(x: Any, y: Any) -> Any:
        loss = strategy.run(accumulate, args=(x, y))
        tf.cond(count % 2 == 0, lambda: strategy.run(apply), lambda: None)
        return loss

    return step, variables


def loop(strategy: Any) -> Any:
    """Several steps in one call."""
    keras, model = _model(strategy)
    variables = model.trainable_variables
    optimizer = _adam(strategy, keras, variables)

    replica = _trains(_loss_of(model), variables, optimizer)

    @tf.function
    def steps(x: Any, y: Any) -> Any:
        loss = tf.constant(0.0)
        for _ in tf.range(3):
            loss = strategy.run(replica, args=(x, y))
        return loss

    return steps, variables


def nested(strategy: Any) -> Any:
    """What each replica runs is a function of its own."""
    keras, model = _model(strategy)
    variables = model.trainable_variables
    optimizer = _adam(strategy, keras, variables)

    replica = tf.function(_trains(_loss_of(model), variables, optimizer))
    return _step(strategy, replica), variables


def half(strategy: Any) -> Any:
    """Layers compute in bfloat16; weights and their gradients are float32."""
    keras, model = _layers_of(strategy, "mixed_bfloat16")
    variables = model.trainable_variables
    optimizer = _adam(strategy, keras, variables)
    return _step(strategy, _trains(_loss_in_float32(model), variables, optimizer)), variables


def scaled(strategy: Any) -> Any:
    """Loss scaling of Keras 3: reduced and updated in a branch, if gradients are finite."""
    keras, model = _model(strategy)
    variables = model.trainable_variables
    make = keras.optimizers.LossScaleOptimizer
    optimizer = _loss_scaling(strategy, keras.optimizers, make, variables)
    replica = _trains(_loss_of(model), variables, optimizer, optimizer.scale_loss)
    return _step(strategy, replica), variables


def scaled_2(strategy: Any) -> Any:
    """Loss scaling of Keras 2: reduced first, then updated in a branch, if gradients are finite."""
    keras, model = _model(strategy, "tf_keras")
    variables = model.trainable_variables
    make = keras.mixed_precision.LossScaleOptimizer
    optimizer = _loss_scaling(strategy, keras.optimizers, make, variables)
    ways = optimizer.get_scaled_loss, optimizer.get_unscaled_gradients
    return _step(strategy, _trains(_loss_of(model), variables, optimizer, *ways)), variables


def constrained(strategy: Any) -> Any:
    """The weight is changed again behind its update: its columns have a largest norm."""
    limit = importlib.import_module("keras").constraints.MaxNorm(0.8, axis=0)
    keras, model = _model(strategy, kernel_constraint=limit)
    variables = model.trainable_variables
    optimizer = _adam(strategy, keras, variables)

    return _step(strategy, _trains(_loss_of(model), variables, optimizer)), variables


def lars(strategy: Any) -> Any:
    """Each layer has a rate by the norms of its weight and its gradient (LARS), and momentum.

    At ten times the rate this program is chaotic: in stock TensorFlow, a change of a first weight's
    last bit moves a weight by 0.39 in forty steps.
    """
    _, model = _model(strategy)
    variables = model.trainable_variables
    with strategy.scope():
        slots = [tf.Variable(tf.zeros(v.shape)) for v in variables]

    def replica(x: Any, y: Any) -> Any:
        loss, gradients = _gradients(model, x, y, variables)
        gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)
        for variable, slot, gradient in zip(variables, slots, gradients, strict=True):
            weight = tf.convert_to_tensor(variable)
            decayed = gradient + 0.001 * weight
            norm, other = tf.norm(weight), tf.norm(decayed)
            rate = 0.005 * tf.where((norm > 0) & (other > 0), norm / other, 1.0)
            slot.assign(0.9 * slot + rate * decayed)
            variable.assign_sub(slot)
        return loss

    return _step(strategy, replica), variables


def waited_for(strategy: Any) -> Any:
    """All updates wait for a whole gradient, whose own update is left alone."""
    _, model = _model(strategy)
    variables = model.trainable_variables
    with strategy.scope():
        slots = [tf.Variable(tf.zeros(v.shape)) for v in variables]

    def replica(x: Any, y: Any) -> Any:
        loss, gradients = _gradients(model, x, y, variables)
        gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)
        scale = tf.tanh(tf.cumsum(gradients[0])[-1, 0])
        for variable, slot, gradient in zip(variables, slots, gradients, strict=True):
            slot.assign(0.9 * slot + gradient)
            variable.assign_sub(0.01 * scale * slot)
        return loss

    return _step(strategy, replica), variables


def half_scaled(strategy: Any) -> Any:
    """Layers compute in float16, and the loss is scaled."""
    keras, model = _layers_of(strategy, "mixed_float16")
    variables = model.trainable_variables
    make = keras.optimizers.LossScaleOptimizer
    optimizer = _loss_scaling(strategy, keras.optimizers, make, variables)
    replica = _trains(_loss_in_float32(model), variables, optimizer, optimizer.scale_loss)
    return _step(strategy, replica), variables


def tied(strategy: Any) -> Any:
    """A table whose rows are gathered, and which the result is multiplied by."""
    table, dense, variables, optimizer = _table(strategy, 6)

    def loss_of(x: Any, y: Any) -> Any:
        rows = tf.cast(tf.abs(x[:, 0]) * 5.0, tf.int32)
        products = tf.matmul(dense(table(rows)), table.embeddings.value, transpose_b=True)
        return tf.reduce_mean((products - y) ** 2)

    def whole(gradients: Any) -> Any:
        return [tf.convert_to_tensor(one) for one in gradients]

    return _step(strategy, _trains(loss_of, variables, optimizer, unscale=whole)), variables


def tiny(strategy: Any) -> Any:
    """Weights with fewer elements than there are replicas."""
    keras, _ = _model(strategy)
    shapes = [[], [1], [2], [7, 1], [1, 1, 1]]
    with strategy.scope():
        weights = [keras.Variable(np.full(shape, 0.5, np.float32)) for shape in shapes]
    optimizer = _adam(strategy, keras, weights)

    def replica(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            numbers = tf.stack([tf.reduce_sum(tf.sin(weight.value)) for weight in weights])
            loss = tf.reduce_mean((x[:, :5] @ numbers[:, None] - y) ** 2)
        gradients = tape.gradient(loss, [weight.value for weight in weights])
        optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return loss

    return _step(strategy, replica), weights
