# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""DLRM and wide & deep on Criteo's columns, whose tables have together as many rows as wanted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from examples.wide_deep.data import criteo
from examples.wide_deep.data.common import stable_bucket
from examples.wide_deep.data.encode import scaled

MODELS = ("dlrm", "wide_deep")
# Values of each categorical column in the logs of Criteo's challenge on Kaggle, as DLRM's
# program counts them (Naumov et al., 2019).
CRITEO_ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
_NUMERIC = len(criteo.NUMERIC)
_POOL = 32  # batches, drawn or read once and repeated
_SMALLEST = 3


def rows_of_tables(total: int, tables: int) -> list[int]:
    """Return the rows of each column's table.

    Args:
      total: of all tables together.
      tables: how many; 26 have the shares that Criteo's have, another number is even.
    """
    shares = CRITEO_ROWS if tables == len(CRITEO_ROWS) else [1] * tables
    return [max(_SMALLEST, round(total * share / sum(shares))) for share in shares]


class ServerEmbedding(keras.layers.Embedding):
    """An embedding that stock TensorFlow gathers on the server, too.

    Keras's own layer converts the variable to a tensor first, which stock TensorFlow sends whole.
    """

    def call(self, inputs: Any) -> Any:
        """Return the rows of `inputs`."""
        return tf.nn.embedding_lookup(self.embeddings.value, inputs)


def build(settings: dict[str, Any]) -> keras.Model:
    """Build the model, in the scope of a strategy.

    Args:
      settings: of `variant.py`.
    """
    keras.utils.set_random_seed(settings["seed"])
    rows = rows_of_tables(settings["rows"], settings["columns"])
    layer = ServerEmbedding if settings["gathers"] else keras.layers.Embedding
    numeric = keras.Input([_NUMERIC])
    ids = keras.Input([len(rows)], dtype="int32")
    deep = [
        layer(count, settings["dim"], name=f"table_{i:03d}")(ids[:, i])
        for i, count in enumerate(rows)
    ]
    make = {"dlrm": _dlrm, "wide_deep": _wide_deep}[settings["model"]]
    return keras.Model([numeric, ids], make(settings, layer, rows, numeric, ids, deep))


def _wide_deep(
    settings: dict[str, Any], layer: Any, rows: Sequence[int], numeric: Any, ids: Any, deep: Any
) -> Any:
    """Return a linear model and a deep one, added up (Cheng et al., 2016)."""
    wide = [layer(count, 1, name=f"wide_{i:03d}")(ids[:, i]) for i, count in enumerate(rows)]
    x = _dense(keras.layers.Concatenate()([numeric, *deep]), settings["width"])
    return keras.layers.Add()([*wide, keras.layers.Dense(1)(x)])


def _dlrm(
    settings: dict[str, Any], layer: Any, rows: Sequence[int], numeric: Any, ids: Any, deep: Any
) -> Any:
    """Embeddings and a vector of the numbers, multiplied by each other (Naumov et al., 2019)."""
    bottom = keras.layers.Dense(settings["width"], activation="relu")(numeric)
    bottom = keras.layers.Dense(settings["dim"], activation="relu")(bottom)
    vectors = keras.ops.stack([bottom, *deep], axis=1)
    products = keras.ops.matmul(vectors, keras.ops.transpose(vectors, (0, 2, 1)))
    x = keras.layers.Concatenate()([bottom, keras.layers.Flatten()(products)])
    return keras.layers.Dense(1)(_dense(x, settings["width"]))


def _dense(x: Any, width: int) -> Any:
    for size in (width, width // 2):
        x = keras.layers.Dense(size, activation="relu")(x)
    return x


def batches(settings: dict[str, Any], worker: Any) -> tf.data.Dataset:
    """Return endless batches ((numbers, categories), labels) of a worker: of the file, or drawn."""
    rows = rows_of_tables(settings["rows"], settings["columns"])
    if settings["data"]:
        read = tf.data.Dataset.from_tensor_slices(_read(settings, rows))
        shuffled = read.shuffle(_POOL * settings["batch"], tf.cast(worker, tf.int64) + 1)
        whole = shuffled.repeat().batch(settings["batch"], drop_remainder=True)
        return whole.take(_POOL).cache().repeat().prefetch(2)

    def draw(number: tf.Tensor) -> Any:
        seed = tf.stack([tf.cast(number, tf.int64), tf.cast(worker, tf.int64)])
        uniform = tf.random.stateless_uniform([settings["batch"], _NUMERIC + len(rows)], seed)
        counts = tf.constant(rows, tf.float32)
        ids = tf.cast(uniform[:, _NUMERIC:] ** 3 * counts, tf.int32)  # skewed
        ids = tf.minimum(ids, tf.constant(rows, tf.int32) - 1)
        numeric = uniform[:, :_NUMERIC] * 2.0 - 1.0
        score = tf.reduce_sum(numeric, axis=1) + tf.cast(ids[:, 0] % 2, tf.float32)
        return (numeric, ids), tf.cast(score > 0.5, tf.float32)[:, tf.newaxis]

    return tf.data.Dataset.range(_POOL).map(draw).cache().repeat().prefetch(2)


def _read(settings: dict[str, Any], counts: Sequence[int]) -> Any:
    """Read the first rows of a file in Criteo's format, as many as the batches of a worker have."""
    found = list(itertools.islice(criteo.read(settings["data"]), _POOL * settings["batch"]))
    numeric = [[scaled(one) for one in row.numeric] for row in found]
    ids = [
        [
            stable_bucket(f"{name}={text}", count)
            for name, text, count in zip(criteo.CATEGORICAL, row.categorical, counts, strict=True)
        ]
        for row in found
    ]
    labels = [[row.label] for row in found]
    return (np.array(numeric, np.float32), np.array(ids, np.int32)), np.array(labels, np.float32)
