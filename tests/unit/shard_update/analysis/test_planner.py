# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What of an update is sharded in functions that are called, branches and loops."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tests.unit.shard_update.update_jobs import Job, nodes_of, reduce_over


def _branch(job, dw, dv):
    def update():
        a, b = job.packed(dw, dv)
        job.m.assign(0.9 * job.m + a)
        job.w.assign_sub(job.m)
        job.v.assign_sub(b)

    seen = tf.cumsum(job.w)
    # Replicas do not agree; but where some reduce, all do.
    tf.cond(dw[0, 0] > 0.0, update, lambda: None)
    return seen


def _called(job, dw, dv):
    @tf.function(autograph=False)
    def update(dw, dv):
        a, b = job.packed(dw, dv)
        job.m.assign(0.9 * job.m + a)
        job.w.assign_sub(job.m)
        job.v.assign_sub(b)

    seen = tf.cumsum(job.w)
    update(dw, dv)
    return seen


def _loop(job, dw, dv):
    def update(i):
        a, b = job.packed(dw * tf.cumsum(job.w), dv)
        job.m.assign(0.9 * job.m + a)
        job.w.assign_sub(job.m)
        job.v.assign_sub(b)
        return (i + 1,)

    tf.while_loop(lambda i: i < 3, update, (0,))


@pytest.mark.parametrize("body", [_branch, _called, _loop])
def test_updates_in_functions_that_are_called(body):
    job = Job(body)
    plan = job.plan()
    (bucket,) = plan.buckets
    assert [cluster.reason for cluster in bucket.clusters] == [None, None]
    (new,) = plan.functions
    assert bucket.function != new.signature.name
    callers = [n for n in plan.function.node_def if new.signature.name in str(n.attr)]
    assert len(callers) == 1
    assert [n.op for n in new.node_def].count("TfFuse>AllGather") == 1
    # The slot is known by the argument of the function that was planned.
    (slot,) = plan.shards
    signature = job.function.function_def.signature
    names = [argument.name for argument in signature.input_arg]
    captured = dict(zip(names[2:], job.function.captured_inputs, strict=True))
    assert captured[slot.argument] is job.m.handle
    # So are the weights, for the report.
    assert [captured[one] for f in bucket.clusters for one in f.updated] == [
        job.w.handle,
        job.v.handle,
    ]
    assert plan.function.signature == signature


def _reduced_inside(job, dw, dv):
    """Functions that return what they reduce: of one an update is made, of the other a result."""
    used = tf.function(lambda: job.packed(dw, dv)[0], autograph=False)
    shown = tf.function(lambda: reduce_over(dv), autograph=False)
    job.w.assign_sub(tf.cumsum(used()))
    return shown()


def _reduced_in_a_loop(job, dw, dv):
    """What an iteration reduces, the next one assigns; the other sum is for people."""

    def body(i, late, shown):
        job.w.assign_sub(tf.cumsum(late))
        return i + 1, reduce_over(dw), shown + reduce_over(dv)

    return tf.while_loop(lambda i, *_: i < 3, body, (0, dw, dv))[2]


@pytest.mark.parametrize("body", [_reduced_inside, _reduced_in_a_loop])
def test_what_is_reduced_in_a_function_and_shown_is_no_gradient(body):
    plan = Job(body).plan()
    by_size = {
        cluster.size: cluster.reason for bucket in plan.buckets for cluster in bucket.clusters
    }
    assert by_size.keys() == {12, 5}
    assert by_size[12] == "returned"
    assert by_size[5] == "no_update"


def test_a_branch_behind_the_all_reduce():
    """As loss scaling has it: if all gradients are finite, they are applied."""

    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        seen = tf.cumsum(job.w)
        finite = [tf.reduce_all(tf.math.is_finite(one)) for one in (dw, dv)]

        def update():
            job.m.assign(0.9 * job.m + dw)
            job.w.assign_sub(job.m)
            job.v.assign_sub(dv / tf.norm(dv))

        tf.cond(tf.reduce_all(finite), update, lambda: None)
        return seen

    plan = Job(body).plan()
    (bucket,) = plan.buckets
    told = [(cluster.reason, cluster.exact) for cluster in bucket.clusters]
    assert told == [(None, True), (None, False)]
    assert len(plan.shards) == 1
    (cond,) = nodes_of(plan, "If")
    assert len(cond.attr["Tin"].list.type) + 1 == sum(not i.startswith("^") for i in cond.input)
    branches = {function.signature.name: function for function in plan.functions}
    ops = {
        key: [node.op for node in branches[cond.attr[key].func.name].node_def]
        for key in ("then_branch", "else_branch")
    }
    assert [ops[key].count("TfFuse>AllGather") for key in sorted(ops)] == [0, 1]
    # Whether they are finite, and the norm: their keys differ.
    reduces = [
        node
        for function in (plan.function, *plan.functions)
        for node in function.node_def
        if node.op == "TfFuse>AllReduce"
    ]
    assert [node.attr["N"].i for node in reduces] == [2, 1]
    assert len({node.attr["tag"].s for node in reduces}) == 2
    assert nodes_of(plan, "TfFuse>AllGather") == []


def test_a_branch_that_has_a_part_of_the_updates():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        seen = tf.cumsum(job.w), tf.cumsum(job.v)
        tf.cond(tf.reduce_all(dw > 0.0), lambda: job.w.assign_sub(dw), lambda: job.w.assign(job.w))
        job.v.assign_sub(dv)
        return seen

    plan = Job(body).plan()
    assert [cluster.reason for cluster in plan.buckets[0].clusters] == ["in_branch", None]
    assert plan.functions == ()


def test_a_branch_that_replicas_may_not_agree_on():
    def body(job, dw, dv):
        local = dw[0, 0]
        dw, dv = job.packed(dw, dv)

        def update():
            job.w.assign_sub(dw)
            job.v.assign_sub(dv)

        tf.cond(local > 0.0, update, lambda: None)

    plan = Job(body).plan()
    assert [cluster.reason for cluster in plan.buckets[0].clusters] == ["not_replicated"] * 2


def test_a_slot_that_the_caller_reads_is_none():
    def body(job, dw, dv):
        _called(job, dw, dv)
        return job.m.read_value()

    plan = Job(body).plan()
    assert plan.buckets[0].clusters[0].reason == "several_weights"
    assert plan.buckets[0].clusters[1].reason is None


def test_a_function_whose_graph_is_not_known():
    job = Job(_called)
    (name,) = job.function.graph._functions
    del job.function.graph._functions[name]
    (bucket,) = job.plan().buckets
    assert (bucket.reason, bucket.detail) == ("nested", name)
