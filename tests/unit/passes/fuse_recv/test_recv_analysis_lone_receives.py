# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Receives that join a deeper group: alone, or together where that is estimated to pay."""

import pytest
import tensorflow as tf

from tests.unit.passes.pass_testing import (
    PS0,
    PS1,
    W0,
    const,
    groups,
    node,
    pair,
    partitions,
    recv,
    send,
    skips,
    sorted_groups,
    source,
    trace,
    use,
)
from tests.unit.passes.waiting_values import dequeue
from tf_fuse.explain import rewrite


def _late_group(*more):
    """On W0: l, alone at depth 1, beside x and y at depth 2; one node per use in `more`."""
    return [
        const("w", W0),
        *pair("w", "w", W0, PS0),
        *(node(name, "Identity", ["recv_w"], PS0, T=tf.float32) for name in "xy"),
        const("l", PS0),
        *(n for name in "xyl" for n in pair(name, name, PS0, W0)),
        node("sum", "AddN", ["recv_x", "recv_y"], W0, T=tf.float32, N=2),
        *more,
    ]


def _add_late(name, *inputs):
    data = [i for i in inputs if not i.startswith("^")]
    return node(name, "AddN", list(inputs), W0, T=tf.float32, N=len(data))


@pytest.mark.parametrize(
    "uses",
    [
        [_add_late("r", "recv_l", "sum")],
        [_add_late("r", "recv_l", "recv_x")],
        [_add_late("r", "sum", "^recv_l")],
        [_add_late("r", "recv_l", "sum"), _add_late("s", "recv_l", "recv_y")],
        # What only hands it on is looked through.
        [
            node("i", "Identity", ["recv_l"], W0, T=tf.float32),
            node("j", "StopGradient", ["i"], W0, T=tf.float32),
            _add_late("r", "i", "sum"),
            _add_late("s", "j", "recv_x"),
        ],
    ],
)
def test_a_lone_receive_comes_with_a_group_that_its_uses_wait_for(uses):
    result = rewrite(partitions(*_late_group(*uses)))
    assert groups(result) == [["l", "x", "y"]]
    assert result.report.groups[0].depth == 2
    assert skips(result) == {"alone": ["w"]}


@pytest.mark.parametrize(
    "uses",
    [
        [],
        [_add_late("r", "recv_l")],
        [node("i", "Identity", ["recv_l"], W0, T=tf.float32)],
        [node("i", "Identity", ["recv_l"], W0, T=tf.float32), _add_late("r", "i")],
        [_add_late("r", "recv_l"), _add_late("s", "r", "sum")],
        [_add_late("r", "recv_l", "sum"), _add_late("s", "recv_l")],
        # The use is itself a receive of depth 2, which waits for nothing of depth 2.
        [const("k", PS1), send("k", "k", PS1, W0), recv("k", PS1, W0, control=("recv_l",))],
    ],
)
def test_a_lone_receive_does_not_wait_longer_than_its_uses(uses):
    result = rewrite(partitions(*_late_group(*uses)))
    assert groups(result) == [["x", "y"]]
    assert skips(result)["alone"][-2:] == ["l", "w"]


def test_two_lone_receives_become_a_group():
    nodes = [n for n in _late_group(_add_late("r", "recv_l", "recv_x")) if "y" not in n.name]
    nodes = [n for n in nodes if n.name != "sum"]
    assert groups(rewrite(partitions(*nodes))) == [["l", "x"]]


def test_lone_receives_of_other_devices_stay_alone():
    nodes = _late_group(_add_late("r", "recv_l", "recv_m", "sum"))
    nodes += [const("m", PS1), *pair("m", "m", PS1, W0)]
    result = rewrite(partitions(*nodes))
    assert groups(result) == [["l", "x", "y"]]
    assert skips(result) == {"alone": ["m", "w"]}


@pytest.mark.parametrize(
    ("early_waits", "late_waits", "use_waits", "joins"),
    [
        (False, False, False, True),
        (True, False, True, False),
        (False, True, False, False),
        (False, True, True, True),
        (True, True, True, True),
    ],
)
def test_a_lone_receive_joins_only_what_hangs_on_no_more(early_waits, late_waits, use_waits, joins):
    def build():
        with tf.device(PS0):
            taken = dequeue()
            early = tf.identity(taken, "l") if early_waits else source(PS0, "l")
        with tf.device(W0):
            back = tf.identity(source(W0, "w"), "back")
        with tf.device(PS0):
            late = [tf.add_n([back, taken] if late_waits else [back, back], n) for n in "xy"]
        with tf.device(W0):
            # As deep as x and y without them: another value that went to the server and back.
            again = use(PS1, "again", use(W0, "there", source(PS1, "k")))
            tf.add_n([early, *(late if use_waits else [again])], "sum")
            tf.add_n(late, "other")

    result = rewrite(trace(build))
    assert sorted_groups(result) == [["l", "x", "y"] if joins else ["x", "y"]]


def _early_group(*more):
    """As `_late_group`, with a second value k beside l."""
    return [*_late_group(), const("k", PS0), *pair("k", "k", PS0, W0), *more]


def _cost(*nodes, **options):
    return rewrite(partitions(*nodes), splitting="cost", **options)


def test_an_early_group_joins_if_it_is_estimated_to_pay():
    nodes = _early_group(_add_late("r", "recv_l", "sum"), _add_late("s", "recv_k", "recv_x"))
    assert sorted_groups(rewrite(partitions(*nodes))) == [["k", "l"], ["x", "y"]]
    assert sorted_groups(_cost(*nodes)) == [["k", "l", "x", "y"]]
    # Where calls cost nothing, what is ready early travels early.
    divided = _cost(*nodes, rpc_us=0.01, bytes_per_us=1e-3)
    assert not any({"l", "x"} <= set(group) for group in groups(divided))


_PRODUCT = [
    node("product", "MatMul", ["recv_l", "recv_k"], W0, T=tf.float32),
    node("flat", "AddN", ["product", "product"], W0, T=tf.float32, N=2),
]


@pytest.mark.parametrize(
    ("effects", "joins"),
    [
        # What is computed of l and k has no effect before x and y are there,
        ([_add_late("r", "flat", "sum"), node("u", "_Retval", ["r"], W0, T=tf.float32)], True),
        ([_add_late("r", "flat", "sum"), *pair("r", "r", W0, PS1)], True),
        # or has one: it is returned, sent, stored, or may fail.
        ([node("u", "_Retval", ["flat"], W0, T=tf.float32)], False),
        ([_add_late("r", "flat", "sum"), *pair("r", "flat", W0, PS1)], False),
        (
            [_add_late("r", "flat", "sum"), node("p", "Print", ["flat"], W0, T=tf.float32, U=[])],
            False,
        ),
        ([_add_late("r", "flat", "sum"), _add_late("q", "flat")], False),
    ],
)
def test_what_only_computes_may_wait(effects, joins):
    result = _cost(*_early_group(*_PRODUCT, *effects))
    assert (["k", "l", "x", "y"] in sorted_groups(result)) == joins
    assert "would_cycle" not in skips(result)


def test_a_group_does_not_wait_if_the_step_would():
    """The way from l and k to the end is longer than that from x and y, by more than a call."""
    way = [_add_late("n0", "recv_l", "recv_k")]
    way += [_add_late(f"n{i}", f"n{i - 1}", f"n{i - 1}") for i in range(1, 60)]
    end = [_add_late("r", "n59", "sum"), node("u", "_Retval", ["r"], W0, T=tf.float32)]
    nodes = _early_group(*way, *end)
    assert sorted_groups(_cost(*nodes)) == [["k", "l"], ["x", "y"]]
    assert sorted_groups(_cost(*nodes, rpc_us=1000.0)) == [["k", "l", "x", "y"]]
