# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Layouts that a function asks for, and those that are given for its inputs and variables."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.slow_cases import slow
from tests.unit.layout.planning.planned_models import FAST, GRID, variable
from tf_fuse import layout
from tf_fuse.layout import LayoutError, Mesh, Replicate, Shard
from tf_fuse.layout.strategies.strategy import Allowed

ARGS = [tf.TensorSpec([8, 16])]
PLACE = f"{__file__}:"


class Model:
    def __init__(self, spec):
        self.w, self.v = variable("w", 16, 32), variable("v", 32, 8)
        self.spec = spec

    def step(self, x):
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(tf.matmul(x, self.w))
            hidden = layout.constrain(hidden, self.spec, name="hidden")
            loss = tf.reduce_sum(tf.square(tf.matmul(hidden, self.v)))
        both = [self.w, self.v]
        for one, gradient in zip(both, tape.gradient(loss, both), strict=True):
            one.assign_sub(0.001 * gradient)
        return loss


LINE_OF_CONSTRAIN = inspect.getsourcelines(Model.step)[1] + 3


def error(call, *args, **options) -> str:
    with pytest.raises(LayoutError) as caught:
        call(*args, **options)
    return str(caught.value)


@pytest.mark.parametrize("mode", ["auto", slow("data")])
@pytest.mark.parametrize(
    ("spec", "splits"),
    [
        (("rows", None), (("rows",), ())),
        ("cols", (("cols",), ())),
        ((None, ("rows", "cols")), ((), ("rows", "cols"))),
        ((), ((), ())),
        ((Replicate(), Shard(1)), ((), ("cols",))),
        (layout.from_spec(GRID, (8, 32), ("cols", "rows")), (("cols",), ("rows",))),
    ],
)
def test_a_tensor_and_its_gradient_lie_as_a_function_asks(spec, splits, mode):
    found = layout.plan(Model(spec).step, GRID, ARGS, mode=mode)
    for name in ("hidden", "hidden_gradient"):
        assert found.layouts[name] == layout.TensorLayout(GRID, (8, 32), splits)


def test_a_partial_sum_has_a_gradient_that_is_whole():
    found = layout.plan(Model((Replicate(), layout.Partial())).step, GRID, ARGS).layouts
    assert found["hidden"].partial == ("cols",)
    assert found["hidden_gradient"] == layout.TensorLayout(GRID, (8, 32))


def test_plans_by_rules_over_meshes_and_that_were_saved(tmp_path):
    problem = layout.function_problem(Model(("cols",)).step, GRID, ARGS)
    found = layout.plan_by_rules(problem, "batch:rows", {"x": ["batch", None]})
    assert found.layouts["hidden"].splits == (("cols",), ())
    assert found.inputs["x"].splits == (("rows",), ())
    found.save(tmp_path / "step.plan")
    assert problem.load(tmp_path / "step.plan").layouts == found.layouts
    other = layout.function_problem(Model(("rows",)).step, GRID, ARGS)
    assert "layout=" in error(other.load, tmp_path / "step.plan")
    meshes = layout.plan_meshes(Model(("x", "y")).step, 4, ARGS)
    assert meshes.best.layouts["hidden"].splits == (("x",), ("y",))
    (line,) = (one for one in meshes.search.tried if one.plan is None)
    assert "axis 'y' is not in mesh 'x:4'" in str(line.error)
    # An axis of one device splits nothing.
    narrow = layout.plan(Model(("rows", "cols")).step, Mesh({"rows": 2, "cols": 1}), ARGS)
    assert narrow.layouts["hidden"].splits == (("rows",), ())


def test_without_a_plan_nothing_changes():
    x = tf.constant(np.ones((8, 16), np.float32))
    assert layout.constrain(x, ("anything", None)) is x
    both = [Model(("rows", None)), Model(())]
    losses = [float(tf.function(one.step)(x)) for one in both]
    assert losses[0] == losses[1]
    np.testing.assert_array_equal(both[0].w, both[1].w)
    forward = tf.function(lambda x: layout.constrain(x, ("a",))).get_concrete_function(*ARGS)
    assert {one.type for one in forward.graph.get_operations()} <= {
        "Placeholder", "Identity", "IdentityN",
    }  # fmt: skip


def test_a_table_that_is_asked_for_has_a_gradient_of_rows():
    table = variable("table", 16, 4)

    def step(ids):
        with tf.GradientTape() as tape:
            rows = tf.gather(layout.constrain(table, (None, "cols"), "rows"), ids)
            loss = tf.reduce_sum(rows * rows)
        table.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(loss, table)))
        return loss

    found = layout.plan(step, GRID, [tf.TensorSpec([8], tf.int32)])
    assert found.layouts["rows"].splits == ((), ("cols",))


def test_a_constant_that_is_asked_for():
    found = layout.plan(
        lambda x: x + layout.constrain(tf.ones([16]), ("cols",), "ones"), GRID, ARGS
    )
    assert found.layouts["ones"].splits == (("cols",),)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (("row", None), "axis 'row' is not in mesh 'rows:2;cols:2'; its axes are: rows, cols"),
        (
            ("rows", "rows"),
            "axis 'rows' is used 2 times, by dimension 0, dimension 1; an axis splits one "
            "dimension once or is partial, so keep one of them",
        ),
        (
            [Shard(0)] * 3,
            "mesh 'rows:2;cols:2' has 2 axes, and there are 3 placements (Shard(dim=0), "
            "Shard(dim=0), Shard(dim=0)); give Shard(dim), Replicate() or Partial() for each axis",
        ),
        (
            layout.TensorLayout(Mesh({"x": 2}), (8, 32)),
            "the layout is for mesh x:2, and here is mesh rows:2;cols:2; give one for this",
        ),
    ],
)
def test_errors_of_plans_name_the_line(spec, expected):
    place = f"layout.constrain 'hidden' ({__file__}:{LINE_OF_CONSTRAIN}): "
    assert error(layout.plan, Model(spec).step, GRID, ARGS) == place + expected


def test_other_errors():
    step = Model(("rows",)).step
    assert "has 7 elements, which is not a multiple of the 2 slices over 'rows'" in error(
        layout.plan, step, GRID, [tf.TensorSpec([7, 16])]
    )
    assert error(layout.plan, step, GRID, [tf.TensorSpec([None, 16])]).startswith(
        "input 'x' has shape [None, 16]; a plan needs whole shapes: "
    )
    assert "axis 'rows' is not in mesh ''; its axes are: none" in error(
        layout.plan, step, Mesh({}), ARGS
    )
    long = "spec ('rows', None, None) has 3 entries, and the tensor has 2 dimensions; give an " \
        "axis's name, a tuple of names, or None for each dimension"  # fmt: skip
    assert error(layout.plan, Model(("rows", None, None)).step, GRID, ARGS) == long
    assert error(layout.constrain, tf.ones([2, 2]), ("rows", None, None)) == long
    assert error(layout.constrain, tf.ones([2, 2]), layout.TensorLayout(GRID, (2,))) == (
        "the tensor has 2 dimensions, and the layout [2] on rows:2;cols:2 has 1; give one of the "
        "same shape"
    )
    assert error(layout.plan, Model((("cols", "rows"),)).step, GRID, ARGS) == (
        "Identity 'hidden' has no strategy that makes its tensor as [8/cols+rows, 32] on "
        "rows:2;cols:2; give the axes of a dimension in the mesh's order, and allow strategies "
        "that split it so"
    )
    one_axis = Allowed(stacked=False)
    assert "has no strategy that makes its tensor as [8/rows+cols, 32]" in error(
        layout.plan, Model((("rows", "cols"),)).step, GRID, ARGS, allowed=one_axis
    )
    assert error(layout.constrain, keras.Input((3,)), ()).endswith(
        "; call it in the method call of a layer"
    )

    def looped(x):
        def body(i, y):
            tf.print(i)  # All devices run a loop with effects whole.
            return i + 1, layout.constrain(y, ("rows",))

        return tf.while_loop(lambda i, _: i < 3, body, [0, x])[1]

    assert error(layout.plan, looped, GRID, ARGS) == (
        "layout.constrain 'while/constrain' is in While 'while', whose body all devices run whole; "
        "constrain what goes in, or what comes out"
    )


def test_a_tensor_in_a_loop_has_its_layout():
    def looped(x):
        return tf.while_loop(
            lambda i, _: i < 3, lambda i, y: (i + 1, layout.constrain(y * 2.0, ("rows",))), [0, x]
        )[1]

    found = layout.plan(looped, GRID, ARGS)
    rows = layout.from_spec(GRID, (8, 16), ("rows", None))
    assert found.layouts["while/body/while/constrain"] == rows
    # Devices do not communicate in a loop.
    assert found.layouts["while/body/while/mul"] == rows


def test_a_mesh_of_nothing_is_one_device():
    found = layout.plan(Model(()).step, Mesh((), ()), ARGS)
    assert found.layouts["hidden"] == layout.TensorLayout(Mesh({}), (8, 32))


def plan(model, layouts, **options):
    links = dict.fromkeys(GRID.axes, FAST)
    return layout.plan(model.step, GRID, ARGS, links=links, layouts=layouts, **options)


def test_layouts_of_inputs_and_variables():
    model = Model(())
    rows = layout.from_spec(GRID, (8, 16), "rows")
    for given in (
        {"w": (None, "cols"), "v": [Shard(0), Replicate()], "x": "rows"},
        {model.w.ref(): (None, "cols"), "v": ("rows",), "x": rows},
        {"[wx]": ("rows", None), "w": (None, "cols"), "v": ("rows",)},
    ):  # fmt: skip
        for options in ({}, {"mode": "propagate"}):
            found = plan(model, given, **options)
            assert found.variables["w"].splits == ((), ("cols",))
            assert found.variables["v"].splits == (("rows",), ())
            assert found.inputs["x"].splits == (("rows",), ())


def test_what_layouts_cannot_be():
    model = Model(())
    assert error(plan, model, {"u": ("rows",)}) == (
        "layouts: no tensor or variable is named 'u', nor matches it; inputs and variables are: v, "
        "w, x"
    )
    assert error(plan, model, {"w": ("rowz",)}) == (
        "layouts: 'w': axis 'rowz' is not in mesh 'rows:2;cols:2'; its axes are: rows, cols"
    )
    assert error(plan, model, {"w|v": ("rows",), "[vx]": ()}) == (
        "layouts: 'v' matches 'w|v' and '[vx]'; keep one of them, or give its very name"
    )
    assert error(plan, model, {"(": ()}).startswith(
        "layouts: '(' is not a name, nor a regular expression ("
    )
    assert error(plan, model, ("w",)) == (
        "layouts: give a mapping from names to layouts, or a LayoutMap, got ('w',)"
    )
    assert error(plan, model, {"w": (), model.w.ref(): ()}) == "layouts: 'w' has two layouts"
    assert error(plan, model, {3: ()}) == (
        "layouts: 3 is not a name, reference to a variable or Keras layer; give one of these"
    )
    assert error(plan, model, {"w": (("cols", "rows"),)}).startswith(
        "layouts: Variable 'w' has no strategy that makes 'w' as [16/cols+rows, 32]"
    )
    names = {"rules": "hidden:rows", "dimensions": {"w": [None, "hidden"]}}
    assert error(plan, model, {"w": (None, "cols")}, **names) == (
        "operation 'w' has a layout by layouts, and one by the rules; drop one of them"
    )
    assert error(plan, model, {"w": (None, "cols")}, constraints={"w": "replicate, replicate"}) == (
        "operation 'w' has a constraint, and a layout by layouts; drop one of them"
    )


def test_a_layout_map_of_keras():
    names = [f"cpu:{i}" for i in range(4)]
    devices = keras.distribution.DeviceMesh((2, 2), ("rows", "cols"), names)
    given = keras.distribution.LayoutMap(devices)
    given["w"] = (None, "cols")
    given["[vx]"] = keras.distribution.TensorLayout(("rows", None))
    found = plan(Model(()), given)
    assert found.variables["w"].splits == ((), ("cols",))
    assert found.variables["v"].splits == found.inputs["x"].splits == (("rows",), ())
    devices = keras.distribution.DeviceMesh((4,), ("rows",), names)
    assert error(plan, Model(()), keras.distribution.LayoutMap(devices)) == (
        "layouts: the LayoutMap is for a mesh of shape (4,) with axes ('rows',), and the plan is "
        "for 'rows:2;cols:2'; give both the same"
    )
