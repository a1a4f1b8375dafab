# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every strategy of every operation computes what the whole operation computes."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import operator_cases as cases
import operator_execution as execution
import operator_kernels as kernels
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tf_fuse.layout import Mesh, from_sbp, to_sbp
from tf_fuse.layout.operators import TABLE, table
from tf_fuse.layout.strategy import strategies

SQUARE = Mesh({"x": 2, "y": 2})
UNEVEN = Mesh({"x": 3, "y": 2})
ONE = Mesh({"x": 1})


def assert_same(found, expected, what) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and one.dtype.kind in "iub":
            np.testing.assert_array_equal(one, other, err_msg=str(what))
        elif one is not None:
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9, err_msg=str(what))


def check(operation, inputs, mesh) -> int:
    """Runs all strategies; returns how many there are."""
    kernel = cases.KERNELS[operation.kind]
    expected = execution.run(operation, strategies(operation, ONE)[0], inputs, kernel)
    all_of_them = strategies(operation, mesh)
    for strategy in all_of_them:
        assert_same(execution.run(operation, strategy, inputs, kernel), expected, strategy)
    return len(all_of_them)


def check_gradients(operation, inputs, mesh, gradient, backs=None) -> int:
    """Runs the gradients of all strategies; returns how many there are."""
    whole = strategies(operation, ONE)[0]
    if backs is None:
        backs = [cases.whole_numbers(one.shape, 11) for one in operation.outputs]
    expected = execution.gradients(operation, whole, inputs, backs, gradient)
    assert any(one is not None for one in expected)
    all_of_them = strategies(operation, mesh)
    for strategy in all_of_them:
        found = execution.gradients(operation, strategy, inputs, backs, gradient)
        assert_same(found, expected, strategy)
    return len(all_of_them)


def test_every_kind_of_the_table_has_a_case():
    assert {one.operation.kind for one in cases.CASES} | set(cases.SOURCES) == set(TABLE)


@pytest.mark.parametrize("mesh", [SQUARE, UNEVEN], ids=str)
@pytest.mark.parametrize("case", cases.CASES, ids=str)
def test_every_strategy_has_the_values_of_the_whole(case, mesh):
    assert check(case.operation, case.inputs, mesh) >= 1


# Linear in each input by itself, and without anything that devices exchange.
LINEAR = (
    "MatMul BatchMatMulV2 Add Sub AddN Mul BiasAdd SelectV2 Identity Neg Sum Mean BiasAddGrad "
    "GatherV2 UnsortedSegmentSum Reshape Transpose BroadcastTo ConcatV2 Split Pack Unpack Slice "
    "StridedSlice Pad Tile Cumsum ReluGrad"
)


@pytest.mark.parametrize(
    "case", [one for one in cases.CASES if one.operation.kind in LINEAR.split()], ids=str
)
def test_gradients_are_those_of_the_whole(case):
    gradient = execution.linear_gradient(cases.KERNELS[case.operation.kind])
    if case.operation.kind == "ReluGrad":
        case.inputs[1] = case.inputs[1] - 4
        constants = dataclasses.replace(case.operation.inputs[1], dtype="int32")
        inputs = [case.operation.inputs[0], constants]
        operation = type(case.operation)("op", "ReluGrad", inputs, case.operation.outputs)
        check_gradients(operation, case.inputs, SQUARE, gradient)
        return
    check_gradients(case.operation, case.inputs, SQUARE, gradient)


def test_gradients_of_convolutions_are_those_of_the_whole():
    """Strides of one dimension are as large as the window, so that it can be split."""
    for kind, shapes, small, strides, count in (
        ("Conv2D", [(2, 4, 2, 2), (2, 1, 2, 2)], (2, 2, 2, 2), (1, 2, 1, 1), 59),
        ("DepthwiseConv2dNative", [(2, 2, 4, 2), (1, 2, 2, 2)], (2, 2, 2, 4), (1, 1, 2, 1), 45),
    ):
        one = cases.case(kind, shapes, [small], strides=strides)
        gradient = execution.linear_gradient(cases.KERNELS[kind])
        assert check_gradients(one.operation, one.inputs, SQUARE, gradient) == count


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
    """Forward and backward, of shapes of which some sizes are 1 and some dimensions are missing."""
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


def reals(*shapes):
    random = np.random.default_rng(3)
    return [random.normal(size=shape) for shape in shapes]


def test_gradients_of_softmax_and_layer_norm():
    """Beside the layouts, the collectives that strategies name are those that are needed."""
    one = cases.case("Softmax", [(4, 6)], [(4, 6)])
    x, back = reals((4, 6), (4, 6))
    y = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    for mesh in (SQUARE, UNEVEN):
        check_gradients(one.operation, [y], mesh, kernels.softmax_gradient, [back])
    one = cases.case("LayerNorm", [(4, 2, 6), (6,), (6,)], [(4, 2, 6)])
    x, scale, offset, back = reals((4, 2, 6), (6,), (6,), (4, 2, 6))
    x = x - x.mean(-1, keepdims=True)
    x *= np.sqrt(0.999 / x.var(-1, keepdims=True))
    for mesh in (SQUARE, UNEVEN):
        inputs = [x, scale, offset]
        check_gradients(one.operation, inputs, mesh, kernels.layer_norm_gradient, [back])


def test_gradients_of_batch_norm_and_cross_entropy():
    image = (4, 2, 2, 6)
    one = cases.case("FusedBatchNormV3", [image, (6,), (6,)], [image, (6,), (6,)])
    x, scale, offset, back = reals(image, (6,), (6,), image)

    def gradient(device, x, scale, offset, dy, *_):
        nothing = np.zeros(x.shape[-1])
        return kernels.batch_norm_grad(device, dy, x, scale, nothing, nothing + 0.999)

    backs = [back, None, None]
    for mesh in (SQUARE, UNEVEN):
        check_gradients(one.operation, [x, scale, offset], mesh, gradient, backs)
    kind = "SparseSoftmaxCrossEntropyWithLogits"
    one = cases.case(kind, [(4, 6), (4,)], [(4,), (4, 6)])
    saved, labels, back = *reals((4, 6)), np.array([1, 2, 3, 4]), reals((4,))[0]

    def by_logits(device, saved, labels, dy, _):
        return [saved * dy[:, None], None]

    assert strategies(one.operation, SQUARE)[0].output_gradients[1] is None
    check_gradients(one.operation, [saved, labels], SQUARE, by_logits, [back, None])


def test_gradients_of_attention():
    shapes = [(2, 2, 4, 2), (2, 2, 6, 2), (2, 2, 6, 2)]
    one = cases.case("Attention", shapes, [(2, 2, 4, 2)])
    q, k, v, back = reals(*shapes, (2, 2, 4, 2))
    scores = np.einsum("bhsd,bhtd->bhst", q, k) / math.sqrt(2)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)

    def gradient(device, q, k, v, dy):
        part = []
        for factor, size in zip(("batch", "heads", "queries", "keys"), weights.shape, strict=True):
            count = size // math.prod(SQUARE.size_of(axis) for axis in device.axes(factor))
            first = device.first(factor, count)
            part.append(slice(first, first + count))
        return kernels.attention_gradient(device, q, k, v, weights[tuple(part)], dy)

    check_gradients(one.operation, [q, k, v], SQUARE, gradient, [back])


def numeric(function, inputs, back, i, at, step=1e-5):
    """The derivative by one element of one input, by differences."""
    both = []
    for change in (step, -step):
        moved = [one.astype(float) for one in inputs]
        moved[i][at] += change
        both.append((function(*moved) * back).sum())
    return (both[0] - both[1]) / (2 * step)


def test_kernels_of_gradients_are_gradients():
    """What the tests above take for the gradient is that of the operation."""
    for kind, shapes, kernel in (
        ("LayerNorm", [(4, 6), (6,), (6,)], kernels.layer_norm_gradient),
        ("Softmax", [(4, 6)], kernels.softmax_gradient),
    ):
        one = cases.case(kind, shapes, [(4, 6)])
        whole = strategies(one.operation, ONE)[0]
        inputs = reals(*shapes)
        inputs[0] -= inputs[0].mean(-1, keepdims=True)
        inputs[0] *= np.sqrt(0.999 / inputs[0].var(-1, keepdims=True))
        (back,) = reals((4, 6))

        def function(*values, one=one, whole=whole, kind=kind):
            return execution.run(one.operation, whole, values, cases.KERNELS[kind])[0]

        given_ = [function(*inputs)] if kind == "Softmax" else inputs
        found = execution.gradients(one.operation, whole, given_, [back], kernel)
        for i, gradient in enumerate(found):
            at = (1,) * gradient.ndim
            expected = numeric(function, inputs, back, i, at)
            np.testing.assert_allclose(gradient[at], expected, rtol=1e-6)


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
    q, k, v = reals((1, 1, 2, 4), (1, 1, 3, 4), (1, 1, 3, 2))
    (found,) = of("Attention", [q.shape, k.shape, v.shape], [(1, 1, 2, 2)], [q, k, v])
    weights = np.exp(q[0, 0] @ k[0, 0].T / 2)
    np.testing.assert_allclose(found[0, 0], weights @ v[0, 0] / weights.sum(-1, keepdims=True))
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


def sabotaged(monkeypatch, kind, **changes) -> None:
    """The rule of a kind with fields that are wrong."""
    right = table.TABLE[kind]
    wrong = dict(table.TABLE)
    wrong[kind] = lambda operation: dataclasses.replace(right(operation), **changes)
    monkeypatch.setattr(table, "TABLE", wrong)
    strategies.__globals__["_strategies"].cache_clear()


@pytest.fixture(autouse=True)
def _forget():
    """Strategies are kept by the operation; those of wrong rules are not."""
    yield
    strategies.__globals__["_strategies"].cache_clear()


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
        ("Attention", {"sums": frozenset()}),
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
