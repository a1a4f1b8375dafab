# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Traced training steps of Keras models and their optimizers."""

from __future__ import annotations

import tensorflow as tf

from tests.unit.layout.trace.traced_lines import SPEC
from tf_fuse.layout.trace.function import trace


def test_a_keras_transformer_has_rules():
    keras = tf.keras
    first = keras.Input((6, 16))
    both = keras.layers.LayerNormalization()(
        first + keras.layers.MultiHeadAttention(2, 8)(first, first)
    )
    last = keras.layers.Dense(16)(keras.layers.Dense(32, "gelu")(both))
    model = keras.Model(first, keras.layers.LayerNormalization()(both + last))
    optimizer = keras.optimizers.AdamW()
    optimizer.build(model.trainable_variables)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - model(x, training=True)))
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    spec = tf.TensorSpec([8, 6, 16])
    assert trace(step, [spec, spec]).unknown == {}


def test_a_keras_model_and_its_optimizer():
    keras = tf.keras
    model = keras.Sequential(
        [keras.Input([4]), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)]
    )
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_variables))
        return loss

    traced = trace(step, [SPEC, tf.TensorSpec([8], tf.int32)])
    assert traced.unknown == {}
    assert set(traced.variables) == {one.path for one in [*model.variables, *optimizer.variables]}
    written = {variable for variable, _ in traced.writes}
    assert set(traced.variables) - written == {optimizer._learning_rate.path}
    forward = trace(model, [SPEC])
    assert [one.kind for one in forward.operations if one.inputs] == [
        "ReadVariableOp", "MatMul", "ReadVariableOp", "BiasAdd", "Relu",
        "ReadVariableOp", "MatMul", "ReadVariableOp", "BiasAdd", "Identity",
    ]  # fmt: skip
