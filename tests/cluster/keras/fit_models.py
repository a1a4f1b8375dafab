# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models and data of the tests of `fit`; only the coordinator of a test imports this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

ROWS, BATCH = 40, 8
_VOCABULARY = 50


def _random() -> np.random.Generator:
    return np.random.default_rng(7)


def _floats(*shape: int) -> np.ndarray:
    return _random().normal(size=shape).astype(np.float32)


def mlp() -> tuple[keras.Model, Any]:
    """Dropout, batch normalization, L2 losses; a dataset whose last batch is smaller."""
    layers = [
        keras.layers.Dense(16, "relu", kernel_regularizer="l2"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential([keras.Input([6]), *layers])
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    x = _floats(ROWS - 3, 6)
    return model, {"x": tf.data.Dataset.from_tensor_slices((x, x.sum(1))).batch(BATCH)}


def wide_and_deep() -> tuple[keras.Model, Any]:
    """Lookups of texts, an embedding, two inputs by name, NumPy arrays, class weights."""
    words = keras.Input([3], name="words", dtype="string")
    numbers = keras.Input([4], name="numbers")
    lookup = keras.layers.StringLookup(vocabulary=[f"w{i}" for i in range(_VOCABULARY)])
    deep = keras.layers.Flatten()(keras.layers.Embedding(_VOCABULARY + 1, 5)(lookup(words)))
    deep = keras.layers.Dense(8, "relu")(keras.layers.Concatenate()([deep, numbers]))
    both = keras.layers.Concatenate()([deep, keras.layers.Dense(1)(numbers)])
    model = keras.Model([words, numbers], keras.layers.Dense(1, "sigmoid")(both))
    model.compile(keras.optimizers.Adagrad(0.1), "binary_crossentropy", metrics=["AUC"])
    ids = _random().integers(0, _VOCABULARY, [ROWS, 3])
    data = {"words": tf.constant([[f"w{i}" for i in row] for row in ids]),
            "numbers": tf.constant(_floats(ROWS, 4))}  # fmt: skip
    labels = (ids.sum(1) % 2).astype(np.float32)
    return model, {
        "x": tf.data.Dataset.from_tensor_slices((data, labels)).batch(BATCH),
        "class_weight": {0: 0.5, 1: 2.0},
    }


def two_outputs() -> tuple[keras.Model, Any]:
    """Two outputs with losses and sample weights of their own, from NumPy arrays."""
    x = keras.Input([6])
    hidden = keras.layers.Dense(8, "tanh")(x)
    outputs = {name: keras.layers.Dense(1, name=name)(hidden) for name in ("first", "second")}
    model = keras.Model(x, outputs)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        {"first": "mse", "second": "mae"},
        weighted_metrics={"first": ["mae"], "second": ["mse"]},
    )
    data = _floats(ROWS, 6)
    weight = np.linspace(0.0, 2.0, ROWS, dtype=np.float32)
    return model, {
        "x": data,
        "y": {"first": data.sum(1), "second": data.max(1)},
        "sample_weight": {"first": weight, "second": weight[::-1].copy()},
        "batch_size": BATCH,
        "shuffle": False,
    }


def own_step() -> tuple[keras.Model, Any]:
    """A subclass with a `train_step` of its own, fed by a generator."""

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            with tf.GradientTape() as tape:
                error = self(x, training=True)[:, 0] - y
                loss = tf.reduce_mean(tf.cosh(error))
            variables = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return {"cosh": loss}

    model = Own()
    model.compile(keras.optimizers.RMSprop(0.01), "mse")
    model.build([None, 6])
    data = _floats(ROWS, 6)
    batches = [(data[i : i + BATCH], data[i : i + BATCH].sum(1)) for i in range(0, ROWS, BATCH)]

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return len(batches)

        def __getitem__(self, index: int) -> Any:
            return batches[index]

    return model, {"x": Batches(), "shuffle": False}


def recurrent() -> tuple[keras.Model, Any]:
    """An LSTM, a schedule of the learning rate, clipped gradients, an average of the weights."""
    layers = [keras.layers.LSTM(5), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input([4, 3]), *layers])
    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 5, 0.5)
    model.compile(keras.optimizers.Adam(schedule, global_clipnorm=1.0, use_ema=True), "mse")
    x = _floats(ROWS, 4, 3)
    return model, {"x": x, "y": x[:, -1].sum(1), "batch_size": BATCH, "shuffle": False}


def attention() -> tuple[keras.Model, Any]:
    """A Transformer block in mixed precision with a scaled loss."""
    x = keras.Input([4, 8], dtype="float32")
    policy = keras.DTypePolicy("mixed_bfloat16")
    hidden = keras.layers.MultiHeadAttention(2, 4, dtype=policy)(x, x)
    hidden = keras.layers.LayerNormalization(dtype=policy)(hidden + x)
    out = keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(hidden))
    model = keras.Model(x, out)
    model.compile(keras.optimizers.AdamW(0.01), "mse")
    data = _floats(ROWS, 4, 8)
    return model, {"x": data, "y": data.sum((1, 2)), "batch_size": BATCH, "shuffle": False}


MODELS: dict[str, Callable[[], tuple[keras.Model, Any]]] = {
    "mlp": mlp,
    "wide & deep": wide_and_deep,
    "two outputs": two_outputs,
    "own train_step": own_step,
    "recurrent": recurrent,
    "attention": attention,
}
