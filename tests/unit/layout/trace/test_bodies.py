# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Traced loops and conditionals: their bodies are recorded, or each is one operation."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from tests.unit.layout.trace.traced_lines import SPEC
from tf_fuse.layout.trace.function import trace


def kinds(traced, block):
    """The kinds of operations of a block."""
    flow = traced.control_flow
    return [one.kind for one in traced.operations if flow.block(one.name) == block]


def in_order(traced):
    made: set[str] = set()
    for one in traced.operations:
        assert {tensor.name for tensor in one.inputs} <= made, one.name
        made |= {tensor.name for tensor in one.outputs}


def variable():
    return tf.Variable(tf.ones([8, 4]), name="w")


def test_the_body_of_a_loop_is_recorded():
    w = variable()

    @tf.function
    def loop(x):
        for _ in tf.range(3):
            x = tf.nn.relu(x)
            w.assign_add(x)
        return x + w

    traced = trace(loop, [SPEC])
    assert traced.unknown == {}
    (region,) = traced.control_flow.regions
    assert (region.name, region.parent, region.trips) == ("while", "", 3)
    assert {"Relu", "AssignAddVariableOp"} <= set(kinds(traced, region.blocks[1]))
    assert kinds(traced, region.blocks[0])[-1] == "LoopCond"
    assert traced.writes == (("w", "w after while"),)
    carried = dict(region.carried)
    assert carried["while/w"] == "w by while/body/while/AssignAddVariableOp"
    (read,) = [
        one
        for one in traced.operations
        if one.kind == "ReadVariableOp" and traced.control_flow.block(one.name) == ""
    ]
    assert read.inputs[0].name == "w after while"
    in_order(traced)


def test_the_branches_of_a_conditional_are_recorded():
    w = variable()

    @tf.function
    def conditional(x):
        return x + w if tf.reduce_sum(x) > 0 else x

    traced = trace(conditional, [SPEC])
    (region,) = traced.control_flow.regions
    assert {"ReadVariableOp", "AddV2"} <= set(kinds(traced, region.blocks[0]))
    assert region.carried == ()
    (merge,) = [one for one in traced.operations if one.kind == "Merge"]
    assert region.ends == (merge.name,)
    in_order(traced)


def test_a_conditional_that_is_decided_is_the_branch():
    @tf.function
    def conditional(x):
        return tf.cond(tf.constant(True), lambda: x + 1, lambda: x * 2)

    traced = trace(conditional, [SPEC])
    assert traced.control_flow.regions == ()
    assert not {"Mul", "If", "StatelessIf"} & {one.kind for one in traced.operations}


def _printing(x):
    for _ in tf.range(3):
        tf.print(tf.reduce_sum(x))
        x = x * 2
    return x


def _random(x):
    for _ in tf.range(3):
        x = tf.random.shuffle(x)
    return x


def _masked(x):
    for _ in tf.range(3):
        x += tf.reduce_sum(tf.boolean_mask(x, x > 0))
    return x


def _nested(x):
    for _ in tf.range(3):
        if tf.reduce_sum(x) > 0:
            tf.print(tf.reduce_sum(x))
        x = x * 2
    return x


@pytest.mark.parametrize("function", [_printing, _random, _masked, _nested])
def test_bodies_that_cannot_be_planned_are_single_operations(function):
    """Nothing stays of the records that were begun."""
    traced = trace(tf.function(function), [SPEC])
    assert traced.control_flow.regions == () and traced.control_flow.blocks == {}
    assert len(traced.unknown) == 1 and set(traced.unknown) <= {"While", "StatelessWhile"}
    in_order(traced)


def test_bodies_are_left_out_on_demand():
    @tf.function
    def loop(x):
        for _ in tf.range(3):
            x = tf.nn.relu(x)
        return x

    assert trace(loop, [SPEC], bodies=False).unknown == {"StatelessWhile": ("while",)}


@pytest.mark.parametrize("layer", ["LSTM", "GRU"])
def test_a_step_of_a_recurrent_layer_is_recorded_whole(layer):
    """With its gradient, whose loop runs as often and reads lists that the first one makes."""
    layers = keras.layers
    model = keras.Sequential([
        keras.Input([5, 3], batch_size=8), getattr(layers, layer)(4), layers.Dense(1)
    ])  # fmt: skip

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x))
        return tape.gradient(loss, [one.value for one in model.trainable_variables])

    traced = trace(step, [tf.TensorSpec([8, 5, 3])])
    assert traced.unknown == {}
    assert [one.trips for one in traced.control_flow.regions] == [5, 5]
    assert len(traced.variables) == 4
    in_order(traced)


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
    assert traced.unknown == {}
    assert [one.trips for one in traced.control_flow.regions] == [3, 3]
    assert traced.variables == ("w",)
    assert [variable for variable, _ in traced.writes] == ["w"]
    in_order(traced)
    lists = {
        one.outputs[0].name: one.outputs[0].shape
        for one in traced.operations
        if one.kind == "EmptyTensorList"
    }
    assert set(lists.values()) == {(1, 8, 4), (1, 4, 4)}
