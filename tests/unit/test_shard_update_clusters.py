# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What of an update is cut, and each reason to leave it alone, on functions made by hand."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_fuse.shard_update.clusters import REASONS
from tf_fuse.shard_update.plan import Replicas, make_plan
from tf_fuse.shard_update.rewrite import window

_REPLICAS = 2
_PREFIX = "parts/"


def _reduce(x, count=_REPLICAS):
    return tf.raw_ops.CollectiveReduceV2(
        input=x, group_size=count, group_key=1, instance_key=1, ordering_token=[],
        merge_op="Add", final_op="Id",
    )  # fmt: skip


class _Job:
    """Two weights and a slot, and functions of their gradients."""

    def __init__(self, body, spec=(4, 3)):
        self.w, self.v = tf.Variable(tf.zeros([4, 3])), tf.Variable(tf.zeros([5]))
        self.m = tf.Variable(tf.zeros([4, 3]))

        @tf.function(autograph=False, input_signature=[tf.TensorSpec(spec), tf.TensorSpec([5])])
        def function(dw, dv):
            return body(self, dw, dv)

        self.function = function.get_concrete_function()

    def packed(self, dw, dv, count=_REPLICAS):
        """The reduced gradients, as a strategy has them."""
        pack = tf.concat([tf.reshape(dw, [-1]), tf.reshape(dv, [-1])], 0)
        a, b = tf.split(_reduce(pack, count), [12, 5])
        return tf.reshape(a, [4, 3]), b

    def plan(self, rank=0):
        definition = self.function.function_def
        names = [argument.name for argument in definition.signature.input_arg]
        variables = names[2:]
        plan = make_plan(
            definition,
            self.function.graph,
            lambda name: None,
            Replicas(_REPLICAS, rank),
            variables,
            _PREFIX,
        )
        return plan


def _momentum(job, dw, dv):
    dw, dv = job.packed(dw, dv)
    job.m.assign(0.9 * job.m + dw)
    # Whoever reads all of a weight is no part of its update.
    total = tf.reduce_sum(job.w)
    job.w.assign_sub(0.1 * job.m)
    job.v.assign_sub(0.1 * dv)
    return total


def test_momentum_is_cut():
    job = _Job(_momentum)
    plan = job.plan()
    (pack,) = plan.packs
    assert pack.reason is None
    assert [family.reason for family in pack.families] == [None, None]
    assert [family.shape for family in pack.families] == [(4, 3), (5,)]
    assert [(len(f.slots), len(f.weights)) for f in pack.families] == [(1, 1), (0, 1)]
    (slot,) = plan.slots
    # All 17 elements fill one chunk of the ring, which is the first rank's.
    assert (slot.begin, slot.end, slot.own, slot.shape) == (0, 12, (0, 12), (4, 3))
    assert slot.shared_name == _PREFIX + slot.argument
    (slot,) = job.plan(rank=1).slots
    assert (slot.begin, slot.end, slot.own) == (12, 12, (12, 12))


def test_the_new_function_has_the_old_names():
    job = _Job(_momentum)
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
    slot = job.plan().slots[0].argument
    (assign,) = [n.name for n in old.node_def if n.op.startswith("Assign") and n.input[0] == slot]
    assert f"^{assign}" in gather.input
    # Each variable has one writer, as before.
    assert sum(op.startswith("Assign") for op in ops) == 3


def _few(job, dw, dv):
    dw, dv = job.packed(dw, dv, count=1)
    job.w.assign_sub(dw)


def _whole(job, dw, dv):
    pack = _reduce(tf.concat([tf.reshape(dw, [-1]), dv], 0))
    job.w.assign_sub(tf.reshape(pack[:12], [4, 3]) / tf.norm(pack))


def _unused(job, dw, dv):
    job.packed(dw, dv)


def _matmul(job, dw, dv):
    dw, _ = job.packed(dw, dv)
    job.w.assign_sub(tf.matmul(dw, tf.ones([3, 3])))


def _norm(job, dw, dv):
    dw, _ = job.packed(dw, dv)
    job.w.assign_sub(dw / tf.norm(dw))


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
    job.v.assign(tf.reduce_sum(job.w) * tf.ones([5]))
    return tf.reduce_sum(job.w)


def _twice(job, dw, dv):
    dw, _ = job.packed(dw, dv)
    total = tf.reduce_sum(job.w)
    job.w.assign_sub(dw)
    job.w.assign_sub(2.0 * dw)
    return total


def _two_weights(job, dw, dv):
    dw, _ = job.packed(dw, dv)
    total = tf.reduce_sum(job.w) + tf.reduce_sum(job.m)
    job.w.assign_sub(dw)
    job.m.assign_sub(dw)
    return total


def _applied(job, dw, dv):
    dw, _ = job.packed(dw, dv)
    job.w.assign_sub(dw)
    tf.raw_ops.ResourceApplyGradientDescent(var=job.w.handle, alpha=0.5, delta=tf.ones([4, 3]))


def _differing(job, dw, dv):
    whole, _ = job.packed(dw, dv)
    job.m.assign_add(dw)
    job.m.assign_add(whole)


def _slot_last(job, dw, dv):
    dw, dv = job.packed(dw, dv)
    total = tf.reduce_sum(job.w)
    with tf.control_dependencies([job.w.assign_sub(dw)]):
        job.m.assign(0.9 * job.m + dw)
    return total


def _fed_back(job, dw, dv):
    dw, dv = job.packed(dw, dv)
    job.w.assign_sub(dw * tf.norm(dv))


@pytest.mark.parametrize(
    ("body", "reasons"),
    [
        (_few, "not_all_replicas"),
        (_whole, "read_whole"),
        (_unused, ["no_update", "no_update"]),
        (_matmul, ["not_elementwise", "no_update"]),
        (_norm, ["not_elementwise", "no_update"]),
        (_local, ["not_redundant", "no_update"]),
        (_returned, ["returned", "no_update"]),
        (_again, ["read_after_update", "no_update"]),
        (_twice, ["assigned_twice", "no_update"]),
        (_two_weights, ["several_weights", "no_update"]),
        (_applied, ["not_redundant", "no_update"]),
        (_differing, ["not_redundant", "no_update"]),
        (_slot_last, "waits_for_itself"),
        (_fed_back, "waits_for_itself"),
    ],
)
def test_reasons(body, reasons):
    plan = _Job(body).plan()
    (pack,) = plan.packs
    found = pack.reason or [family.reason for family in pack.families]
    assert found == reasons
    assert {found} if isinstance(found, str) else set(found) <= REASONS.keys()
    assert plan.function is None
    assert plan.slots == []


def test_a_shape_that_is_not_known():
    def body(job, dw, dv):
        job.w.assign_sub(_reduce(dw))

    (pack,) = _Job(body, spec=(None, 3)).plan().packs
    assert (pack.reason, pack.families) == ("unknown_shape", [])


def test_one_gradient_is_cut_and_another_left_alone():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        total = tf.reduce_sum(job.w)
        job.w.assign_sub(0.1 * dw)
        job.v.assign_sub(dv / tf.norm(dv))
        return total

    plan = _Job(body).plan()
    assert [family.reason for family in plan.packs[0].families] == [None, "not_elementwise"]
    (gather,) = [node for node in plan.function.node_def if node.op == "TfFuse>AllGather"]
    (reduce,) = [node for node in plan.function.node_def if node.op == "TfFuse>ReduceScatter"]
    # The one's new weight, and the other's gradient.
    assert gather.input[0] != f"{reduce.name}:shards:0"
    assert gather.input[1] == f"{reduce.name}:shards:1"


@settings(deadline=None)
@given(size=st.integers(1, 2000), cut=st.integers(0, 2000), length=st.integers(0, 2000))
def test_windows_keep_what_fills_a_register(size, cut, length):
    own = min(cut, size), min(cut + length, size)
    begin, end = window(own, size)
    if own[0] == own[1]:
        assert (begin, end) == own
        return
    assert begin <= own[0] < own[1] <= end <= size
    assert begin % 64 == 0 and own[0] - begin < 64
    # Either whole registers, or the end of the tensor.
    assert end == size or (end % 64 == 0 and end - own[1] < 64)
