# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The `features` workload: one embedding table per feature, one linear layer, plain SGD.

Each feature costs three transfers per step (ids to the server, rows back, gradient to the server)
and two ops (a gather and a scatter); everything else is a handful of ops on the whole batch. So
the step time on a cluster is what the transfers cost, and `local` is the floor.

The backward pass is written out: logit = concat(rows) . w, so the gradient of all rows is one
outer product, which one Split hands to the tables. Automatic differentiation of the concatenation
would add a Slice per feature, work that has nothing to do with what is measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from examples import workload


@dataclasses.dataclass(frozen=True)
class Features:
    """Workload `features`.

    Attributes:
      features: number of embedding tables.
      batch: examples per step; at most 1023, where TensorFlow's scatter adds duplicates in order
        in one thread, so that a step is deterministic.
      rows: rows of each table.
      dim: columns of each table.
      learning_rate: of SGD.
      seed: of tables and ids.
    """

    features: int = 300
    batch: int = 64
    rows: int = 1000
    dim: int = 16
    learning_rate: float = 0.1
    seed: int = 1
    name: str = "features"

    def partitioner(self) -> Callable[..., Any] | None:
        """Tables stay whole: there are many more of them than servers."""
        return None

    def build(self) -> FeaturesProgram:
        """Create the tables; under a strategy they go to the servers in turn."""
        return FeaturesProgram(self)


class FeaturesProgram(tf.Module):
    """Variables and step of the workload `features`."""

    def __init__(self, config: Features):
        """Create `config.features` tables of [rows, dim] and the layer [features * dim, 1]."""
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
        ids = tf.random.stateless_uniform(
            [c.features, c.batch], element, maxval=c.rows, dtype=tf.int32
        )
        columns = tf.unstack(ids)
        # Something to learn: half of the first feature's ids are positive.
        labels = tf.cast(columns[0] < c.rows // 2, tf.float32)[:, tf.newaxis]

        rows = [
            tf.raw_ops.ResourceGather(resource=table.handle, indices=column, dtype=tf.float32)
            for table, column in zip(self._tables, columns, strict=True)
        ]
        weights = self._weights.read_value()
        joined = tf.concat(rows, axis=1)
        logits = tf.matmul(joined, weights)
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))

        d_logits = (tf.sigmoid(logits) - labels) * (c.learning_rate / c.batch)
        d_weights = tf.matmul(joined, d_logits, transpose_a=True)
        d_rows = tf.split(tf.matmul(d_logits, weights, transpose_b=True), c.features, axis=1)
        for table, column, d_row in zip(self._tables, columns, d_rows, strict=True):
            tf.raw_ops.ResourceScatterSub(resource=table.handle, indices=column, updates=d_row)
        self._weights.assign_sub(d_weights, read_value=False)
        return loss
