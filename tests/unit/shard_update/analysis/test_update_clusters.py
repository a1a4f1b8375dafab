# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What of an update is sharded, on functions made by hand."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.shard_update.update_jobs import PREFIX, Job, nodes_of, reduce_over
from tf_fuse.sharded_variable.shard_spec import window


def _momentum(job, dw, dv):
    dw, dv = job.packed(dw, dv)
    job.m.assign(0.9 * job.m + dw)
    # Whoever reads all of a weight is not a part of its update.
    total = tf.cumsum(job.w)
    job.w.assign_sub(0.1 * job.m)
    job.v.assign_sub(0.1 * dv)
    return total


def test_momentum_is_sharded():
    job = Job(_momentum)
    plan = job.plan()
    (bucket,) = plan.buckets
    assert bucket.reason is None
    assert [cluster.reason for cluster in bucket.clusters] == [None, None]
    assert [cluster.shape for cluster in bucket.clusters] == [(4, 3), (5,)]
    assert [(len(f.slots), len(f.weights)) for f in bucket.clusters] == [(1, 1), (0, 1)]
    (slot,) = plan.shards
    # All 17 elements fill one chunk of the ring, which is the first rank's.
    assert (slot.begin, slot.end, slot.own, slot.shape) == (0, 12, (0, 12), (4, 3))
    assert slot.shared_name == PREFIX + "0"
    (slot,) = job.plan(rank=1).shards
    assert (slot.begin, slot.end, slot.own) == (12, 12, (12, 12))


def test_the_new_function_has_the_old_names():
    job = Job(_momentum)
    old, new = job.function.function_def, job.plan().function
    assert new.signature == old.signature
    assert new.ret == old.ret
    assert new.control_ret == old.control_ret
    left = {node.name for node in new.node_def}
    gone = {node.name: node.op for node in old.node_def if node.name not in left}
    assert sorted(gone.values()) == ["ConcatV2", "SplitV"]
    used = {i.lstrip("^").partition(":")[0] for node in new.node_def for i in node.input}
    assert not used & gone.keys()
    ops = [node.op for node in new.node_def]
    assert ops.count("TfFuse>ReduceScatter") == ops.count("TfFuse>AllGather") == 1
    assert "CollectiveReduceV2" not in ops
    # Who has the new weights knows that the slots of all are written.
    (gather,) = [node for node in new.node_def if node.op == "TfFuse>AllGather"]
    slot = job.plan().shards[0].argument
    (assign,) = [n.name for n in old.node_def if n.op.startswith("Assign") and n.input[0] == slot]
    assert f"^{assign}" in gather.input
    # Each variable has one writer, as before.
    assert sum(op.startswith("Assign") for op in ops) == 3


def test_one_gradient_is_sharded_and_another_left_alone():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        total = tf.cumsum(job.w)
        job.w.assign_sub(0.1 * dw)
        job.v.assign_sub(tf.cumsum(dv))
        return total

    plan = Job(body).plan()
    assert [cluster.reason for cluster in plan.buckets[0].clusters] == [None, "not_elementwise"]
    (gather,) = nodes_of(plan, "TfFuse>AllGather")
    (reduce,) = nodes_of(plan, "TfFuse>ReduceScatter")
    # The one's new weight, and the other's gradient.
    assert gather.input[0] != f"{reduce.name}:shards:0"
    assert gather.input[1] == f"{reduce.name}:shards:1"
    assert nodes_of(plan, "TfFuse>AllReduce") == []


def test_a_gradient_that_is_left_alone_comes_early_for_who_waits_for_it():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        total = tf.cumsum(job.w)
        job.w.assign_sub(dw * tf.cumsum(dv)[0])
        return total

    plan = Job(body).plan()
    assert [cluster.reason for cluster in plan.buckets[0].clusters] == [None, "not_elementwise"]
    (early,) = nodes_of(plan, "TfFuse>AllReduce")
    assert early.attr["N"].i == 1
    # Whoever reads the gradient reads the whole one.
    (cumsum,) = [n for n in nodes_of(plan, "Cumsum") if n.input[0].startswith(early.name)]
    assert cumsum.input[0] == f"{early.name}:outputs:0"


def test_the_decay_of_a_weight_is_a_part_of_its_update():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        total = tf.cumsum(job.w)
        job.w.assign_sub(job.w * 0.01)
        job.m.assign(0.9 * job.m + dw * job.w)
        job.w.assign_sub(0.1 * job.m)
        return total

    job = Job(body)
    plan = job.plan()
    cluster = plan.buckets[0].clusters[0]
    assert (cluster.reason, cluster.exact, len(cluster.chain)) == (None, True, 2)
    # (The decay reads what it was before.)
    assert list(cluster.versions.values()) == [0]
    decay, last = cluster.chain
    kept = {node.name: node.op for node in plan.function.node_def}
    assert (kept[decay], kept[last]) == ("NoOp", "AssignVariableOp")
    assert [kept[read] for read in cluster.versions] == ["NoOp"]


def test_a_decay_that_others_see_stays_whole():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        job.w.assign_sub(job.w * 0.01)
        total = tf.cumsum(job.w)
        job.w.assign_sub(0.1 * dw)
        return total

    plan = Job(body).plan()
    cluster = plan.buckets[0].clusters[0]
    assert (cluster.reason, len(cluster.chain), cluster.versions) == (None, 1, {})
    assert len(nodes_of(plan, "AssignSubVariableOp")) == 1


def test_what_a_new_weight_is_read_for():
    """An average of it is sharded, and reads the part; others read it whole."""

    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        before = tf.cumsum(job.w)
        job.w.assign_sub(dw)
        job.m.assign(0.9 * job.m + 0.1 * job.w)
        return before + tf.cumsum(job.w.read_value())

    cluster = Job(body).plan().buckets[0].clusters[0]
    assert (cluster.reason, len(cluster.slots), len(cluster.versions)) == (None, 1, 1)


def test_a_call_that_reads_the_weight_before_the_update():
    @tf.function(autograph=False)
    def forward(job):
        return tf.cumsum(job.w)

    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        total = forward(job)
        job.w.assign_sub(dw)
        return total

    cluster = Job(body).plan().buckets[0].clusters[0]
    assert (cluster.reason, len(cluster.weights)) == (None, 1)


def test_a_call_that_changes_the_weight():
    @tf.function(autograph=False)
    def change(job):
        job.w.assign(tf.cumsum(job.w))

    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        change(job)
        job.w.assign_sub(dw)

    cluster = Job(body).plan().buckets[0].clusters[0]
    assert cluster.reason == "escapes"


def test_sums_are_reduced_together():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        seen = tf.cumsum(job.w), tf.cumsum(job.v)
        norm = tf.linalg.global_norm([dw, dv])
        dw, dv = dw / norm, dv / norm
        # The second sums wait for the first ones.
        job.w.assign_sub(dw / tf.reduce_sum(dw))
        job.v.assign_sub(dv / tf.reduce_max(dv))
        return seen

    plan = Job(body).plan()
    clusters = plan.buckets[0].clusters
    assert [(cluster.reason, cluster.exact) for cluster in clusters] == [(None, False)] * 2
    reduces = sorted(nodes_of(plan, "TfFuse>AllReduce"), key=lambda node: node.name)
    assert [node.attr["N"].i for node in reduces] == [2, 2]
    assert len({node.attr["tag"].s for node in reduces}) == 2


@pytest.mark.parametrize(
    ("reduce", "is_exact"),
    [
        (tf.reduce_max, True),
        (tf.reduce_sum, False),
        (tf.norm, False),
        (lambda x: tf.cast(tf.reduce_all(x > 0.0), tf.float32), True),
    ],
)
def test_which_reductions_keep_bits(reduce, is_exact):
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        seen = tf.cumsum(job.w)
        job.w.assign_sub(dw / reduce(dw))
        return seen

    job = Job(body)
    cluster = job.plan().buckets[0].clusters[0]
    assert (cluster.reason, cluster.exact) == (None, is_exact)
    cluster = job.plan(exact=True).buckets[0].clusters[0]
    assert cluster.reason == (None if is_exact else "not_exact")


@pytest.mark.parametrize(("size", "reason"), [(1, "not_exact"), (2, None)])
def test_a_product_of_three_numbers_does_not_keep_bits(size, reason):
    """Grappler multiplies numbers, which have one element each, in the order of their names."""
    weight, rate = tf.Variable(tf.ones([size])), tf.Variable(0.1)

    def body(job, dw, dv):
        reduced = reduce_over(tf.concat([tf.reshape(dw, [-1]), dv[:size]], 0))
        a, b = tf.split(reduced, [12, size])
        job.w.assign_sub(tf.reshape(a, [4, 3]))
        weight.assign_sub(weight * 0.004 * rate)
        weight.assign_sub(b * rate)

    job = Job(body)
    for exact, expected in ((False, None), (True, reason)):
        (bucket,) = job.plan(exact=exact).buckets
        assert [cluster.reason for cluster in bucket.clusters] == [None, expected]


def test_a_sum_that_is_returned_does_not_keep_bits():
    """All that is assigned does; the sum is of sums of parts."""

    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        seen = tf.cumsum(job.w)
        job.m.assign_add(dw)
        total = tf.reduce_sum(job.m)
        job.w.assign_sub(job.m)
        job.v.assign_sub(dv)
        return seen, total

    job = Job(body)
    clusters = job.plan().buckets[0].clusters
    assert [(one.reason, one.exact) for one in clusters] == [(None, False), (None, True)]
    cluster = job.plan(exact=True).buckets[0].clusters[0]
    assert cluster.exact and not cluster.reductions


def _momentum_operation(job, delta, lr):
    tf.raw_ops.ResourceApplyMomentum(
        var=job.w.handle, accum=job.m.handle, lr=lr, grad=delta, momentum=0.9
    )


def test_an_operation_that_updates_a_variable():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        seen = tf.cumsum(job.w)
        _momentum_operation(job, dw, 0.1)
        return seen

    job = Job(body)
    plan = job.plan()
    cluster = plan.buckets[0].clusters[0]
    assert (cluster.reason, len(cluster.slots), len(cluster.weights)) == (None, 1, 1)
    (apply,) = nodes_of(plan, "ResourceApplyMomentum")
    (operation,) = (n for n in job.function.function_def.node_def if n.op == apply.op)
    nodes = {node.name: node for node in plan.function.node_def}
    # It gets variables of the function's own, and where it was, the new weight is assigned.
    handles = [nodes[name.partition(":")[0]] for name in apply.input[:2]]
    assert [handle.op for handle in handles] == ["VarHandleOp"] * 2
    assert len({handle.attr["shared_name"].s for handle in handles}) == 2
    assert nodes[operation.name].op == "AssignVariableOp"
    assert nodes[operation.name].input[0] == operation.input[0]


def test_an_operation_with_a_local_learning_rate():
    def body(job, dw, dv):
        local = dw[0, 0]
        dw, dv = job.packed(dw, dv)
        _momentum_operation(job, dw, local)

    assert Job(body).plan().buckets[0].clusters[0].reason == "not_replicated"


def test_an_operation_whose_slot_is_read():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        _momentum_operation(job, dw, 0.1)
        return job.m.read_value()

    assert Job(body).plan().buckets[0].clusters[0].reason == "assigned_twice"


def test_a_tensor_that_is_broadcast():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        seen = tf.cumsum(job.w)
        job.w.assign_sub(dw * tf.constant([1.0, 2.0, 3.0]))
        return seen

    plan = Job(body).plan()
    assert plan.buckets[0].clusters[0].reason is None
    assert len(nodes_of(plan, "BroadcastTo")) == 1


@settings(deadline=None)
@given(size=st.integers(1, 2000), cut=st.integers(0, 2000), length=st.integers(0, 2000))
def test_windows_keep_what_fills_a_register(size, cut, length):
    own = min(cut, size), min(cut + length, size)
    begin, end = window(own, size)
    if own[0] == own[1]:
        assert (begin, end) == own
        return
    assert begin <= own[0] < own[1] <= end <= size
    assert begin % 64 == 0
    assert own[0] - begin < 64 or end - own[0] == 1
    # One element of several would look like a scalar.
    assert end - begin > 1 or size == 1
    # Either whole registers, or the end of the tensor.
    assert end == size or (end % 64 == 0 and end - own[1] < 64)
