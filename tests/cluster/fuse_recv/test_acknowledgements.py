# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A call ends when the servers' updates have ended, though the worker does not wait for them."""

import sys

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster


def test_a_call_ends_after_updates_that_take_long():
    case = coordinator.run(__file__, "on")["updates"]
    assert case["values"] == [1.0, 2.0, 3.0]
    assert case["dropped"] == [1]
    assert case["receives"] == {"fused_rpcs": 0, "single_rpcs": 0}


def _main(mode):
    import tensorflow as tf

    import tf_fuse

    job = coordinator.Job(mode, 1, 1)
    count, factor = job.variables([0.0, tf.fill([600, 600], 1 / 600)], trainable=False)

    def updates():
        @tf.function
        def step(number):
            with tf.device(count.device):
                product = factor.read_value()
                for _ in range(40):
                    product = product @ factor
                count.assign_add(tf.round(tf.reduce_mean(product) * 600))
            return number * 2.0

        values = []
        for _ in range(3):
            job.coordinator.schedule(step, args=(tf.constant(1.0),))
            job.coordinator.join()
            values.append(float(count.numpy()))
        worker = tf_fuse.cluster_metrics()["/job:worker/replica:0/task:0"]
        reports = [one for of in tf_fuse.cluster_reports().values() for one in of]
        return {
            "values": values,
            "dropped": [len(one.get("dropped", ())) for one in reports],
            "receives": {name: worker[name] for name in ("fused_rpcs", "single_rpcs")},
        }

    coordinator.finish({"updates": updates})


if __name__ == "__main__":
    _main(*sys.argv[1:])
