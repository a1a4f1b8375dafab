# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ref variables are updated in place: reads that race with an update stay unchanged."""

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.unit.passes.graph_interpreters import stuck
from tests.unit.passes.pass_testing import PS0, W0, const, node, nodes_of, skips, sorted_groups
from tf_fuse.explain import rewrite


def _neg(name, value, on):
    return node(name, "Neg", [value], on, T=tf.float32)


def _sum(name, values, on):
    return node(name, "AddN", values, on, T=tf.float32, N=len(values))


def _ref_variable(name, on):
    result = node(name, "VariableV2", [], on, dtype=tf.float32)
    result.attr["shape"].shape.dim.add(size=2)
    return result


def _assign(name, variable, value, on, *control):
    inputs = [variable, value, *(f"^{c}" for c in control)]
    return node(name, "AssignSub", inputs, on, T=tf.float32)


def _two_variables(*updates):
    return graph_pb2.GraphDef(
        node=[
            _ref_variable("v", PS0),
            _ref_variable("w", PS0),
            node("v/read", "Identity", ["v"], PS0, T=tf.float32),
            node("w/read", "Identity", ["w"], PS0, T=tf.float32),
            _sum("s", ["v/read", "w/read"], W0),
            _neg("gradient", "s", W0),
            const("c", PS0),
            *updates,
        ]
    )


def test_reads_of_ref_variables_are_fused():
    assert sorted_groups(rewrite(_two_variables(), session=True)) == [["v/read", "w/read"]]


def test_update_that_waits_for_the_reader_is_in_order():
    graph = _two_variables(*(_assign(f"u{n}", n, "gradient", PS0) for n in "vw"))
    assert sorted_groups(rewrite(graph, session=True)) == [["v/read", "w/read"]]


def test_update_before_the_read_is_in_order():
    graph = _two_variables(_assign("u", "v", "c", PS0))
    (read,) = [n for n in graph.node if n.name == "v/read"]
    read.input.append("^u")
    assert sorted_groups(rewrite(graph, session=True)) == [["v/read", "w/read"]]


def test_update_in_no_order_with_the_read_leaves_it_alone():
    graph = _two_variables(_assign("u", "v", "c", PS0))
    assert skips(rewrite(graph, session=True)) == {"alone": ["w/read"], "ref_race": ["v/read"]}


def test_update_after_the_identity_alone_is_a_race():
    # The Identity hands the variable's memory on: the update may come before the Send is served.
    graph = _two_variables(_assign("u", "v", "c", PS0, "v/read"))
    assert skips(rewrite(graph, session=True)) == {"alone": ["w/read"], "ref_race": ["v/read"]}


def test_result_of_an_update_is_the_variables_memory():
    graph = _two_variables(_assign("u", "v", "c", PS0), _assign("u2", "v", "c", PS0))
    graph.node.append(_sum("t", ["u", "w/read"], W0))
    assert skips(rewrite(graph, session=True))["ref_race"] == ["u", "v/read"]


def test_what_was_computed_of_a_ref_variable_is_no_memory_of_it():
    graph = _two_variables(_assign("u", "v", "c", PS0))
    for n in graph.node:
        if n.name.endswith("/read"):
            n.op = "Neg"
    assert sorted_groups(rewrite(graph, session=True)) == [["v/read", "w/read"]]


def test_ref_edge_across_tasks_waits_for_the_other_inputs():
    """The partitioner makes such a receive wait for the rest of what its reader needs."""

    def build():
        graph = graph_pb2.GraphDef(
            node=[
                _ref_variable("v", PS0),
                _ref_variable("w", PS0),
                const("a", PS0),
                const("b", PS0),
                _sum("x", ["v", "a"], W0),
                _sum("y", ["w", "b"], W0),
            ]
        )
        return graph

    result = rewrite(build(), session=True)
    assert stuck(result.after) == set()
    assert sorted_groups(result) == sorted_groups(rewrite(result.before))
    assert sorted_groups(result) == [["a", "b"], ["v", "w"]]
    control = [i for n in nodes_of(result.after[W0], "_FuseRecv") for i in n.input]
    assert len(control) == 1, "the second waits for the first"


def test_more_receives_than_fit_in_one_look():
    """Reachability is answered for 64 receives at a time."""
    names = [f"v{i}" for i in range(150)]
    graph = graph_pb2.GraphDef(node=[const("c", PS0)])
    racing = {"v3", "v70", "v149"}
    for name in names:
        graph.node.append(_ref_variable(name, PS0))
        graph.node.append(node(f"{name}/read", "Identity", [name], PS0, T=tf.float32))
        graph.node.append(_neg(f"g_{name}", f"{name}/read", W0))
        value = "c" if name in racing else f"g_{name}"
        graph.node.append(_assign(f"u_{name}", name, value, PS0))
    result = rewrite(graph, session=True)
    assert skips(result)["ref_race"] == sorted(f"{name}/read" for name in racing)
