# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each reason to leave an update alone, on functions made by hand."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tests.unit.shard_update.update_jobs import Job, reduce_over
from tf_fuse.shard_update.plan import REASONS


def _few(job, dw, dv):
    dw, dv = job.packed(dw, dv, count=1)
    job.w.assign_sub(dw)


def _whole(job, dw, dv):
    bucket = reduce_over(tf.concat([tf.reshape(dw, [-1]), dv], 0))
    job.w.assign_sub(tf.reshape(bucket[:12], [4, 3]) / tf.norm(bucket))


def _unused(job, dw, dv):
    job.packed(dw, dv)


def _loss(job, dw, dv):
    dw, dv = job.packed(dw, dv)
    return 2.0 * dw, tf.matmul(tf.reshape(dv, [1, 5]), tf.ones([5, 1]))


def _whole_loss(job, dw, dv):
    return tf.norm(reduce_over(tf.concat([tf.reshape(dw, [-1]), dv], 0)))


def _what_decides(job, dw, dv):
    dw, dv = job.packed(dw, dv)
    is_large = tf.norm(dw) > 1.0
    job.v.assign(tf.cond(is_large, lambda: tf.ones([5]), lambda: tf.zeros([5])))
    return tf.cond(is_large, lambda: tf.cumsum(dv), lambda: dv)


def _updated_in_branch(job, dw, dv):
    dw, dv = job.packed(dw, dv)
    return tf.cond(tf.norm(dv) > 1.0, lambda: job.w.assign_sub(tf.cumsum(dw)), lambda: job.w + 1.0)


def _matmul(job, dw, dv):
    dw, _ = job.packed(dw, dv)
    job.w.assign_sub(tf.matmul(dw, tf.ones([3, 3])))


def _local(job, dw, dv):
    whole, _ = job.packed(dw, dv)
    job.w.assign_sub(whole + dw)


def _returned(job, dw, dv):
    dw, _ = job.packed(dw, dv)
    job.w.assign_sub(dw)
    return 2.0 * dw


def _again(job, dw, dv):
    dw, _ = job.packed(dw, dv)
    job.w.assign_sub(dw)
    seen = tf.cumsum(job.w)
    job.w.assign_sub(2.0 * dw)
    return seen


def _twice(job, dw, dv):
    dw, _ = job.packed(dw, dv)
    total = tf.cumsum(job.w)
    job.w.assign_sub(dw)
    tf.raw_ops.ResourceApplyGradientDescent(var=job.w.handle, alpha=0.5, delta=tf.ones([4, 3]))
    job.w.assign_sub(2.0 * dw)
    return total


def _two_weights(job, dw, dv):
    dw, _ = job.packed(dw, dv)
    total = tf.cumsum(job.w) + tf.cumsum(job.m)
    job.w.assign_sub(dw)
    job.m.assign_sub(dw)
    return total


def _scattered(job, dw, dv):
    dw, _ = job.packed(dw, dv)
    job.w.assign_sub(dw)
    tf.raw_ops.ResourceScatterAdd(resource=job.w.handle, indices=[0], updates=tf.ones([1, 3]))


def _handle(job, dw, dv):
    dw, _ = job.packed(dw, dv)
    job.w.assign_sub(dw)
    return job.w.handle


def _other_type(job, dw, dv):
    dw = tf.reshape(reduce_over(tf.cast(tf.reshape(dw, [-1]), tf.bfloat16)), [4, 3])
    total = tf.cumsum(job.w)
    job.w.assign_sub(tf.cast(dw, tf.float32))
    return total


def _shared(job, dw, dv):
    bucket = tf.concat([tf.reshape(dw, [-1]), tf.reshape(dw, [-1])], 0)
    a, b = tf.split(reduce_over(bucket), [12, 12])
    total = tf.cumsum(job.w)
    job.w.assign_sub(tf.reshape(a * b, [4, 3]))
    return total


def _slot_last(job, dw, dv):
    dw, dv = job.packed(dw, dv)
    total = tf.cumsum(job.w)
    with tf.control_dependencies([job.w.assign_sub(dw)]):
        job.m.assign(0.9 * job.m + dw)
    return total


def _fed_forward(job, dw, dv):
    dw, dv = job.packed(dw, dv)
    total = tf.cumsum(job.w) + tf.reduce_max(tf.cumsum(job.v))
    job.w.assign_sub(dw)
    job.v.assign_sub(dv * tf.reduce_max(tf.cumsum(job.w)))
    return total


def _differing(job, dw, dv):
    whole, _ = job.packed(dw, dv)
    job.m.assign_add(dw)
    job.m.assign_add(whole)


@pytest.mark.parametrize(
    ("body", "reasons"),
    [
        (_few, "not_all_replicas"),
        (_whole, "read_whole"),
        (_unused, ["no_update", "no_update"]),
        (_loss, ["no_update", "no_update"]),
        (_whole_loss, "no_update"),
        (_what_decides, ["no_update", "no_update"]),
        (_updated_in_branch, ["in_branch", "no_update"]),
        (_matmul, ["not_elementwise", "no_update"]),
        (_local, ["not_replicated", "no_update"]),
        (_returned, ["returned", "no_update"]),
        (_again, ["read_after_update", "no_update"]),
        (_twice, ["assigned_twice", "no_update"]),
        (_two_weights, ["several_weights", "no_update"]),
        (_scattered, ["not_replicated", "no_update"]),
        (_handle, ["escapes", "no_update"]),
        (_other_type, ["other_type"]),
        (_differing, ["not_replicated", "no_update"]),
        (_slot_last, ["waits_for_weight", "no_update"]),
    ],
)
def test_reasons(body, reasons):
    plan = Job(body).plan()
    (bucket,) = plan.buckets
    found = bucket.reason or [cluster.reason for cluster in bucket.clusters]
    assert found == reasons
    assert {found} if isinstance(found, str) else set(found) <= REASONS.keys()
    assert plan.function is None
    assert plan.shards == ()


def test_a_shape_that_is_not_known():
    def body(job, dw, dv):
        job.w.assign_sub(reduce_over(dw))

    (bucket,) = Job(body, spec=(None, 3)).plan().buckets
    assert (bucket.reason, bucket.clusters) == ("unknown_shape", ())


@pytest.mark.parametrize(
    ("body", "reasons"),
    [(_shared, [None, "shared"]), (_fed_forward, [None, "waits_for_weight"])],
)
def test_reasons_to_leave_one_of_two(body, reasons):
    plan = Job(body).plan()
    assert [cluster.reason for cluster in plan.buckets[0].clusters] == reasons
    assert set(reasons) - {None} <= REASONS.keys()
    assert plan.function is not None


def test_packs_that_would_wait_for_each_other():
    """Each has a gradient whose update needs the other's new weight."""

    def body(job, dw, dv):
        job.a = [tf.Variable(tf.zeros([5])) for _ in range(4)] if job.a is None else job.a
        first, second, third, fourth = job.a
        buckets = [tf.split(reduce_over(tf.concat([dv, dv + i], 0)), [5, 5]) for i in range(2)]
        seen = sum(tf.cumsum(variable) for variable in job.a)
        first.assign_sub(buckets[0][0])
        third.assign_sub(buckets[1][0])
        second.assign_sub(buckets[0][1] * tf.cumsum(third.read_value())[0])
        fourth.assign_sub(buckets[1][1] * tf.cumsum(first.read_value())[0])
        return seen

    plan = Job(body).plan()
    assert [bucket.reason for bucket in plan.buckets] == [None, "cycle"]
    assert plan.buckets[0].clusters[1].reason is None
    assert [node.op for node in plan.function.node_def].count("TfFuse>AllGather") == 1
