# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Names of dimensions of a traced function: where they go, and what is laid out by them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tf_fuse.layout import LayoutError, Link, Mesh, function_problem, to_sbp
from tf_fuse.layout.cost.model import Rates

GRID = Mesh({"rows": 2, "cols": 2})
# So slow that nothing would be split without being told to.
SLOW = Rates(GRID, dict.fromkeys(GRID.axes, Link(1.0, 1e-3)), 1e-12)


# Dimensions that have a name and no rule are not split, whatever would be cheapest.
NAMES = {"x": ["batch", "io"], "w": ["io", "hidden"], "y": ["batch", "out"]}


def variable(name: str, *shape: int) -> tf.Variable:
    return tf.Variable(np.ones(shape, np.float32), name=name)


def sbp(layouts, names) -> dict[str, str]:
    return {name: " ".join(to_sbp(layouts[name])) for name in names}


def two_layers():
    w, v = variable("w", 16, 64), variable("v", 64, 8)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(tf.matmul(tf.nn.relu(tf.matmul(x, w)), v) - y))
        for one, gradient in zip((w, v), tape.gradient(loss, [w, v]), strict=True):
            one.assign_sub(0.1 * gradient)
        return loss

    specs = [tf.TensorSpec([32, 16]), tf.TensorSpec([32, 8])]
    return step, specs, w, v


def search(function, specs, rules, dimensions, **options):
    return function_problem(function, GRID, specs, rates=SLOW).search(
        "propagate", rules, dimensions, **options
    )


def test_two_names_lay_out_a_training_step():
    """The batch of x and the columns of w reach all else, gradients and updates, too."""
    step, specs, _, _ = two_layers()
    found = search(step, specs, "batch:rows;hidden:cols", NAMES)
    assert sbp(found.variables, "wv") == {"w": "B S(1)", "v": "B S(0)"}
    assert sbp(found.inputs, "xy") == {"x": "S(0) B", "y": "S(0) B"}
    names = ["MatMul", "Relu", "MatMul_1"]
    assert sbp(found.layouts, names) == {
        "MatMul": "S(0) S(1)", "Relu": "S(0) S(1)", "MatMul_1": "S(0) P",
    }  # fmt: skip
    strategies = found.plan.strategies
    assert strategies["MatMul"] == "split m, split n"
    updates = [name for name in strategies if name.startswith("AssignSub")]
    assert [strategies[name] for name in sorted(updates)] == [
        "replicate, split d1", "replicate, split d0",
    ]  # fmt: skip


def test_elsewhere_names_stay_where_they_are():
    """In other modes the tensors alone that have names are laid out by them."""
    step, specs, _, _ = two_layers()
    problem = function_problem(step, GRID, specs, rates=SLOW)
    names = {"w": [None, "hidden"], "v": ["other", None]}  # Which meet.
    found = problem.search("auto", "hidden:cols;other:rows", names)
    assert sbp(found.variables, "wv") == {"w": "B S(1)", "v": "S(0) B"}
    relu = found.plan.problem.allowed({"Relu": found.plan.strategies["Relu"]})
    assert len(relu) == 1 and "Relu" not in found.plan.constrained


def test_names_by_variables_and_layers():
    step, specs, w, _ = two_layers()
    rules = "batch:rows;hidden:cols"
    found = search(step, specs, rules, {w.ref(): ["io", "hidden"], "y": ["batch", "out"]})
    assert sbp(found.variables, "wv") == {"w": "B S(1)", "v": "B S(0)"}
    model = tf.keras.Sequential([
        tf.keras.Input((16,), 32), tf.keras.layers.Dense(64, "relu"), tf.keras.layers.Dense(8),
    ])  # fmt: skip
    first, second = model.layers
    found = search(
        model,
        specs[:1],
        rules,
        {
            first: {"kernel": ["io", "hidden"]},
            second: {"bias": ["out"]},
            "args_0": ["batch", None],
        },
    )
    kernels = [first.kernel.path, first.bias.path, second.kernel.path, second.bias.path]
    assert list(sbp(found.variables, kernels).values()) == ["B S(1)", "B S(0)", "B S(0)", "B B"]
    found = search(
        model,
        specs[:1],
        rules,
        {
            second.kernel.path: ["hidden", "out"],
            "args_0": ["batch", "io"],
        },
    )
    assert list(sbp(found.variables, kernels).values()) == ["B S(1)", "B S(0)", "B S(0)", "B B"]


def test_what_cannot_be_split_does_not_end_the_rest():
    """A sum along its own dimension takes the whole tensor, and names go on behind it."""
    w = variable("w", 16, 64)

    def f(x):
        return tf.nn.relu(tf.matmul(tf.cumsum(x, axis=1), w))

    found = search(
        f,
        [tf.TensorSpec([32, 16])],
        "batch:rows;io:cols",
        {"x": ["batch", "io"], "w": ["io", "out"]},
    )
    assert sbp(found.inputs, "x") == {"x": "S(0) S(1)"}
    assert sbp(found.layouts, ["Cumsum", "Relu"]) == {"Cumsum": "S(0) B", "Relu": "S(0) B"}


def attention(x):
    return tf.nn.softmax(tf.einsum("bsd,btd->bst", x, tf.identity(x)))


def test_names_that_meet_are_an_error_with_both_paths():
    step, specs, _, _ = two_layers()
    with pytest.raises(LayoutError) as caught:
        search(
            step, specs, "hidden:cols;other:cols",
            {"w": [None, "hidden"], "v": ["other", None]},
        )  # fmt: skip
    text = str(caught.value)
    assert "is 'hidden' by w[1] -> Identity 'w/fork' -> " in text
    assert "and 'other' by v[0] -> Identity 'v/fork' -> " in text
    assert text.endswith("give both the same name, or rename a tensor on one of the paths")
    spec = [tf.TensorSpec([4, 8, 16])]
    with pytest.raises(LayoutError) as caught:
        search(attention, spec, "seq:rows", {"x": [None, "seq", None]})
    assert "has dimension 'seq' twice: by x[1] -> " in str(caught.value)


def test_a_rename_ends_a_name():
    spec = [tf.TensorSpec([4, 8, 16])]
    found = search(
        attention, spec, "seq:rows;keys:cols",
        {"x": [None, "seq", None], "Identity": [None, "keys", None]}, renamed=["Identity"],
    )  # fmt: skip
    (scores,) = (name for name in found.layouts if found.layouts[name].shape == (4, 8, 8)
                 and "einsum" in name.lower())  # fmt: skip
    assert sbp(found.layouts, [scores]) == {scores: "S(1) S(2)"}


def test_pins_go_before_names():
    step, specs, _, _ = two_layers()
    found = search(
        step,
        specs,
        "hidden:cols",
        {"w": [None, "hidden"]},
        constraints={"Relu": "replicate, replicate"},
    )
    assert found.plan.strategies["Relu"] == "replicate, replicate"
    assert sbp(found.variables, "wv") == {"w": "B S(1)", "v": "B S(0)"}


def test_errors():
    step, specs, _, _ = two_layers()

    def error(rules, dimensions, **options) -> str:
        with pytest.raises(LayoutError) as caught:
            search(step, specs, rules, dimensions, **options)
        return str(caught.value)

    assert error("io:rows;hidden:rows", {"w": ["io", "hidden"]}).startswith("tensor 'w': ")
    # Named at x and v, on one axis: w has both.
    text = error("io:rows;hidden:rows", {"x": [None, "io"], "v": ["hidden", None]})
    assert text.startswith("tensor ") and "'rows'" in text and "hidden" in text and "io" in text
    assert error("a:rows", {3: ["a"]}) == (
        "dimensions: 3 is not a name, reference to a variable or Keras layer; give one of these"
    )
    layer = tf.keras.layers.Dense(4, name="dense")
    layer.build((2, 3))
    assert error("a:rows", {layer: ["a"]}) == (
        "dimensions: layer 'dense' has several variables: give a mapping from their names, which "
        "are: bias, kernel"
    )
    assert error("a:rows", {layer: {"weight": ["a", None]}}) == (
        "dimensions: layer 'dense' has no variable 'weight'; it has: bias, kernel"
    )
    problem = function_problem(step, GRID, specs, rates=SLOW)
    with pytest.raises(LayoutError) as caught:
        problem.search("auto", renamed=["x"])
    assert str(caught.value) == (
        "renamed is for mode 'propagate', in which names go through the graph"
    )
