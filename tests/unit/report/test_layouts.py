# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layout plans and variables in a report: numbers are the plan's, names the program's."""

import pytest
import tensorflow as tf

from tf_fuse import layout
from tf_fuse.report.layouts import described
from tf_fuse.report.variables import variables_by_operation


@pytest.fixture(scope="module")
def plan():
    first = tf.Variable(tf.ones([256, 512]), name="first")
    second = tf.Variable(tf.ones([512, 8]), name="second")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.relu(x @ first) @ second)
        gradients = tape.gradient(loss, [first, second])
        for one, gradient in zip((first, second), gradients, strict=True):
            one.assign_sub(0.1 * gradient)
        return loss

    links = {"x": layout.Link(1e-6, 1e-9)}
    return layout.plan(step, layout.Mesh({"x": 2}), [tf.TensorSpec([64, 256])], links=links)


def test_a_plan_has_the_numbers_of_its_table(plan):
    found = described(plan)
    assert (found.mesh, found.mode) == ("x:2", "auto")
    assert found.found.seconds == plan.seconds
    assert found.found.bytes == plan.memory_bytes
    assert [one.name for one in found.operations] == [one.name for one in plan.plan.operations]
    assert {one.name: one.strategy for one in found.operations} == plan.plan.strategies
    for key in ("compute", "communication", "relayout"):
        total = sum(getattr(one, f"{key}_s") for one in found.operations)
        assert total == pytest.approx(getattr(found.found, f"{key}_s"), rel=1e-12)


def test_data_parallelism_stands_beside_it(plan):
    found = described(plan)
    assert found.data is not None and found.data.seconds >= found.found.seconds
    assert found.data_reason == ""
    assert any(one.data_strategy != one.strategy for one in found.operations)


def test_relayouts_are_those_that_take_time(plan):
    found = described(plan)
    seconds = [one for one in plan.plan.relayouts if one]
    assert [one.seconds for one in found.relayouts] == seconds
    for one in found.relayouts:
        assert one.layout and one.wanted and one.layout != one.wanted
        assert one.bytes is not None and one.bytes >= 0


def test_operations_have_the_variables_that_they_read_or_update():
    with tf.device("CPU:0"):
        table = tf.Variable(tf.ones([4, 2]), name="table")
        weight = tf.Variable(tf.ones([2, 2]), name="weight")

    @tf.function
    def step(ids):
        rows = tf.gather(table, ids, name="rows")
        value = tf.identity(weight.read_value(), name="handed_on")
        weight.assign_sub(rows[:2] @ value)
        return rows

    concrete = step.get_concrete_function(tf.TensorSpec([3], tf.int32))
    graph = concrete.graph
    found = variables_by_operation(graph, [concrete.function_def])
    by_type = {}
    for operation in graph.get_operations():
        if operation.name in found:
            by_type.setdefault(operation.type, set()).add(found[operation.name])
    assert by_type["ResourceGather"] == {"table"}
    assert by_type["AssignSubVariableOp"] == {"weight"}
    assert found["handed_on"] == "weight"
    assert "MatMul" not in by_type
