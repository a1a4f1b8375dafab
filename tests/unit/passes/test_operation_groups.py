# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Small operations that run as one: which these are, and that a rewritten graph is the same."""

import itertools
import random

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.unit.passes import operation_groups
from tests.unit.passes.graph_interpreters import DEAD, evaluate, stuck
from tests.unit.passes.pass_testing import PS0, PS1, W0, const, node, trace
from tests.unit.passes.random_graphs import random_choices, random_conditionals
from tf_fuse.explain import rewrite

_DEVICES = [PS0, PS1, W0]


def _lookups(tables):
    """A worker asks for rows of tables on a server, and changes them."""

    def build():
        with tf.device(PS0):
            handles = [
                tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[9, 2], shared_name=f"table_{i}")
                for i in range(tables)
            ]
        with tf.device(W0):
            batch = tf.compat.v1.placeholder(tf.int32, [3, tables], name="batch")
            ids = [batch[:, i] for i in range(tables)]
        for i, (handle, of_table) in enumerate(zip(handles, ids, strict=True)):
            with tf.device(PS0):
                rows = tf.raw_ops.ResourceGather(
                    resource=handle, indices=of_table, dtype=tf.float32
                )
            with tf.device(W0):
                change = tf.math.square(rows, name=f"change_{i}")
            with tf.device(PS0):
                tf.raw_ops.ResourceScatterSub(
                    resource=handle, indices=of_table, updates=change, name=f"update_{i}"
                )

    return trace(build)


def _groups(result):
    return [(g.device, dict(g.operations)) for g in result.report.operation_groups]


def test_lookups_of_a_server_are_one_operation_and_updates_another():
    counts = set()
    for tables in (10, 300):
        result = rewrite(_lookups(tables), fuse_operations=True)
        assert _groups(result) == [
            (PS0, {"ResourceGather": tables, "_Send": tables}),
            (PS0, {"ResourceScatterSub": tables}),
            (W0, {"StridedSlice": tables, "_Send": tables}),
        ]
        of_server = [n.op for n in result.after[PS0].node if n.op != "VarHandleOp"]
        counts.add(len(of_server))
        assert sorted(of_server) == ["TfFuse>OperationGroup"] * 2 + ["_FuseRecv"] * 2
    assert counts == {4}


def test_nothing_is_put_together_unless_asked_for():
    result = rewrite(_lookups(10))
    assert _groups(result) == []


def test_a_task_without_the_plugin_keeps_its_operations():
    result = rewrite(_lookups(10), fuse_operations=True, plain_tasks=["/job:ps/replica:0/task:0"])
    assert _groups(result) == [(W0, {"StridedSlice": 10, "_Send": 10})]


def test_three_operations_stay_as_they_are():
    result = rewrite(_lookups(3), fuse_operations=True)
    assert _groups(result) == [  # and no group of three updates
        (PS0, {"ResourceGather": 3, "_Send": 3}),
        (W0, {"StridedSlice": 3, "_Send": 3}),
    ]


def _random_exchange(seed):
    """An acyclic graph on three tasks: half of its nodes can be put together."""
    rng = random.Random(seed)
    graph = graph_pb2.GraphDef()
    names = []
    for i in range(rng.randint(20, 60)):
        on, name = rng.choice(_DEVICES), f"n{i}"
        inputs = rng.sample(names, min(len(names), rng.randint(0, 2)))
        control = ["^" + c for c in rng.sample(names, 1)] if names and rng.random() < 0.2 else []
        if not inputs:
            made = node(name, rng.choice(["Const", "Placeholder"]), control, on, dtype=tf.float32)
            if made.op == "Const":  # Waits for nothing, unless a control edge leads to it.
                made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0.5))
        elif rng.random() < 0.6:
            made = node(name, "Identity", [*inputs[:1], *control], on, T=tf.float32)
        else:
            made = node(name, "AddN", [*inputs, *control], on, T=tf.float32, N=len(inputs))
        graph.node.append(made)
        names.append(name)
    return graph


def _compare(with_groups, without):
    """Each operation has its inputs, and waits for at least what it waited for."""
    taken_apart = operation_groups.flattened(with_groups.after)
    assert taken_apart.keys() == without.after.keys()
    for device, graph in without.after.items():
        before = operation_groups.edges(graph)
        after = operation_groups.edges(taken_apart[device])
        assert after.keys() == before.keys()
        for name, (op, data, control) in before.items():
            assert after[name][:2] == (op, data), name
            assert control <= after[name][2], name


@pytest.mark.parametrize("block", range(4))
def test_random_graphs_are_the_same_and_never_deadlock(block):
    members = 0
    for seed in range(block * 50, block * 50 + 50):
        without = rewrite(_random_exchange(seed))
        result = rewrite(without.before, fuse_operations=True)
        _compare(result, without)
        at_once = {device: operation_groups.at_once(g) for device, g in result.after.items()}
        assert stuck(at_once) == set(), f"seed {seed}"
        members += sum(sum(operations.values()) for _, operations in _groups(result))
    assert members > 300, "the graphs are too dull to find anything"


def _members(result):
    return {
        inner.name
        for graph in result.after.values()
        for group in graph.node
        if group.op == operation_groups.GROUP
        for inner in operation_groups.body_of(group).node
    }


@pytest.mark.parametrize("block", range(4))
def test_what_may_be_dead_is_in_no_group(block):
    members = dead = 0
    for seed in range(block * 40, block * 40 + 40):
        graph = random_conditionals(seed)
        for one in graph.node:  # Most can be put together.
            if one.op == "AddN" and one.attr["N"].i == 1:
                one.op = "Identity"
                del one.attr["N"]
        # Some that are live in each step.
        for i, on in itertools.product(range(6), _DEVICES):
            name = f"live_{i}_{on.split(':')[1][0]}{on.split(':')[3][0]}"
            graph.node.append(const(name, on))
            to = _DEVICES[(i + 1) % 3]
            graph.node.append(node(f"{name}_used", "AddN", [name], to, T=tf.float32, N=1))
        without = rewrite(graph)
        result = rewrite(without.before, fuse_operations=True)
        _compare(result, without)
        for choice in random_choices():
            values = evaluate(operation_groups.flattened(result.after), choice)
            assert not [name for name in _members(result) if values[name] is DEAD], (seed, choice)
            dead += sum(value is DEAD for value in values.values())
        members += len(_members(result))
    assert min(members, dead) > 60, "the graphs are too dull to find anything"
