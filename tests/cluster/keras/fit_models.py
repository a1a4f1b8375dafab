# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models and data of the tests of `fit`; only the coordinator of a test imports this."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tests.cluster.keras import recommenders
from tests.cluster.keras.fit_case import ROWS, Case, Make, floats, ids


def mlp() -> Case:
    """Dropout, batch normalization, L2 losses; a dataset whose last batch is smaller."""
    hidden = [layers.Dense(16, "relu", kernel_regularizer="l2"), layers.BatchNormalization()]
    stack = [keras.Input([6]), *hidden, layers.Dropout(0.3), layers.Dense(1)]
    model = keras.Sequential(stack)
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    x = floats(ROWS - 3, 6)
    return Case(model, x, x.sum(1), feed="dataset")


def resnet() -> Case:
    """Convolutions with batch normalization, around which their inputs are added."""
    x = keras.Input([8, 8, 3])
    hidden = layers.Conv2D(4, 3, padding="same")(x)
    for _ in range(2):
        inner = layers.ReLU()(layers.BatchNormalization()(hidden))
        inner = layers.Conv2D(4, 3, padding="same", use_bias=False)(inner)
        hidden = layers.Add()([hidden, inner])
    model = keras.Model(x, layers.Dense(4)(layers.GlobalAveragePooling2D()(hidden)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    return Case(model, floats(ROWS, 8, 8, 3), ids(4, ROWS))


class _OneLayer(keras.Model):
    """A subclass, whose own subclasses have a `train_step` each."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def own_step() -> Case:
    """A subclass with a `train_step` of its own, fed by a `PyDataset`."""

    class Own(_OneLayer):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                error = self(x, training=True)[:, 0] - y
                loss = tf.reduce_mean(tf.cosh(error))
            variables = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            self._loss_tracker.update_state(loss)
            return {"loss": self._loss_tracker.result(), "cosh": loss}

    model = Own()
    model.compile(keras.optimizers.RMSprop(0.01), "mse")
    model.build([None, 6])
    x = floats(ROWS, 6)
    return Case(model, x, x.sum(1), feed="PyDataset")


def running_metric() -> Case:
    """A metric to which a step adds what depends on the metric."""

    class Running(keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="running")
            self.average = self.add_weight(shape=(), initializer="zeros", name="average")

        def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
            self.average.assign_add(0.25 * (tf.reduce_mean(y_true) - self.average))

        def result(self) -> Any:
            return self.average

    model = keras.Sequential([keras.Input([6]), layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=[Running(), "mae"])
    x = floats(ROWS, 6)
    return Case(model, x, x.sum(1))


def metric_in_step() -> Case:
    """A `train_step` whose gradients depend on a metric of all steps so far."""

    class Own(_OneLayer):
        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.abs(self(x, training=True)[:, 0] - y))
            self._loss_tracker.update_state(loss)
            factor = loss / self._loss_tracker.result()
            variables = self.trainable_variables
            gradients = [factor * one for one in tape.gradient(loss, variables)]
            self.optimizer.apply(gradients, variables)
            return {"loss": self._loss_tracker.result()}

    model = Own()
    model.compile(keras.optimizers.SGD(0.01), "mse")
    model.build([None, 6])
    x = floats(ROWS, 6)
    return Case(model, x, x.sum(1))


def recurrent() -> Case:
    """An LSTM, a schedule of the learning rate, clipped gradients, an average of the weights."""
    model = keras.Sequential([keras.Input([4, 3]), layers.LSTM(5), layers.Dense(1)])
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 5, 0.5)
    model.compile(keras.optimizers.Adam(schedule, global_clipnorm=1.0, use_ema=True), "mse")
    x = floats(ROWS, 4, 3)
    return Case(model, x, x[:, -1].sum(1))


def transformer() -> Case:
    """A Transformer block in mixed precision."""
    x = keras.Input([4, 8], dtype="float32")
    policy = keras.DTypePolicy("mixed_bfloat16")
    hidden = layers.MultiHeadAttention(2, 4, dtype=policy)(x, x)
    hidden = layers.LayerNormalization(dtype=policy)(hidden + x)
    inner = layers.Dense(8, dtype=policy)(layers.Dense(16, "gelu", dtype=policy)(hidden))
    hidden = layers.LayerNormalization(dtype=policy)(hidden + inner)
    model = keras.Model(x, layers.Dense(1)(layers.GlobalAveragePooling1D()(hidden)))
    model.compile(keras.optimizers.AdamW(0.01), "mse")
    data = floats(ROWS, 4, 8)
    return Case(model, data, data.sum((1, 2)))


def preprocessing() -> Case:
    """Adapted numbers and texts, hashes and intervals, as layers of the model."""
    numbers, texts = keras.Input([2], name="numbers"), keras.Input([], name="text", dtype="string")
    column = keras.Input([1], name="column", dtype="string")
    data = 3.0 * floats(ROWS, 2) + 5.0
    words = np.array(["red green", "blue", "green blue blue", "black"])[ids(4, ROWS)]
    normalization = layers.Normalization()
    normalization.adapt(data)
    tokens = layers.TextVectorization(6, output_mode="count")
    tokens.adapt(tf.constant(words))
    parts = [
        normalization(numbers),
        tokens(texts),
        layers.Hashing(3, output_mode="one_hot")(column),
        layers.Discretization([2.0, 5.0, 8.0], output_mode="one_hot")(numbers[:, :1]),
    ]
    joined = layers.Concatenate()([keras.ops.cast(part, "float32") for part in parts])
    model = keras.Model([numbers, texts, column], layers.Dense(1)(layers.Dense(8, "relu")(joined)))
    model.compile(keras.optimizers.Adam(0.01), "huber", metrics=["mae"])
    x = {"numbers": data, "text": words, "column": words[:, np.newaxis]}
    x = {name: tf.constant(value) for name, value in x.items()}
    return Case(model, x, data.sum(1), feed="dataset")


def partitioned() -> Case:
    """Return a model whose embedding table a strategy can divide over two servers."""
    x = keras.Input([3], dtype="int64")
    rows = layers.Embedding(64, 4)(x)
    model = keras.Model(x, layers.Dense(1)(layers.Flatten()(rows)))
    model.compile(keras.optimizers.Adagrad(0.5), "mse")
    data = ids(64, ROWS, 3)
    return Case(model, data, data.sum(1).astype(np.float32))


def accumulated() -> Case:
    """Gradients of three steps for each update, and averages that replace the weights."""
    x = keras.Input([3], dtype="int64")
    rows = layers.Flatten()(layers.Embedding(20, 4)(x))
    model = keras.Model(x, layers.Dense(1)(layers.Dense(8, "relu")(rows)))
    optimizer = keras.optimizers.AdamW(
        0.05,
        gradient_accumulation_steps=3,
        clipnorm=0.5,
        use_ema=True,
        ema_overwrite_frequency=2,
    )
    model.compile(optimizer, "mse", metrics=["mae"])
    data = ids(20, ROWS, 3)
    return Case(model, data, data.sum(1).astype(np.float32))


def float16() -> Case:
    """Mixed float16: losses are scaled, and some gradients are too large in the beginning."""
    stack = [layers.Dense(8, "relu", dtype="mixed_float16"), layers.Dense(1, dtype="float32")]
    model = keras.Sequential([keras.Input([6]), *stack])
    adam = keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)
    scaled = keras.optimizers.LossScaleOptimizer(adam, initial_scale=2.0**17)
    model.compile(scaled, "mse")
    x = floats(ROWS, 6)
    return Case(model, x, x.sum(1))


MODELS: dict[str, Make] = {
    "wide & deep": recommenders.wide_and_deep,
    "MLP": mlp,
    "own train_step": own_step,
    "running metric": running_metric,
    "metric in a step": metric_in_step,
    "DLRM": recommenders.dlrm,
    "DeepFM": recommenders.deepfm,
    "DIN": recommenders.din,
    "MMoE": recommenders.mmoe,
    "two towers": recommenders.two_towers,
    "ResNet": resnet,
    "LSTM": recurrent,
    "Transformer": transformer,
    "preprocessing": preprocessing,
    "partitioned": partitioned,
    "accumulated": accumulated,
    "float16": float16,
}
