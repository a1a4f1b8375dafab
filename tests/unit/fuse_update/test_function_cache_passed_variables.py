# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A function whose variables are arguments is called with others: on other devices, or twice.

Its iterators, too, may be on other devices.

A process of its own has two devices.
"""

import os
import sys

import pytest

from tests import scripted


@pytest.fixture(scope="module")
def cases():
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return scripted.result_of([sys.executable, __file__], env)


def test_variables_of_another_device_are_updated_there(cases):
    case = cases["devices"]
    assert case["ours"] == case["stock"]
    assert case["traces"] == 1
    # A function for each combination, with what is on the device that the trace names.
    assert case["fused"] == [1, 0, 1, 1]


def test_a_captured_variable_may_be_passed_too(cases):
    case = cases["names"]
    assert case["ours"] == case["stock"]
    assert (case["traces"], case["fused"]) == (1, [1])


def test_iterators_of_several_devices_need_one_rewritten_function(cases):
    case = cases["iterators"]
    assert case["ours"] == case["stock"]
    assert (case["traces"], case["fused"]) == (1, [1])


def _main():
    import numpy as np
    import tensorflow as tf
    from tensorflow.python.eager import context as context_module

    from tests import decisions
    from tf_fuse.shard_update import interception

    decisions.keep()
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)

    def update(weight, slot, gradient):
        slot.assign(slot * 0.5 + gradient * 0.3)
        weight.assign_sub(slot * 0.1)

    def made(device, value):
        with tf.device(device):
            return tf.Variable(tf.fill([5], value))

    def devices():
        a, b = [(made(cpu, 1.0), made(cpu, 2.0)) for cpu in ("CPU:0", "CPU:1")]

        @tf.function
        def step(weight, slot, gradient):
            with tf.device(weight.device):
                update(weight, slot, gradient)

        passed = [a, b, a, (a[0], b[1]), (b[0], a[1]), b]
        return step, passed, [*a, *b]

    def names():
        one, other = made("CPU:0", 1.0), made("CPU:0", 2.0)

        @tf.function
        def step(slot, gradient):
            with tf.device("/job:localhost/replica:0/task:0/device:CPU:0"):
                update(one, slot, gradient)

        return step, [(other,), (one,), (other,)], [one, other]

    def iterators():
        weight, slot = made("CPU:0", 1.0), made("CPU:0", 2.0)

        @tf.function
        def step(number, iterator, gradient):
            with tf.device("/job:localhost/replica:0/task:0/device:CPU:0"):
                update(weight, slot, gradient * next(iterator) + number)

        passed = []
        for device in ("CPU:0", "CPU:1"):
            with tf.device(device):
                passed.append((0.5, iter(tf.data.Dataset.from_tensors(3.0).repeat())))
        return step, [*passed, *passed], [weight, slot]

    def compared(make):
        values = []
        for on in (False, True):
            tf.config.optimizer.set_experimental_options({"fuse_weight_update": on})
            before = len(interception.fuser_of(context_module.context()).decisions)
            step, passed, variables = make()
            values.append([])
            for arguments in passed:
                step(*arguments, tf.ones([5]))
                values[-1] += [np.asarray(one).tobytes().hex() for one in variables]
        found = interception.fuser_of(context_module.context()).decisions[before:]
        return {
            "stock": values[0],
            "ours": values[1],
            "traces": step.experimental_get_tracing_count(),
            "fused": [len(one.outline.clusters) for one in found],
        }

    scripted.give({one.__name__: compared(one) for one in (devices, names, iterators)})


if __name__ == "__main__":
    _main()
