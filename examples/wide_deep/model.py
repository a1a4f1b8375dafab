# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Wide & deep (Cheng et al., "Wide & Deep Learning for Recommender Systems", 2016), section 3.

    logit = wide + deep
    wide  = sum over columns and crosses of one weight per category  + numeric . w + bias  (FTRL)
    deep  = MLP(concat(one embedding per column, numeric))                              (Adagrad)

Every column has its own tables. That is what parameter-server jobs look like, and what makes a step
consist of many small receives.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import tensorflow as tf

from examples.wide_deep.layers import Adagrad, Dense, Ftrl, Shards, Table


@dataclasses.dataclass(frozen=True)
class Column:
    """One categorical input.

    Attributes:
      name: unique among the columns.
      buckets: ids are in [0, buckets).
      dim: columns of its embedding; 0 for a column that only the wide part has (a cross).
    """

    name: str
    buckets: int
    dim: int


@dataclasses.dataclass(frozen=True)
class WideDeepConfig:
    """The model.

    Attributes:
      columns: categorical inputs, in the order of the id matrix.
      numeric: number of numeric inputs.
      hidden: widths of the deep part's layers.
      wide: optimizer of the wide part.
      deep: optimizer of the deep part.
      seed: of the initial values.
    """

    columns: tuple[Column, ...]
    numeric: int
    hidden: tuple[int, ...] = (64, 32)
    wide: Ftrl = dataclasses.field(default_factory=Ftrl)
    deep: Adagrad = dataclasses.field(default_factory=Adagrad)
    seed: int = 1


class WideDeep(tf.Module):
    """The model's variables, its forward pass and its update."""

    def __init__(self, config: WideDeepConfig):
        """Create the variables, in the scope of the strategy if there is one."""
        super().__init__()
        self.config = c = config
        self._wide_tables = [
            Table(f"wide/{col.name}", (col.buckets, 1), 0.0, c.seed, c.wide) for col in c.columns
        ]
        self._deep_tables = {
            i: Table(f"deep/{col.name}", (col.buckets, col.dim), 0.05, c.seed, c.deep)
            for i, col in enumerate(c.columns)
            if col.dim
        }
        self._wide_numeric = Dense("wide/numeric", (max(c.numeric, 1), 1), 0.0, c.seed, c.wide)
        self._bias = Dense("wide/bias", (1,), 0.0, c.seed, c.wide)
        widths = [sum(col.dim for col in c.columns) + c.numeric, *c.hidden, 1]
        self._layers = []
        for i, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
            bound = math.sqrt(6.0 / (fan_in + fan_out))  # Glorot and Bengio, 2010
            self._layers.append(
                (
                    Dense(f"deep/layer_{i}/kernel", (fan_in, fan_out), bound, c.seed, c.deep),
                    Dense(f"deep/layer_{i}/bias", (fan_out,), 0.0, c.seed, c.deep),
                )
            )

    def _dense(self) -> list[Dense]:
        return [self._wide_numeric, self._bias, *(w for layer in self._layers for w in layer)]

    def variables_by_name(self) -> dict[str, Shards]:
        """Name to shards of every variable, optimizer state included, sorted by name."""
        named: dict[str, Shards] = {}
        parts: list[Table | Dense] = [
            *self._wide_tables,
            *self._deep_tables.values(),
            *self._dense(),
        ]
        for part in parts:
            named.update(part.variables())
        return dict(sorted(named.items()))

    def _lookup(self, ids: tf.Tensor) -> tuple[list, dict]:
        """Rows of every table, and what their updates need; both in the order of the columns."""
        wide, deep = [], {}
        for i, column_ids in enumerate(tf.unstack(ids, num=len(self.config.columns), axis=1)):
            unique, inverse = tf.unique(column_ids)
            wide.append(self._wide_tables[i].lookup(unique, inverse))
            if i in self._deep_tables:
                deep[i] = self._deep_tables[i].lookup(unique, inverse)
        return wide, deep

    def _logits(
        self, numeric: tf.Tensor, wide: list, deep: list, dense: list[tf.Tensor]
    ) -> tf.Tensor:
        wide_numeric, bias, *layers = dense
        hidden = tf.concat([*deep, numeric], axis=1)
        for i in range(0, len(layers), 2):
            hidden = tf.matmul(hidden, layers[i]) + layers[i + 1]
            if i + 2 < len(layers):
                hidden = tf.nn.relu(hidden)
        logits = hidden + tf.add_n(wide) + bias
        return logits + tf.matmul(numeric, wide_numeric) if self.config.numeric else logits

    def logits(self, numeric: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Log-odds.

        Args:
          numeric: float32 of [batch, numeric].
          ids: int32 of [batch, columns].

        Returns:
          float32 of [batch].
        """
        wide, deep = self._lookup(ids)
        logits = self._logits(
            numeric,
            [rows for rows, _ in wide],
            [rows for rows, _ in deep.values()],
            [w.read() for w in self._dense()],
        )
        return tf.squeeze(logits, axis=1)

    def step(self, label: tf.Tensor, numeric: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """One update.

        Args:
          label: float32 of [batch], 0 or 1.
          numeric: float32 of [batch, numeric].
          ids: int32 of [batch, columns].

        Returns:
          The mean log loss (nats) before the update, float32 scalar.
        """
        wide, deep = self._lookup(ids)
        wide_rows = [rows for rows, _ in wide]
        deep_rows = [rows for rows, _ in deep.values()]
        dense = [w.read() for w in self._dense()]
        with tf.GradientTape() as tape:
            tape.watch([wide_rows, deep_rows, dense])
            logits = self._logits(numeric, wide_rows, deep_rows, dense)
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(labels=label[:, tf.newaxis], logits=logits)
            )
        wide_grads, deep_grads, dense_grads = tape.gradient(
            loss, [wide_rows, deep_rows, dense], unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        for table, (_, looked_up), grad in zip(self._wide_tables, wide, wide_grads, strict=True):
            table.apply(looked_up, grad)
        for (i, (_, looked_up)), grad in zip(deep.items(), deep_grads, strict=True):
            self._deep_tables[i].apply(looked_up, grad)
        for weight, grad in zip(self._dense(), dense_grads, strict=True):
            weight.apply(grad)
        return loss
