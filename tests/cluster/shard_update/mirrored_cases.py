# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""MirroredStrategy on a rank's logical devices, with `shard_weight_update` and without."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from tests.cluster.shard_update import matrix_cases as matrix
from tests.cluster.shard_update import training_steps as shard_update_programs

_STEPS = 4


class ShardUpdateMirroredCases:
    """Cases of `collectives.cases.Member`, of a rank with several devices."""

    devices: int
    _all_devices = None

    def trained_on_devices(
        self, optimizer: str, on: bool = True, group_size: int = 0, gather: str = "end"
    ) -> dict[str, Any]:
        """Trains a small model, and reads the optimizer's variables after two of the steps.

        Args:
          optimizer: of Keras 3.
          on: whether the option is.
          group_size: as of the option; 0 is its default.
          gather: where weights are gathered.
        """
        return train(self._on_devices(), optimizer, on, group_size, gather)

    def both_on_devices(self, of: Any, steps: int = 4) -> dict[str, Any]:
        """Trains with the option off and on.

        Args:
          of: the name of one of `training_steps`, arguments of `step_of` in a list, or
            those of `fit` in a dictionary.
          steps: how many.

        Returns:
          How many losses differ from each other, whether the option changes any bit, by how much it
          changes values, and what was decided.
        """
        runs = []
        for on in (False, True):
            matrix.switch(shard_weight_update=on)
            runs.append(_run(self._on_devices(), of, steps))
        without, with_ = runs
        assert len(without["values"]) == len(with_["values"]) > 0
        pairs = list(zip(without["values"], with_["values"], strict=True))
        differences = [np.max(np.abs(a.astype(float) - b), initial=0.0) for a, b in pairs]
        return {
            "losses": len(set(with_["losses"])),
            "same_losses": with_["losses"] == without["losses"],
            "same_values": all(a.tobytes() == b.tobytes() for a, b in pairs),
            "largest": float(max(differences)),
            "decided": with_["decided"],
        }

    def _on_devices(self) -> Any:
        os.environ.pop("TF_CONFIG", None)  # One process is all there is.
        self._all_devices = self._all_devices or tf.distribute.MirroredStrategy(
            [f"CPU:{i}" for i in range(self.devices)]
        )
        return self._all_devices


def _run(strategy: tf.distribute.Strategy, case: Any, steps: int) -> dict[str, Any]:
    if isinstance(case, dict):
        return matrix.fit(strategy, **case)
    if isinstance(case, str):
        return matrix.train(strategy, lambda s: getattr(shard_update_programs, case)(s)[0], steps)
    return matrix.train(strategy, lambda s: matrix.step_of(s, *case), steps)


def train(
    strategy: tf.distribute.Strategy, name: str, on: bool, group_size: int = 0, gather: str = "end"
) -> dict[str, Any]:
    """See `ShardUpdateMirroredCases.trained_on_devices`."""
    tf.config.optimizer.set_experimental_options(
        {
            "shard_weight_update": on,
            "shard_weight_update_always": True,
            "shard_weight_update_group_size": group_size,
            "shard_weight_update_gather": gather,
        }
    )
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Dense(n, activation="tanh") for n in (37, 5)]
        model = keras.Sequential([keras.Input([10]), *layers, keras.layers.Dense(1)])
        optimizer = getattr(keras.optimizers, name)(0.05)
        optimizer.build(model.trainable_variables)

    def replica(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        with tf.GradientTape() as tape:
            prediction = model(x + tf.cast(number, tf.float32), training=True)
            loss = tf.reduce_mean((prediction - y) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    step = tf.function(lambda x, y: strategy.run(replica, args=(x, y)))
    rng = np.random.default_rng(0)
    x = tf.constant(rng.standard_normal([16, 10]), tf.float32)
    y = tf.constant(rng.standard_normal([16, 1]), tf.float32)
    losses, reads = [], []
    for number in range(_STEPS):
        losses += [float(loss).hex() for loss in strategy.experimental_local_results(step(x, y))]
        if number == 1:
            reads.append(_digest(optimizer.variables))
    import tf_fuse

    updates = getattr(context.context(), "_tf_fuse_updates", None)
    held = [(*b.bytes(), b.is_sharded, b.version) for b in updates.shard_groups()] if on else []
    every = [v for mirrored in optimizer.variables for v in mirrored._value.values]
    every += [v for mirrored in model.trainable_variables for v in mirrored._value.values]
    functions = tf_fuse.weight_update_report()["functions"][-1:]
    gathers = [
        g["gather"] for f in functions for bucket in f["buckets"] for g in bucket["gradients"]
    ]
    return {
        "losses": losses,
        "reads": [*reads, _digest(every)],
        "values": [v.numpy().tolist() for v in model.trainable_variables],
        "held": held[-1:],
        "functions": functions,
        "gathers": gathers if on else [],
    }


def _digest(variables: list[Any]) -> str:
    return hashlib.sha256(b"".join(v.numpy().tobytes() for v in variables)).hexdigest()
