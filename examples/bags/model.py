# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The `bags` workload: many ids per example and feature, whose rows a combiner adds up.

An example has one id or more of each feature, as a user has clicked several articles. Its rows are
added up by `tf.nn.embedding_lookup_sparse`; a linear layer and plain SGD follow. With stock
TensorFlow, a worker gets the row of each id of the batch, and returns the gradient of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from examples import workload


@dataclasses.dataclass(frozen=True)
class Bags:
    """Workload `bags`.

    Attributes:
      features: number of embedding tables.
      batch: examples per step.
      ids: of an example and a feature, on average; at least 1.
      combiner: "sum", "mean" or "sqrtn".
      rows: rows of each table.
      dim: columns of each table.
      learning_rate: of SGD.
      seed: of tables and ids.
    """

    features: int = 60
    batch: int = 64
    ids: int = 10
    combiner: str = "mean"
    rows: int = 10_000
    dim: int = 16
    learning_rate: float = 0.1
    seed: int = 1
    name: str = "bags"

    def partitioner(self) -> Callable[..., Any] | None:
        """Tables stay whole: there are many more of them than servers."""
        return None

    def build(self) -> BagsProgram:
        """Creates the tables; under a strategy they go to the servers in turn."""
        return BagsProgram(self)


class BagsProgram(tf.Module):
    """Variables and step of the workload `bags`."""

    def __init__(self, config: Bags):
        """Creates `config.features` tables of [rows, dim] and the layer [features * dim, 1]."""
        super().__init__()
        self._config = c = config
        self._tables = [
            self._variable(f"table_{f:04d}", (c.rows, c.dim), 0.05) for f in range(c.features)
        ]
        self._weights = self._variable("weights", (c.features * c.dim, 1), 0.05)

    def _variable(self, name: str, shape: tuple[int, ...], scale: float) -> tf.Variable:
        value = workload.initial_values(name, shape, scale, self._config.seed)
        return tf.Variable(value, name=name)

    def variables(self) -> dict[str, tf.Variable]:
        """Name to variable; plain SGD has no further state."""
        named = {f"table_{f:04d}": table for f, table in enumerate(self._tables)}
        return {**named, "weights": self._weights}

    def dataset(self, worker: tf.Tensor | int, workers: int) -> tf.data.Dataset:
        """Elements are seeds, int64 of [2]; the ids are drawn from them inside the step."""
        del workers  # each draws its own ids
        return workload.seeds(self._config.seed, worker)

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
        """Draws the ids of a batch: per feature int32 of [batch, ids, at most]."""
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
