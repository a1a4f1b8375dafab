# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The models of `models.py` in Keras 3, and its optimizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from benchmarks.shard_update import models


def build_model(name: str, sizes: Mapping[str, int]) -> tuple[keras.Model, list[Any]]:
    """Return a model, and its trainable variables in the order of `shard_update_models.weights`."""
    layers: list[keras.Layer] = []

    def add(layer: keras.Layer) -> keras.Layer:
        layers.append(layer)
        return layer

    build = {"mlp": _mlp, "transformer": _transformer, "ncf": _ncf, "resnet": _resnet}[name]
    model = keras.Model(*build(sizes, add))
    return model, [variable for layer in layers for variable in layer.trainable_variables]


def loss_of(name: str, model: keras.Model, batch: Sequence[Any]) -> Any:
    """Return the mean loss of a batch."""
    *inputs, target = batch
    output = model(inputs[0] if len(inputs) == 1 else inputs, training=True)
    if name == "mlp":
        return tf.reduce_mean((output - target) ** 2)
    if name == "ncf":
        cross = tf.nn.sigmoid_cross_entropy_with_logits(labels=target, logits=output[:, 0])
        return tf.reduce_mean(cross)
    cross = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=target, logits=output)
    return tf.reduce_mean(cross)


def make_optimizer(name: str, learning_rate: float) -> Any:
    """Return a Keras optimizer by the name that the command line has."""
    kind, options = models.OPTIMIZERS[name]
    return getattr(keras.optimizers, kind)(learning_rate, **options)


def _mlp(sizes: Mapping[str, int], add: Any) -> tuple[Any, Any]:
    width, last = sizes["width"], sizes["layers"] - 1
    inputs = x = keras.Input([width])
    for at in range(sizes["layers"]):
        x = add(keras.layers.Dense(width, activation="relu" if at < last else None))(x)
    return inputs, x


def _transformer(sizes: Mapping[str, int], add: Any) -> tuple[Any, Any]:
    width, heads = sizes["width"], sizes["heads"]
    layers = keras.layers
    inputs = keras.Input([sizes["length"]], dtype="int32")
    x = add(layers.Embedding(sizes["vocabulary"], width))(inputs)
    for _ in range(sizes["blocks"]):
        y = add(layers.LayerNormalization())(x)
        attention = add(layers.MultiHeadAttention(heads, width // heads))
        x = x + attention(y, y, use_causal_mask=True)
        y = add(layers.LayerNormalization())(x)
        y = add(layers.Dense(models.FEED_FORWARD * width, activation="relu"))(y)
        x = x + add(layers.Dense(width))(y)
    x = add(layers.LayerNormalization())(x)
    return inputs, add(layers.Dense(sizes["vocabulary"]))(x)


def _ncf(sizes: Mapping[str, int], add: Any) -> tuple[Any, Any]:
    width, layers = sizes["width"], keras.layers
    user, item = keras.Input([], dtype="int32"), keras.Input([], dtype="int32")

    def rows(columns: int) -> list[Any]:
        users = add(layers.Embedding(sizes["users"], columns))
        items = add(layers.Embedding(sizes["items"], columns))
        return [users(user), items(item)]

    product = layers.Multiply()(rows(width))
    x = layers.Concatenate()(rows(2 * width))
    for units in models.ncf_units(width):
        x = add(layers.Dense(units, activation="relu"))(x)
    x = layers.Concatenate()([product, x])
    return [user, item], add(layers.Dense(1))(x)


def _resnet(sizes: Mapping[str, int], add: Any) -> tuple[Any, Any]:
    layers = keras.layers

    def conv(x: Any, units: int, side: int, stride: int = 1) -> Any:
        x = add(layers.Conv2D(units, side, stride, padding="same", use_bias=False))(x)
        return add(layers.BatchNormalization())(x)

    inputs = keras.Input([sizes["image"], sizes["image"], 3])
    x = keras.ops.relu(conv(inputs, sizes["width"], 3))
    for stage in range(models.STAGES):
        inner = sizes["width"] << stage
        outer = models.EXPANSION * inner
        # The stride is in the first of the three, which needs no padding.
        shortcut = conv(x, outer, 1, 2)
        x = keras.ops.relu(conv(x, inner, 1, 2))
        x = keras.ops.relu(conv(x, inner, 3))
        x = keras.ops.relu(shortcut + conv(x, outer, 1))
    x = layers.GlobalAveragePooling2D()(x)
    return inputs, add(layers.Dense(sizes["classes"]))(x)
