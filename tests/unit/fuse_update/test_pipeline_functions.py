# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions whose updates are one operation each have the bits of stock TensorFlow."""

import itertools
import os
import re

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tests.slow_cases import slow_but
from tests.unit.fuse_update.fused_updates import (
    _unrolled,
    bits,
    clusters,
    compared,
    outlines_of,
    reasons,
)


def _scalar_root(job, g):
    job.w.assign_sub(0.1 * g / tf.sqrt(tf.reduce_sum(g * g)))


def _scalar_root_of_two(job, g):
    root = tf.sqrt(tf.reduce_sum(g * g))
    job.w.assign_sub(0.1 * g / root)
    job.m.assign_sub(0.1 * job.m / root)


def _scalar_root_read_elsewhere(job, g):
    root = tf.sqrt(tf.reduce_sum(g * g))
    job.w.assign_sub(0.1 * g / root)
    job.s.assign(root)


def _scalar_sum(job, g):
    job.w.assign(0.1 + (job.w + (tf.reduce_sum(g) + 0.3)))


def _scalar_product(job, g):
    job.w.assign_sub(0.1 * (g * (0.3 * tf.reduce_sum(g))))


def _product_read_elsewhere(job, g):
    x = g * 0.3
    job.w.assign_sub(0.1 * x)
    job.s.assign(tf.reduce_sum(x))


def _root_read_elsewhere(job, g):
    x = tf.sqrt(job.m)
    job.w.assign_sub(0.1 * g / x)
    job.s.assign(tf.reduce_sum(x))


def _hoisted(job, g):
    x, y = job.m * g, job.w * g
    job.w.assign(x + y)
    job.s.assign(tf.reduce_sum(x))


def _broadcasts(job, g):
    a, b = tf.reduce_sum(g), tf.reduce_max(g)
    job.w.assign_sub(a * (g * (b * (job.m * 0.3))))


def _powers(job, g):
    total = g
    for exponent in (2.0, 3.0, 0.5, -0.5, -1.0, 1.0, 1.7):
        total = total * (tf.pow(job.m, exponent) + 0.1)
    job.w.assign_sub(total)


def _ones(job, g):
    job.w.assign_sub(g * tf.pow(job.m, 0.0))


def _accumulated(job, g):
    job.m.assign_add(g)
    good = tf.cast(tf.reduce_sum(g) > 0, tf.float32)
    job.w.assign_sub(0.3 * good * job.m)
    job.m.assign(job.m * (1 - good))


def _read_by_no_one(job, g):
    x = 0.3 * job.m
    tf.square(x)
    job.w.assign_sub(x * 0.1)


def _identity_of_a_read(job, g):
    x = tf.identity(job.w.read_value())
    job.s.assign(tf.reduce_sum(x))
    job.m.assign(0.9 * job.m + 0.1 * g)
    job.w.assign(x - 0.1 * job.m / (tf.sqrt(job.m * job.m) + 1e-3))


def _identity_of_a_read_in_two_steps(job, g):
    job.w.read_value()
    x = job.m.read_value()
    y = job.s + x
    job.m.assign(y)
    job.w.assign(job.m.read_value() + y)
    job.w.read_value()
    job.w.assign_sub(tf.sqrt(x) * 0.1)


def _reshaped(job, g):
    x = tf.reshape(tf.reshape(g, [35, 3]) @ (0.5 * tf.eye(3)), [5, 7, 3])
    job.m.assign(0.9 * job.m + 0.1 * x)
    job.w.assign_sub(0.1 * x / (tf.sqrt(job.m * job.m) + 1e-3))


def _reshaped_in_between(job, g):
    x = tf.reshape(tf.reduce_sum(g) * job.m, [35, 3])
    job.w.assign_sub(tf.reshape(0.1 * x * x, [5, 7, 3]))


_FUSED = [
    _accumulated, _broadcasts, _hoisted, _identity_of_a_read, _identity_of_a_read_in_two_steps,
    _ones, _powers,
    _product_read_elsewhere, _read_by_no_one,
    _reshaped, _reshaped_in_between,
    _root_read_elsewhere, _scalar_product, _scalar_root, _scalar_root_of_two,
    _scalar_root_read_elsewhere, _scalar_sum, _unrolled,
]  # fmt: skip


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("body", _FUSED)
def test_what_grappler_changes(body, returns):
    def whole(job, g):
        body(job, g)
        return g[0, 0, 0] if returns else None

    outlines = compared(whole)
    # (Where Grappler adds constants up, it is not known where they stay without results.)
    assert (clusters(outlines) >= 1) == (returns or body not in (_read_by_no_one, _scalar_sum))


def test_each_of_several_steps_is_an_operation():
    def body(job, g):
        for _ in range(3):
            loss = tf.reduce_sum(tf.linalg.matmul(job.w, g, transpose_b=True))
            job.update(g * loss)
        return loss

    outlines = compared(body)
    assert (clusters(outlines), reasons(outlines)) == (3, set())
    # A step reads its variables itself; it gets no value from the step before.
    for one in outlines:
        inputs = {tensor for node in one.function.node_def for tensor in node.input}
        assert [one for one in inputs if re.match(r"tf_fuse_update_\d+_*:", one)] == []


def test_updates_with_a_norm_in_between():
    def body(job, g):
        job.m.assign(0.5 * job.m + g)
        job.w.assign_sub(job.m * tf.norm(job.m))
        job.m.assign(job.m * tf.norm(job.w))

    outlines = compared(body)
    assert (clusters(outlines), reasons(outlines)) == (3, set())


def _nested(how, inner_returns, returns, scaled):
    def body(job, g):
        if not hasattr(job, "step"):

            def step(g):
                job.update(g)
                return g[0, 0, 0] if inner_returns else None

            job.step = tf.function(step, autograph=False)
        given = 0.33 * g if scaled else g
        if how == "call":
            job.step(given)
        elif how == "cond":
            tf.cond(tf.reduce_sum(g) > 0, lambda: (job.step(given), 1.0)[1], lambda: 2.0)
        elif how == "while":
            tf.while_loop(lambda i: i < 3, lambda i: (job.step(given), i + 1)[1], [0])
        else:
            tf.while_loop(
                lambda i, x: i < 3, lambda i, x: (job.step(x), [i + 1, x * 0.3])[1], [0, given]
            )
        return g[0, 0, 0] if returns else None

    return body


# Of three choices any two in each way, with an even number of `True`.
@pytest.mark.parametrize(
    ("how", "inner_returns", "returns", "scaled"),
    slow_but(
        itertools.product(["call", "cond", "while", "loop variable"], *[[False, True]] * 3),
        lambda case: sum(case[1:]) % 2 == 0,
    ),
)
def test_functions_in_functions(how, inner_returns, returns, scaled):
    outlines = compared(_nested(how, inner_returns, returns, scaled))
    if how == "call" and returns and not scaled:
        assert clusters(outlines) == 1
    else:  # It depends on what is not in the function.
        assert reasons(outlines) == {"optimizer"}


@pytest.mark.parametrize("returns", [True, False])
def test_what_is_computed_elsewhere_too(returns):
    """Grappler makes one node of both, and leaves their constants unchanged."""

    def body(job, g):
        job.w.assign_sub((g * 0.3) * 0.1)
        job.s.assign(tf.reduce_sum(0.3 * tf.identity(g)))
        return g[0, 0, 0] if returns else None

    assert "optimizer" in reasons(compared(body))


def test_what_is_handed_on_with_others():
    """It is the same whenever Grappler looks behind, or it is left."""

    def body(job, g):
        clipped, scaled = tf.identity_n([tf.minimum(g, 0.5), job.m * 0.3])
        job.w.assign_sub(clipped * 0.1)
        job.m.assign_sub(scaled * 0.1)
        return g[0, 0, 0]

    outlines = compared(body)
    assert (clusters(outlines), reasons(outlines)) == (1, {"optimizer"})


def test_a_function_that_is_called_in_two_ways():
    def body(job, g):
        if not hasattr(job, "step"):
            job.step = tf.function(job.update, autograph=False)
        job.step(g)
        job.step(0.3 * g)
        return g

    outlines = compared(body)
    assert (clusters(outlines), reasons(outlines)) == (1, {"optimizer"})


def test_an_inner_function_is_passed_a_variable_that_it_uses_already():
    def body(job, g):
        def step(slot):
            slot.assign(slot * 0.5 + g * 0.3)
            job.w.assign_sub(slot * 0.1)

        step = tf.function(step, autograph=False)
        for slot in (job.m, job.w, job.m):
            step(slot)
        return g

    assert clusters(compared(body)) == 1


@pytest.mark.parametrize("is_read", [False, True])
def test_what_an_inner_function_returns(is_read):
    def body(job, g):
        @tf.function(autograph=False)
        def step(g):
            x = 0.3 * g
            job.w.assign_sub(x * 0.1 - job.w * 0.2)
            return x

        x = step(g)
        return x if is_read else g

    assert reasons(compared(body)) == {"optimizer"}


def test_a_gradient_from_a_call():
    def body(job, g):
        @tf.function(autograph=False)
        def scaled(x):
            return x * 0.7

        @tf.function(autograph=False)
        def product(x):
            return tf.linalg.matmul(x, tf.ones([3, 3]))

        job.w.assign_sub(0.1 * scaled(g))
        job.m.assign_sub(0.1 * product(g))

    outlines = compared(body)
    assert (clusters(outlines), reasons(outlines)) == (1, {"optimizer"})


def test_plain_updates_are_fused_in_branches_and_loops():
    def plain(job, g):
        job.m.assign_add((g - job.m) * 0.1)
        job.w.assign_sub(job.m * job.s / (tf.sqrt(job.m) + 1e-7))
        return tf.constant(1.0)

    def body(job, g):
        tf.cond(tf.reduce_sum(g) > 0, lambda: plain(job, g), lambda: 2.0)
        tf.while_loop(lambda i: i < 3, lambda i: (plain(job, g), i + 1)[1], [0])

    assert clusters(compared(body)) == 2


def test_a_branch_that_has_got_more_results_for_gradients(caplog):
    """TensorFlow adds them to the graph of a function whose definition is in use already."""

    def body(job, g):
        @tf.function(autograph=False)
        def inner(x):
            job.update(x)
            return tf.cond(tf.reduce_sum(x) > -1e9, lambda: tf.sin(tf.sin(x)), lambda: x)

        first = inner(g)
        with tf.GradientTape() as tape:
            tape.watch(g)
            loss = tf.reduce_sum(inner(g))
        return first, tape.gradient(loss, g)

    assert clusters(compared(body)) >= 1
    assert [one.getMessage() for one in caplog.records if "cannot be" in one.getMessage()] == []


def test_an_update_that_grappler_removes():
    """It subtracts zeros."""

    def run():
        count = tf.Variable(tf.fill([6, 2], 3))

        @tf.function(autograph=False)
        def step():
            count.assign_sub(count * 0)
            return count.read_value()

        return [step().numpy(), count.numpy()]

    stock = run()
    ours, outlines = outlines_of(run)
    assert bits(ours) == bits(stock)
    assert reasons(outlines) == {"optimizer"}
