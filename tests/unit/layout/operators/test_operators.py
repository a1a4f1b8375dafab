# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every strategy of every operation computes what the whole operation computes."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.slow_cases import slow_but
from tests.unit.layout.operators import cases
from tests.unit.layout.operators import numpy_execution as execution
from tests.unit.layout.operators import numpy_kernels as kernels
from tests.unit.layout.operators.checks import ONE, SQUARE, UNEVEN, check, check_gradients, reals
from tf_fuse.layout import Mesh, from_sbp, to_sbp
from tf_fuse.layout.operators import TABLE, table
from tf_fuse.layout.strategies.strategy import strategies


def test_every_kind_of_the_table_has_a_case():
    assert {one.operation.kind for one in cases.CASES} | set(cases.SOURCES) == set(TABLE)


def _is_fast(given):
    """Each case on one mesh, but of those with windows over 12 rows few; of each kind some on two.

    Elementwise kinds have one rule.
    """
    case, mesh = given
    kind = case.operation.kind
    if any(
        one.shape == (1, 12, 12, 2) for one in [*case.operation.inputs, *case.operation.outputs]
    ):
        return mesh is SQUARE and kind in ("AvgPoolGrad", "Conv2DBackpropInput", "MaxPool")
    first = next(one for one in cases.CASES if one.operation.kind == kind)
    return mesh is SQUARE or (case is first and kind not in kernels.ELEMENTWISE)


@pytest.mark.parametrize(
    ("case", "mesh"), slow_but(itertools.product(cases.CASES, [SQUARE, UNEVEN]), _is_fast), ids=str
)
def test_every_strategy_has_the_values_of_the_whole(case, mesh):
    assert check(case.operation, case.inputs, mesh) >= 1


def test_strategies_of_three_axes():
    """Each of the 6 choices of each axis, but to split the 4 rows three times: 6 ** 3 - 1."""
    one = cases.case("MatMul", [(4, 8), (8, 8)], [(4, 8)])
    assert check(one.operation, one.inputs, Mesh({"x": 2, "y": 2, "z": 2})) == 6**3 - 1


LETTERS = "abcd"


@st.composite
def equations(draw):
    """An einsum of up to three inputs over a few letters, with sizes."""
    terms = draw(
        st.lists(
            st.lists(st.sampled_from(LETTERS), min_size=1, max_size=3, unique=True),
            min_size=1,
            max_size=3,
        )
    )
    used = sorted({letter for term in terms for letter in term})
    output = draw(st.lists(st.sampled_from(used), max_size=3, unique=True))
    sizes = {letter: draw(st.sampled_from([1, 2, 3, 4, 6])) for letter in used}
    return ",".join(map("".join, terms)) + "->" + "".join(output), terms, output, sizes


@settings(deadline=None, max_examples=60)
@given(equations(), st.sampled_from([SQUARE, UNEVEN, Mesh({"x": 4})]))
def test_any_einsum(written, mesh):
    """Forward and backward, against NumPy's on whole arrays."""
    equation, terms, output, sizes = written
    shapes = [[sizes[letter] for letter in term] for term in terms]
    assume(math.prod(sizes.values()) <= 200)
    one = cases.case("Einsum", shapes, [[sizes[letter] for letter in output]], equation=equation)
    expected = np.einsum(equation, *one.inputs)
    for strategy in strategies(one.operation, mesh):
        (found,) = execution.run(one.operation, strategy, one.inputs, kernels.einsum)
        np.testing.assert_array_equal(found, expected, err_msg=str(strategy))
    check_gradients(one.operation, one.inputs, mesh, _einsum_gradient)


def _einsum_gradient(device, *everything):
    """By einsums of what is not differentiated by, and ones for letters that only it has."""
    *inputs, back = everything
    left, output = device.attribute("equation").split("->")
    terms = left.split(",")
    found = []
    for i, term in enumerate(terms):
        others = [one for j, one in enumerate(inputs) if j != i]
        names = [one for j, one in enumerate(terms) if j != i]
        ones = np.ones(inputs[i].shape, int)
        made = np.einsum(f"{','.join([output, *names, term])}->{term}", back, *others, ones)
        found.append(made)
    return found


@settings(deadline=None, max_examples=40)
@given(st.data(), st.sampled_from(["Add", "Sub", "Mul"]))
def test_any_broadcasting(data, kind):
    """Forward and backward, of shapes with sizes of 1 and without some dimensions."""
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), max_size=3))
    shapes = []
    for _ in range(2):
        own = [data.draw(st.sampled_from([size, 1])) for size in shape]
        shapes.append(own[data.draw(st.integers(0, len(own))) :])
    output = np.broadcast_shapes(*map(tuple, shapes))
    one = cases.case(kind, shapes, [output])
    check(one.operation, one.inputs, SQUARE)
    gradient = execution.linear_gradient(kernels.elementwise)
    check_gradients(one.operation, one.inputs, SQUARE, gradient)


def test_kernels_of_whole_operations_are_right():
    """Those that are more than a call of NumPy, in other words."""

    def of(kind, shapes, outputs, inputs, **attributes):
        one = cases.case(kind, shapes, outputs, **attributes)
        whole = strategies(one.operation, ONE)[0]
        return execution.run(one.operation, whole, inputs, cases.KERNELS[kind])

    x, labels = reals((4, 6), (4, 6))
    log = np.log(np.exp(x) / np.exp(x).sum(-1, keepdims=True))
    kind = "SoftmaxCrossEntropyWithLogits"
    loss, back = of(kind, [(4, 6)] * 2, [(4,), (4, 6)], [x, labels])
    np.testing.assert_allclose(loss, -(labels * log).sum(-1))
    np.testing.assert_allclose(back, np.exp(log) * labels.sum(-1, keepdims=True) - labels)
    ids = np.array([0, 5, 2, 2])
    loss, back = of("Sparse" + kind, [(4, 6), (4,)], [(4,), (4, 6)], [x, ids])
    np.testing.assert_allclose(loss, -log[np.arange(4), ids])
    np.testing.assert_allclose(back, np.exp(log) - np.eye(6)[ids])
    image, filters = reals((1, 5, 5, 2), (3, 3, 2, 1))
    strides = {"strides": (1, 2, 2, 1)}
    (found,) = of(
        "Conv2D", [image.shape, filters.shape], [(1, 2, 2, 1)], [image, filters], **strides
    )
    np.testing.assert_allclose(found[0, 1, 0, 0], (image[0, 2:5, 0:3] * filters[..., 0]).sum())


LETTERS_OF_AN_AXIS = ("B", "P", "S(0)", "S(1)")


@pytest.mark.parametrize(
    "case",
    [
        cases.case("MatMul", [(4, 6), (6, 8)], [(4, 8)]),
        cases.case("Add", [(4, 6), (6,)], [(4, 6)]),
        cases.case("Mul", [(4, 1), (4, 6)], [(4, 6)]),
        cases.case("Square", [(4, 6)], [(4, 6)]),
        cases.case("Sum", [(4, 6)], [(4,)], axes=(1,)),
        cases.case("ConcatV2", [(4, 6), (4, 2)], [(4, 8)], axis=1),
        cases.case("Reshape", [(6, 4)], [(4, 6)]),
        cases.case("Transpose", [(4, 6)], [(6, 4)], perm=(1, 0)),
        cases.case("PadV2", [(4, 6), ()], [(4, 8)], paddings=[[0, 0], [2, 0]]),
    ],
    ids=str,
)
def test_no_other_signature_is_right(case):
    """Of all layouts of inputs and output over one axis, those that work are the strategies."""
    mesh = Mesh({"x": 2})
    whole = strategies(case.operation, mesh)[0]
    kernel = cases.KERNELS[case.operation.kind]
    (expected,) = execution.run(case.operation, whole, case.inputs, kernel)
    tensors = [*case.operation.inputs, *case.operation.outputs]
    found = set()
    for letters in itertools.product(LETTERS_OF_AN_AXIS, repeat=len(tensors)):
        try:
            layouts = [
                from_sbp(mesh, tensor.shape, [letter])
                for tensor, letter in zip(tensors, letters, strict=True)
            ]
            tried = dataclasses.replace(
                whole, inputs=tuple(layouts[:-1]), outputs=tuple(layouts[-1:])
            )
            (made,) = execution.run(case.operation, tried, case.inputs, kernel)
        except (AssertionError, ValueError):
            continue
        if np.array_equal(made, expected):
            found.add(letters)
    assert found == {
        tuple(letter for one in (*one.inputs, *one.outputs) for letter in to_sbp(one))
        for one in strategies(case.operation, mesh)
    }


def forget() -> None:
    table._rule.cache_clear()
    strategies.__globals__["_strategies"].cache_clear()


def sabotaged(monkeypatch, kind, **changes) -> None:
    """The rule of a kind with fields that are wrong."""
    right = table.TABLE[kind]
    wrong = dict(table.TABLE)
    wrong[kind] = lambda operation: dataclasses.replace(right(operation), **changes)
    monkeypatch.setattr(table, "TABLE", wrong)
    forget()


@pytest.fixture(autouse=True)
def _forget():
    """Rules and strategies are kept by the operation; wrong ones are not."""
    yield
    forget()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("MatMul", {"sums": frozenset()}),
        ("MatMul", {"inputs": ((("m",), ("k",)), (("n",), ("k",)))}),
        ("MatMul", {"linear": ((0, 1),)}),
        ("Add", {"linear": ((0,),)}),
        ("Relu", {"linear": ((0,),)}),
        ("Softmax", {"inner": ()}),
        ("Sum", {"fixed": frozenset(), "sums": frozenset()}),
        ("ConcatV2", {"outputs": ((("d0",), ("d0",)),)}),
        ("GatherV2", {"sums": frozenset()}),
        ("Conv2D", {"fixed": frozenset()}),
        ("PadV2", {"linear": ((0,),)}),
    ],
    ids=str,
)
def test_a_wrong_rule_is_caught(monkeypatch, kind, changes):
    sabotaged(monkeypatch, kind, **changes)
    with pytest.raises((AssertionError, ValueError)):
        for one in cases.CASES:
            if one.operation.kind == kind:
                check(one.operation, one.inputs, SQUARE)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Mul", {"shared": frozenset({("d0", 1)})}),
        ("MatMul", {"shared": frozenset({("m", 1)})}),
        ("GatherV2", {"shared": frozenset({("row0", 0)})}),
    ],
    ids=str,
)
def test_a_wrong_gradient_is_caught(monkeypatch, kind, changes):
    sabotaged(monkeypatch, kind, **changes)
    gradient = execution.linear_gradient(cases.KERNELS[kind])
    with pytest.raises((AssertionError, ValueError)):
        for one in cases.CASES:
            if one.operation.kind == kind:
                check_gradients(one.operation, one.inputs, SQUARE, gradient)
