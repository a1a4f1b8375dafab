# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Receives in loops: which become one, what starts them there, and which are left alone."""

import pytest
import tensorflow as tf

from tests.unit.passes.pass_testing import (
    PS0,
    PS1,
    W0,
    groups,
    nodes_of,
    skips,
    sorted_groups,
    source,
    structure,
    trace,
    v1,
    verdicts,
)
from tf_fuse.explain import rewrite


@pytest.fixture
def tf1_loops():
    """For tests that name nodes."""
    was_on = v1.control_flow_v2_enabled()
    v1.disable_control_flow_v2()
    yield
    if was_on:
        v1.enable_control_flow_v2()


def _on(device, function, value, name):
    with tf.device(device):
        return function(value, name=name)


def _while(body, condition=lambda i, *_: i < 3, variables=1):
    """Makes a loop on the worker; returns its variables after the counter."""
    with tf.device(W0):
        start = [tf.constant(0), *(tf.fill([2], float(k)) for k in range(variables))]
        return tf.while_loop(condition, lambda i, *x: (i + 1, *body(*x)), start)[1:]


def _sum(a, b):
    return tf.add(a, b)


def _two_from(device, x, prefix):
    """Two values that a device computes."""
    return [_on(device, tf.tanh, x, f"{prefix}_a"), _on(device, tf.sin, x, f"{prefix}_b")]


def _with_prefix(result, *prefixes):
    """The groups' values of these names, without the names of the scopes around them."""
    names = [sorted(name.split("/")[-1] for name in group) for group in sorted_groups(result)]
    return sorted(group for group in names if group[0].startswith(prefixes))


def _group_of(result, name):
    """The one group that brings a value."""
    (group,) = (g for g in result.report.groups if any(name in s.sender_node for s in g.slots))
    return group


def _in_frames(result):
    return {
        group.frame.split("/")[-1]: len(group.slots)
        for group in result.report.groups
        if group.recv_device == W0
    }


def test_a_body_on_two_servers(control_flow):
    def build():
        def body(x):
            return [tf.add_n(_two_from(PS0, x, "left") + _two_from(PS1, x, "right"))]

        source(W0, "unused")
        tf.identity(_while(body)[0], name="out")

    result = rewrite(trace(build))
    assert skips(result) == {}
    assert _with_prefix(result, "left", "right") == [["left_a", "left_b"], ["right_a", "right_b"]]
    left = _group_of(result, "left_a")
    assert left.frame.startswith("while")
    assert [slot.may_be_dead for slot in left.slots] == [True, True]


def test_what_it_is_rewritten_to(tf1_loops):
    def build():
        _while(lambda x: [tf.add(*_two_from(PS0, x, "there"), name="total")])

    result = rewrite(trace(build))
    name = "tf_fuse/ps_0_to_worker_0/depth_2"
    (fused,) = nodes_of(result.after[W0], "_FuseRecv")
    assert fused.name == name
    # Both receives were started by the Merge of the worker's control loop, and so is this.
    before = {n.name: n for n in result.before[W0].node}
    starts = {tuple(n.input) for n in before.values() if n.op == "_Recv"}
    ((start,),) = starts
    assert before[start.removeprefix("^")].op == "Merge" and "_cloop" in start
    assert list(fused.input) == [start]
    assert [slot.sender_node for slot in result.report.groups[0].slots] == [
        "while/there_a",
        "while/there_b",
    ]
    after = structure(result.after[W0])
    assert f"{name}/alive_0 = Switch({name}, {name}:2)" in after
    assert f"{name}/alive_1 = Switch({name}:1, {name}:3)" in after
    assert f"while/total = AddV2({name}/alive_0:1, {name}/alive_1:1)" in after


def test_groups_do_not_span_loops(control_flow):
    def build():
        def inner(y):
            return [_sum(*_two_from(PS0, y, "inner"))]

        def body(x):
            return [_while(inner)[0] + _sum(*_two_from(PS0, x, "outer"))]

        x = source(W0, "x")
        tf.identity(_while(body)[0] + _sum(*_two_from(PS0, x, "outside")), name="out")

    result = rewrite(trace(build))
    assert _with_prefix(result, "inner", "outer", "outside") == [
        ["inner_a", "inner_b"],
        ["outer_a", "outer_b"],
        ["outside_a", "outside_b"],
    ]
    frames = {name: _group_of(result, f"{name}_a").frame for name in ("inner", "outer", "outside")}
    assert frames["outside"] == ""
    assert len(set(frames.values())) == 3
    assert frames["inner"].startswith(frames["outer"].removesuffix("while_context"))


def test_a_condition_on_another_task(control_flow):
    # It is computed in every iteration, the last one included: these are never dead.
    def build():
        def condition(i, x):
            return tf.reduce_sum(_sum(*_two_from(PS0, x, "limit"))) < 9.0

        tf.identity(_while(lambda x: [_sum(*_two_from(PS0, x, "body"))], condition)[0], name="out")

    result = rewrite(trace(build))
    assert _with_prefix(result, "limit", "body") == [["body_a", "body_b"], ["limit_a", "limit_b"]]
    doubted = {
        name: [slot.may_be_dead for slot in _group_of(result, f"{name}_a").slots]
        for name in ("limit", "body")
    }
    assert doubted == {"limit": [False, False], "body": [True, True]}


def test_a_value_outside_does_not_join_a_group_in_a_loop(control_flow):
    # It is used where the values of the loop's receives are awaited, but once.
    def build():
        early = _on(PS0, tf.tanh, source(PS0, "early_in"), "early")
        out = _while(lambda x: [_sum(*_two_from(PS0, x, "there"))])[0]
        with tf.device(W0):
            tf.add(out, early, name="out")

    result = rewrite(trace(build))
    assert verdicts(result)["early"] == "alone"


def test_a_lone_value_joins_a_deeper_group_of_its_loop(tf1_loops):
    def build():
        def body(x):
            early = _on(PS0, tf.tanh, x, "early")
            late = _two_from(PS0, _on(PS1, tf.tanh, x, "far"), "late")
            with tf.device(W0):
                return [tf.add_n([early, *late])]

        _while(body)

    result = rewrite(trace(build))
    assert _with_prefix(result, "early", "late") == [["early", "late_a", "late_b"]]


def _changed(result, name, *, start):
    """The partitions, with the receive of a value started by another node of its partition."""
    graphs = dict(result.before)
    (slot,) = (s for g in result.report.groups for s in g.slots if s.sender_node == name)
    changed = type(graphs[W0])()
    changed.CopyFrom(graphs[W0])
    (receive,) = (n for n in changed.node if n.name == slot.recv_node)
    assert len(receive.input) == 1
    receive.input[:] = [f"^{start}"]
    return {**graphs, W0: changed}


def _three_values():
    def body(x):
        return [tf.add_n([*_two_from(PS0, x, "there"), _on(PS0, tf.cos, x, "there_c")])]

    return rewrite(trace(lambda: _while(body)))


def test_started_by_what_may_be_dead(tf1_loops):
    # The partitioner makes no such graph. In the last iteration the body's pivot is dead; a _Recv
    # runs all the same.
    graphs = _changed(_three_values(), "while/there_c", start="while/Identity")
    result = rewrite(graphs)
    assert skips(result) == {"loop_frame": ["while/there_c"]}
    assert _with_prefix(result, "there") == [["there_a", "there_b"]]


def test_started_by_another_node(tf1_loops):
    # Nor this one.
    graphs = _changed(_three_values(), "while/there_c", start="while/Merge_1")
    result = rewrite(graphs)
    assert skips(result) == {"alone": ["while/there_c"]}
    assert _with_prefix(result, "there") == [["there_a", "there_b"]]


def test_verifier_refuses_what_is_started_by_different_nodes(tf1_loops):
    graphs = _changed(_three_values(), "while/there_c", start="while/Merge_1")
    result = rewrite(graphs, grouping="any_frame")
    three = ["while/there_a", "while/there_b", "while/there_c"]
    assert [n for n in skips(result)["loop_frame"] if "there" in n] == three
    assert structure(result.after[W0]) == structure(graphs[W0])


def test_a_variable_that_may_die_does_not_spoil_the_others(tf1_loops):
    def enter(value, constant=False):
        return tf.raw_ops.Enter(data=value, frame_name="loop", is_constant=constant)

    def build():
        with tf.device(W0):
            starts = [enter(tf.constant(0)), enter(tf.ones([2])), enter(tf.zeros([2]))]
            limit, one = enter(tf.constant(3), True), enter(tf.constant(1), True)
            chance = enter(v1.placeholder(tf.bool, (), name="p"), True)
            i, x, y = (tf.raw_ops.Merge(inputs=[s, s]) for s in starts)
            condition = tf.raw_ops.LoopCond(input=tf.less(i.output, limit))
            switches = [tf.raw_ops.Switch(data=m.output, pred=condition) for m in (i, x, y)]
            in_i, in_x, in_y = (s.output_true for s in switches)
            new_x = _sum(*_two_from(PS0, in_x, "steady"))
            dying = tf.raw_ops.Switch(data=in_y, pred=chance).output_true
            new_y = _sum(*_two_from(PS0, dying, "dying"))
            for merge, value in ((i, in_i + one), (x, new_x), (y, new_y)):
                merge.output.op._update_input(1, tf.raw_ops.NextIteration(data=value))

    result = rewrite(trace(build))
    assert "loop_frame" not in skips(result)
    together = [["dying_a", "dying_b", "steady_a", "steady_b"]]
    assert _with_prefix(result, "steady", "dying") == together


def _queue(name):
    with tf.device(W0):
        return v1.FIFOQueue(10, [tf.float32], [[2]], name=name)


def test_what_waits_for_an_earlier_iteration_is_kept_apart(control_flow):
    # "from_queue" is made of what was taken from the queue an iteration ago; "free" is not, and may
    # be what fills it.
    def build():
        queue = _queue("queue")

        def body(taken, free):
            there = _on(PS0, tf.tanh, taken, "from_queue"), _on(PS0, tf.sin, free, "free")
            with tf.device(W0):
                return queue.dequeue() * there[0], free + there[1]

        _while(body, variables=2)

    found = {k.split("/")[-1]: v for k, v in verdicts(rewrite(trace(build))).items()}
    assert (found["from_queue"], found["free"]) == ("alone", "alone")


def test_what_waits_for_the_same_earlier_iteration_is_fused(control_flow):
    # The condition waits for the queue, and on every device a Merge of its own for the condition:
    # "a" hangs on those of both servers, "b" on that of one.
    def build():
        queue = _queue("queue")

        def body(taken):
            left, right = _on(PS0, tf.tanh, taken, "left"), _on(PS1, tf.tanh, taken, "right")
            with tf.device(W0):
                sent = tf.add(left, right, name="a"), tf.negative(left, name="b")
            back = [_on(PS0, tf.cos, value, "back") for value in sent]
            with tf.device(W0):
                return [queue.dequeue() + _sum(*back)]

        _while(body, lambda i, x: tf.reduce_sum(x) < 5.0)

    assert ["a", "b"] in _with_prefix(rewrite(trace(build)), "a", "b")


def test_what_goes_round_is_copied_out_of_the_frame(tf1_loops):
    def build():
        def body(x, y):
            round_, once = _two_from(PS0, x, "there")
            return tf.identity(round_), y + once

        _while(body, variables=2)

    result = rewrite(trace(build))
    (fused,) = nodes_of(result.after[W0], "_FuseRecv")
    names = [slot.sender_node for slot in result.report.groups[0].slots]
    assert list(zip(names, fused.attr["copy_out"].list.b, strict=True)) == [
        ("while/there_a", True),
        ("while/there_b", False),
    ]
    # Whether the loop goes on is only looked at.
    (condition,) = nodes_of(result.after[PS0], "_FuseRecv")
    assert list(condition.attr["copy_out"].list.b) == []


def test_what_was_received_before_a_loop_is_not_copied(tf1_loops):
    def build():
        a, b = _two_from(PS0, source(PS0, "x"), "weight")
        _while(lambda x, y: (x * a, y * b), variables=2)

    result = rewrite(trace(build))
    assert groups(result) == [["weight_a", "weight_b"]]
    (fused,) = nodes_of(result.after[W0], "_FuseRecv")
    assert list(fused.attr["copy_out"].list.b) == []
