# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans of mode data: only the batch is split, and which gradients are reduced and charged."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.unit.layout.planning.planned_models import (
    GRID,
    LINE,
    sbp,
    transformer,
    two_layers,
    variable,
    wide_and_deep,
)
from tf_fuse.layout import (
    assumed_rates,
    function_problem,
    plan,
    plan_by_rules,
    plan_relayout,
    to_sbp,
)


@pytest.mark.parametrize("mesh", [LINE, GRID], ids=str)
def test_data_splits_the_batch_alone(mesh):
    """Of a step, the gradients and the loss are reduced, once each, and nothing else moves."""
    _, step, args = two_layers()
    rates = assumed_rates(mesh)
    found = plan(step, mesh, args, mode="data", rates=rates)
    whole, split = " ".join(["B"] * len(mesh.axes)), " ".join(["S(0)"] * len(mesh.axes))
    assert sbp(found.variables) == {"w": whole, "v": whole}
    assert sbp(found.inputs) == {"x": split, "y": split}
    assert {to_sbp(found.layouts[name]) for name in ("MatMul", "Relu", "MatMul_1")} == {
        to_sbp(found.inputs["x"])
    }
    moved = [seconds for seconds in found.plan.relayouts if seconds]
    assert len(moved) == 3 and found.plan.communication_seconds == 0
    wanted = []
    for shape in ((16, 32), (32, 16), ()):
        name = next(n for n, t in found.function.tensors.items() if t.shape == shape)
        kept = found.layouts[name]
        terms = type(kept)(mesh, shape, [()] * len(shape), mesh.axes)
        bare = type(kept)(mesh, shape, [()] * len(shape))
        wanted.append(plan_relayout(terms, bare, 4, dict(rates.links)).seconds)
    assert sorted(moved) == pytest.approx(sorted(wanted), rel=1e-12)


def test_data_of_other_models():
    step, args = wide_and_deep()
    found = plan(step, LINE, args, mode="data")
    assert sbp(found.variables) == dict.fromkeys(("table", "w", "v", "wide"), "B")
    assert sbp(found.inputs) == dict.fromkeys(("ids", "x", "labels"), "S(0)")
    assert len([one for one in found.plan.relayouts if one]) == 5
    _, step, args = transformer()
    found = plan(step, LINE, args, mode="data")
    assert set(sbp(found.variables).values()) == {"B"} and found.unknown == {}
    assert len([one for one in found.plan.relayouts if one]) == 9


def test_a_gradient_that_several_need_is_reduced_once():
    w, m = variable("w", 4, 4), variable("m", 4, 4)

    def f(x):
        gradient = tf.matmul(x, x, transpose_a=True)
        w.assign_sub(tf.sqrt(gradient))
        m.assign_add(tf.square(gradient))

    found = plan(f, LINE, [tf.TensorSpec([8, 4])], mode="data")
    (moved,) = [seconds for seconds in found.plan.relayouts if seconds]
    assert found.layouts["MatMul"].partial == ("x",)
    assert moved == found.plan.relayout_seconds


def test_gradients_that_are_no_operations():
    """Of a forward pass: for each variable its gradient, and the slots of an optimizer."""
    forward, _, args = two_layers()
    bare = function_problem(forward, LINE, args[:1])
    full = function_problem(forward, LINE, args[:1], training=True, slots=2)
    for one, times in ((bare, 1), (full, 4)):
        nodes = one.graph.problem
        assert nodes.node("w").candidates[0].memory_bytes == 16 * 32 * 4 * times
    assert bare.search("data").plan.relayout_seconds == 0
    assert len([one for one in full.search("data").plan.relayouts if one]) == 2


@pytest.mark.parametrize("rules", ["hidden:x", "io:x"])
def test_gradients_of_what_is_fed_are_not_charged(rules):
    """A forward pass with its gradients has the relayouts of the traced training step."""
    forward, step, args = two_layers()
    seconds = [
        plan_by_rules(one, rules, {"x": ["batch", "io"], "w": ["io", "hidden"]}).plan.relayouts
        for one in (
            function_problem(forward, LINE, args[:1], training=True),
            function_problem(step, LINE, args),
        )
    ]
    forward_pass, whole_step = (sorted(filter(None, one)) for one in seconds)
    assert forward_pass == whole_step and len(whole_step) in (1, 2)


def test_gradients_of_variables_that_are_not_trained_are_not_charged():
    w, frozen = variable("w", 16, 16), variable("frozen", 16, 16)
    fixed = tf.Variable(frozen, trainable=False, name="fixed")

    def held(mean, x_first):
        def forward(x):
            return tf.matmul(tf.matmul(x, mean), w) if x_first else tf.matmul(x, w) + mean

        problem = function_problem(
            forward, LINE, [tf.TensorSpec([16, 16])], training=True, slots=2
        )  # fmt: skip
        nodes = problem.graph.problem
        name = mean.name.removesuffix(":0")
        gradients = {
            one.name: any(strategies[0].input_gradients)
            for one, strategies in zip(
                problem.graph.operations, problem.graph.strategies, strict=True
            )
            if one.kind == "MatMul"
        }
        return nodes.node(name).candidates[0].memory_bytes, list(gradients.values())

    assert held(frozen, True) == (4 * 16 * 16 * 4, [True, True])
    assert held(fixed, True) == (16 * 16 * 4, [False, True])
    assert held(fixed, False) == (16 * 16 * 4, [True])


def test_a_batch_that_is_none_is_not_split():
    forward, _, args = two_layers()
    found = plan(forward, LINE, args[:1], mode="data", batch={"x": None})
    assert sbp(found.layouts) == dict.fromkeys(found.layouts, "B")
    found = plan(forward, LINE, args[:1], mode="data", batch={"x": 1})
    assert sbp(found.inputs) == {"x": "S(1)"}
