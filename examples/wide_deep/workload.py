# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Wide & deep as workloads: on an encoded data file, and the setting of the FuseRecv RFC."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from examples import workload
from examples.wide_deep.data.encode import Encoded
from examples.wide_deep.model import Column, WideDeep, WideDeepConfig


@dataclasses.dataclass(frozen=True)
class FileWorkload:
    """Wide & deep on a file of encoded rows (Adult or Criteo).

    Attributes:
      data: the training rows.
      batch: rows per step.
      dim: columns of each embedding.
      hidden: widths of the deep part's layers.
      seed: of the initial values.
    """

    data: Encoded
    batch: int = 128
    dim: int = 8
    hidden: tuple[int, ...] = (64, 32)
    seed: int = 1

    @property
    def name(self) -> str:
        """The data set's name."""
        return self.data.schema.name

    def partitioner(self) -> Callable[..., Any] | None:
        """Tables stay whole; they go to the servers in turn."""
        return None

    def config(self) -> WideDeepConfig:
        """Return the model: crosses are in the wide part only."""
        schema = self.data.schema
        embedded = len(schema.categorical) + len(schema.numeric)
        columns = tuple(
            Column(name, buckets, self.dim if i < embedded else 0)
            for i, (name, buckets) in enumerate(schema.id_columns())
        )
        return WideDeepConfig(columns, len(schema.numeric), self.hidden, seed=self.seed)

    def build(self) -> FileProgram:
        """Create the model."""
        return FileProgram(self)


class FileProgram:
    """Program of `FileWorkload`."""

    def __init__(self, job: FileWorkload):
        """Create the variables."""
        self._job = job
        self.model = WideDeep(job.config())

    def dataset(self, worker: tf.Tensor | int, workers: int) -> tf.data.Dataset:
        """Elements (label [batch], numeric [batch, n], ids [batch, columns])."""
        return self._job.data.dataset(self._job.batch, worker, workers)

    def step(self, element: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """Make one update; return the mean log loss before it."""
        return self.model.step(*element)

    def variables(self) -> dict[str, Any]:
        """Name to variable, optimizer state included."""
        return self.model.variables_by_name()


@dataclasses.dataclass(frozen=True)
class Rfc:
    """The setting of the FuseRecv RFC (tensorflow/community, 20200411): partitioned wide & deep.

    Batch 128; the RFC ran five workers to one server. Ids are drawn on the worker from its step
    number, skewed towards small ids.

    Attributes:
      embeddings: number of id columns, each with a wide and a deep table.
      batch: rows per step.
      rows: rows of each table.
      dim: columns of each embedding.
      numeric: number of numeric inputs.
      hidden: widths of the deep part's layers.
      shards: parts of each variable.
      seed: of values and inputs.
    """

    embeddings: int = 40
    batch: int = 128
    rows: int = 1000
    dim: int = 8
    numeric: int = 13
    hidden: tuple[int, ...] = (64, 32)
    shards: int = 2
    seed: int = 1
    name: str = "rfc"

    def partitioner(self) -> Callable[..., Any] | None:
        """Every variable in `shards` parts along its first axis."""
        if self.shards == 1:
            return None
        return tf.distribute.experimental.partitioners.FixedShardsPartitioner(self.shards)

    def build(self) -> RfcProgram:
        """Create the model."""
        return RfcProgram(self)


class RfcProgram:
    """Program of `Rfc`."""

    def __init__(self, job: Rfc):
        """Create the variables."""
        self._job = job
        columns = tuple(Column(f"C{i:03d}", job.rows, job.dim) for i in range(job.embeddings))
        self.model = WideDeep(WideDeepConfig(columns, job.numeric, job.hidden, seed=job.seed))

    def dataset(self, worker: tf.Tensor | int, workers: int) -> tf.data.Dataset:
        """Elements (label [batch], numeric [batch, n], ids [batch, embeddings])."""
        del workers  # each draws its own rows
        return workload.seeds(self._job.seed, worker).map(self._draw)

    def _draw(self, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        job = self._job
        uniform = tf.random.stateless_uniform([job.batch, job.numeric + job.embeddings], seed)
        numeric = uniform[:, : job.numeric] * 2.0 - 1.0
        skewed = uniform[:, job.numeric :] ** 3 * job.rows
        ids = tf.minimum(tf.cast(skewed, tf.int32), job.rows - 1)
        score = tf.reduce_sum(numeric, axis=1) + tf.cast(ids[:, 0] % 2, tf.float32)
        return tf.cast(score > 0.5, tf.float32), numeric, ids

    def step(self, element: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """Make one update; return the mean log loss before it."""
        return self.model.step(*element)

    def variables(self) -> dict[str, Any]:
        """Name to variable, optimizer state included."""
        return self.model.variables_by_name()


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Quality on an evaluation set.

    Attributes:
      loss: mean log loss, nats.
      auc: area under the ROC curve, exact.
      rows: number of rows.
    """

    loss: float
    auc: float
    rows: int


def evaluate(
    config: WideDeepConfig, values: dict[str, np.ndarray], data: Encoded, batch: int = 4096
) -> Evaluation:
    """Scores every row of an evaluation set with a copy of the model in this process.

    Args:
      config: the model.
      values: its variables, from `examples.workload.snapshot`.
      data: the rows.
      batch: rows scored at once.

    Raises:
      KeyError: `values` lacks a variable of the model.
    """
    model = WideDeep(config)
    for name, shards in model.variables_by_name().items():
        shards.variables[0].assign(values[name])
    score = tf.function(
        model.logits,
        input_signature=[
            tf.TensorSpec([None, config.numeric], tf.float32),
            tf.TensorSpec([None, len(config.columns)], tf.int32),
        ],
    )
    label, numeric, ids = data.arrays()
    logits = np.concatenate(
        [
            score(numeric[i : i + batch], ids[i : i + batch]).numpy()
            for i in range(0, data.rows, batch)
        ]
    ).astype(np.float64)
    loss = np.mean(np.logaddexp(0.0, logits) - label * logits)
    return Evaluation(float(loss), roc_auc(label, logits), data.rows)


def roc_auc(label: np.ndarray, score: np.ndarray) -> float:
    """Area under the ROC curve: how often a positive scores above a negative, ties counting half.

    Exact, by the rank sum (Mann and Whitney, 1947).

    Args:
      label: 0 or 1, [n].
      score: any order-preserving score, [n].

    Returns:
      The area, or NaN when there are no positives or no negatives.
    """
    positive = np.asarray(label) > 0.5
    pairs = int(positive.sum()) * int((~positive).sum())
    if pairs == 0:
        return float("nan")
    _, inverse, count = np.unique(score, return_inverse=True, return_counts=True)
    mid_rank = np.cumsum(count) - (count - 1) / 2.0
    n = int(positive.sum())
    return float((mid_rank[inverse][positive].sum() - n * (n + 1) / 2.0) / pairs)
