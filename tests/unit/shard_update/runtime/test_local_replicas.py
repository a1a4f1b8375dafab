# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A step of MirroredStrategy may use variables outside of its replicas: those of the first one.

A process of its own has the two devices of the replicas.
"""

import os
import sys

import pytest

from tests import scripted
from tf_fuse.shard_update.plan import Bucket, UpdateCluster
from tf_fuse.shard_update.replicas import Replicas
from tf_fuse.shard_update.runtime.local_replicas import unlike

_STEPS = 4
# What a step does outside of its replicas, with a weight, its slot and another variable; and
# whether the update is still shared.
_USES = {
    "nothing": (lambda tf, w, m, other: 0.0, True),
    "weight": (lambda tf, w, m, other: tf.reduce_sum(w), True),
    "slot": (lambda tf, w, m, other: tf.reduce_sum(m), False),
    "both": (lambda tf, w, m, other: tf.reduce_sum(m * 2 + w), False),
    "slot to variable": (lambda tf, w, m, other: tf.reduce_sum(other.assign_add(m)), False),
}


@pytest.fixture(scope="module")
def cases():
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return scripted.result_of([sys.executable, __file__], env)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("use", _USES)
def test_values_are_those_of_stock(cases, use, when):
    case = cases[f"{use} {when}"]
    assert case["ours"] == case["stock"]
    assert case["shared"] == _USES[use][1]
    assert ("one_replica" in case["reasons"]) != case["shared"]
    assert case["stock"][0] != case["stock"][1] or use == "nothing"


def test_a_variable_in_shards_may_be_passed_too(cases):
    assert cases["passed"]["ours"] == cases["passed"]["stock"]
    assert cases["passed"]["shared"]
    assert cases["passed"]["steps"] == 2  # those that get another variable


def _bucket(name, number, reason=None):
    class Node:
        device = name

    cluster = UpdateCluster("root", (4,), updated=(f"{name}{number}",), reason=reason)
    return Bucket("reduce", [], (cluster,), reduce=Node())


def test_replicas_that_differ():
    replicas = Replicas(2, {"a": 0, "b": 1})
    variables = {f"{name}{number}": number for name in "ab" for number in range(3)}

    def found(*buckets):
        return unlike([_bucket(*one) for one in buckets], replicas, variables)

    assert found(("a", 0), ("b", 0)) is None
    assert found(("a", 0), ("a", 1), ("b", 1), ("b", 0)) is None
    assert found(("a", 0), ("a", 1), ("b", 0)) == {1}
    assert found(("a", 0), ("b", 0, "cycle")) == {0}
    assert found(("a", 7), ("b", 0, "cycle")) == set()


def _main():
    import numpy as np
    import tensorflow as tf

    import tf_fuse

    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    x = tf.constant(np.random.default_rng(0).standard_normal([4, 8], np.float32))

    def trained(use, when, passed=None):
        with strategy.scope():
            weight = tf.Variable(tf.reshape(tf.range(64.0), [8, 8]) / 64)
            optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.5)
            optimizer.build([weight])
            other = tf.Variable(tf.ones([8, 8]), trainable=False)
        slot = optimizer.variables[-1].value

        def replica(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.matmul(x, weight) ** 2)
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

        @tf.function
        def step(x, given):
            told = use(tf, weight, slot, other) if when == "before" else 0.0
            strategy.run(replica, args=(x,))
            if when == "after":
                told = use(tf, weight, slot, other)
            return told + tf.reduce_sum(given)

        first = [other.values[0], slot.values[0]]
        told = [step(x, first[i]).numpy() for i in passed or [0] * _STEPS]
        found = [*told, weight.numpy(), *(value.numpy() for value in slot.values)]
        functions = tf_fuse.weight_update_report()["functions"]
        return [np.asarray(value).tobytes().hex() for value in found], functions

    def compared(*args):
        stock, _ = trained(*args)
        tf.config.optimizer.set_experimental_options(
            {"shard_weight_update": True, "shard_weight_update_always": True}
        )
        ours, functions = trained(*args)
        function = functions[-1]
        tf.config.optimizer.set_experimental_options({"shard_weight_update": False})
        gradients = [one for bucket in function["buckets"] for one in bucket["gradients"]]
        return {
            "stock": stock,
            "ours": ours,
            "shared": function["sharded"],
            "reasons": sorted({one["reason"] for one in gradients if one["reason"]}),
            "steps": function.get("steps"),
        }

    cases = {
        f"{name} {when}": compared(use, when)
        for name, (use, _) in _USES.items()
        for when in ("before", "after")
    }
    cases["passed"] = compared(lambda *args: 0.0, "after", [0, 1, 0, 1])
    scripted.give(cases)


if __name__ == "__main__":
    _main()
