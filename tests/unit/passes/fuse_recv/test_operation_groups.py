# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Small operations that run as one: which these are, and that a rewritten graph is the same."""

import itertools

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.slow_cases import slow
from tests.unit.passes.fuse_recv import operation_groups
from tests.unit.passes.fuse_recv.operation_groups import (
    compare,
    groups_of,
    lookups,
    members_of,
    random_exchange,
)
from tests.unit.passes.graph_interpreters import DEAD, evaluate, stuck
from tests.unit.passes.pass_testing import PS0, PS1, W0, const, node, trace
from tests.unit.passes.random_graphs import random_choices, random_conditionals
from tf_fuse.explain import rewrite


def _gradients(tables):
    """The gradients of all tables, on two servers, are parts of one product."""

    def build():
        with tf.device(W0):
            batch = tf.compat.v1.placeholder(tf.int32, [3, tables], name="batch")
            scale = tf.compat.v1.placeholder(tf.float32, [], name="scale")
            ids = [batch[:, i] for i in range(tables)]
        handles, rows = [], []
        for i, of_table in enumerate(ids):
            with tf.device([PS0, PS1][i % 2]):
                handle = tf.raw_ops.VarHandleOp(
                    dtype=tf.float32, shape=[9, 2], shared_name=f"table_{i}"
                )
                handles.append(handle)
                rows.append(
                    tf.raw_ops.ResourceGather(resource=handle, indices=of_table, dtype=tf.float32)
                )
        with tf.device(W0):
            joined = tf.concat(rows, 1)
            changes = tf.split(joined * scale, tables, axis=1)
        for i, (handle, of_table, change) in enumerate(zip(handles, ids, changes, strict=True)):
            with tf.device([PS0, PS1][i % 2]):
                tf.raw_ops.ResourceScatterSub(
                    resource=handle, indices=of_table, updates=change, name=f"update_{i}"
                )

    return trace(build)


def _joint_sends(result):
    return {
        n.name: list(n.attr["joint_sends"].list.i)
        for graph in result.after.values()
        for n in graph.node
        if n.op == "_FuseRecv"
    }


def test_lookups_of_a_server_are_one_operation_and_updates_another():
    counts = set()
    for tables in (10, 300):
        result = rewrite(lookups(tables), fuse_operations=True)
        assert groups_of(result) == [
            (PS0, {"ResourceGather": tables, "_Send": tables}),
            (PS0, {"ResourceScatterSub": tables}),
            (W0, {"StridedSlice": tables, "_Send": tables}),
            (W0, {"_Send": tables}),  # changes
        ]
        of_server = [n.op for n in result.after[PS0].node if n.op != "VarHandleOp"]
        counts.add(len(of_server))
        assert sorted(of_server) == ["TfFuse>OperationGroup"] * 2 + ["_FuseRecv"] * 2
    assert counts == {4}


@pytest.mark.parametrize(
    ("update", "scalars"),
    [
        ("ResourceScatterMul", 0),
        ("ResourceSparseApplyAdadelta", 3),
        ("ResourceSparseApplyProximalAdagrad", 3),
    ],
)
def test_any_update_of_rows_is_put_together(update, scalars):
    accumulators = {"ResourceScatterMul": 0, "ResourceSparseApplyAdadelta": 2}.get(update, 1)
    graph = graph_pb2.GraphDef(node=[const("rate", PS0)])
    for i in range(4):
        variables = [f"variable_{i}_{j}" for j in range(1 + accumulators)]
        graph.node.extend(
            node(v, "VarHandleOp", [], PS0, dtype=tf.float32, shared_name=v) for v in variables
        )
        graph.node.extend(
            [
                node(f"ids_{i}", "Placeholder", [], W0, dtype=tf.int32),
                node(f"change_{i}", "Placeholder", [], W0, dtype=tf.float32),
            ]
        )
        ids_last = [f"change_{i}", f"ids_{i}"]
        inputs = ids_last[::-1] if update.startswith("ResourceScatter") else ids_last
        types = {"dtype" if update.startswith("ResourceScatter") else "T": tf.float32}
        graph.node.append(
            node(
                f"update_{i}",
                update,
                [*variables, *["rate"] * scalars, *inputs],
                PS0,
                Tindices=tf.int32,
                **types,
            )
        )
    result = rewrite(graph, fuse_operations=True)
    assert (PS0, {update: 4}) in groups_of(result)


def _scaled_updates(tables, use=None):
    """A server multiplies gradients by the rate, and adds them to rows; `use` takes products."""
    graph = graph_pb2.GraphDef(node=[node("rate", "Const", [], PS0, dtype=tf.float32)])
    graph.node[0].attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0.5))
    for i in range(tables):
        graph.node.extend(
            [
                node(f"v{i}", "VarHandleOp", [], PS0, dtype=tf.float32, shared_name=f"v{i}"),
                node(f"ids{i}", "Placeholder", [], W0, dtype=tf.int32),
                node(f"change{i}", "Placeholder", [], W0, dtype=tf.float32),
                node(f"minus{i}", "Neg", [f"change{i}"], PS0, T=tf.float32),
                node(f"product{i}", "Mul", [f"minus{i}", "rate"], PS0, T=tf.float32),
                node(
                    f"update{i}",
                    "ResourceScatterAdd",
                    [f"v{i}", f"ids{i}", f"product{i}"],
                    PS0,
                    dtype=tf.float32,
                    Tindices=tf.int32,
                ),
            ]
        )
        if use is not None:
            graph.node.append(node(f"use{i}", use, [f"product{i}"], PS0, T=tf.float32))
    return graph


@pytest.mark.parametrize("tables", [10, 300])
def test_products_with_the_rate_belong_to_the_updates(tables):
    result = rewrite(_scaled_updates(tables), fuse_operations=True)
    kinds = {"Neg": tables, "Mul": tables, "ResourceScatterAdd": tables}
    assert [g for g in groups_of(result) if g[0] == PS0] == [(PS0, kinds)]


def test_products_that_others_use_stay_single():
    """So each update waits for a product of its own."""
    result = rewrite(_scaled_updates(10, use="Square"), fuse_operations=True)
    assert [g for g in groups_of(result) if g[0] == PS0] == []


def test_a_product_that_several_updates_use_stays_single():
    """In their group it would tie all of them to one thread."""
    graph = _scaled_updates(10)
    graph.node.append(node("received", "Placeholder", [], W0, dtype=tf.float32))
    graph.node.append(node("of_all", "Mul", ["received", "rate"], PS0, T=tf.float32))
    for one in graph.node:
        if one.op == "ResourceScatterAdd":
            one.input[2] = "of_all"
    result = rewrite(graph, fuse_operations=True)
    assert [g for g in groups_of(result) if g[0] == PS0] == [(PS0, {"ResourceScatterAdd": 10})]


def test_a_long_chain_of_products_is_looked_at_once():
    """Not once for each of its 2 ** 60 paths."""
    graph = _scaled_updates(4)
    previous = "change0"
    for i in range(60):
        graph.node.append(node(f"square{i}", "Mul", [previous, previous], PS0, T=tf.float32))
        previous = f"square{i}"
    next(one for one in graph.node if one.name == "update0").input[2] = previous
    counts = dict(groups_of(rewrite(graph, fuse_operations=True)))[PS0]
    assert counts == {"Neg": 3, "Mul": 63, "ResourceScatterAdd": 4}


def test_what_reads_a_reference_stays_single():
    """TensorFlow reads it when the operation begins; no group takes a reference."""
    graph = graph_pb2.GraphDef(node=[node("weight", "VariableV2", [], PS0, dtype=tf.float32)])
    graph.node[0].attr["shape"].shape.CopyFrom(tf.TensorShape([]).as_proto())
    for i in range(5):
        graph.node.append(node(f"read{i}", "Identity", ["weight"], PS0, T=tf.float32))
        graph.node.append(node(f"use{i}", "Square", [f"read{i}"], W0, T=tf.float32))
        graph.node.append(node(f"direct{i}", "Square", ["weight"], W0, T=tf.float32))
    for session in (False, True):
        result = rewrite(graph, fuse_operations=True, session=session)
        reads = [one for _, operations in groups_of(result) for one in operations]
        assert "Identity" not in reads


@pytest.mark.parametrize("tables", [10, slow(300)])
def test_each_request_is_one_send(tables):
    result = rewrite(_gradients(tables), fuse_operations=True)
    half = tables // 2
    sends = [
        (g.device, g.operations["_Send"], g.sends)
        for g in result.report.operation_groups
        if g.operations["_Send"]
    ]
    assert sends == [
        (PS0, half, 1),
        (PS1, half, 1),
        (W0, tables, 2),  # ids
        (W0, tables, 2),  # changes
    ]
    assert not [n for graph in result.after.values() for n in graph.node if n.op == "_Send"]
    assert list(_joint_sends(result).values()) == [[half]] * 6
    assert operation_groups.check_joint_sends(result.after) == 3 * tables


@pytest.mark.parametrize("tables", [4, 10, slow(300)])
def test_sends_that_wait_for_different_tensors_are_one_too(tables):
    """Each change is ready at a moment of its own, but one request waits for all of them."""
    result = rewrite(lookups(tables), fuse_operations=True)
    assert sorted(_joint_sends(result).items()) == [
        ("tf_fuse/ps_0_to_worker_0/depth_2", [tables]),
        ("tf_fuse/worker_0_to_ps_0/depth_1", [tables]),
        ("tf_fuse/worker_0_to_ps_0/depth_3", [tables]),
    ]
    assert operation_groups.check_joint_sends(result.after) == 3 * tables
    assert [g.sends for g in result.report.operation_groups] == [1, 0, 1, 1]


def test_three_sends_stay_as_they_are():
    result = rewrite(lookups(3), fuse_operations=True)
    assert _joint_sends(result)["tf_fuse/worker_0_to_ps_0/depth_3"] == []
    assert [n.op for n in result.after[W0].node].count("_Send") == 3


def test_a_send_that_something_waits_for_is_sent_alone():
    without = rewrite(lookups(10))
    (worker,) = (graph for device, graph in without.before.items() if device == W0)
    sends = [n.name for n in worker.node if n.op == "_Send" and "change" in n.input[0]]
    worker.node.append(node("after_it", "NoOp", [f"^{sends[0]}"], W0))
    result = rewrite(without.before, fuse_operations=True)
    assert _joint_sends(result)["tf_fuse/worker_0_to_ps_0/depth_3"] == [9]
    assert [n.name for n in result.after[W0].node if n.op == "_Send"] == [sends[0]]


def test_nothing_is_put_together_unless_asked_for():
    result = rewrite(lookups(10))
    assert groups_of(result) == []
    assert set(map(tuple, _joint_sends(result).values())) == {()}


def test_a_task_without_the_plugin_keeps_its_operations():
    result = rewrite(lookups(10), fuse_operations=True, plain_tasks=["/job:ps/replica:0/task:0"])
    assert groups_of(result) == [(W0, {"StridedSlice": 10, "_Send": 10})]


def test_three_operations_stay_as_they_are():
    result = rewrite(lookups(3), fuse_operations=True)
    assert groups_of(result) == [  # and no group of three updates
        (PS0, {"ResourceGather": 3, "_Send": 3}),
        (W0, {"StridedSlice": 3, "_Send": 3}),
    ]


@pytest.mark.parametrize("block", [0, slow(1), slow(2), slow(3)])
def test_random_graphs_are_the_same_and_never_deadlock(block):
    members = joint = 0
    for seed in range(block * 50, block * 50 + 50):
        without = rewrite(random_exchange(seed))
        result = rewrite(without.before, fuse_operations=True)
        joint += compare(result, without)
        at_once = {device: operation_groups.at_once(g) for device, g in result.after.items()}
        assert stuck(at_once) == set(), f"seed {seed}"
        members += sum(sum(operations.values()) for _, operations in groups_of(result))
    assert members > 300 and joint > 60, "the graphs are too dull to find anything"


@pytest.mark.parametrize("block", [0, slow(1), slow(2), slow(3)])
def test_what_may_be_dead_is_in_no_group(block):
    members = dead = joint = 0
    for seed in range(block * 40, block * 40 + 40):
        graph = random_conditionals(seed)
        for one in graph.node:  # Most can be put together.
            if one.op == "AddN" and one.attr["N"].i == 1:
                one.op = "Identity"
                del one.attr["N"]
        # Some that are live in each step.
        for i, on in itertools.product(range(6), operation_groups.DEVICES):
            name = f"live_{i}_{on.split(':')[1][0]}{on.split(':')[3][0]}"
            graph.node.append(const(name, on))
            to = operation_groups.DEVICES[(i + 1) % 3]
            graph.node.append(node(f"{name}_used", "AddN", [name], to, T=tf.float32, N=1))
        without = rewrite(graph)
        result = rewrite(without.before, fuse_operations=True)
        joint += compare(result, without)
        for choice in random_choices():
            values = evaluate(operation_groups.flattened(result.after), choice)
            assert not [name for name in members_of(result) if values[name] is DEAD], (seed, choice)
            dead += sum(value is DEAD for value in values.values())
        members += len(members_of(result))
    assert min(members, dead) > 60 and joint > 30, "the graphs are too dull to find anything"
