# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables and dense weights that live on parameter servers, each with its optimizer.

The optimizers are TensorFlow's fused update ops, called where the variable lives: one op per
variable and step, and its state beside the variable. (Keras 3 optimizers do neither under
parameter servers.) Hyper-parameters are constants on the server, so they are never sent.

Everything is deterministic: ids are made unique before the gradient is applied, so no two threads
add to one row.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from examples import workload


@dataclasses.dataclass(frozen=True)
class Adagrad:
    """Adagrad (Duchi et al., 2011), for the deep part."""

    learning_rate: float = 0.05
    initial_accumulator: float = 0.1
    epsilon: float = 1e-7

    def slots(self) -> dict[str, float]:
        """Name to initial value of the state kept per weight."""
        return {"accumulator": self.initial_accumulator}

    def apply_dense(self, var: Any, slots: dict[str, Any], grad: tf.Tensor) -> None:
        """Update the whole variable; `grad` has its shape."""
        with tf.device(var.device):
            tf.raw_ops.ResourceApplyAdagradV2(
                var=var.handle,
                accum=slots["accumulator"].handle,
                lr=tf.constant(self.learning_rate),
                epsilon=tf.constant(self.epsilon),
                grad=grad,
            )

    def apply_sparse(
        self, var: Any, slots: dict[str, Any], ids: tf.Tensor, grad: tf.Tensor
    ) -> None:
        """Update the rows `ids` ([n], unique) by `grad` ([n, columns])."""
        with tf.device(var.device):
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=var.handle,
                accum=slots["accumulator"].handle,
                lr=tf.constant(self.learning_rate),
                epsilon=tf.constant(self.epsilon),
                grad=grad,
                indices=ids,
            )


@dataclasses.dataclass(frozen=True)
class Ftrl:
    """FTRL-proximal (McMahan et al., 2013) with L1 and L2, for the wide part."""

    learning_rate: float = 0.05
    initial_accumulator: float = 0.1
    l1: float = 0.001
    l2: float = 0.001
    power: float = -0.5

    def slots(self) -> dict[str, float]:
        """Name to initial value of the state kept per weight."""
        return {"accumulator": self.initial_accumulator, "linear": 0.0}

    def apply_dense(self, var: Any, slots: dict[str, Any], grad: tf.Tensor) -> None:
        """Update the whole variable; `grad` has its shape."""
        with tf.device(var.device):
            tf.raw_ops.ResourceApplyFtrl(
                var=var.handle,
                accum=slots["accumulator"].handle,
                linear=slots["linear"].handle,
                grad=grad,
                lr=tf.constant(self.learning_rate),
                l1=tf.constant(self.l1),
                l2=tf.constant(self.l2),
                lr_power=tf.constant(self.power),
            )

    def apply_sparse(
        self, var: Any, slots: dict[str, Any], ids: tf.Tensor, grad: tf.Tensor
    ) -> None:
        """Update the rows `ids` ([n], unique) by `grad` ([n, columns])."""
        with tf.device(var.device):
            tf.raw_ops.ResourceSparseApplyFtrl(
                var=var.handle,
                accum=slots["accumulator"].handle,
                linear=slots["linear"].handle,
                grad=grad,
                indices=ids,
                lr=tf.constant(self.learning_rate),
                l1=tf.constant(self.l1),
                l2=tf.constant(self.l2),
                lr_power=tf.constant(self.power),
            )


Optimizer = Adagrad | Ftrl


def _slot_variables(optimizer: Optimizer, name: str, var: Any) -> dict[str, tf.Variable]:
    """State of one variable (or shard), on the variable's server."""
    created = {}
    for slot, value in optimizer.slots().items():
        initial = tf.fill(var.shape, tf.constant(value, tf.float32))
        if tf.distribute.has_strategy():
            scope = tf.distribute.get_strategy().extended.colocate_vars_with(var)
        else:
            scope = tf.device(var.device)
        with scope:
            created[slot] = tf.Variable(initial, name=f"{name}/{slot}", trainable=False)
    return created


class Dense:
    """A weight that is read whole and updated whole."""

    def __init__(
        self, name: str, shape: tuple[int, ...], scale: float, seed: int, optimizer: Optimizer
    ):
        """Create the variable, uniform in [-scale, scale), and its optimizer's state."""
        self.name = name
        value = workload.initial_values(name, shape, scale, seed)
        self._shards = _shards_of(tf.Variable(value, name=name))
        self._slots = [_slot_variables(optimizer, name, shard) for shard in self._shards]
        self._optimizer = optimizer

    def read(self) -> tf.Tensor:
        """Return the weight's value, in its shape."""
        values = [shard.read_value() for shard in self._shards]
        return values[0] if len(values) == 1 else tf.concat(values, axis=0)

    def apply(self, grad: tf.Tensor) -> None:
        """Update the weight; `grad` has its shape."""
        sizes = [int(shard.shape[0]) for shard in self._shards]
        grads = [grad] if len(sizes) == 1 else tf.split(grad, sizes, axis=0)
        for shard, slots, part in zip(self._shards, self._slots, grads, strict=True):
            self._optimizer.apply_dense(shard, slots, part)

    def variables(self) -> dict[str, Shards]:
        """Name to variable, state included."""
        return _named(self.name, self._shards, self._slots)


@dataclasses.dataclass(frozen=True)
class Lookup:
    """What a lookup remembers until its gradient is applied.

    Attributes:
      count: number of unique ids, int32 scalar.
      inverse: place of each example's id among the unique ones, int32 of [batch].
      shard_ids: per shard, the rows of that shard, int32.
      positions: per shard, where those rows stand among the unique ids; None for a whole table.
    """

    count: tf.Tensor
    inverse: tf.Tensor
    shard_ids: list[tf.Tensor]
    positions: list[tf.Tensor] | None


class Table:
    """An embedding table: some rows are read and the same rows updated."""

    def __init__(
        self, name: str, shape: tuple[int, int], scale: float, seed: int, optimizer: Optimizer
    ):
        """Create the table [rows, columns], uniform in [-scale, scale), and its state."""
        self.name = name
        value = workload.initial_values(name, shape, scale, seed)
        self._shards = _shards_of(tf.Variable(value, name=name))
        self._slots = [_slot_variables(optimizer, name, shard) for shard in self._shards]
        self._optimizer = optimizer

    def lookup(self, unique: tf.Tensor, inverse: tf.Tensor) -> tuple[tf.Tensor, Lookup]:
        """Rows of a batch.

        Args:
          unique: the batch's ids, each once, int32 of [unique].
          inverse: place of each example's id in `unique`, int32 of [batch].

        Returns:
          float32 of [batch, columns], and what `apply` needs.
        """
        if len(self._shards) == 1:
            shard_ids, positions = [unique], None
            rows = self._gather(0, unique)
        else:
            shard_ids, positions = self._split(unique)
            parts = [self._gather(i, ids) for i, ids in enumerate(shard_ids)]
            rows = tf.dynamic_stitch(positions, parts)
        return tf.gather(rows, inverse), Lookup(tf.size(unique), inverse, shard_ids, positions)

    def apply(self, looked_up: Lookup, grad: tf.Tensor) -> None:
        """Update the rows that were read; `grad` is [batch, columns]."""
        rows = tf.math.unsorted_segment_sum(grad, looked_up.inverse, looked_up.count)
        for i, ids in enumerate(looked_up.shard_ids):
            part = rows if looked_up.positions is None else tf.gather(rows, looked_up.positions[i])
            self._optimizer.apply_sparse(self._shards[i], self._slots[i], ids, part)

    def variables(self) -> dict[str, Shards]:
        """Name to variable, state included."""
        return _named(self.name, self._shards, self._slots)

    def _gather(self, shard: int, ids: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.ResourceGather(
            resource=self._shards[shard].handle, indices=ids, dtype=tf.float32
        )

    def _split(self, unique: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Ids by shard, relative to the shard's first row; contiguous shards, larger ones first."""
        sizes = [int(shard.shape[0]) for shard in self._shards]
        small, extra = min(sizes), sum(size > min(sizes) for size in sizes)
        owner = tf.maximum(unique // (small + 1), (unique - extra) // small)
        first_row = tf.constant([sum(sizes[:i]) for i in range(len(sizes))])
        local = unique - tf.gather(first_row, owner)
        return (
            tf.dynamic_partition(local, owner, len(sizes)),
            tf.dynamic_partition(tf.range(tf.size(unique)), owner, len(sizes)),
        )


def _shards_of(variable: Any) -> list[Any]:
    """Return the parts of a variable that a partitioner may have split."""
    return list(getattr(variable, "variables", [variable]))


def _named(name: str, shards: list[Any], slots: list[dict[str, Any]]) -> dict[str, Shards]:
    named = {name: Shards(shards)}
    for slot in slots[0]:
        named[f"{name}/{slot}"] = Shards([per_shard[slot] for per_shard in slots])
    return named


@dataclasses.dataclass(frozen=True)
class Shards:
    """A variable as its parts along the first axis, in order."""

    variables: list[Any]
