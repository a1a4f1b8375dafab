# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keras models and steps that `processes.py` trains in several processes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np

SEED = 1


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained.

    Attributes:
      model: returns outputs of a batch's inputs.
      optimizer: of its variables, not built yet.
      loss: of targets and outputs, the mean of a batch.
      batch: inputs and targets, for all processes together.
      sums_alike: whether the loss of a batch is the mean of its parts' losses; not where the model
        normalizes over a batch.
      layouts: that a plan is to have, by regular expressions for names of variables, on an axis x.
    """

    model: Any
    optimizer: Any
    loss: Any
    batch: tuple[np.ndarray, ...]
    sums_alike: bool = True
    layouts: Mapping[str, Sequence[str | None]] = dataclasses.field(default_factory=dict)

    def loss_of(self, *batch: Any) -> Any:
        """Return the mean loss of a batch."""
        return self.loss(batch[-1], self.model(batch[:-1], training=True))


def mlp(batch: int = 512, width: int = 2048, layers: int = 8) -> Task:
    """Dense layers of one width."""
    inputs = keras.Input((width,), batch)
    x = inputs
    for _ in range(layers):
        x = keras.layers.Dense(width, "relu")(x)
    model = keras.Model([inputs], x)
    values = np.random.default_rng(SEED).normal(size=(2, batch, width)).astype(np.float32)
    loss = keras.losses.MeanSquaredError()
    return Task(model, keras.optimizers.Adam(1e-4), loss, (values[0], values[1]))


def transformer(
    batch: int = 8, length: int = 64, width: int = 512, layers: int = 4, vocabulary: int = 8192
) -> Task:
    """Return encoder layers between an embedding and a vocabulary."""
    inputs = keras.Input((length,), batch, dtype="int32")
    x = keras.layers.Embedding(vocabulary, width)(inputs)
    for _ in range(layers):
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.MultiHeadAttention(8, width // 8, flash_attention=False)(y, y)
        x = keras.layers.Add()([x, y])
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.Dense(4 * width, "gelu")(y)
        x = keras.layers.Add()([x, keras.layers.Dense(width)(y)])
    model = keras.Model([inputs], keras.layers.Dense(vocabulary)(x))
    rng = np.random.default_rng(SEED)
    ids = rng.integers(0, vocabulary, (2, batch, length)).astype(np.int32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Task(model, keras.optimizers.Adam(1e-4), loss, (ids[0], ids[1]))


def wide_deep(batch: int = 2048, columns: int = 8, rows: int = 400_000, width: int = 32) -> Task:
    """Tables that are to be split by their rows: a wide part, and a deep one of dense layers."""
    ids = keras.Input((columns,), batch, dtype="int32")
    wide = keras.layers.Embedding(rows, 1, name="wide_table")(ids)
    deep = keras.layers.Embedding(rows, width, name="deep_table")(ids)
    x = keras.layers.Reshape((columns * width,))(deep)
    for units in (512, 256):
        x = keras.layers.Dense(units, "relu")(x)
    x = keras.layers.Concatenate()([x, keras.layers.Reshape((columns,))(wide)])
    model = keras.Model([ids], keras.layers.Dense(1)(x))
    rng = np.random.default_rng(SEED)
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    examples = rng.integers(0, rows, (batch, columns)).astype(np.int32)
    labels = rng.integers(0, 2, (batch, 1)).astype(np.float32)
    layouts = {".*_table/embeddings": ("x", None)}
    return Task(model, keras.optimizers.SGD(0.1), loss, (examples, labels), layouts=layouts)


def resnet18(batch: int = 32, side: int = 64, classes: int = 100) -> Task:
    """Keras layers as in ResNet-18, for smaller images."""

    def normalized(x: Any, units: int, window: int, stride: int) -> Any:
        x = keras.layers.Conv2D(units, window, stride, "same", use_bias=False)(x)
        return keras.layers.BatchNormalization()(x)

    inputs = keras.Input((side, side, 3), batch)
    x = keras.layers.ReLU()(normalized(inputs, 64, 7, 2))
    x = keras.layers.MaxPooling2D(3, 2, "same")(x)
    for units in (64, 128, 256, 512):
        for at in range(2):
            stride = 2 if units > 64 and at == 0 else 1
            short = normalized(x, units, 1, stride) if stride > 1 else x
            y = keras.layers.ReLU()(normalized(x, units, 3, stride))
            x = keras.layers.ReLU()(keras.layers.Add()([short, normalized(y, units, 3, 1)]))
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model([inputs], keras.layers.Dense(classes)(x))
    rng = np.random.default_rng(SEED)
    images = rng.normal(size=(batch, side, side, 3)).astype(np.float32)
    labels = rng.integers(0, classes, batch).astype(np.int32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Task(model, keras.optimizers.SGD(0.01, 0.9), loss, (images, labels), sums_alike=False)


MODELS: dict[str, Callable[..., Task]] = {
    "mlp": mlp, "transformer": transformer, "wide_deep": wide_deep, "resnet18": resnet18,
}  # fmt: skip


def make(name: str, sizes: dict[str, int] | None = None) -> Task:
    """Return a task whose first weights are the same in all processes."""
    keras.utils.set_random_seed(SEED)
    return MODELS[name](**(sizes or {}))


def part(batch: Sequence[np.ndarray], rank: int, ranks: int) -> list[np.ndarray]:
    """Return a process's part of a batch."""
    size = len(batch[0]) // ranks
    return [one[rank * size : (rank + 1) * size] for one in batch]
