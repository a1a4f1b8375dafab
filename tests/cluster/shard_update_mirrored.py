# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A program with MirroredStrategy on logical devices; `test_shard_update_mirrored.py` runs it.

python tests/cluster/shard_update_mirrored.py REPLICAS GROUP_SIZE [--first-use] OPTIMIZER ...

Prints a line of JSON for each optimizer: what training gives with the option off and on, and what
is held. GROUP_SIZE is that of the option; 0 is its default. With --first-use, weights are gathered
before their first use.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

import tf_fuse

_STEPS = 4


def train(
    strategy: tf.distribute.Strategy, name: str, on: bool, group_size: int = 0, gather: str = "end"
) -> dict[str, Any]:
    """Trains a small model, and reads the optimizer's variables after two of the steps."""
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
    updates = getattr(context.context(), "_tf_fuse_updates", None)
    held = [(*b.bytes(), b.is_parted, b.version) for b in updates.bundles()] if on else []
    every = [v for mirrored in optimizer.variables for v in mirrored._value.values]
    every += [v for mirrored in model.trainable_variables for v in mirrored._value.values]
    functions = tf_fuse.weight_update_report()["functions"][-1:]
    gathers = [g["gather"] for f in functions for pack in f["packs"] for g in pack["gradients"]]
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


def main(replicas: int, group_size: int, names: list[str]) -> None:
    """Trains with each optimizer."""
    gather = "end"
    if names[0] == "--first-use":
        gather, names = "first_use", names[1:]
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(cpu, devices)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])
    for name in names:
        off = train(strategy, name, False)
        on = train(strategy, name, True, group_size, gather)
        print(json.dumps({"optimizer": name, "off": off, "on": on}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
