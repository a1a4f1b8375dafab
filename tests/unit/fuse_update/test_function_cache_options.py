# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Updates have the bits of stock TensorFlow with all options of Grappler, changed at any time."""

import gc
import os
import threading

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as context_module

from tests.unit.fuse_update.fused_updates import bits, clusters, outlines_of, reasons

_SHAPE = (37, 11)
_DEFAULTS = {
    "arithmetic_optimization": True, "constant_folding": True, "disable_meta_optimizer": False,
    "min_graph_nodes": 0,
}  # fmt: skip
_NO_ARITHMETIC = {"arithmetic_optimization": False}
_NO_FOLDING = {"constant_folding": False}
_NO_GRAPPLER = {"disable_meta_optimizer": True}


def _set(options):
    tf.config.optimizer.set_experimental_options(options)


def _step(weight, slot):
    """A function whose update is another one for Grappler: quotients, roots, chains of factors."""

    def inner(gradient):
        slot.assign(0.9 * slot + 0.1 * gradient * gradient)
        weight.assign_sub(0.3 * (0.7 * (gradient * 0.1)) / (1e-3 + tf.sqrt(slot)))

    called = tf.function(inner, autograph=False)

    def step(gradient):
        called(gradient)
        weight.assign_sub(0.01 * (gradient * (0.3 * (slot / tf.sqrt(slot + 0.1)))))
        return tf.reduce_sum(gradient)

    return tf.function(step, autograph=False)


def _trained(script):
    """What two variables hold after each call of a function; a dict sets options before it."""
    rng = np.random.default_rng(3)
    weight = tf.Variable(rng.standard_normal(_SHAPE, np.float32))
    slot = tf.Variable(np.square(rng.standard_normal(_SHAPE, np.float32)))
    step = _step(weight, slot)
    found = []
    try:
        for item in script:
            if isinstance(item, dict):
                _set(item)
                continue
            for _ in range(item):
                step(tf.constant(rng.standard_normal(_SHAPE, np.float32)))
                found += [weight.numpy(), slot.numpy()]
    finally:
        _set(_DEFAULTS)
    return found


@pytest.mark.parametrize(
    "script",
    [
        [1, _NO_GRAPPLER, 2],
        [_NO_GRAPPLER, 1, _DEFAULTS, 2],
        [1, _NO_ARITHMETIC, 1, _DEFAULTS, 1, _NO_ARITHMETIC, 1],
        [1, _NO_FOLDING, 1, _NO_GRAPPLER, 1, _DEFAULTS, 1],
    ],
)
def test_a_function_follows_options_that_change_after_its_first_call(script):
    stock = _trained(script)
    ours, outlines = outlines_of(lambda: _trained(script))
    assert bits(ours) == bits(stock)
    assert clusters(outlines) >= 2 and reasons(outlines) == set()


def test_options_that_change_the_arithmetic_change_bits():
    """The test above has something to find."""
    assert bits(_trained([2])) != bits(_trained([_NO_GRAPPLER, 2]))


@pytest.mark.parametrize("least", [-1, 5, 100_000])
def test_grappler_may_leave_a_small_graph_alone(least):
    script = [{"min_graph_nodes": least}, 3]
    stock = _trained(script)
    ours, outlines = outlines_of(lambda: _trained(script))
    assert bits(ours) == bits(stock)
    assert reasons(outlines) == (set() if least < 0 else {"optimizer"})


def test_our_options_change_no_update():
    """A function is rewritten once, whatever else of this package is switched."""
    _, outlines = outlines_of(
        lambda: _trained([1, {"do_fuse_recv": True}, 1, {"do_fuse_recv": False}, 1])
    )
    _, alone = outlines_of(lambda: _trained([3]))
    assert clusters(outlines) == clusters(alone)


def test_each_thread_calls_with_its_own_options():
    """TensorFlow renews its options in the thread that sets them alone."""

    def run():
        rng = np.random.default_rng(3)
        weight = tf.Variable(rng.standard_normal(_SHAPE, np.float32))
        slot = tf.Variable(np.square(rng.standard_normal(_SHAPE, np.float32)))
        step = _step(weight, slot)
        gradient = tf.constant(rng.standard_normal(_SHAPE, np.float32))
        go, done = threading.Barrier(2, timeout=60), threading.Barrier(2, timeout=60)

        def other():
            step(gradient)
            done.wait()
            go.wait()
            step(gradient)

        thread = threading.Thread(target=other)
        thread.start()
        try:
            done.wait()
            _set(_NO_GRAPPLER)
            go.wait()
            thread.join(60)
            assert not thread.is_alive()
            found = [weight.numpy(), slot.numpy()]
            step(gradient)
            return [*found, weight.numpy(), slot.numpy()]
        finally:
            _set(_DEFAULTS)

    stock = run()
    ours, _ = outlines_of(run)
    assert bits(ours) == bits(stock)


def test_all_rewritten_functions_go_with_the_function():
    context = context_module.context()
    gc.collect()
    before = set(context.list_function_names())
    outlines_of(lambda: _trained([1, _NO_GRAPPLER, 1, _NO_ARITHMETIC, 1]))
    gc.collect()
    assert set(context.list_function_names()) <= before
