# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gradients of every strategy are those of the whole operation."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.unit.layout.operators import cases
from tests.unit.layout.operators import numpy_execution as execution
from tests.unit.layout.operators import numpy_kernels as kernels
from tests.unit.layout.operators.checks import ONE, SQUARE, UNEVEN, check_gradients, reals
from tf_fuse.layout.strategies.strategy import strategies

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


def test_gradients_of_softmax():
    """Beside the layouts, the collectives that strategies name are those that are needed."""
    one = cases.case("Softmax", [(4, 6)], [(4, 6)])
    x, back = reals((4, 6), (4, 6))
    y = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    for mesh in (SQUARE, UNEVEN):
        check_gradients(one.operation, [y], mesh, kernels.softmax_gradient, [back])


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


def numeric(function, inputs, back, i, at, step=1e-5):
    """The derivative by one element of one input, by differences."""
    both = []
    for change in (step, -step):
        moved = [one.astype(float) for one in inputs]
        moved[i][at] += change
        both.append((function(*moved) * back).sum())
    return (both[0] - both[1]) / (2 * step)


def test_the_kernel_of_softmax_gradient_is_its_gradient():
    """What the tests above take for the gradient is that of the operation."""
    one = cases.case("Softmax", [(4, 6)], [(4, 6)])
    whole = strategies(one.operation, ONE)[0]
    x, back = reals((4, 6), (4, 6))

    def function(value):
        return execution.run(one.operation, whole, [value], cases.KERNELS["Softmax"])[0]

    (found,) = execution.gradients(
        one.operation, whole, [function(x)], [back], kernels.softmax_gradient
    )
    expected = numeric(function, [x], back, 0, (1, 1))
    np.testing.assert_allclose(found[1, 1], expected, rtol=1e-6)
