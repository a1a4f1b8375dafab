# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A program whose datasets read the optimizer's variables; `test_dataset_captures.py` runs it.

Gives what a dataset that was made before the first step gives after each step, and what the
variable has; what was left alone; and the error of a dataset that is made later.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tf_fuse
from tests import scripted


def _model(strategy: tf.distribute.Strategy) -> tuple[Any, Any, Any]:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input([10]), keras.layers.Dense(7), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.01)
        optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(x: Any) -> Any:
        def replica(x: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("sum", strategy.run(replica, (x,)), None)

    return step, optimizer.variables[2], optimizer.variables[4]


def main() -> None:
    """Trains on two logical devices."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, devices)
    tf.config.optimizer.set_experimental_options(
        {"shard_weight_update": True, "shard_weight_update_always": True}
    )
    step, slot, other = _model(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]))
    numbers = tf.data.Dataset.range(1)
    sums = numbers.map(lambda _: tf.reduce_sum(slot.value))
    x = tf.constant(np.random.default_rng(0).standard_normal([8, 10]), tf.float32)
    given, had = [], []
    for _ in range(3):
        step(x)
        given += [float(one) for one in sums]
        had.append(float(tf.reduce_sum(slot.value)))
    error = ""
    try:
        numbers.map(lambda _: tf.reduce_sum(other.value))
    except tf.errors.FailedPreconditionError as e:
        error = e.message
    value = tf.constant(other.value)
    later = numbers.map(lambda _: tf.reduce_sum(value))
    scripted.give(
        {
            "given": given,
            "had": had,
            "functions": tf_fuse.weight_update_report()["functions"],
            "error": error,
            "later": [[float(one) for one in later], float(tf.reduce_sum(other.value))],
        }
    )


if __name__ == "__main__":
    main()
