# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A step on parameter servers that looks up rows of each table, and changes them."""

from collections.abc import Callable, Sequence
from typing import Any

from tests.fault import coordinator


def table_step(
    job: coordinator.Job, tables: Sequence[Any], optimizer: Any = None
) -> Callable[[Any], Any]:
    """Returns a `tf.function` that trains the tables, and returns its loss.

    Args:
      job: runs the step.
      tables: variables of two dimensions.
      optimizer: makes the updates; without one, the step subtracts from the rows that it read.

    Returns:
      A function of row numbers, int32 of [examples, tables].
    """
    import tensorflow as tf

    def replica(ids):
        with tf.GradientTape() as tape:
            rows = [tf.gather(table, ids[:, i]) for i, table in enumerate(tables)]
            loss = tf.add_n([tf.reduce_mean(tf.tanh(row) ** 2) for row in rows])
        gradients = tape.gradient(loss, tables)
        if optimizer is not None:
            optimizer.apply_gradients(zip(gradients, tables, strict=True))
        else:
            for table, gradient in zip(tables, gradients, strict=True):
                table.scatter_sub(tf.IndexedSlices(gradient.values * 0.1, gradient.indices))
        return loss

    return tf.function(lambda ids: job.strategy.run(replica, args=(ids,)), autograph=False)
