# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains two replicas of one process, and calls a function of one; for `test_default`.

python tests/cluster/shard_update/default_program.py OPTIONS

OPTIONS is JSON. Gives what the report says of updates in one operation.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import tensorflow as tf

import tf_fuse
from tests import scripted

_DEVICE = "/job:localhost/replica:0/task:0/device:CPU:0"


def main(options: dict[str, Any]) -> None:
    """Sets the options and makes one step of each function."""
    tf.config.optimizer.set_experimental_options(options)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        weight = tf.Variable(tf.ones([512, 512]))
        optimizer = tf.keras.optimizers.Adam(0.1)
        optimizer.build([weight])
    with tf.device(_DEVICE):
        alone = tf.Variable(tf.ones([512, 512]))

    def replica() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.linalg.matmul(weight, weight))
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        strategy.run(replica)
        return tf.constant(0.0)

    @tf.function(autograph=False)
    def other() -> tf.Tensor:
        with tf.device(_DEVICE):
            alone.assign(0.5 * alone + 1.0)
            return tf.constant(0.0)

    step()
    other()
    assert float(alone[0, 0]) == 1.5
    told = tf_fuse.weight_update_report()["operations"]
    names = {one["function"]: "step" if "_step_" in one["function"] else "other" for one in told}
    scripted.give(
        [[names[one["function"]], one["way"], one["updates"]] for one in told if one["updates"]]
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
