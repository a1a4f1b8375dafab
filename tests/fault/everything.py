# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A model on parameter servers with all options for these on, whose state can be set and compared.

A table whose rows are gathered on servers, a kernel by which is multiplied piece by piece, both in
pieces and placed by a plan, and a bias; Keras 3's Adam, each of whose updates is one operation. All
numbers are small whole ones in the beginning: no sum of the first step is rounded, so it has the
bits of stock TensorFlow whatever the pieces.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import tensorflow as tf

from tests.fault import coordinator

ROWS, WIDTH, UNITS = 96, 16, 256
IDS = [1, 3, 3, 70, 95, 0, 50, 48]
OPTIONS = {
    "do_fuse_recv": True,
    "do_pack_handles": True,
    "fuse_grouping": "level",
    "fuse_weight_update": True,
    "shard_weight_update": True,
    "split_matmuls": True,
}


def switch(is_on: bool) -> None:
    """Sets all options for parameter servers, or none."""
    off: dict[str, Any] = dict.fromkeys(OPTIONS, False) | {"fuse_grouping": "level"}
    tf.config.optimizer.set_experimental_options(OPTIONS if is_on else off)


def _called(make: Any) -> Any:
    return make()


def _pieces_of(variable: Any) -> list[Any]:
    """TensorFlow's variables of one of Keras."""
    return list(getattr(variable.value, "variables", [variable.value]))


class Everything:
    """The model, its optimizer, and steps on it.

    Attributes:
      strategy: of the cluster.
      coordinator: of the strategy.
      weights: Keras's variables that the optimizer updates.
      optimizer: Adam.
    """

    def __init__(self, resolver: Any, is_on: bool, servers: int = 2, is_spread: bool = False):
        """Makes all variables, with the present options.

        Args:
          resolver: of the cluster.
          is_on: whether variables are planned and split.
          servers: how many there are.
          is_spread: whether no partitioner splits, but the kernel's update is spread.
        """
        import keras

        self._is_on = is_on
        partitioner, build = None, _called
        if is_on:
            from tf_fuse import parameter_server

            # A slow link, so that small variables are split.
            costs = parameter_server.Costs(link_bytes_per_s=1e4, rows_per_step={"*embed*": ROWS})
            if not is_spread:
                partitioner = parameter_server.CostPartitioner(servers, costs)
            build = parameter_server.build
        self.strategy = tf.distribute.ParameterServerStrategy(
            resolver, variable_partitioner=partitioner
        )

        if is_spread:  # A fast link: the update of the kernel is what takes long.
            costs = parameter_server.Costs(
                link_bytes_per_s=1e12, update_s=0.0, piece_s=0.0, memory_bytes_per_s=1e12
            )
            parameter_server.set_costs(self.strategy, costs)

        def make() -> Any:
            table = keras.layers.Embedding(ROWS, WIDTH, name="embedding")
            table.build((None,))
            dense = keras.layers.Dense(UNITS, name="dense")
            dense.build((None, WIDTH))
            optimizer = keras.optimizers.Adam(0.0625)
            optimizer.build([table.embeddings, dense.kernel, dense.bias])
            return table, dense, optimizer

        with self.strategy.scope():
            self.table, self.dense, self.optimizer = build(make)
        self.weights = [self.table.embeddings, self.dense.kernel, self.dense.bias]
        self._wholes = [_pieces_of(weight) for weight in self.weights]
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        rng = np.random.default_rng(11)
        shapes = ([ROWS, WIDTH], [WIDTH, UNITS], [UNITS])
        self._first = [rng.integers(-3, 4, shape).astype("float32") for shape in shapes]

    def losses(self, ids: Any, gate: Any = 1.0) -> tuple[Any, list[Any]]:
        """Within a step: the loss, and gradients of the weights."""
        with tf.GradientTape() as tape:
            y = self.dense(self.table(ids))
            loss = tf.reduce_sum((y * gate) ** 2)
        return loss, tape.gradient(loss, self.weights)

    def apply(self, gradients: list[Any]) -> None:
        """Within a step: updates the weights."""
        self.optimizer.apply_gradients(zip(gradients, self.weights, strict=True))

    def function(self, body: Any) -> Any:
        """A `tf.function` of the rows' numbers that runs a body on a replica."""

        @tf.function(autograph=False)
        def step(ids: Any) -> Any:
            return self.strategy.run(body, args=(ids,))

        return step

    def plain(self) -> Any:
        """A step."""

        def body(ids: Any) -> Any:
            loss, gradients = self.losses(ids)
            self.apply(gradients)
            return loss

        return self.function(body)

    def call(self, function: Any, ids: Any = IDS) -> Any:
        """Runs a function on a worker; returns what it returns, fetched."""
        result = self.coordinator.schedule(function, args=(tf.constant(ids),))
        self.coordinator.join()
        return result.fetch()

    def pieces(self) -> list[int]:
        """How many pieces the table, the kernel and the bias have."""
        return [len(parts) for parts in self._wholes]

    def servers(self) -> list[int]:
        """The servers on which the table is."""
        return sorted(tf.DeviceSpec.from_string(one.device).task for one in self._wholes[0])

    def _slots(self, parts: list[Any], which: str) -> list[Any]:
        own = [id(one) for parts in self._wholes for one in parts]
        slots = getattr(self.optimizer, which)
        return [slots[own.index(id(one))] for one in parts]

    def values(self) -> dict[str, Any]:
        """Of weights and slots, whole ones, by name."""
        found = {}
        for name, parts in zip(("table", "kernel", "bias"), self._wholes, strict=True):
            kinds = {"": parts, "/m": self._slots(parts, "_momentums")}
            kinds["/v"] = self._slots(parts, "_velocities")
            for suffix, variables in kinds.items():
                arrays = [tf.convert_to_tensor(one).numpy() for one in variables]
                found[name + suffix] = np.concatenate(arrays)
        return found

    def parts(self) -> list[str]:
        """Of each piece, and of each whole variable, a digest of it and its slots."""
        digests = []
        for parts in self._wholes:
            slots = [self._slots(parts, which) for which in ("_momentums", "_velocities")]
            for each in zip(parts, *slots, strict=True):
                value = coordinator.exact([tf.convert_to_tensor(one).numpy() for one in each])
                digests.append(hashlib.sha256(str(value).encode()).hexdigest())
        return digests

    def state(self) -> str:
        """A digest of all that."""
        digest = hashlib.sha256()
        for name, value in sorted(self.values().items()):
            digest.update(f"{name} {coordinator.exact(value)}".encode())
        return digest.hexdigest()

    def reset(self) -> None:
        """Sets weights to their first values, and slots and the counter to zero."""
        for parts, first in zip(self._wholes, self._first, strict=True):
            begin = 0
            for one in parts:
                one.assign(first[begin : begin + one.shape[0]])
                begin += one.shape[0]
            for which in ("_momentums", "_velocities"):
                for slot in self._slots(parts, which):
                    slot.assign(tf.zeros(slot.shape))
        self.optimizer.iterations.assign(0)

    def checkpoint(self) -> Any:
        """A `tf.train.Checkpoint` of the model and the optimizer."""
        return tf.train.Checkpoint(table=self.table, dense=self.dense, optimizer=self.optimizer)
