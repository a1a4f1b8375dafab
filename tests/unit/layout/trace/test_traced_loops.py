# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Traced loops and conditionals: each is one operation, in the right order."""

from __future__ import annotations

import tensorflow as tf

from tests.unit.layout.trace.traced_lines import SPEC
from tf_fuse.layout.trace.function import trace


def test_loops_and_conditionals_are_single_operations():
    w = tf.Variable(tf.ones([8, 4]), name="w")

    @tf.function
    def loop(x):
        for _ in tf.range(3):
            x = tf.nn.relu(x)
            w.assign_add(x)
        return x + w

    traced = trace(loop, [SPEC])
    (one,) = [one for one in traced.operations if one.kind == "While"]
    assert {"x", "w"} <= {tensor.name for tensor in one.inputs}
    assert traced.unknown == {"While": ("while",)}
    assert traced.writes == (("w", "w by while"),)
    (add,) = [one for one in traced.operations if one.kind == "AddV2"]
    assert [tensor.shape for tensor in add.inputs] == [(8, 4), (8, 4)]
    (read,) = [one for one in traced.operations if one.kind == "ReadVariableOp"]
    assert read.inputs[0].name == "w by while"

    @tf.function
    def conditional(x):
        return x + w if tf.reduce_sum(x) > 0 else x

    traced = trace(conditional, [SPEC])
    assert traced.unknown == {"If": ("cond",)}


def test_lists_of_loops_keep_the_order():
    """A recurrent layer: the loop reads a list that it does not make, and makes another."""
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input([5, 3]), layers.LSTM(4)])
    traced = trace(model, [tf.TensorSpec([8, 5, 3])])
    assert set(traced.unknown) == {
        "TensorListFromTensor", "TensorListReserve", "TensorListStack", "While"
    }  # fmt: skip
    assert len(traced.variables) == 3


def test_gradients_of_loops_follow_what_they_need():
    """The gradient gives the loop lists that are made after it; they come before it."""
    w = tf.Variable(tf.eye(4), name="w")

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            for _ in tf.range(3):
                x = tf.tanh(x @ w)
            loss = tf.reduce_sum(x)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    traced = trace(step, [SPEC])
    assert set(traced.unknown) == {"EmptyTensorList", "StatelessWhile", "While"}
    assert traced.variables == ("w",)
    assert [variable for variable, _ in traced.writes] == ["w"]
    made: set[str] = set()
    for one in traced.operations:
        assert {tensor.name for tensor in one.inputs} <= made, one.name
        made |= {tensor.name for tensor in one.outputs}
