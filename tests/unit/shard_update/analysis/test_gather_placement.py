# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Weights that are gathered right before their first use."""

import os
import re

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tests.unit.shard_update.gather_jobs import Job, plain, two_buckets, update_both
from tests.unit.shard_update.update_jobs import reduce_over
from tf_fuse.shard_update.analysis import gather_placement
from tf_fuse.shard_update.analysis.gather_placement import batches
from tf_fuse.shard_update.plan import Bucket, Gather, UpdateCluster

_FLOAT, _BFLOAT16, _HALF = 1, 14, 19


def test_weights_are_in_parts():
    job = Job(plain)
    assert job.verify() == ""
    assert [(slot.argument, slot.is_weight, slot.shape) for slot in job.plan.shards] == [
        (job.name_of["m"], False, (4, 3)),
        (job.name_of["w"], True, (4, 3)),
        (job.name_of["v"], True, (5,)),
    ]
    (gather,) = job.of("TfFuse>AllGather")
    (scatter,) = job.of("TfFuse>ReduceScatter")
    assert f"^{gather.name}" in scatter.input
    assert gather.attr["tag"].s
    # All in one: nothing says more than the bucket what is whose.
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
    (decay,) = [n for n in job.rewritten.node_def if f"{held.name}:value:0" in n.input]
    assert decay.op == "Mul"
    # What is read in front of the update is what was gathered.
    sums = job.of("Cumsum")
    assert len(sums) == 2
    for node in sums:
        read = {n.name: n for n in job.rewritten.node_def}[node.input[0].partition(":")[0]]
        assert read.op == "Identity"
        assert read.input[0].startswith(f"{gather.name}:outputs:")


@pytest.mark.parametrize(("elements", "expected"), [(5, [[1], [0]]), (17, [[0, 1]])])
def test_weights_that_are_read_first_come_first(monkeypatch, elements, expected):
    monkeypatch.setattr(gather_placement, "_BATCH_ELEMENTS", elements)
    job = Job(plain)
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
    monkeypatch.setattr(gather_placement, "_BATCH_ELEMENTS", 10)
    sizes, types = [4, 20, 3, 9, 1, 5, 6], [0, 0, 14, 0, 14, 0, 0]
    gathers = [Gather(("read",), dtype) for dtype in types]
    gathers[3] = Gather(reason="escapes", detail="node")
    clusters = [
        UpdateCluster(f"gradient:{i}", (size,), gather=gather)
        for i, (size, gather) in enumerate(zip(sizes, gathers, strict=True))
    ]
    clusters[6] = clusters[6].leave("returned", "node")
    assert batches(Bucket("reduce", [], clusters)) == [(0, [1, 5]), (14, [2, 4]), (0, [0])]


def test_both_ranks_know_whose_elements_are_whose():
    one, other = Job(plain, rank=0), Job(plain, rank=1)
    assert [slot.owns for slot in one.plan.shards] == [slot.owns for slot in other.plan.shards]
    assert [slot.own for slot in one.plan.shards] == [slot.owns[0] for slot in one.plan.shards]
    assert [slot.own for slot in other.plan.shards] == [slot.owns[1] for slot in one.plan.shards]
    assert other.verify() == ""


def _one_is_read_behind(job, x, y):
    loss = tf.cumsum(job.w) * x, tf.cumsum(job.v) * y
    update_both(job, x, y)
    return loss, tf.cumsum(job.w)


def test_what_is_gathered_at_the_end_is_sharded_as_the_bucket():
    job = Job(_one_is_read_behind)
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
    both = reduce_over(tf.concat([tf.reshape(x, [-1]), y], 0))
    dw, dv = tf.split(both, [12, 5])
    dw = tf.reshape(dw, [4, 3])
    job.w.assign_sub(0.1 * dw)
    job.v.assign_sub(tf.cumsum(dv))
    return loss


def test_gradients_that_are_left_alone_come_at_the_end():
    job = Job(_left_gradient)
    assert job.verify() == ""
    first, last = job.of("TfFuse>AllGather")
    assert job.gather_of("w").is_first
    assert list(first.attr["bounds"].list.i) == [0, 12, 12]
    assert list(last.attr["bounds"].list.i) == [0, 4, 5]
    (scatter,) = job.of("TfFuse>ReduceScatter")
    assert last.input[0] == f"{scatter.name}:shards:1"


def _checked(body):
    job = Job(body)
    assert job.verify() == ""
    assert all(f.reason is None for bucket in job.plan.buckets for f in bucket.clusters)
    return job


def test_the_update_of_a_weight_reads_another_one():
    job = _checked(two_buckets)
    assert [job.gather_of(name).is_first for name in "wm"] == [True, True]
    assert len(job.of("TfFuse>AllGather")) == 2
    # What each reads of the other one is a part of what was gathered.
    sharded = [n.name for n in job.of("Mul") if any("/part:output" in i for i in n.input)]
    assert len(sharded) == 2


def test_the_update_reads_a_variable_in_another_shape():
    def body(job, x, y):
        loss = tf.cumsum(job.w)
        job.w.assign_sub(reduce_over(x) * tf.reshape(job.s, [4, 3]))
        return loss

    # (A reshape of a vector is the vector; of what is whole its part is to be taken.)
    job = _checked(body)
    (reshape,) = [n for n in job.rewritten.node_def if n.name == "Reshape"]
    assert reshape.op == "Identity"
    assert "/part:" in reshape.input[0]


# --- Types ---------------------------------------------------------------------------------------


def _cast(*types, truncate=False):
    def body(job, x, y):
        loss = [
            tf.cumsum(tf.raw_ops.Cast(x=job.w.read_value(), DstT=dtype, Truncate=truncate))
            for dtype in types
        ]
        update_both(job, x, y)
        return loss

    return body


@pytest.mark.parametrize(
    ("types", "number"), [([tf.bfloat16] * 2, _BFLOAT16), ([tf.float16], _HALF)]
)
def test_what_is_only_cast_travels_in_the_narrow_type(types, number):
    job = Job(_cast(*types), narrow=True)
    assert job.verify() == ""
    assert (job.gather_of("w").dtype, job.gather_of("w").wide) == (number, "")
    (gather,) = [n for n in job.of("TfFuse>AllGather") if "_first" in n.name]
    assert gather.attr["T"].type == number
    assert list(gather.attr["bounds"].list.i) == [0, 12, 12]
    casts = [n for n in job.of("Cast") if n.attr["SrcT"].type == n.attr["DstT"].type]
    assert len(casts) == len(types)
    # The update is of the part, in its own type.
    (slot,) = [slot for slot in job.plan.shards if slot.is_weight and slot.shape == (4, 3)]
    assert slot.dtype == _FLOAT


def test_nothing_travels_in_a_narrow_type_that_was_not_asked_for():
    job = Job(_cast(tf.bfloat16))
    assert (job.gather_of("w").dtype, job.gather_of("w").wide) == (0, "")


@pytest.mark.parametrize(
    ("body", "wide"),
    [
        (_cast(tf.bfloat16, tf.float16), "Cast"),
        (_cast(tf.bfloat16, tf.float64), "Cast"),
        (_cast(tf.bfloat16, truncate=True), "Cast"),
        (plain, "Cumsum"),
    ],
)
def test_what_needs_more_than_a_narrow_type(body, wide):
    job = Job(body, narrow=True)
    assert job.verify() == ""
    gather = job.gather_of("w")
    assert (gather.is_first, gather.dtype) == (True, 0)
    assert re.fullmatch(rf".*\({wide}\)", gather.wide)
