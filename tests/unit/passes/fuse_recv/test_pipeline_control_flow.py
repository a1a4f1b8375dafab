# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The fuse_recv pass on conditionals and loops: what is fused, and what goes through a Switch."""

import tensorflow as tf

from tests.unit.passes.pass_testing import (
    PS0,
    PS1,
    W0,
    groups,
    nodes_of,
    skips,
    source,
    structure,
    trace,
    use,
    v1,
)
from tf_fuse.explain import rewrite


def _variable(on: str, name: str) -> v1.Variable:
    with tf.device(on):
        return v1.get_variable(name, (2,), use_resource=True)


def _fused_count(result) -> int:
    return sum(map(len, groups(result)))


def _read_both(servers, tag):
    """Reads two variables of each server on the worker, within a branch."""
    return use(W0, tag, *[v.read_value() for v in servers])


def test_branches_and_what_follows_are_fused(control_flow):
    def build():
        left = [_variable(PS0, "a"), _variable(PS0, "b")]
        right = [_variable(PS1, "c"), _variable(PS1, "d")]
        p = source(W0, "p", tf.bool, ())
        with tf.device(W0):
            one = tf.cond(p, lambda: _read_both(left, "t"), lambda: _read_both(right, "f"))
            two = tf.cond(p, lambda: -one, lambda: one + 1.0)
        use(PS0, "after", one, two)

    result = rewrite(trace(build))
    assert set(skips(result)) <= {"alone"}
    doubted = [[s.may_be_dead for s in g.slots] for g in result.report.groups]
    reads = [g for g in result.report.groups if g.recv_device == W0]
    assert sorted(g.send_device for g in reads) == [PS0, PS1]
    assert sum(map(sum, doubted)) >= 4, "the four reads within the branches"
    back = [g for g in result.report.groups if (g.send_device, g.recv_device) == (W0, PS0)]
    assert [len(g.slots) for g in back][-1:] == [2], "both values after the Merge"


def test_values_after_nested_conditionals_are_fused(control_flow):
    def build():
        p, q = source(W0, "p", tf.bool, ()), source(W0, "q", tf.bool, ())
        x = source(W0, "x")
        with tf.device(W0):

            def nested(sign):
                inner = tf.cond(q, lambda: x * sign, lambda: x + sign)
                return tf.cond(p, lambda: inner * sign, lambda: tf.cond(q, lambda: x, lambda: -x))

            one, two = nested(2.0), nested(3.0)
        use(PS0, "after", one, two)

    result = rewrite(trace(build))
    assert list(map(len, groups(result))) == [2]
    assert skips(result) == {}


def test_values_of_an_untaken_branch_go_through_a_switch():
    def build():
        p, x = source(W0, "p", tf.bool, ()), source(W0, "x")
        with tf.device(W0):
            _, one = v1.raw_ops.Switch(data=x, pred=p)
            _, two = v1.raw_ops.Switch(data=-x, pred=p)
            one, two = tf.identity(one, "one"), tf.identity(two, "two")
        use(PS0, "after", one, two)

    result = rewrite(trace(build))
    assert groups(result) == [["two", "one"]]
    name = "tf_fuse/worker_0_to_ps_0/depth_1"
    (fused,) = nodes_of(result.after[PS0], "_FuseRecv")
    assert (list(fused.attr["may_be_dead"].list.b), fused.attr["num_alive"].i) == ([True] * 2, 2)
    assert structure(result.after[PS0]) == [
        "after = AddN(after_in0, after_in1)",
        f"after_in0 = Identity({name}/alive_1:1)",
        f"after_in1 = Identity({name}/alive_0:1)",
        f"{name} = _FuseRecv()",
        f"{name}/alive_0 = Switch({name}, {name}:2)",
        f"{name}/alive_1 = Switch({name}:1, {name}:3)",
    ]


def _while(count: tf.Tensor, inside):
    with tf.device(W0):
        return tf.while_loop(
            lambda i, *_: i < count,
            lambda i, a, b: (i + 1, *inside(a, b)),
            [tf.constant(0), tf.constant([1.0, 1.0]), tf.constant([2.0, 2.0])],
        )


def test_exits_of_a_loop_are_live(control_flow):
    def build():
        count = source(W0, "count", tf.int32, ())
        _, a, b = _while(count, lambda a, b: (a + b, b * 2.0))
        use(PS0, "after", a, b)

    result = rewrite(trace(build))
    assert list(map(len, groups(result))) == [2]
    assert skips(result) == {}


def test_values_in_a_loop_are_fused(control_flow):
    def build():
        count = source(W0, "count", tf.int32, ())

        def inside(a, b):
            with tf.device(PS0):
                total, difference = tf.add(a, b), tf.subtract(a, b)
            return total * 2.0, difference * 2.0

        _, a, b = _while(count, inside)
        use(PS1, "after", a, b)

    result = rewrite(trace(build))
    assert skips(result) == {}
    assert [len(g.slots) for g in result.report.groups if g.recv_device == PS1] == [2]
    inside = [g for g in result.report.groups if g.recv_device == W0]
    assert [len(g.slots) for g in inside] == [2]
    assert all(g.frame for g in inside)
