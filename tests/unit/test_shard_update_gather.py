# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which weights are gathered right before their first use, and what the verifier finds in that."""

import os
import re

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tf_fuse.shard_update import early_gather
from tf_fuse.shard_update.early_gather import GATHER_REASONS, batches, stay_all
from tf_fuse.shard_update.families import Family, Pack
from tf_fuse.shard_update.plan import make_plan
from tf_fuse.shard_update.replicas import Replicas
from tf_fuse.shard_update.verify import Original, verify

_REPLICAS = 2
_FLOAT, _BFLOAT16, _HALF = 1, 14, 19


def _reduce(x, key=1):
    return tf.raw_ops.CollectiveReduceV2(
        input=x, group_size=_REPLICAS, group_key=1, instance_key=key, ordering_token=[],
        merge_op="Add", final_op="Id",
    )  # fmt: skip


class _Job:
    """Two weights and a slot, and a step of their gradients."""

    def __init__(self, body, narrow=False, rank=0, groups=1):
        self.w, self.v = tf.Variable(tf.zeros([4, 3])), tf.Variable(tf.zeros([5]))
        self.m, self.s = tf.Variable(tf.zeros([4, 3])), tf.Variable(tf.ones([12]))

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([4, 3]), tf.TensorSpec([5])])
        def function(x, y):
            return body(self, x, y)

        concrete = self.concrete = function.get_concrete_function()
        names = [argument.name for argument in concrete.function_def.signature.input_arg]
        by_handle = {id(t): n for n, t in zip(names[2:], concrete.captured_inputs, strict=True)}
        self.name_of = {
            key: by_handle.get(id(getattr(self, key).handle)) for key in ("w", "v", "m", "s")
        }
        library = {f.signature.name: f for f in concrete.graph.as_graph_def().library.function}
        self.original = Original(concrete.function_def, concrete.graph, library.get)
        mirrored = [n for key, n in self.name_of.items() if n]
        self.plan = make_plan(
            concrete.function_def,
            concrete.graph,
            library.get,
            Replicas(_REPLICAS, {"": rank}, groups),
            mirrored,
            "parts/",
            first_use=True,
            narrow=narrow,
        )
        self.twin = self.plan.function

    def verify(self):
        return verify(self.original, self.twin, self.plan.slots, self.plan.functions)

    def of(self, op, variable=""):
        """The twin's nodes of an operation, of the part of a variable if one is named."""
        handle = f"tf_fuse_shard/{self.name_of.get(variable)}:resource:0"
        nodes = [node for node in self.twin.node_def if node.op == op]
        return [node for node in nodes if not variable or node.input[0] == handle]

    def gather_of(self, variable):
        """Where a weight is gathered."""
        families = [family for pack in self.plan.packs for family in pack.families]
        name = self.name_of[variable]
        (found,) = [f for f in families if f.weights == [name] and f.reason is None]
        return found.gather


def _update(job, dw, dv, packed=True):
    """Momentum for one weight, a decay for the other."""
    if packed:
        both = _reduce(tf.concat([tf.reshape(dw, [-1]), dv], 0))
        dw, dv = tf.split(both, [12, 5])
        dw = tf.reshape(dw, [4, 3])
    job.m.assign(0.9 * job.m + dw)
    job.v.assign_sub(0.01 * job.v)
    job.w.assign_sub(0.1 * job.m)
    job.v.assign_sub(0.1 * dv)


def _plain(job, x, y):
    loss = tf.cumsum(job.w) * x, tf.cumsum(job.v) * y
    _update(job, x + job.w, y + job.v)
    return loss


def test_weights_are_in_parts():
    job = _Job(_plain)
    assert job.verify() == ""
    assert [(slot.argument, slot.is_weight, slot.shape) for slot in job.plan.slots] == [
        (job.name_of["m"], False, (4, 3)),
        (job.name_of["w"], True, (4, 3)),
        (job.name_of["v"], True, (5,)),
    ]
    (gather,) = job.of("TfFuse>AllGather")
    (scatter,) = job.of("TfFuse>ReduceScatter")
    assert f"^{gather.name}" in scatter.input
    assert gather.attr["tag"].s
    # All in one: nothing says more than the pack what is whose.
    assert "bounds" not in gather.attr
    assert gather.attr["packed"].b
    # Nobody changes a part before all replicas are there, nor before it is read.
    for variable in ("w", "v"):
        writes = job.of("AssignSubVariableOp", variable)
        first = [node for node in writes if f"^{scatter.name}" in node.input]
        reads = job.of("ReadVariableOp", variable)
        (gathered,) = [n.name for n in reads if n.name.endswith("/first/part")]
        assert any(f"^{gathered}" in node.input for node in first), variable
    # The decay is of the part.
    (held,) = [n for n in job.of("ReadVariableOp", "v") if n.name.endswith("/held")]
    (decay,) = [n for n in job.twin.node_def if f"{held.name}:value:0" in n.input]
    assert decay.op == "Mul"
    # What is read in front of the update is what was gathered.
    sums = job.of("Cumsum")
    assert len(sums) == 2
    for node in sums:
        read = {n.name: n for n in job.twin.node_def}[node.input[0].partition(":")[0]]
        assert read.op == "Identity"
        assert read.input[0].startswith(f"{gather.name}:outputs:")


@pytest.mark.parametrize(("elements", "expected"), [(5, [[1], [0]]), (17, [[0, 1]])])
def test_weights_that_are_read_first_come_first(monkeypatch, elements, expected):
    monkeypatch.setattr(early_gather, "_BATCH_ELEMENTS", elements)
    job = _Job(_plain)
    assert job.verify() == ""
    gathers = job.of("TfFuse>AllGather")
    (scatter,) = job.of("TfFuse>ReduceScatter")
    shapes = [[12], [5]]
    constants = {n.name: n.attr["value"].tensor for n in job.of("Const")}
    for gather, following, indices in zip(gathers, [*gathers[1:], scatter], expected, strict=True):
        assert f"^{gather.name}" in following.input
        assert f"^{gather.name}" in scatter.input
        wanted = gather.input[len(indices) : 2 * len(indices)]
        found = [tf.make_ndarray(constants[name.partition(":")[0]]) for name in wanted]
        assert [[one.prod()] for one in found] == [shapes[index] for index in indices]


def test_types_have_batches_of_their_own(monkeypatch):
    monkeypatch.setattr(early_gather, "_BATCH_ELEMENTS", 10)
    families = [Family(f"gradient:{i}", (size,)) for i, size in enumerate([4, 20, 3, 9, 1, 5, 6])]
    for family, dtype in zip(families, [0, 0, 14, 0, 14, 0, 0], strict=True):
        family.gather.reads, family.gather.dtype = ["read"], dtype
    families[3].gather.stay("escapes", "node")
    families[6].leave("returned", "node")
    assert batches(Pack("reduce", [], families)) == [(0, [1, 5]), (14, [2, 4]), (0, [0])]


def test_both_ranks_know_whose_elements_are_whose():
    one, other = _Job(_plain, rank=0), _Job(_plain, rank=1)
    assert [slot.owns for slot in one.plan.slots] == [slot.owns for slot in other.plan.slots]
    assert [slot.own for slot in one.plan.slots] == [slot.owns[0] for slot in one.plan.slots]
    assert [slot.own for slot in other.plan.slots] == [slot.owns[1] for slot in one.plan.slots]
    assert other.verify() == ""


def _one_is_read_behind(job, x, y):
    loss = tf.cumsum(job.w) * x, tf.cumsum(job.v) * y
    _update(job, x, y)
    return loss, tf.cumsum(job.w)


def test_what_is_gathered_at_the_end_is_cut_as_the_pack():
    job = _Job(_one_is_read_behind)
    assert job.verify() == ""
    assert (job.gather_of("v").is_first, job.gather_of("w").is_first) == (True, False)
    first, last = job.of("TfFuse>AllGather")
    assert ("_first" in first.name, "_gather" in last.name) == (True, True)
    # 16 elements fill a chunk of the ring, which is the first rank's; the last one is the other's.
    assert list(first.attr["bounds"].list.i) == [0, 4, 5]
    assert list(last.attr["bounds"].list.i) == [0, 12, 12]
    assert [node.attr["N"].i for node in (first, last)] == [1, 1]


def _left_gradient(job, x, y):
    loss = tf.cumsum(job.w) * x, tf.cumsum(job.v) * y
    both = _reduce(tf.concat([tf.reshape(x, [-1]), y], 0))
    dw, dv = tf.split(both, [12, 5])
    dw = tf.reshape(dw, [4, 3])
    job.w.assign_sub(0.1 * dw)
    job.v.assign_sub(tf.cumsum(dv))
    return loss


def test_gradients_that_are_left_alone_come_at_the_end():
    job = _Job(_left_gradient)
    assert job.verify() == ""
    first, last = job.of("TfFuse>AllGather")
    assert job.gather_of("w").is_first
    assert list(first.attr["bounds"].list.i) == [0, 12, 12]
    assert list(last.attr["bounds"].list.i) == [0, 4, 5]
    (scatter,) = job.of("TfFuse>ReduceScatter")
    assert last.input[0] == f"{scatter.name}:shards:1"


def _checked(body):
    job = _Job(body)
    assert job.verify() == ""
    assert all(f.reason is None for pack in job.plan.packs for f in pack.families)
    return job


def _two_packs(job, x, y):
    before = tf.raw_ops.ReadVariableOp(resource=job.w.handle, dtype=tf.float32)
    loss = tf.cumsum(before), tf.cumsum(job.m)
    # As many elements, and of two packs: one is rewritten when the other one has been.
    job.w.assign_sub(_reduce(x, 1) * job.m)
    job.m.assign_sub(_reduce(x + loss[1], 2) * before)
    return loss


def test_the_update_of_a_weight_reads_another_one():
    job = _checked(_two_packs)
    assert [job.gather_of(name).is_first for name in "wm"] == [True, True]
    assert len(job.of("TfFuse>AllGather")) == 2
    # What each reads of the other one is a part of what was gathered.
    cut = [n.name for n in job.of("Mul") if any("/part:output" in i for i in n.input)]
    assert len(cut) == 2


def test_the_update_reads_a_variable_in_another_shape():
    def body(job, x, y):
        loss = tf.cumsum(job.w)
        job.w.assign_sub(_reduce(x) * tf.reshape(job.s, [4, 3]))
        return loss

    # (A reshape of a vector is the vector; of what is whole its part is to be taken.)
    job = _checked(body)
    (reshape,) = [n for n in job.twin.node_def if n.name == "Reshape"]
    assert reshape.op == "Identity"
    assert "/part:" in reshape.input[0]


# --- Reasons -------------------------------------------------------------------------------------


def _read_behind(job, x, y):
    loss = tf.cumsum(job.w)
    _update(job, x, y)
    return loss + tf.cumsum(job.w)


def _not_read(job, x, y):
    _update(job, x, y)


def _called(job, x, y):
    @tf.function(autograph=False)
    def inner(z):
        return tf.cumsum(job.w) * z

    loss = inner(x)
    _update(job, x, y)
    return loss


def _in_branch(job, x, y):
    loss = tf.cumsum(job.w)
    total = _reduce(x)
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
    _update(job, x, y)
    return loss, shape


def _is_asked_for(job, x, y):
    loss = tf.cumsum(job.w)
    known = tf.raw_ops.VarIsInitializedOp(resource=job.w.handle)
    _update(job, x, y)
    return loss, known


def _two_updates(job, x, y):
    loss = tf.cumsum(job.w)
    job.w.assign_sub(0.1 * _reduce(x, 1))
    job.w.assign_sub(0.2 * _reduce(x * loss, 2))
    return loss


def _waits(job, x, y):
    loss = tf.cumsum(job.w)
    job.w.assign(job.w * 0.9)
    with tf.control_dependencies([job.w.assign(job.w * 1.0)]):
        x = tf.identity(x)
    total = _reduce(x)
    job.w.assign_sub(0.1 * total)
    return loss


def _read_outside(job, x, y):
    loss = tf.cumsum(job.w)

    @tf.function(autograph=False)
    def update(x, y):
        seen = tf.cumsum(job.w)
        _update(job, x, y)
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
    job = _Job(_plain, groups=2)
    assert job.verify() == ""
    gather = job.gather_of("w")
    assert (gather.is_first, gather.reason) == (False, "in_groups")


@pytest.mark.parametrize("reason", sorted(_REASONS))
def test_reasons(reason):
    body, variable = _REASONS[reason]
    job = _Job(body)
    assert job.verify() == ""
    gather = job.gather_of(variable)
    assert (gather.is_first, gather.reason) == (False, reason), gather
    assert gather.detail
    # It is whole, and assigned so.
    assert job.name_of[variable] not in {slot.argument for slot in job.plan.slots}


def test_the_value_of_a_weight_is_returned():
    def body(job, x, y):
        value = tf.raw_ops.ReadVariableOp(resource=job.w.handle, dtype=tf.float32)
        with tf.control_dependencies([value]):
            _update(job, x, y)
        return value

    job = _Job(body)
    assert job.verify() == ""
    assert job.gather_of("w").is_first
    # What tells the group waits for the read, and that for what is gathered.
    constants = [n for n in job.twin.node_def if n.name.startswith("CollectiveReduceV2/tf_fuse")]
    groups = [n for n in constants if "/group_" in n.name]
    assert [node.op for node in groups] == ["Const"] * 3
    assert not any(node.input for node in groups)


def test_shapes_that_are_read_of_a_variable():
    gather = _Job(_shape_is_read).gather_of("w")
    assert (gather.reason, gather.detail) == ("escapes", "VariableShape (VariableShape)")


def test_an_update_in_a_branch():
    job = _Job(_in_branch)
    assert job.verify() == ""
    (family,) = job.plan.packs[0].families
    assert (family.gather.is_first, family.gather.reason) == (False, "in_branch")
    assert family.reason is None


def test_a_function_that_is_called_can_have_all_of_it():
    def body(job, x, y):
        @tf.function(autograph=False)
        def update(x, y):
            seen = tf.cumsum(job.w)
            _update(job, x, y)
            return seen

        return update(x, y)

    job = _Job(body)
    assert job.verify() == ""
    (pack,) = job.plan.packs
    assert [family.gather.is_first for family in pack.families] == [True, False]
    # Only the update uses the other one, so that is a slot.
    assert (pack.families[1].weights, len(pack.families[1].slots)) == ([], 1)
    assert job.name_of["w"] in {slot.argument for slot in job.plan.slots}


def test_packs_that_would_wait_for_each_other():
    job = _Job(_plain)
    families = job.plan.packs[0].families
    assert [family.gather.is_first for family in families] == [True, True]
    assert stay_all(job.plan.packs)
    assert [family.gather.reason for family in families] == ["cycle", "cycle"]
    assert not stay_all(job.plan.packs)


# --- Types ---------------------------------------------------------------------------------------


def _cast(*types, truncate=False):
    def body(job, x, y):
        loss = [
            tf.cumsum(tf.raw_ops.Cast(x=job.w.read_value(), DstT=dtype, Truncate=truncate))
            for dtype in types
        ]
        _update(job, x, y)
        return loss

    return body


@pytest.mark.parametrize(
    ("types", "number"), [([tf.bfloat16] * 2, _BFLOAT16), ([tf.float16], _HALF)]
)
def test_what_is_only_cast_travels_in_the_narrow_type(types, number):
    job = _Job(_cast(*types), narrow=True)
    assert job.verify() == ""
    assert (job.gather_of("w").dtype, job.gather_of("w").wide) == (number, "")
    (gather,) = [n for n in job.of("TfFuse>AllGather") if "_first" in n.name]
    assert gather.attr["T"].type == number
    assert list(gather.attr["bounds"].list.i) == [0, 12, 12]
    casts = [n for n in job.of("Cast") if n.attr["SrcT"].type == n.attr["DstT"].type]
    assert len(casts) == len(types)
    # The update is of the part, in its own type.
    (slot,) = [slot for slot in job.plan.slots if slot.is_weight and slot.shape == (4, 3)]
    assert slot.dtype == _FLOAT


def test_nothing_travels_in_a_narrow_type_that_was_not_asked_for():
    job = _Job(_cast(tf.bfloat16))
    assert (job.gather_of("w").dtype, job.gather_of("w").wide) == (0, "")


@pytest.mark.parametrize(
    ("body", "wide"),
    [
        (_cast(tf.bfloat16, tf.float16), "Cast"),
        (_cast(tf.bfloat16, tf.float64), "Cast"),
        (_cast(tf.bfloat16, truncate=True), "Cast"),
        (_plain, "Cumsum"),
    ],
)
def test_what_needs_more_than_a_narrow_type(body, wide):
    job = _Job(body, narrow=True)
    assert job.verify() == ""
    gather = job.gather_of("w")
    assert (gather.is_first, gather.dtype) == (True, 0)
    assert re.fullmatch(rf".*\({wide}\)", gather.wide)


# --- The verifier --------------------------------------------------------------------------------


def _gathered_twice(job):
    (gather,) = job.of("TfFuse>AllGather")
    node = job.twin.node_def.add()
    node.CopyFrom(gather)
    node.name = f"{gather.name}_again"
    job.of("TfFuse>ReduceScatter")[0].input.append(f"^{node.name}")


def _changed_early(job):
    (scatter,) = job.of("TfFuse>ReduceScatter")
    for node in job.of("AssignSubVariableOp", "v"):
        if f"^{scatter.name}" in node.input:
            node.input.remove(f"^{scatter.name}")


def _gathers_another(job):
    (gather,) = job.of("TfFuse>AllGather")
    gather.input[0] = gather.input[1]


def _cuts_otherwise(job):
    (gather,) = job.of("TfFuse>AllGather")
    gather.attr["bounds"].list.i.extend([0, 6, 12, 0, 5, 5])


def test_the_verifier_finds_what_is_gathered_behind_the_update():
    job = _Job(_two_packs)
    assert job.verify() == ""
    gather, _ = job.of("TfFuse>AllGather")
    scatter, other = job.of("TfFuse>ReduceScatter")
    (sink,) = job.of("AssignSubVariableOp", "w")
    (read,) = [n for n in job.of("ReadVariableOp", "w") if n.name.endswith("/first/part")]
    # The gather of the first pack goes behind its update, and in front of the second pack.
    for node in list(job.twin.node_def):
        if node.op == "Identity" and node.input[0].startswith(f"{gather.name}:"):
            node.input[0] = "x"
    sink.input.remove(f"^{read.name}")
    scatter.input.remove(f"^{gather.name}")
    read.input.append(f"^{sink.name}")
    other.input.append(f"^{gather.name}")
    assert re.search(rf"{gather.name} has \w+ as {sink.name} leaves it", job.verify())


def test_the_verifier_finds_what_no_all_reduce_waits_for():
    def body(job, x, y):
        loss = tf.cumsum(job.w), tf.cumsum(job.v)
        _update(job, x, y)
        return loss

    job = _Job(body)
    assert job.verify() == ""
    (gather,), (scatter,) = job.of("TfFuse>AllGather"), job.of("TfFuse>ReduceScatter")
    scatter.input.remove(f"^{gather.name}")
    gather.input.append(f"^{scatter.name}")
    assert re.search(f"no all-reduce waits for {gather.name}", job.verify()), job.verify()


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (_gathered_twice, "is in parts, and gathered 2 times"),
        (_gathers_another, "is in parts, and gathered [02] times"),
        (_cuts_otherwise, r"cuts \w+ at \[0, 6, 12\], not at \[0, 12, 12\]"),
        (_changed_early, "changes .* before all replicas are in the step"),
    ],
)
def test_the_verifier_finds(change, wrong):
    job = _Job(_plain)
    assert job.verify() == ""
    change(job)
    assert re.search(wrong, job.verify()), job.verify()
