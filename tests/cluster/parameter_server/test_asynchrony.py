# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What servers count of their updates: each worker's staleness, and how many there were."""

import sys

import pytest

from tests.fault import coordinator

pytestmark = pytest.mark.cluster

_SERVER = "/job:ps/replica:0/task:0"
_OTHERS = 5  # updates that are made while a step waits


@pytest.fixture(scope="module")
def cases():
    return coordinator.run(__file__)


def test_one_worker_after_the_other_has_fresh_values(cases):
    assert cases["in turn"]["updates"] == 3
    assert cases["in turn"]["staleness"] == [[0, 0, 3]]


def test_what_others_did_meanwhile_is_the_staleness(cases):
    report = cases["meanwhile"]
    assert report["errors"] == {}
    (server,) = report["servers"].values()
    assert list(report["servers"]) == [_SERVER]
    # Its momentum is a part of the same update, and the flags are not updates.
    ((name, variable),) = server["variables"].items()
    assert name.partition("/")[0] == "weight"
    assert variable["updates"] == server["updates"] == 3 + _OTHERS + 1
    late, others = sorted(report["workers"].values(), key=lambda worker: -worker["max_staleness"])
    assert late["max_staleness"] == _OTHERS
    assert others["max_staleness"] == 0
    updates = late["updates"] + others["updates"]
    assert updates == 3 + _OTHERS + 1
    total = sum(w["mean_staleness"] * w["updates"] for w in (late, others))
    assert total == pytest.approx(_OTHERS)
    assert all(name.startswith("/job:worker/replica:0/task:") for name in report["workers"])


def test_off_counts_nothing(cases):
    assert cases["off"] == cases["meanwhile"]["servers"][_SERVER]["updates"]


def _main():
    import tensorflow as tf

    import tf_fuse

    job = coordinator.Job("on", 2, 1)
    tf.config.optimizer.set_experimental_options({"fuse_weight_update": True})
    with job.strategy.scope():
        weight = tf.Variable(tf.ones([64]), name="weight")
        momentum = tf.Variable(tf.zeros([64]), name="momentum")
        # One says that the late step has begun, the other how many others have ended.
        begun = tf.Variable(0, name="begun")
        free = tf.Variable(0, name="free")

    def update(gradient):
        momentum.assign(0.9 * momentum + gradient)
        return weight.assign_sub(0.1 * momentum)

    @tf.function
    def step():
        # The late step goes on when it sees the last count: the update has been made by then.
        with tf.control_dependencies([update(tf.cos(weight))]):
            counted = free.assign_add(1)
        with tf.control_dependencies([counted]):
            return tf.constant(0)

    @tf.function
    def late_step(wait_for):
        gradient = tf.cos(weight)
        # (What has come from the server shows that the step has begun there.)
        with tf.control_dependencies([gradient]):
            begun.assign(1)
        waited = tf.constant(0.0)
        while free < wait_for:
            waited += 1.0
        update(gradient + 0.0 * waited)
        return waited

    @tf.function
    def has_begun():
        while begun < 1:
            pass
        return tf.constant(0)

    def in_turn():
        for _ in range(3):
            job.call(step)
        (worker,) = _only(tf_fuse.server_update_report()["workers"])
        return worker

    def _only(workers):
        merged = {"updates": 0, "staleness": []}
        for worker in workers.values():
            merged["updates"] += worker["updates"]
            merged["staleness"] += worker["staleness"]
        counts = {}
        for first, last, count in merged["staleness"]:
            counts[first, last] = counts.get((first, last), 0) + count
        merged["staleness"] = [[*key, counts[key]] for key in sorted(counts)]
        return [merged]

    def meanwhile():
        job.coordinator.schedule(late_step, args=(tf.constant(3 + _OTHERS),))
        job.coordinator.schedule(has_begun)
        # The worker that waits takes none of them.
        for _ in range(_OTHERS):
            job.coordinator.schedule(step)
        job.coordinator.join()
        return tf_fuse.server_update_report()

    def off():
        tf.config.optimizer.set_experimental_options({"fuse_weight_update": False})
        job.call(step)
        return tf_fuse.server_update_report()["servers"][_SERVER]["updates"]

    coordinator.finish({"in turn": in_turn, "meanwhile": meanwhile, "off": off})


if __name__ == "__main__":
    sys.exit(_main())
