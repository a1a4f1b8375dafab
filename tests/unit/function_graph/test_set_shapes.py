# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Updates whose gradients have shapes that the program set, which TensorFlow does not know."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_module

from tests.unit.fuse_update.fused_updates import bits, clusters, outlines_of
from tf_fuse.function_graph import set_shapes
from tf_fuse.function_graph.function_lookup import op_defs
from tf_fuse.function_graph.view import GraphView

_SIZE = 700
_UNKNOWN = {
    "mask": lambda g: tf.boolean_mask(g, g > -100.0),
    "python": lambda g: tf.numpy_function(lambda x: x, [g], tf.float32),
    "slice": lambda g: tf.concat([g, g], 0)[: tf.cast(_SIZE + 0.0 * g[0], tf.int32)],
    "split": lambda g: tf.split(g, tf.cast([_SIZE + 0.0 * g[0], 0.0], tf.int32))[0],
    "later": lambda g: tf.roll(_with_shape(tf.boolean_mask(g, g > -100.0)), 1, 0),
}


def _with_shape(gradient):
    gradient.set_shape([_SIZE])
    return gradient


def _trained(change):
    """A weight and its slots after some steps."""
    import tf_keras

    weight = tf.Variable(tf.zeros([_SIZE]))
    optimizer = tf_keras.optimizers.RMSprop(0.05, centered=True)
    optimizer.build([weight])

    @tf.function(autograph=False)
    def step(x):
        optimizer.apply_gradients([(_with_shape(change(tf.tanh(weight - x))), weight)])
        return weight[0]

    rng = np.random.default_rng(7)
    for _ in range(20):
        step(tf.constant(rng.standard_normal(_SIZE), tf.float32))
    return [tf.convert_to_tensor(v).numpy() for v in [weight, *optimizer.variables]]


@pytest.mark.parametrize("name", _UNKNOWN)
def test_bits(name):
    """Not knowing whether shapes are equal, Grappler leaves a quotient unchanged."""
    stock = _trained(_UNKNOWN[name])
    ours, outlines = outlines_of(lambda: _trained(_UNKNOWN[name]))
    assert bits(ours) == bits(stock)
    assert clusters(outlines) == 0


def test_a_shape_that_grappler_knows():
    def first(gradient):
        return tf.split(tf.concat([gradient, gradient], 0), [tf.size(gradient)] * 2)[0]

    stock = _trained(first)
    ours, outlines = outlines_of(lambda: _trained(first))
    assert bits(ours) == bits(stock)
    assert clusters(outlines) == 1


@pytest.mark.parametrize("batch", [None, 16])
def test_none_is_set_in_a_model(batch):
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [layers.Conv2D(4, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten()]
    )
    model.build((batch, 12, 12, 3))
    optimizer = tf.keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(x):
        with tf.GradientTape() as tape:
            y = model(x, training=True)
            loss = tf.reduce_mean(tf.reshape(y, [tf.shape(y)[0], -1]) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    traced = step.get_concrete_function(tf.TensorSpec([batch, 12, 12, 3]))
    definition = traced.function_def
    context = context_module.context()
    view = GraphView(definition, op_defs(lambda name: None))
    assert context.has_function(definition.signature.name)
    assert set_shapes.set_shapes(view, traced.graph) == frozenset()
