# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What of an update is cut, and each reason to leave it alone, on functions made by hand."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_fuse.shard_update.families import REASONS
from tf_fuse.shard_update.plan import make_plan
from tf_fuse.shard_update.replicas import Replicas
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
        self.a = None

        @tf.function(autograph=False, input_signature=[tf.TensorSpec(spec), tf.TensorSpec([5])])
        def function(dw, dv):
            return body(self, dw, dv)

        self.function = function.get_concrete_function()

    def packed(self, dw, dv, count=_REPLICAS):
        """The reduced gradients, as a strategy has them."""
        pack = tf.concat([tf.reshape(dw, [-1]), tf.reshape(dv, [-1])], 0)
        a, b = tf.split(_reduce(pack, count), [12, 5])
        return tf.reshape(a, [4, 3]), b

    def plan(self, rank=0, exact=False):
        definition = self.function.function_def
        names = [argument.name for argument in definition.signature.input_arg]
        variables = names[2:]
        library = self.function.graph.as_graph_def().library
        functions = {function.signature.name: function for function in library.function}
        plan = make_plan(
            definition,
            self.function.graph,
            functions.get,
            Replicas(_REPLICAS, {"": rank}),
            variables,
            _PREFIX,
            exact=exact,
        )
        return plan


def _momentum(job, dw, dv):
    dw, dv = job.packed(dw, dv)
    job.m.assign(0.9 * job.m + dw)
    # Whoever reads all of a weight is no part of its update.
    total = tf.cumsum(job.w)
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
    assert slot.shared_name == _PREFIX + "0"
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
    dw = tf.reshape(_reduce(tf.cast(tf.reshape(dw, [-1]), tf.bfloat16)), [4, 3])
    total = tf.cumsum(job.w)
    job.w.assign_sub(tf.cast(dw, tf.float32))
    return total


def _shared(job, dw, dv):
    pack = tf.concat([tf.reshape(dw, [-1]), tf.reshape(dw, [-1])], 0)
    a, b = tf.split(_reduce(pack), [12, 12])
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
        (_matmul, ["not_elementwise", "no_update"]),
        (_local, ["not_redundant", "no_update"]),
        (_returned, ["returned", "no_update"]),
        (_again, ["read_after_update", "no_update"]),
        (_twice, ["assigned_twice", "no_update"]),
        (_two_weights, ["several_weights", "no_update"]),
        (_scattered, ["not_redundant", "no_update"]),
        (_handle, ["escapes", "no_update"]),
        (_other_type, ["other_type"]),
        (_differing, ["not_redundant", "no_update"]),
        (_slot_last, ["waits_for_weight", "no_update"]),
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


@pytest.mark.parametrize(
    ("body", "reasons"),
    [(_shared, [None, "shared"]), (_fed_forward, [None, "waits_for_weight"])],
)
def test_reasons_to_leave_one_of_two(body, reasons):
    plan = _Job(body).plan()
    assert [family.reason for family in plan.packs[0].families] == reasons
    assert set(reasons) - {None} <= REASONS.keys()
    assert plan.function is not None


def test_packs_that_would_wait_for_each_other():
    """Each has a gradient whose update needs the other's new weight."""

    def body(job, dw, dv):
        job.a = [tf.Variable(tf.zeros([5])) for _ in range(4)] if job.a is None else job.a
        first, second, third, fourth = job.a
        packs = [tf.split(_reduce(tf.concat([dv, dv + i], 0)), [5, 5]) for i in range(2)]
        seen = sum(tf.cumsum(variable) for variable in job.a)
        first.assign_sub(packs[0][0])
        third.assign_sub(packs[1][0])
        second.assign_sub(packs[0][1] * tf.cumsum(third.read_value())[0])
        fourth.assign_sub(packs[1][1] * tf.cumsum(first.read_value())[0])
        return seen

    plan = _Job(body).plan()
    assert [pack.reason for pack in plan.packs] == [None, "cycle"]
    assert plan.packs[0].families[1].reason is None
    assert [node.op for node in plan.function.node_def].count("TfFuse>AllGather") == 1


def test_one_gradient_is_cut_and_another_left_alone():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        total = tf.cumsum(job.w)
        job.w.assign_sub(0.1 * dw)
        job.v.assign_sub(tf.cumsum(dv))
        return total

    plan = _Job(body).plan()
    assert [family.reason for family in plan.packs[0].families] == [None, "not_elementwise"]
    (gather,) = _nodes(plan, "TfFuse>AllGather")
    (reduce,) = _nodes(plan, "TfFuse>ReduceScatter")
    # The one's new weight, and the other's gradient.
    assert gather.input[0] != f"{reduce.name}:shards:0"
    assert gather.input[1] == f"{reduce.name}:shards:1"
    assert _nodes(plan, "TfFuse>AllReduce") == []


def test_a_gradient_that_is_left_alone_comes_early_for_who_waits_for_it():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        total = tf.cumsum(job.w)
        job.w.assign_sub(dw * tf.cumsum(dv)[0])
        return total

    plan = _Job(body).plan()
    assert [family.reason for family in plan.packs[0].families] == [None, "not_elementwise"]
    (early,) = _nodes(plan, "TfFuse>AllReduce")
    assert early.attr["N"].i == 1
    # Whoever reads the gradient reads the whole one.
    (cumsum,) = [n for n in _nodes(plan, "Cumsum") if n.input[0].startswith(early.name)]
    assert cumsum.input[0] == f"{early.name}:outputs:0"


def _nodes(plan, op):
    return [node for node in plan.function.node_def if node.op == op]


def test_the_decay_of_a_weight_is_a_part_of_its_update():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        total = tf.cumsum(job.w)
        job.w.assign_sub(job.w * 0.01)
        job.m.assign(0.9 * job.m + dw * job.w)
        job.w.assign_sub(0.1 * job.m)
        return total

    job = _Job(body)
    plan = job.plan()
    family = plan.packs[0].families[0]
    assert (family.reason, family.exact, len(family.chain)) == (None, True, 2)
    # (The decay reads what it was before.)
    assert list(family.versions.values()) == [0]
    decay, last = family.chain
    kept = {node.name: node.op for node in plan.function.node_def}
    assert (kept[decay], kept[last]) == ("NoOp", "AssignVariableOp")
    assert [kept[read] for read in family.versions] == ["NoOp"]


def test_a_decay_that_others_see_stays_whole():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        job.w.assign_sub(job.w * 0.01)
        total = tf.cumsum(job.w)
        job.w.assign_sub(0.1 * dw)
        return total

    plan = _Job(body).plan()
    family = plan.packs[0].families[0]
    assert (family.reason, len(family.chain), family.versions) == (None, 1, {})
    assert len(_nodes(plan, "AssignSubVariableOp")) == 1


def test_what_a_new_weight_is_read_for():
    """An average of it is cut, and reads the part; others read it whole."""

    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        before = tf.cumsum(job.w)
        job.w.assign_sub(dw)
        job.m.assign(0.9 * job.m + 0.1 * job.w)
        return before + tf.cumsum(job.w.read_value())

    family = _Job(body).plan().packs[0].families[0]
    assert (family.reason, len(family.slots), len(family.versions)) == (None, 1, 1)


def test_a_call_that_reads_the_weight_before_the_update():
    @tf.function(autograph=False)
    def forward(job):
        return tf.cumsum(job.w)

    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        total = forward(job)
        job.w.assign_sub(dw)
        return total

    family = _Job(body).plan().packs[0].families[0]
    assert (family.reason, len(family.weights)) == (None, 1)


def test_a_call_that_changes_the_weight():
    @tf.function(autograph=False)
    def change(job):
        job.w.assign(tf.cumsum(job.w))

    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        change(job)
        job.w.assign_sub(dw)

    family = _Job(body).plan().packs[0].families[0]
    assert family.reason == "escapes"


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

    plan = _Job(body).plan()
    families = plan.packs[0].families
    assert [(family.reason, family.exact) for family in families] == [(None, False)] * 2
    reduces = sorted(_nodes(plan, "TfFuse>AllReduce"), key=lambda node: node.name)
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

    job = _Job(body)
    family = job.plan().packs[0].families[0]
    assert (family.reason, family.exact) == (None, is_exact)
    family = job.plan(exact=True).packs[0].families[0]
    assert family.reason == (None if is_exact else "not_exact")


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

    job = _Job(body)
    plan = job.plan()
    family = plan.packs[0].families[0]
    assert (family.reason, len(family.slots), len(family.weights)) == (None, 1, 1)
    (apply,) = _nodes(plan, "ResourceApplyMomentum")
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

    assert _Job(body).plan().packs[0].families[0].reason == "not_redundant"


def test_an_operation_whose_slot_is_read():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        _momentum_operation(job, dw, 0.1)
        return job.m.read_value()

    assert _Job(body).plan().packs[0].families[0].reason == "assigned_twice"


def test_a_tensor_that_is_broadcast():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        seen = tf.cumsum(job.w)
        job.w.assign_sub(dw * tf.constant([1.0, 2.0, 3.0]))
        return seen

    plan = _Job(body).plan()
    assert plan.packs[0].families[0].reason is None
    assert len(_nodes(plan, "BroadcastTo")) == 1


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
    job = _Job(body)
    plan = job.plan()
    (pack,) = plan.packs
    assert [family.reason for family in pack.families] == [None, None]
    (new,) = plan.functions
    assert pack.function != new.signature.name
    callers = [n for n in plan.function.node_def if new.signature.name in str(n.attr)]
    assert len(callers) == 1
    assert [n.op for n in new.node_def].count("TfFuse>AllGather") == 1
    # The slot is known by the argument of the function that was planned.
    (slot,) = plan.slots
    signature = job.function.function_def.signature
    names = [argument.name for argument in signature.input_arg]
    captured = dict(zip(names[2:], job.function.captured_inputs, strict=True))
    assert captured[slot.argument] is job.m.handle
    assert plan.function.signature == signature


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

    plan = _Job(body).plan()
    (pack,) = plan.packs
    told = [(family.reason, family.exact) for family in pack.families]
    assert told == [(None, True), (None, False)]
    assert len(plan.slots) == 1
    (cond,) = _nodes(plan, "If")
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
    assert _nodes(plan, "TfFuse>AllGather") == []


def test_a_branch_that_has_a_part_of_the_updates():
    def body(job, dw, dv):
        dw, dv = job.packed(dw, dv)
        seen = tf.cumsum(job.w), tf.cumsum(job.v)
        tf.cond(tf.reduce_all(dw > 0.0), lambda: job.w.assign_sub(dw), lambda: job.w.assign(job.w))
        job.v.assign_sub(dv)
        return seen

    plan = _Job(body).plan()
    assert [family.reason for family in plan.packs[0].families] == ["in_branch", None]
    assert plan.functions == []


def test_a_branch_that_replicas_may_not_agree_on():
    def body(job, dw, dv):
        local = dw[0, 0]
        dw, dv = job.packed(dw, dv)

        def update():
            job.w.assign_sub(dw)
            job.v.assign_sub(dv)

        tf.cond(local > 0.0, update, lambda: None)

    plan = _Job(body).plan()
    assert [family.reason for family in plan.packs[0].families] == ["not_redundant"] * 2


def test_a_slot_that_the_caller_reads_is_none():
    def body(job, dw, dv):
        _called(job, dw, dv)
        return job.m.read_value()

    plan = _Job(body).plan()
    assert plan.packs[0].families[0].reason == "several_weights"
    assert plan.packs[0].families[1].reason is None


def test_a_function_whose_graph_is_not_known():
    job = _Job(_called)
    (name,) = job.function.graph._functions
    del job.function.graph._functions[name]
    (pack,) = job.plan().packs
    assert (pack.reason, pack.detail) == ("nested", name)


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
