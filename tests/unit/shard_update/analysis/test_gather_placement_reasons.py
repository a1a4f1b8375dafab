# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Why weights are gathered at the end of the step, and not before their first use."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tests.unit.shard_update.gather_jobs import Job, plain, update_both
from tests.unit.shard_update.update_jobs import reduce_over
from tf_fuse.shard_update.analysis.gather_placement import gather_last
from tf_fuse.shard_update.plan import GATHER_REASONS


def _read_behind(job, x, y):
    loss = tf.cumsum(job.w)
    update_both(job, x, y)
    return loss + tf.cumsum(job.w)


def _not_read(job, x, y):
    update_both(job, x, y)


def _called(job, x, y):
    @tf.function(autograph=False)
    def inner(z):
        return tf.cumsum(job.w) * z

    loss = inner(x)
    update_both(job, x, y)
    return loss


def _in_branch(job, x, y):
    loss = tf.cumsum(job.w)
    total = reduce_over(x)
    finite = tf.reduce_all(total < 1e9)

    def apply():
        job.m.assign(0.9 * job.m + total)
        job.w.assign_sub(0.1 * job.m)
        return 0.0

    tf.cond(finite, apply, lambda: 0.0)
    return loss


def _shape_is_read(job, x, y):
    loss = tf.cumsum(job.w)
    shape = tf.raw_ops.VariableShape(input=job.w.handle)
    update_both(job, x, y)
    return loss, shape


def _is_asked_for(job, x, y):
    loss = tf.cumsum(job.w)
    known = tf.raw_ops.VarIsInitializedOp(resource=job.w.handle)
    update_both(job, x, y)
    return loss, known


def _two_updates(job, x, y):
    loss = tf.cumsum(job.w)
    job.w.assign_sub(0.1 * reduce_over(x, key=1))
    job.w.assign_sub(0.2 * reduce_over(x * loss, key=2))
    return loss


def _waits(job, x, y):
    loss = tf.cumsum(job.w)
    job.w.assign(job.w * 0.9)
    with tf.control_dependencies([job.w.assign(job.w * 1.0)]):
        x = tf.identity(x)
    total = reduce_over(x)
    job.w.assign_sub(0.1 * total)
    return loss


def _read_outside(job, x, y):
    loss = tf.cumsum(job.w)

    @tf.function(autograph=False)
    def update(x, y):
        seen = tf.cumsum(job.w)
        update_both(job, x, y)
        return seen

    return update(x, y) + loss


_REASONS = {
    "assigned_elsewhere": (_two_updates, "w"),
    "cycle": (_waits, "w"),
    "escapes": (_is_asked_for, "w"),
    "not_read": (_not_read, "w"),
    "read_after_update": (_read_behind, "w"),
    "read_in_function": (_called, "w"),
    "used_outside": (_read_outside, "w"),
}


def test_each_reason_has_a_test():
    # Of "returned", nothing that `tf.function` traces: it returns what an `Identity` makes.
    assert _REASONS.keys() | {"in_branch", "in_groups", "returned"} == GATHER_REASONS.keys()


def test_replicas_in_groups_gather_at_the_end():
    job = Job(plain, groups=2)
    assert job.verify() == ""
    gather = job.gather_of("w")
    assert (gather.is_first, gather.reason) == (False, "in_groups")


@pytest.mark.parametrize("reason", sorted(_REASONS))
def test_reasons(reason):
    body, variable = _REASONS[reason]
    job = Job(body)
    assert job.verify() == ""
    gather = job.gather_of(variable)
    assert (gather.is_first, gather.reason) == (False, reason), gather
    assert gather.detail
    # It is whole, and assigned so.
    assert job.name_of[variable] not in {slot.argument for slot in job.plan.shards}


def test_the_value_of_a_weight_is_returned():
    def body(job, x, y):
        value = tf.raw_ops.ReadVariableOp(resource=job.w.handle, dtype=tf.float32)
        with tf.control_dependencies([value]):
            update_both(job, x, y)
        return value

    job = Job(body)
    assert job.verify() == ""
    assert job.gather_of("w").is_first
    # What tells the group waits for the read, and that for what is gathered.
    constants = [
        n for n in job.rewritten.node_def if n.name.startswith("CollectiveReduceV2/tf_fuse")
    ]
    groups = [n for n in constants if "/group_" in n.name]
    assert [node.op for node in groups] == ["Const"] * 3
    assert not any(node.input for node in groups)


def test_shapes_that_are_read_of_a_variable():
    gather = Job(_shape_is_read).gather_of("w")
    assert (gather.reason, gather.detail) == ("escapes", "VariableShape (VariableShape)")


def test_an_update_in_a_branch():
    job = Job(_in_branch)
    assert job.verify() == ""
    (cluster,) = job.plan.buckets[0].clusters
    assert (cluster.gather.is_first, cluster.gather.reason) == (False, "in_branch")
    assert cluster.reason is None


def test_a_function_that_is_called_can_have_all_of_it():
    def body(job, x, y):
        @tf.function(autograph=False)
        def update(x, y):
            seen = tf.cumsum(job.w)
            update_both(job, x, y)
            return seen

        return update(x, y)

    job = Job(body)
    assert job.verify() == ""
    (bucket,) = job.plan.buckets
    assert [cluster.gather.is_first for cluster in bucket.clusters] == [True, False]
    # Only the update uses the other one, so that is a slot.
    assert (bucket.clusters[1].weights, len(bucket.clusters[1].slots)) == ((), 1)
    assert job.name_of["w"] in {slot.argument for slot in job.plan.shards}


def test_packs_that_would_wait_for_each_other():
    job = Job(plain)
    clusters = job.plan.buckets[0].clusters
    assert [cluster.gather.is_first for cluster in clusters] == [True, True]
    (bucket,) = gather_last(job.plan.buckets)
    assert [cluster.gather.is_first for cluster in bucket.clusters] == [False, False]
    assert [cluster.gather.reason for cluster in bucket.clusters] == ["cycle", "cycle"]
