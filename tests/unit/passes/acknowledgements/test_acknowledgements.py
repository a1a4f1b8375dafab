# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Receives that only the end of a function waits for: the function does without them."""

import pytest
import tensorflow as tf

from tests.unit.passes.pass_testing import (
    PS0,
    W0,
    const,
    node,
    nodes_of,
    pair,
    partitions,
    skips,
    structure,
)
from tf_fuse.explain import rewrite


def _update(name, *inputs):
    """On PS0: an operation with a side effect."""
    return node(name, "RandomUniform", ["shape", *inputs], PS0, T=tf.int32, dtype=tf.float32)


def _acknowledged(*readers, waits=("^update",), carrier=()):
    """The update's end, sent to W0 as TensorFlow does it: an Identity takes the value."""
    return partitions(
        const("shape", PS0, tf.int32),
        _update("update"),
        node("done", "NoOp", list(waits), PS0),
        node("empty", "Const", ["^done"], PS0, dtype=tf.float32),
        *pair("ack", "empty", PS0, W0),
        node("taken", "Identity", ["recv_ack", *carrier], W0, T=tf.float32),
        const("loss", W0),
        *readers,
    )


def _identity(name, *inputs):
    return node(name, "Identity", list(inputs), W0, T=tf.float32)


def _result(value, *control):
    return node("result", "_Retval", [value, *control], W0, T=tf.float32, index=0)


@pytest.mark.parametrize(
    "readers",
    [
        [],
        [_identity("out", "loss", "^taken"), _result("out")],
        [_result("loss", "^taken")],
        [node("all", "NoOp", ["^taken"], W0), _result("loss", "^all")],
        [node("all", "NoOp", ["^recv_ack"], W0), _result("loss", "^all")],
        [
            node("out", "IdentityN", ["loss", "loss", "^taken"], W0, T=[tf.float32, tf.float32]),
            _result("out:1"),
        ],
    ],
)
def test_what_only_the_end_waits_for_is_dropped_on_both_sides(readers):
    result = rewrite(_acknowledged(*readers))
    assert [one.slot.sender_node for one in result.report.dropped] == ["empty"]
    assert skips(result) == {}
    ops = {n.name: n.op for graph in result.after.values() for n in graph.node}
    assert {"recv_ack", "send_ack", "taken", "empty"}.isdisjoint(ops)
    assert {"update", "done", "loss", *(one.name for one in readers)} <= set(ops)
    assert not any("taken" in line for line in structure(result.after[W0]))


def _sends_after(*waits):
    """The worker sends a value when it has what it waits for."""
    return [_identity("out", "loss", *waits), *pair("out", "out", W0, PS0)]


@pytest.mark.parametrize(
    "readers",
    [
        # Something is done, sent, or computed after the update.
        [
            const("k", W0, tf.int32),
            node("more", "RandomUniform", ["k", "^taken"], W0, T=tf.int32, dtype=tf.float32),
        ],
        _sends_after("^taken"),
        [node("all", "NoOp", ["^taken"], W0), *_sends_after("^all")],
        [node("sum", "AddN", ["loss", "loss", "^taken"], W0, T=tf.float32, N=2), _result("sum")],
        # The value itself is returned, or computed with.
        [_result("taken")],
        [_result("recv_ack")],
        [node("sum", "AddN", ["taken", "taken"], W0, T=tf.float32, N=2)],
    ],
)
def test_what_something_else_waits_for_stays(readers):
    result = rewrite(_acknowledged(*readers))
    assert list(result.report.dropped) == []
    assert "empty" in skips(result)["alone"]


def test_it_stays_if_what_it_says_would_not_run_without_it():
    """An operation without side effects, such as a check, runs only if something needs it."""
    graphs = _acknowledged(_result("loss", "^taken"), waits=("^update", "^check"))
    check = node("check", "Squeeze", ["update"], PS0, T=tf.float32)
    graphs[PS0].node.append(check)
    result = rewrite(graphs)
    assert list(result.report.dropped) == []
    assert skips(result) == {"alone": ["empty"]}


@pytest.mark.parametrize("kind", ["carrier", "recv"])
def test_it_stays_if_it_waits_for_something_itself(kind):
    graphs = _acknowledged(
        _result("loss", "^taken"), carrier=("^loss",) if kind == "carrier" else ()
    )
    if kind == "recv":
        next(n for n in graphs[W0].node if n.name == "recv_ack").input.append("^loss")
    result = rewrite(graphs)
    assert list(result.report.dropped) == []


def test_a_value_that_is_computed_stays():
    graphs = _acknowledged(_result("loss", "^taken"))
    empty = next(n for n in graphs[PS0].node if n.name == "empty")
    empty.CopyFrom(_update("empty", "^done"))
    result = rewrite(graphs)
    assert list(result.report.dropped) == []
    assert skips(result) == {"alone": ["empty"]}


def test_a_session_keeps_it():
    graphs = _acknowledged(_result("loss", "^taken"))
    result = rewrite(graphs, session=True)
    assert list(result.report.dropped) == []
    assert len(nodes_of(result.after[W0], "_Recv")) == 1


def test_a_task_without_the_plugin_keeps_it():
    result = rewrite(_acknowledged(_result("loss", "^taken")), plain_tasks=[W0.split("/device")[0]])
    assert list(result.report.dropped) == []
    assert len(nodes_of(result.after[W0], "_Recv")) == 1
