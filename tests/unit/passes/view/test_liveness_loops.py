# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Loops: what is received inside of them, and whether what leaves them may be dead.

As in test_liveness.py, every graph ends in nodes named "out..." that a server receives.
"""

import tensorflow as tf

from tests.unit.passes.pass_testing import (
    PS0,
    PS1,
    W0,
    analysed,
    outputs,
    source,
    switch,
    trace,
    v1,
    verdicts,
)


def _out_verdicts(build):
    found = verdicts(analysed(trace(build)))
    return {name: verdict for name, verdict in found.items() if name.startswith("out")}


_FUSED = {"out0": "fused", "out1": "fused"}
_DOUBTED = {"out0": "may_be_dead", "out1": "may_be_dead"}


def test_values_after_a_loop(control_flow):
    def build():
        x = source(PS0, "x")
        with tf.device(W0):
            _, value = tf.while_loop(
                lambda i, _: i < 3, lambda i, a: (i + 1, a + x), [tf.constant(0), tf.zeros([2])]
            )
        outputs(value, value + 1)

    assert _out_verdicts(build) == _FUSED


def test_values_after_a_loop_on_two_tasks(control_flow):
    def build():
        def body(i, a):
            with tf.device(PS1):
                a = tf.tanh(a, name="there")
            return i + 1, a * 2

        with tf.device(W0):
            _, value = tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), tf.zeros([2])])
        outputs(value, value + 1)

    found = verdicts(analysed(trace(build)))
    assert [found["out0"], found["out1"]] == ["fused", "fused"]
    inside = {name: verdict for name, verdict in found.items() if "there" in name}
    # Dead in the last iteration, in which the condition does not hold.
    assert set(inside.values()) == {"may_be_dead"}, found


def test_loop_inside_a_branch(control_flow):
    def build():
        p = source(W0, "p", tf.bool, ())

        def loop():
            _, value = tf.while_loop(
                lambda i, _: i < 3, lambda i, a: (i + 1, a * 2), [tf.constant(0), tf.ones([2])]
            )
            inside = tf.identity(value, name="inside")
            with tf.device(PS1):
                tf.identity(inside)
            return value

        with tf.device(W0):
            value = tf.cond(p, loop, lambda: tf.zeros([2]))
        outputs(value, value + 1)

    found = verdicts(analysed(trace(build)))
    assert [found["out0"], found["out1"]] == ["fused", "fused"]
    assert [verdict for name, verdict in found.items() if "inside" in name] == ["may_be_dead"]


def test_conditional_inside_a_loop(control_flow):
    def build():
        p = source(W0, "p", tf.bool, ())

        def body(i, a):
            return i + 1, tf.cond(p, lambda: a + 1, lambda: a * 2)

        with tf.device(W0):
            _, value = tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), tf.ones([2])])
        outputs(value, value + 1)

    assert _out_verdicts(build) == _FUSED


def test_nested_loops(control_flow):
    def build():
        def body(i, a):
            _, a = tf.while_loop(
                lambda j, _: j < i, lambda j, b: (j + 1, b + 1), [tf.constant(0), a]
            )
            return i + 1, a

        with tf.device(W0):
            _, value = tf.while_loop(lambda i, _: i < 3, body, [tf.constant(0), tf.ones([2])])
        outputs(value, value + 1)

    assert _out_verdicts(build) == _FUSED


def _loop(in_body, before_exit, frame="loop"):
    """Makes while (i < 3) {...} by hand; returns the value that leaves.

    Args:
      in_body: takes the value in the loop, returns what goes round.
      before_exit: takes the Switch's (false, true) outputs, returns what leaves.
      frame: name of the frame.
    """

    def enter(value, constant=False):
        return tf.raw_ops.Enter(data=value, frame_name=frame, is_constant=constant)

    with tf.device(W0):
        i, a = enter(tf.constant(0)), enter(tf.ones([2]))
        limit, one = enter(tf.constant(3), True), enter(tf.constant(1), True)
        merge_i = tf.raw_ops.Merge(inputs=[i, i])
        merge_a = tf.raw_ops.Merge(inputs=[a, a])
        condition = tf.raw_ops.LoopCond(input=tf.less(merge_i.output, limit))
        switch_i = tf.raw_ops.Switch(data=merge_i.output, pred=condition)
        switch_a = tf.raw_ops.Switch(data=merge_a.output, pred=condition)
        next_i = tf.raw_ops.NextIteration(data=switch_i.output_true + one)
        next_a = tf.raw_ops.NextIteration(data=in_body(switch_a.output_true, enter))
        merge_i.output.op._update_input(1, next_i)
        merge_a.output.op._update_input(1, next_a)
        return tf.raw_ops.Exit(data=before_exit(switch_a))


def _split(value, enter):
    """A value that may be dead, made in the frame."""
    predicate = enter(v1.placeholder(tf.bool, (), name="p"), True)
    return tf.raw_ops.Switch(data=value, pred=predicate)


def test_loop_made_by_hand():
    def build():
        value = _loop(lambda a, _: tf.tanh(a), lambda s: s.output_false)
        outputs(value, value + 1)

    assert _out_verdicts(build) == _FUSED


def test_loop_in_which_the_value_may_die():
    def build():
        value = _loop(lambda a, enter: _split(a, enter).output_true, lambda s: s.output_false)
        outputs(value, value + 1)

    assert _out_verdicts(build) == _DOUBTED


def test_exit_that_is_not_fed_by_the_loop_s_own_end():
    enters = []

    def remember(a, enter):
        enters.append(enter)
        return tf.tanh(a)

    def build():
        value = _loop(remember, lambda s: _split(s.output_false, enters[-1]).output_true)
        outputs(value, value + 1)

    assert _out_verdicts(build) == _DOUBTED


def test_loop_that_is_entered_in_a_branch_only():
    def build():
        p = source(W0, "p", tf.bool, ())
        _, yes = switch(source(W0, "x"), p)
        with tf.device(W0), tf.control_dependencies([tf.identity(yes)]):
            one = tf.constant(0.5)
        value = _loop(lambda a, enter: a + enter(one, True), lambda s: s.output_false)
        outputs(value, value + 1)

    assert _out_verdicts(build) == _DOUBTED
