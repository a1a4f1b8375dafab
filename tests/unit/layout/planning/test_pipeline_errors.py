# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Errors of plans of functions: their texts, and names that are misspelt."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tests.unit.layout.planning.planned_models import GRID, LINE, two_layers
from tf_fuse.layout import LayoutError, assumed_rates, function_problem, plan, plan_by_rules


def test_names_that_are_misspelt():
    """A rule for a dimension that no tensor has would split nothing."""
    forward, _, args = two_layers()
    problem = function_problem(forward, LINE, args[:1])
    dimensions = {"x": ["batch", "io"], "w": ["io", "hidden"]}
    with pytest.raises(LayoutError) as caught:
        plan_by_rules(problem, "bach:x;io:x", dimensions)
    assert caught.value.problems == (
        "rule bach:x: no tensor has a dimension 'bach'; there are: batch, hidden, io",
    )
    with pytest.raises(LayoutError) as caught:
        plan_by_rules(problem, "batch:x", {"x": "bi"})
    assert caught.value.problems == (
        "dimensions of 'x': give a sequence of names, got the text 'bi'; write ['bi'] for one",
    )
    for mode in ("auto", "propagate"):
        with pytest.raises(LayoutError) as caught:
            problem.search(mode, "bach:x", dimensions)
        assert caught.value.problems == (
            "rule bach:x is for a dimension that no tensor in dimensions has; they have: batch, "
            "hidden, io",
        )
        with pytest.raises(LayoutError) as caught:
            problem.search(mode, "batch:x", dimensions, renamed="x")
        assert caught.value.problems == (
            "renamed: give a sequence of names, got the text 'x'; write ['x'] for one",
        )


def test_errors():
    forward, _, args = two_layers()
    x = args[:1]

    def error(mesh=LINE, args=x, **options) -> str:
        with pytest.raises(LayoutError) as caught:
            plan(forward, mesh, args, **options)
        return str(caught.value)

    assert error(mode="fast") == "mode is one of data, auto, propagate, got 'fast'"
    assert error(mode="propagate") == (
        "mode 'propagate' needs some layouts: give rules and dimensions, layouts, or constraints, "
        "or take mode 'auto'"
    )
    for given, way in (({"x": 2}, "Mesh({'x': 2})"), ("x:2", "Mesh.from_text('x:2')")):
        text = f"a layout.Mesh is needed, got {given!r}; write layout.{way}"
        assert error(mesh=given) == text
    assert error(args=[tf.TensorSpec([None, 16])]).startswith("input 'x' has shape [None, 16]")
    assert error(args=[tf.TensorSpec([7, 16])], mode="data") == (
        "input 'x' has a batch of 7, which is not a multiple of the 2 devices of mesh 'x:2', so "
        "mode 'data' cannot split it; pad it to 8, or set batch to {'x': None}"
    )
    for slots in (-1, 1.5, True):
        assert error(slots=slots) == f"slots is a whole number, 0 or more, got {slots!r}"
    assert error(batch={"z": 0}) == "batch: 'z' is not an input of 'forward'; there are: x"
    assert error(batch={"x": 2}) == "batch: input 'x' has 2 dimensions, and 2 is not one of them"
    assert error(rates=assumed_rates(GRID)) == (
        "the plan is for mesh 'x:2', and the rates are for 'rows:2;cols:2'; take both for the same "
        "one"
    )
    assert error(rates=assumed_rates(LINE), links={}) == (
        "rates have links already; give rates or links, not both"
    )
    assert "constraint: unknown operation 'no'" in error(constraints={"no": "replicate"})
    assert error(dimensions={"x": ["a", None]}) == (
        "dimensions have names, but there are no rules for them; give rules"
    )
    assert error(rules="a:x;c:x", dimensions={"x": ["a"], "z": ["b"]}) == "\n".join([
        "- dimensions: no tensor or variable is named 'z'; there are: Identity, MatMul, "
        "MatMul/ReadVariableOp, MatMul_1, MatMul_1/ReadVariableOp, Relu, result Identity, v and 2 "
        "more",
        "- dimensions: tensor 'x' has 2 dimensions [8, 16], and 1 names; give a name for each, or "
        "None",
        "- rule c:x is for a dimension that no tensor in dimensions has; they have: a, b",
    ])  # fmt: skip
    assert error(rules="a:y", dimensions={"x": ["a", None]}).startswith("tensor 'x': ")
    assert error(rules="a:x", dimensions={"x": ["a", None]}, constraints={"x": "replicate"}) == (
        "operation 'x' has a constraint, and a layout by the rules; drop one of them"
    )
    assert error(memory_limit_bytes=10).startswith(
        "no plan fits into memory_limit_bytes=10: the least that any plan needs is"
    )

    def inverse(x):
        return tf.linalg.inv(x)

    with pytest.raises(LayoutError) as caught:
        plan(
            inverse, LINE, [tf.TensorSpec([4, 4])], rules="a:x",
            dimensions={"MatrixInverse": ["a", None]},
        )  # fmt: skip
    assert str(caught.value) == (
        "MatrixInverse 'MatrixInverse' has no strategy that makes 'MatrixInverse' as [4/x, 4] on "
        "x:2, which the rules say; leave it out of dimensions, and name what it is made of"
    )
