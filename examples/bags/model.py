# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The `bags` workload: many ids per example and feature, whose rows a combiner adds up.

An example has one id or more of each feature, as a user has clicked several articles. Its rows are
added up by `tf.nn.embedding_lookup_sparse`; a linear layer and plain SGD follow. With stock
TensorFlow, a worker gets the row of each id of the batch, and returns the gradient of each.
"""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from examples.features.model import Features, FeaturesProgram


@dataclasses.dataclass(frozen=True)
class Bags(Features):
    """Workload `bags`: `Features` with other ids and sizes.

    Attributes:
      ids: of an example and a feature, on average; at least 1.
      combiner: "sum", "mean" or "sqrtn".
    """

    features: int = 60
    rows: int = 10_000
    name: str = "bags"
    ids: int = 10
    combiner: str = "mean"

    def build(self) -> BagsProgram:
        """Create the tables; under a strategy they go to the servers in turn."""
        return BagsProgram(self)


class BagsProgram(FeaturesProgram):
    """Variables and step of the workload `bags`."""

    _config: Bags

    def step(self, element: tf.Tensor) -> tf.Tensor:
        """One SGD step on ids drawn from the seed `element` (int64 of [2]); returns the loss."""
        c = self._config
        features = self._features(element)
        # Something to learn: half of the first ids of the first feature are positive.
        first = tf.math.segment_min(features[0].values, features[0].indices[:, 0])
        labels = tf.cast(first < c.rows // (2 * c.ids), tf.float32)[:, tf.newaxis]
        weights = self._weights.read_value()
        with tf.GradientTape() as tape:
            tape.watch(weights)
            joined = tf.concat(
                [
                    tf.nn.embedding_lookup_sparse(table, ids, None, combiner=c.combiner)
                    for table, ids in zip(self._tables, features, strict=True)
                ],
                axis=1,
            )
            logits = tf.matmul(joined, weights)
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            )
        of_weights, *of_tables = tape.gradient(loss, [weights, *self._tables])
        for table, gradient in zip(self._tables, of_tables, strict=True):
            change = c.learning_rate * gradient.values
            table.scatter_sub(tf.IndexedSlices(change, gradient.indices))
        self._weights.assign_sub(c.learning_rate * of_weights, read_value=False)
        return loss

    def _features(self, element: tf.Tensor) -> list[tf.SparseTensor]:
        """Draw the ids of a batch: per feature int32 of [batch, ids, at most]."""
        c = self._config
        count = c.batch * c.ids
        ids = tf.random.stateless_uniform(
            [c.features, count], element, maxval=c.rows, dtype=tf.int32
        )
        others = tf.random.stateless_uniform(
            [c.features, count - c.batch], element + 1, maxval=c.batch, dtype=tf.int64
        )
        each = tf.broadcast_to(tf.range(c.batch, dtype=tf.int64), [c.features, c.batch])
        examples = tf.sort(tf.concat([each, others], axis=1), axis=1)
        places = tf.range(count, dtype=tf.int64)
        return [
            tf.SparseTensor(tf.stack([of_feature, places], axis=1), values, [c.batch, count])
            for of_feature, values in zip(tf.unstack(examples), tf.unstack(ids), strict=True)
        ]
