# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which receives may be dead: conditionals, nested ones, loops, and what only looks like them.

Every graph ends in nodes named "out..." on the worker, which two servers receive: if the analysis
finds them live they are fused, since there are always two of them.
"""

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.unit.passes.pass_testing import (
    PS0,
    PS1,
    W0,
    analysed,
    const,
    node,
    outputs,
    source,
    switch,
    trace,
    use,
    verdicts,
)


def _variable(on, name):
    with tf.device(on):
        handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2], shared_name=name, name=name)
        return lambda: tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32, name="read")


def _merge(*values, on=W0):
    with tf.device(on):
        return tf.raw_ops.Merge(inputs=list(values)).output


def _out_verdicts(build):
    found = verdicts(analysed(trace(build)))
    return {name: verdict for name, verdict in found.items() if name.startswith("out")}


_FUSED = {"out0": "fused", "out1": "fused"}
_DOUBTED = {"out0": "may_be_dead", "out1": "may_be_dead"}


def test_branches_that_read_variables_on_two_servers(control_flow):
    def build():
        x0, y0 = _variable(PS0, "x0"), _variable(PS0, "y0")
        x1, y1 = _variable(PS1, "x1"), _variable(PS1, "y1")
        predicate = source(W0, "p", tf.bool, ())
        with tf.device(W0):
            value = tf.cond(
                predicate,
                lambda: use(W0, "yes", x0(), y0()),
                lambda: use(W0, "no", x1(), y1()),
            )
        outputs(value, value + 1)

    graph = trace(build)
    if control_flow == "v2":
        (cond,) = (n for n in graph.node if n.op == "If")
        assert cond.attr["_lower_using_switch_merge"].b
    result = analysed(graph)
    found = verdicts(result)
    reads = {name: verdict for name, verdict in found.items() if "read" in name}
    # Two values of each server, which would make a group each, were they always sent.
    assert len(reads) == 4
    assert set(reads.values()) == {"may_be_dead"}
    for read in reads:
        senders = [g for g in result.before.values() if any(n.name == read for n in g.node)]
        assert len(senders) == 1
    assert [found["out0"], found["out1"]] == ["fused", "fused"]


def test_nested_conditionals(control_flow):
    def build():
        p, q = (source(W0, name, tf.bool, ()) for name in "pq")
        x, y = source(PS0, "x"), source(PS0, "y")
        with tf.device(W0):
            value = tf.cond(
                p,
                lambda: tf.cond(q, lambda: use(W0, "a", x, y), lambda: use(W0, "b", x)),
                lambda: tf.cond(q, lambda: use(W0, "c", y), lambda: use(W0, "d", y, y)),
            )
        outputs(value, value + 1)

    assert _out_verdicts(build) == _FUSED


def test_value_after_inner_conditional_dies_with_the_outer(control_flow):
    def build():
        p, q = (source(W0, name, tf.bool, ()) for name in "pq")
        x = source(W0, "x")

        def inner():
            value = tf.cond(q, lambda: x + 1, lambda: x + 2)
            outputs(value, value + 1)
            return value

        with tf.device(W0):
            tf.cond(p, inner, lambda: x)

    found = verdicts(analysed(trace(build)))
    inner = {name: verdict for name, verdict in found.items() if "/out" in name}
    assert len(inner) == 2, found
    assert set(inner.values()) == {"may_be_dead"}


def test_switch_case(control_flow):
    def build():
        index = source(W0, "index", tf.int32, ())
        x = source(W0, "x")
        with tf.device(W0):
            value = tf.switch_case(index, [lambda i=i: x + float(i) for i in range(3)])
        outputs(value, value + 1)

    assert _out_verdicts(build) == _FUSED


@pytest.mark.parametrize(("merged", "verdict"), [(3, "fused"), (2, "may_be_dead")])
def test_outputs_of_a_many_way_switch(merged, verdict):
    # _SwitchN has no Python function: only lowering makes it.
    ways = ["ways", "ways:1", "ways:2"][:merged]
    graph = graph_pb2.GraphDef(
        node=[
            const("x", W0),
            const("index", W0, tf.int32),
            node("ways", "_SwitchN", ["x", "index"], W0, T=tf.float32, num_outs=3),
            node("out0", "Merge", ways, W0, T=tf.float32, N=merged),
            node("out1", "Identity", ["out0"], W0, T=tf.float32),
            node("sink0", "Identity", ["out0"], PS0, T=tf.float32),
            node("sink1", "Identity", ["out1"], PS0, T=tf.float32),
        ]
    )
    assert verdicts(analysed(graph)) == {"out0": verdict, "out1": verdict}


def test_control_output_of_a_conditional_with_side_effects(control_flow):
    # As automatic control dependencies make it: what follows waits for the If itself.
    def build():
        p, x = source(W0, "p", tf.bool, ()), source(W0, "x")
        with tf.device(PS0):
            handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="v")

        def assign():
            with tf.device(PS0):
                tf.raw_ops.AssignVariableOp(resource=handle, value=x)
            return tf.constant(True)

        with tf.device(W0):
            done = tf.cond(p, assign, lambda: tf.constant(False))
        ifs = [op for op in done.graph.get_operations() if op.type == "If"]
        assert len(ifs) == (control_flow == "v2")
        with tf.control_dependencies(ifs or [done]):
            outputs(x + 1, x + 2)

    assert _out_verdicts(build) == _FUSED


def test_one_predicate_in_two_partitions():
    # The Switches are on different tasks; each gets the predicate by a receive of its own.
    def build():
        p = source(PS1, "p", tf.bool, ())
        no, _ = switch(source(PS0, "x"), p, on=PS0)
        with tf.device(W0):
            _, yes = switch(source(W0, "y"), tf.identity(p), on=W0)
        value = _merge(no, yes)
        outputs(value, value + 1)

    assert _out_verdicts(build) == _FUSED


def test_predicate_itself_may_be_dead():
    def build():
        p, q = (source(W0, name, tf.bool, ()) for name in "pq")
        dying, _ = switch(p, q)
        value = _merge(*switch(source(W0, "x"), dying))
        outputs(value, value + 1)

    assert _out_verdicts(build) == _DOUBTED


@pytest.mark.parametrize("predicates", [("p", "q"), ("p", "not p")])
def test_merge_of_different_predicates(predicates):
    def build():
        values = {name: source(W0, name, tf.bool, ()) for name in "pq"}
        with tf.device(W0):
            values["not p"] = tf.logical_not(values["p"])
        x = source(W0, "x")
        no, _ = switch(x, values[predicates[0]])
        _, yes = switch(x, values[predicates[1]])
        value = _merge(no, yes)
        outputs(value, value + 1)

    assert _out_verdicts(build) == _DOUBTED


def test_merge_with_a_value_that_is_always_there():
    def build():
        x = source(W0, "x")
        no, _ = switch(x, source(W0, "p", tf.bool, ()))
        value = _merge(no, x)
        outputs(value, value + 1)

    assert _out_verdicts(build) == _FUSED


@pytest.mark.parametrize("output", [0, 1])
def test_switch_without_merge(output):
    def build():
        taken = switch(source(W0, "x"), source(W0, "p", tf.bool, ()))[output]
        outputs(taken, taken + 1)

    assert _out_verdicts(build) == _DOUBTED


def test_dead_by_control_edge_alone():
    def build():
        _, yes = switch(source(W0, "x"), source(W0, "p", tf.bool, ()))
        with tf.device(W0):
            pivot = tf.identity(yes, name="pivot")
            with tf.control_dependencies([pivot]):
                value = tf.constant([1.0, 2.0])
        outputs(value, value + 1)

    assert _out_verdicts(build) == _DOUBTED


def test_control_edge_from_a_switch_is_live():
    def build():
        _, yes = switch(source(W0, "x"), source(W0, "p", tf.bool, ()))
        with tf.device(W0), tf.control_dependencies([yes.op]):
            value = tf.constant([1.0, 2.0])
        outputs(value, value + 1)

    assert _out_verdicts(build) == _FUSED


@pytest.mark.parametrize("predicates", [128, 129, 130, 200])
def test_many_conditionals_on_one_value(predicates):
    # A condition keeps 128 predicates apart; one more must not make it forget them.
    def build():
        x = source(W0, "x")
        ps = [source(W0, f"p{i}", tf.bool, ()) for i in range(predicates)]
        values = [switch(x, p)[1] for p in ps]
        dead = use(W0, "all", *values)
        outputs(dead, dead + 1, x + 1, x + 2)

    found = _out_verdicts(build)
    assert found == {**_DOUBTED, "out2": "fused", "out3": "fused"}
