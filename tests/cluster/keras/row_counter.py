# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A model that counts the rows that it gets; only the coordinator of a test imports this."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


class RowCounter(keras.Model):
    """Counts how often it has trained on each row; predicts twice a row's number.

    Attributes:
      seen: by number, how often a row was in a batch of training.
      firsts: by number, how often a row was the first one of such a batch.
    """

    def __init__(self, rows: int):
        """Make it for numbers of rows below `rows`; a negative number is an error of the step."""
        super().__init__()
        self.seen = self.add_weight(shape=[rows], initializer="zeros", trainable=False)
        self.firsts = self.add_weight(shape=[rows], initializer="zeros", trainable=False)
        self.sum = keras.metrics.Sum(name="ids")
        self.mean = keras.metrics.Mean(name="loss")

    def call(self, x: Any) -> Any:
        """Return twice the numbers."""
        return 2.0 * tf.cast(x, tf.float32)

    def train_step(self, data: Any) -> dict[str, Any]:
        """Count the rows; the log "first" is the number of the batch's first one."""
        rows = keras.utils.unpack_x_y_sample_weight(data)[0]
        tf.debugging.assert_non_negative(rows)
        are_rows = tf.one_hot(rows, self.seen.shape[0])
        self.seen.value.assign_add(tf.reduce_sum(are_rows, axis=0))
        self.firsts.value.assign_add(are_rows[0])
        return {"first": tf.cast(rows[0], tf.float32), **self.test_step(data)}

    def test_step(self, data: Any) -> dict[str, Any]:
        """Add the numbers up: "ids"; "loss" is their mean."""
        rows = tf.cast(keras.utils.unpack_x_y_sample_weight(data)[0], tf.float32)
        self.sum.update_state(rows)
        self.mean.update_state(rows)
        return {"loss": self.mean.result(), "ids": self.sum.result()}

    def counts(self) -> list[int]:
        """Return `seen` as numbers of Python."""
        return [int(count) for count in self.seen.numpy()]
