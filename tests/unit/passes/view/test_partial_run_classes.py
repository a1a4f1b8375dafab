# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is fed by bits (Session.partial_run): a fetch must not come to wait for another feed."""

import random

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.unit.passes.pass_testing import PS0, W0, const, node, nodes_of, skips, sorted_groups
from tests.unit.passes.random_graphs import random_exchange
from tf_fuse.explain import rewrite


def _feed(name, on):
    return node(
        f"feed_{name}",
        "_Recv",
        [],
        on,
        tensor_type=tf.float32,
        tensor_name=f"{name}:0",
        send_device=W0,
        send_device_incarnation=1,
        recv_device=on,
        client_terminated=True,
    )


def _fetch(name, value, on):
    return node(
        f"fetch_{name}",
        "_Send",
        [value],
        on,
        T=tf.float32,
        tensor_name=f"{name}:0",
        send_device=on,
        send_device_incarnation=1,
        recv_device=W0,
        client_terminated=True,
    )


def _neg(name, value, on):
    return node(name, "Neg", [value], on, T=tf.float32)


def _two_chains(*ends):
    """Feeds x and y go to ps 0, come to the worker as a and b, and are used there."""
    return graph_pb2.GraphDef(
        node=[
            _feed("x", PS0),
            _feed("y", PS0),
            _neg("a", "feed_x", PS0),
            _neg("b", "feed_y", PS0),
            _neg("c", "a", W0),
            _neg("d", "b", W0),
            *ends,
        ]
    )


def _sum(name, values, on):
    return node(name, "AddN", values, on, T=tf.float32, N=len(values))


def test_fetches_that_wait_for_the_same_feeds_are_fused():
    graph = _two_chains(_sum("s", ["c", "d"], W0), _fetch("s", "s", W0))
    result = rewrite(graph, session=True)
    assert sorted_groups(result) == [["a", "b"]]
    assert [list(nodes_of(result.after[W0], "_FuseRecv")[0].attr["may_be_dead"].list.b)] == [[]]


def test_fetch_does_not_come_to_wait_for_another_feed():
    # c is fetched: with {a, b} in one frame it would wait for y, too.
    graph = _two_chains(_sum("s", ["c", "d"], W0), _fetch("s", "s", W0), _fetch("c", "c", W0))
    assert skips(rewrite(graph, session=True)) == {
        "alone": ["a", "b"],
        "client_terminated": ["", ""],
    }


def test_target_does_not_come_to_wait_for_another_feed():
    graph = _two_chains(_sum("s", ["c", "d"], W0), node("t", "NoOp", ["^d"], W0))
    assert skips(rewrite(graph, session=True)) == {
        "alone": ["a", "b"],
        "client_terminated": ["", ""],
    }


def test_lone_receive_does_not_join_a_group_of_other_feeds():
    """`late` hangs on y; what uses `early` waits for it, but a fetch in between does not."""

    def build(*ends):
        return graph_pb2.GraphDef(
            node=[
                _feed("x", W0),
                _feed("y", W0),
                const("early", PS0),
                _neg("go", "feed_x", PS0),
                _neg("late0", "go", PS0),
                _neg("late1", "go", PS0),
                _sum("s", ["early", "late0", "late1"], W0),
                _fetch("s", "s", W0),
                *ends,
            ]
        )

    assert sorted_groups(rewrite(build(), session=True)) == [["early", "late0", "late1"]]
    # The fetch of "u" waits for no feed; "u" itself waits for `early` only.
    result = rewrite(build(_neg("u", "early", W0), _fetch("u", "u", W0)), session=True)
    assert sorted_groups(result) == [["late0", "late1"]]


@pytest.mark.parametrize("block", range(4))
def test_no_fetch_comes_to_wait_for_another_feed(block):
    fused = 0
    for seed in range(block * 25, block * 25 + 25):
        graph = random_exchange(seed)
        rng = random.Random(1000 + seed)
        for n in graph.node:
            if n.op == "Placeholder" and rng.random() < 0.8:
                control = list(n.input)
                n.CopyFrom(_feed(n.name, n.device))
                n.name = n.name.removeprefix("feed_")
                n.input.extend(control)
        feeds = [n.name for n in graph.node if n.op == "_Recv"]
        for n in rng.sample(list(graph.node), 3):
            graph.node.append(_fetch(n.name, n.name, n.device))
        result = rewrite(graph, session=True)
        ends = [n.name for g in result.after.values() for n in g.node if _is_end(n, result.after)]
        for end in ends:
            before = _above(result.before, end) & set(feeds)
            assert _above(result.after, end) & set(feeds) == before, (seed, end)
        fused += sum(len(g.slots) for g in result.report.groups)
    assert fused > 20, "the graphs are too dull to find anything"


def _partner_sends(graphs):
    return {
        n.attr["tensor_name"].s: n.name
        for g in graphs.values()
        for n in g.node
        if n.op == "_Send" and not n.attr["client_terminated"].b
    }


def _inputs(graphs):
    sends = _partner_sends(graphs)
    found = {}
    for g in graphs.values():
        for n in g.node:
            names = {i.removeprefix("^").split(":")[0] for i in n.input}
            if n.op == "_FuseRecv":
                names |= {sends[t] for t in n.attr["tensor_names"].list.s}
            elif n.op == "_Recv" and not n.attr["client_terminated"].b:
                names.add(sends[n.attr["tensor_name"].s])
            found[n.name] = names
    return found


def _above(graphs, name):
    """All that a node waits for, across tasks."""
    inputs = _inputs(graphs)
    seen, pending = set(), [name]
    while pending:
        for other in inputs[pending.pop()] - seen:
            seen.add(other)
            pending.append(other)
    return seen


def _is_end(n, graphs):
    if n.op == "_Send":
        return n.attr["client_terminated"].b
    return not any(n.name in names for names in _inputs(graphs).values())
