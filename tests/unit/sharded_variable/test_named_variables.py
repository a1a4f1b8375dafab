# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The report has the names that the program gave its variables, also of functions that are sharded.

A process of its own has the two devices of the replicas.
"""

import os
import sys

import pytest

from tests import scripted

_REPLICAS = ["", "/replica_1"]
_SLOTS = ["dense_bias", "dense_kernel", "dense_1_bias", "dense_1_kernel"]


@pytest.fixture(scope="module")
def cases():
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return scripted.result_of([sys.executable, __file__], env)


def test_slots_of_a_function_that_is_sharded_have_their_names(cases):
    function = cases["sharded"]
    assert function["function"].endswith("__tf_fuse_sharded")
    updated = [name for one in function["each"] for name in one["variables"]]
    left = [one["variable"] for one in function["left"]]
    momenta = {f"sgd/model_{name}_momentum{replica}" for name in _SLOTS for replica in _REPLICAS}
    assert {name for name in updated + left if "momentum" in name} == momenta
    # (The assignments of the gathered weights are a part of what was sharded: nothing is left of
    # them.)
    assert [name for name in left if "dense" in name and "momentum" not in name] == []


def _left(function, reason):
    """What is left for a reason, of the first replica."""
    names = [one["variable"] for one in function["left"] if one["reason"] == reason]
    return sorted(name for name in names if not name.endswith("/replica_1"))


def test_momenta_of_nesterov_are_left_where_weights_are_gathered_at_the_end(cases):
    assert cases["nesterov"]["each"] == []
    assert _left(cases["nesterov"], "optimizer") == [
        f"sgd/model_{n}_momentum" for n in sorted(_SLOTS)
    ]


def test_biases_of_a_step_that_is_not_sharded_are_left(cases):
    biases = ["dense_1_bias", "dense_bias"]
    assert _left(cases["not sharded"], "optimizer") == sorted(
        [f"adam/model_{name}_{slot}" for name in biases for slot in ("momentum", "velocity")]
        + ["model/dense/bias", "model/dense_1/bias"]
    )
    kernels = {name for one in cases["not sharded"]["each"] for name in one["variables"]}
    assert {"model/dense/kernel", "model/dense_1/kernel"} <= kernels


def _main():
    import tensorflow as tf

    import tf_fuse

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    def operations(make, always):
        tf.config.optimizer.set_experimental_options(
            {"shard_weight_update": True, "shard_weight_update_always": always}
        )
        with strategy.scope():
            sizes = {"dense": 16, "dense_1": 3}
            layers = [tf.keras.layers.Dense(n, name=name) for name, n in sizes.items()]
            model = tf.keras.Sequential([tf.keras.Input([8]), *layers], name="model")
            optimizer = make()
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
        return tf_fuse.weight_update_report()["operations"][-1]

    optimizers = tf.keras.optimizers
    cases = {
        "sharded": operations(lambda: optimizers.SGD(0.1, momentum=0.9, name="sgd"), True),
        "nesterov": operations(
            lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True, name="sgd"), True
        ),
        "not sharded": operations(lambda: optimizers.Adam(0.1, name="adam"), False),
    }
    scripted.give(cases)


if __name__ == "__main__":
    _main()
