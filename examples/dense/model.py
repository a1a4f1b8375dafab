# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The `dense` and `mixed` workloads: a deep network, where computing can overlap with transfers.

The first layer can begin as soon as its own weights are there. A group that holds the weights of
all layers keeps it waiting for the last; one call per tensor pays for that many calls. `mixed` adds
many small embedding tables in front, for which one call is best.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from examples import workload


@dataclasses.dataclass(frozen=True)
class Dense:
    """Workload `dense`, and `mixed` if there are features.

    Attributes:
      features: number of embedding tables in front of the layers; 0 gives random inputs.
      layers: number of layers, each a kernel [width, width] and a bias [width].
      width: of the layers; 512 makes kernels of 1 MiB.
      batch: examples per step; at most 1023, where TensorFlow's scatter adds duplicates in order.
      rows: rows of each table.
      dim: columns of each table.
      learning_rate: of SGD.
      seed: of variables and inputs.
    """

    features: int = 0
    layers: int = 12
    width: int = 512
    batch: int = 64
    rows: int = 1000
    dim: int = 16
    learning_rate: float = 0.01
    seed: int = 1
    name: str = "dense"

    def partitioner(self) -> Callable[..., Any] | None:
        """Variables stay whole."""
        return None

    def build(self) -> DenseProgram:
        """Create the variables; under a strategy they go to the servers in turn."""
        return DenseProgram(self)


class DenseProgram(tf.Module):
    """Variables and step of the workloads `dense` and `mixed`."""

    def __init__(self, config: Dense):
        """Create the tables [rows, dim], kernels and biases, and a last layer [width, 1]."""
        super().__init__()
        self._config = c = config
        bound = (3.0 / c.width) ** 0.5
        self._tables = [
            self._variable(f"table_{f:04d}", (c.rows, c.dim)) for f in range(c.features)
        ]
        inputs = c.features * c.dim or c.width
        self._layers = []
        for i in range(c.layers):
            shape = (inputs if i == 0 else c.width, c.width)
            kernel = self._variable(f"kernel_{i:02d}", shape, bound)
            self._layers.append((kernel, self._variable(f"bias_{i:02d}", (c.width,))))
        self._head = self._variable("head", (c.width, 1), bound)

    def _variable(self, name: str, shape: tuple[int, ...], scale: float = 0.05) -> tf.Variable:
        value = workload.initial_values(name, shape, scale, self._config.seed)
        return tf.Variable(value, name=name)

    def variables(self) -> dict[str, tf.Variable]:
        """Name to variable; plain SGD has no further state."""
        named = {f"table_{f:04d}": table for f, table in enumerate(self._tables)}
        for i, (kernel, bias) in enumerate(self._layers):
            named |= {f"kernel_{i:02d}": kernel, f"bias_{i:02d}": bias}
        return dict(sorted({**named, "head": self._head}.items()))

    def dataset(self, worker: tf.Tensor | int, workers: int) -> tf.data.Dataset:
        """Elements are seeds, int64 of [2]; the inputs are drawn from them inside the step."""
        del workers  # each draws its own
        return workload.seeds(self._config.seed, worker)

    def _inputs(self, seed: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        """Row numbers per table (or dense inputs [batch, width]), and labels [batch, 1]."""
        c = self._config
        if not c.features:
            x = tf.random.stateless_uniform([c.batch, c.width], seed, -1.0, 1.0)
            return [x], tf.cast(x[:, :1] > 0.0, tf.float32)
        ids = tf.random.stateless_uniform(
            [c.features, c.batch], seed, maxval=c.rows, dtype=tf.int32
        )
        columns = tf.unstack(ids)
        return columns, tf.cast(columns[0] < c.rows // 2, tf.float32)[:, tf.newaxis]

    def step(self, element: tf.Tensor) -> tf.Tensor:
        """One SGD step on inputs drawn from the seed `element` (int64 of [2]); the loss."""
        c = self._config
        inputs, labels = self._inputs(element)
        weights = [w for layer in self._layers for w in layer] + [self._head]
        with tf.GradientTape() as tape:
            x = inputs[0]
            rows = [tf.gather(t, ids) for t, ids in zip(self._tables, inputs, strict=False)]
            if rows:
                x = tf.concat(rows, axis=1)
            tape.watch(rows)
            for kernel, bias in self._layers:
                x = tf.nn.relu(tf.nn.bias_add(tf.matmul(x, kernel), bias))
            logits = tf.matmul(x, self._head)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, [*rows, *weights])
        for table, ids, gradient in zip(self._tables, inputs, gradients, strict=False):
            table.scatter_sub(tf.IndexedSlices(c.learning_rate * gradient, ids))
        for variable, gradient in zip(weights, gradients[len(rows) :], strict=True):
            variable.assign_sub(c.learning_rate * gradient, read_value=False)
        return loss
