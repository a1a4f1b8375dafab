# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The report has the names that the program gave its variables, also of functions that are cut.

A process of its own has the two devices of the replicas.
"""

import json
import os
import subprocess
import sys

_SLOTS = ["dense_bias", "dense_kernel", "dense_1_bias", "dense_1_kernel"]


def test_slots_of_a_function_that_is_cut_have_their_names():
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [sys.executable, __file__],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (function,) = json.loads(done.stdout.splitlines()[-1])
    assert function["function"].endswith("__tf_fuse_sharded")
    updated = [name for one in function["each"] for name in one["variables"]]
    left = [one["variable"] for one in function["left"]]
    momenta = {f"sgd/model_{name}_momentum{replica}" for name in _SLOTS for replica in _REPLICAS}
    assert {name for name in updated + left if "momentum" in name} == momenta
    weights = {f"model/{name.replace('_b', '/b').replace('_k', '/k')}" for name in _SLOTS}
    assert {name for name in left if "dense" in name and "momentum" not in name} == {
        name + replica for name in weights for replica in _REPLICAS
    }


_REPLICAS = ["", "/replica_1"]


def _main():
    import tensorflow as tf

    import tf_fuse

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.config.optimizer.set_experimental_options(
        {"shard_weight_update": True, "shard_weight_update_always": True}
    )
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layers = [tf.keras.Input([8]), tf.keras.layers.Dense(16), tf.keras.layers.Dense(3)]
        model = tf.keras.Sequential(layers, name="model")
        optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9, name="sgd")
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(x):
        def replica(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.run(replica, args=(x,))

    step(tf.ones([4, 8]))
    print(json.dumps(tf_fuse.weight_update_report()["operations"]))


if __name__ == "__main__":
    _main()
