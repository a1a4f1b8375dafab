# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The small training steps whose cost `calibrate` measures.

The jobs of stock TensorFlow load this file by its path, since they do not import tf_fuse.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ROWS, _BATCH = 1000, 64
# Name to (lookups, columns of each table, layers, units of each layer, operations of no variable).
PROBES = {
    "nothing": (1, 16, 0, 0, 0),
    "operations": (1, 16, 0, 0, 500),
    "lookups_30": (30, 16, 0, 0, 0),
    "lookups_250": (250, 16, 0, 0, 0),
    "wide_lookups": (20, 512, 0, 0, 0),
    "layers": (0, 0, 10, 256, 0),
    # With more weights than the caches hold, so that they cost as much in one process.
    "large_frames": (0, 0, 16, 448, 0),
    "large_layers": (0, 0, 8, 640, 0),
}


def build(name: str) -> Callable[[Any], Any]:
    """Make the variables of a probe, in the scope of a strategy if there is one.

    Args:
      name: a key of `PROBES`.

    Returns:
      The training step: from an iterator over `numbers()` to its loss.
    """
    import tensorflow as tf

    lookups, columns, layers, units, operations = PROBES[name]
    tables = [tf.Variable(tf.ones([_ROWS, columns]), name=f"table_{i}") for i in range(lookups)]
    kernels = [tf.Variable(tf.eye(units) / units, name=f"kernel_{i}") for i in range(layers)]

    def step(iterator: Any) -> Any:
        number = next(iterator)
        ids = tf.random.stateless_uniform([lookups + 1, _BATCH], [number, 1], 0, _ROWS, tf.int32)
        columns_of_ids = tf.unstack(ids)
        rows = [tf.gather(table, one) for table, one in zip(tables, columns_of_ids, strict=False)]
        values = [kernel.read_value() for kernel in kernels]
        loss = tf.zeros([])
        if rows:
            loss += tf.reduce_mean(tf.concat(rows, axis=1) ** 2)
        if values:
            x = tf.random.stateless_uniform([_BATCH, units], [number, 2])
            for value in values:
                x = tf.nn.relu(tf.matmul(x, value))
            loss += tf.reduce_mean(x)
        if operations:
            x = tf.random.stateless_uniform([operations // 2, _BATCH], [number, 3])
            parts = [tf.sigmoid(tf.tanh(one)) for one in tf.unstack(x)]
            loss += tf.reduce_mean(tf.add_n(parts))
        gradients = tf.gradients(loss, [*rows, *values])
        for table, one, gradient in zip(tables, columns_of_ids, gradients, strict=False):
            table.scatter_sub(tf.IndexedSlices(0.01 * gradient, one))
        for kernel, gradient in zip(kernels, gradients[len(rows) :], strict=True):
            kernel.assign_sub(0.01 * gradient, read_value=False)
        return loss

    return step


def numbers() -> Any:
    """Return the input of steps: a dataset of int32 scalars."""
    import tensorflow as tf

    return tf.data.Dataset.counter().map(lambda one: tf.cast(one, tf.int32))
