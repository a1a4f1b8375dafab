# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Receives that no other one goes with: which join a group, and which stay alone."""

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
