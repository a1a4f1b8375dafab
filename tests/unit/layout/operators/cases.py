# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One or more operations of every kind that has a rule, with inputs to run them on."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from tests.unit.layout.operators import numpy_halos as halo_kernels
from tests.unit.layout.operators import numpy_kernels as operator_kernels
from tests.unit.layout.operators import numpy_shape_kernels as shape_kernels
from tf_fuse.layout.operators import random_numbers
from tf_fuse.layout.types.operation import Operation, Tensor

KERNELS = {**operator_kernels.KERNELS, **shape_kernels.KERNELS, **halo_kernels.KERNELS}
SOURCES = ("Const", "Placeholder", "VarHandleOp", "Variable")


class Case(NamedTuple):
    operation: Operation
    inputs: list[np.ndarray]

    def __str__(self) -> str:
        shapes = "x".join(str(list(one.shape)) for one in self.inputs)
        return f"{self.operation.kind}{shapes}{dict(self.operation.attributes) or ''}"


def operation(kind, inputs, outputs, attributes=(), parameters=()) -> Operation:
    """An operation of tensors named a, b and so on, and y0, y1 and so on."""
    ins = [Tensor("abcdefghij"[i], tuple(shape), "float64", i in parameters)
           for i, shape in enumerate(inputs)]  # fmt: skip
    outs = [Tensor(f"y{i}", tuple(shape), "float64") for i, shape in enumerate(outputs)]
    return Operation("op", kind, ins, outs, dict(attributes))


def whole_numbers(shape, seed=0, low=1, high=9) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(low, high, shape)


def case(kind, inputs, outputs, values=None, **attributes) -> Case:
    """Inputs are whole numbers, so that sums are exact, but for those that are given."""
    given = dict(values or {})
    arrays = [given.get(i, whole_numbers(shape, i)) for i, shape in enumerate(inputs)]
    return Case(operation(kind, inputs, outputs, attributes), arrays)


def _reals(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def _elementwise():
    one = "Neg Real Imag Conj Identity Snapshot ReadVariableOp PreventGradient StopGradient Abs "
    one += (
        "Square Cast CheckNumerics Log Log1p Erf Erfc Sin Cos Softplus Relu Relu6 LeakyRelu "
        "Reciprocal Inv Exp "
    )
    one += "Expm1 Tanh Sigmoid Sqrt Rsqrt Elu Selu LogicalNot Sign Floor Ceil Round Rint IsFinite "
    one += "IsNan IsInf ZerosLike OnesLike Enter Exit LoopCond"
    yield from (case(kind, [(4, 6)], [(4, 6)]) for kind in one.split())
    three = {"SelectV2"}
    for kind in sorted(set(operator_kernels.ELEMENTWISE) - set(one.split()) - three - {"AddN"}):
        yield case(kind, [(4, 6), (4, 6)], [(4, 6)])
    yield case("Add", [(4, 1, 6), (8, 1)], [(4, 8, 6)])
    yield case("Mul", [(4, 6), ()], [(4, 6)])
    yield case("Mul", [(6,), (4, 1)], [(4, 6)])
    yield case("AddN", [(4, 6)] * 3, [(4, 6)])
    condition = whole_numbers((4, 1), 5, 0, 2).astype(bool)
    yield case("SelectV2", [(4, 1), (4, 6), (6,)], [(4, 6)], {0: condition})
    yield case("BiasAdd", [(4, 2, 6), (6,)], [(4, 2, 6)])
    yield case("BiasAdd", [(4, 6, 2, 2), (6,)], [(4, 6, 2, 2)], data_format="NCHW")


def _control_flow():
    yield case("Merge", [(4, 6), (4, 6)], [(4, 6)])
    for kind in ("EmptyTensorList", "TensorListReserve"):
        yield case(kind, [()], [(3, 4, 6)])
    for kind in ("TensorListFromTensor", "TensorListStack"):
        yield case(kind, [(3, 4, 6)], [(3, 4, 6)])
    yield case("TensorListGetItem", [(3, 4, 6), ()], [(4, 6)], {1: np.array(2)})
    yield case("TensorListSetItem", [(3, 4, 6), (), (4, 6)], [(3, 4, 6)], {1: np.array(1)})
    yield case("TensorListPushBack", [(3, 4, 6), (4, 6)], [(3, 4, 6)])
    yield case("TensorListPopBack", [(3, 4, 6)], [(3, 4, 6), (4, 6)])
    yield case("TensorListLength", [(3, 4, 6)], [()])


def _contractions():
    yield case("MatMul", [(4, 6), (6, 8)], [(4, 8)])
    yield case("MatMul", [(6, 4), (8, 6)], [(4, 8)], transpose_a=True, transpose_b=True)
    yield case("BatchMatMulV2", [(2, 4, 6), (6, 8)], [(2, 4, 8)])
    yield case("BatchMatMulV2", [(1, 6, 4), (4, 8, 6)], [(4, 4, 8)], adj_x=True, adj_y=True)
    yield case("Einsum", [(4, 6), (6, 8), (8, 2)], [(4, 2)], equation="ab,bc,cd->ad")
    yield case("Einsum", [(4, 4, 6)], [(4, 6)], equation="aab->ab")
    for second in ((6, 8), (1, 6, 8), (2, 6, 8)):
        yield case("Einsum", [(2, 4, 6), second], [(2, 4, 8)], equation="...ab,...bc->...ac")
    yield case("Einsum", [(4, 6)], [()], equation="ab->")
    yield case("Einsum", [(4, 6), (2,)], [(2, 4, 6)], equation="...,a->a...")


def _reductions():
    for kind in ("Sum", "Mean", "Max", "Min", "Prod"):
        yield case(kind, [(4, 2, 6)], [(2,)], axes=(0, -1))
    yield case("Sum", [(4, 6)], [(4, 1)], axes=1, keep_dims=True)
    yield case("Max", [(4, 6)], [(1, 6)], axes=(0,), keep_dims=True)
    yield case("Mean", [(4, 6)], [()])
    yield case("L2Loss", [(4, 6)], [()])
    flags = whole_numbers((4, 6), 3, 0, 2).astype(bool)
    yield case("Any", [(4, 6)], [(4,)], {0: flags}, axes=(1,))
    yield case("All", [(4, 6)], [(6,)], {0: flags}, axes=(0,))
    yield case("BiasAddGrad", [(4, 2, 6)], [(6,)])
    yield case("BiasAddGrad", [(4, 6, 2, 2)], [(6,)], data_format="NCHW")


def _normalizations():
    yield case("Softmax", [(4, 6)], [(4, 6)])
    yield case("Softmax", [(4, 2, 6)], [(4, 2, 6)], axis=0)
    yield case("LogSoftmax", [(4, 6)], [(4, 6)])
    both = [(4,), (4, 6)]
    yield case("SoftmaxCrossEntropyWithLogits", [(4, 6), (4, 6)], both)
    labels = {1: np.array([0, 5, 2, 3])}
    yield case("SparseSoftmaxCrossEntropyWithLogits", [(4, 6), (4,)], both, labels)
    image = (4, 2, 2, 6)
    yield case("FusedBatchNormV3", [image, (6,), (6,)], [image, (6,), (6,)])
    first = (4, 6, 2, 2)
    yield case("FusedBatchNormV3", [first, (6,), (6,)], [first, (6,), (6,)], data_format="NCHW")
    yield case("FusedBatchNormV3", [image, *[(6,)] * 4], [image, (6,), (6,)], is_training=False)
    for shape, name in ((image, "NHWC"), (first, "NCHW")):
        inputs = [shape, shape, (6,), (6,), (6,)]
        yield case("FusedBatchNormGradV3", inputs, [shape, (6,), (6,)], data_format=name)


def _gathers():
    ids = {1: np.array([[0, 7], [3, 2], [3, 5], [1, 6]])}
    for kind in ("GatherV2", "Gather", "ResourceGather"):
        yield case(kind, [(8, 6), (4, 2)], [(4, 2, 6)], ids)
    yield case("GatherV2", [(2, 8, 6), (4,)], [(2, 4, 6)], {1: ids[1][:, 0]}, axis=1)
    yield case("GatherV2", [(4, 8, 2), (4, 2)], [(4, 2, 2)], ids, axis=1, batch_dims=1)
    yield case("UnsortedSegmentSum", [(4, 2, 6), (4, 2)], [(8, 6)], ids)
    yield case("OneHot", [(4, 2)], [(4, 2, 8)], {0: ids[1]})
    for kind in sorted(random_numbers.DRAWS):
        inputs = [(1,), (2,)] if kind.startswith("Stateless") else []
        yield case(kind, inputs + [(), ()] * kind.endswith(("Int", "IntV2")), [(4, 6)])
    yield case("StatelessRandomUniformV2", [(1,), (2,)], [(4, 6)], alg=2)
    yield case("StatelessRandomGetKeyCounter", [(2,)], [(1,), (2,)])
    yield case("OneHot", [(4, 2)], [(8, 4, 2)], {0: ids[1]}, axis=0)


def _images():
    strides = {"strides": (1, 2, 2, 1)}
    yield case("Conv2D", [(4, 4, 4, 6), (3, 3, 6, 2)], [(4, 4, 4, 2)], strides=(1, 1, 1, 1))
    yield case("Conv2D", [(2, 8, 8, 4), (2, 2, 4, 6)], [(2, 4, 4, 6)], **strides)
    yield case("Conv2D", [(2, 6, 6, 4), (3, 3, 2, 6)], [(2, 3, 3, 6)], **strides)
    wide = {"strides": (1, 1, 1, 1), "dilations": (1, 2, 2, 1)}
    yield case("Conv2D", [(2, 4, 4, 4), (2, 2, 4, 2)], [(2, 2, 2, 2)], **wide)
    front = {"strides": (1, 1, 2, 2), "data_format": "NCHW"}
    yield case("Conv2D", [(2, 4, 8, 8), (2, 2, 4, 6)], [(2, 6, 4, 4)], **front)
    for big, kernel, small, step in (
        ((4, 4, 4, 6), (3, 3, 6, 2), (4, 4, 4, 2), (1, 1, 1, 1)),
        ((2, 8, 8, 4), (2, 2, 4, 6), (2, 4, 4, 6), (1, 2, 2, 1)),
    ):
        yield case("Conv2DBackpropInput", [kernel, small], [big], strides=step)
        yield case("Conv2DBackpropFilter", [big, small], [kernel], strides=step)
    for count in (1, 2):
        shapes = [(2, 4, 4, 6), (2, 2, 6, count)]
        yield case("DepthwiseConv2dNative", shapes, [(2, 2, 2, 6 * count)], **strides)
        yield case("DepthwiseConv2dNative", shapes, [(2, 4, 4, 6 * count)], strides=(1, 1, 1, 1))
        big, kernel = shapes
        for small, step in (((2, 2, 2, 6 * count), 2), ((2, 4, 4, 6 * count), 1)):
            for kind, given, made in (
                ("DepthwiseConv2dNativeBackpropInput", [kernel, small], big),
                ("DepthwiseConv2dNativeBackpropFilter", [big, small], kernel),
            ):
                yield case(kind, given, [made], strides=(1, step, step, 1))
    for size, step in ((2, (1, 2, 2, 1)), (3, (1, 2, 2, 1)), (1, (1, 1, 1, 1))):
        pool = {"ksize": (1, size, size, 1), "strides": step}
        behind = (2, 8, 8, 4) if size == 1 else (2, 4, 4, 4)
        for kind in ("MaxPool", "AvgPool"):
            yield case(kind, [(2, 8, 8, 4)], [behind], **pool)
    pool = {"ksize": (1, 2, 2, 1), "strides": (1, 2, 2, 1)}
    big, small = (2, 8, 8, 4), (2, 4, 4, 4)
    yield case("AvgPoolGrad", [small], [big], **pool)
    yield case("MaxPoolGrad", [big, small, small], [big], **pool)


def _windows():
    """Windows that overlap or leave gaps: rows of neighbours, of one side and of both."""
    for size, small, length, step, more in (
        (8, 8, 2, 1, {}),
        (8, 8, 3, 1, {}),
        (12, 12, 5, 1, {}),
        (8, 4, 1, 2, {}),
        (8, 4, 3, 2, {}),
        (12, 6, 5, 2, {}),
        (12, 8, 5, 1, {}),
        (12, 6, 2, 2, {}),
        (8, 4, 2, 2, {"explicit_paddings": (0, 0, 1, 0, 1, 0, 0, 0)}),
        (8, 8, 3, 1, {"explicit_paddings": (0, 0, 2, 0, 2, 0, 0, 0)}),
        (12, 12, 2, 1, {"explicit_paddings": (0, 0, 2, 2, 2, 2, 0, 0), "dilations": (1, 4, 4, 1)}),
    ):
        big, behind = (1, size, size, 2), (1, small, small, 2)
        given = {"strides": (1, step, step, 1), **more}
        for kind, kernel in (
            ("Conv2D", (length, length, 2, 2)),
            ("DepthwiseConv2dNative", (length, length, 2, 1)),
        ):
            yield case(kind, [big, kernel], [behind], **given)
            yield case(f"{kind}BackpropInput", [kernel, behind], [big], **given)
            yield case(f"{kind}BackpropFilter", [big, behind], [kernel], **given)
        if not more:
            pool = {"ksize": (1, length, length, 1), **given}
            yield case("AvgPool", [big], [behind], **pool)
            yield case("AvgPoolGrad", [behind], [big], **pool)
            yield case("MaxPool", [big], [behind], **pool)
            yield case("MaxPoolGrad", [big, behind, behind], [big], **pool)


def _shapes():
    for before, behind in (
        ((4, 6), (24,)), ((24,), (4, 6)), ((4, 6), (6, 4)), ((4, 6, 8), (4, 48)),
        ((24,), (2, 2, 6)),
        ((4, 1, 6), (1, 4, 6)), ((6, 4, 2), (4, 6, 2)), ((4, 4, 6), (8, 2, 6)), ((1,), ()),
        ((12, 10), (15, 8)),
    ):  # fmt: skip
        yield case("Reshape", [before], [behind])
    yield case("ExpandDims", [(4, 6)], [(4, 1, 6)])
    yield case("Squeeze", [(4, 1, 6)], [(4, 6)])
    yield case("Transpose", [(4, 2, 6)], [(6, 4, 2)], perm=(2, 0, 1))
    yield case("BroadcastTo", [(4, 1)], [(2, 4, 6)])
    yield case("ConcatV2", [(4, 6), (4, 2)], [(4, 8)], axis=1)
    yield case("Split", [(4, 6)], [(4, 2)] * 3, axis=-1)
    yield case("SplitV", [(4, 6)], [(4, 4), (4, 2)], axis=1)
    yield case("Pack", [(4, 6)] * 2, [(4, 2, 6)], axis=1)
    yield case("Unpack", [(4, 2, 6)], [(4, 6)] * 2, axis=1)
    yield case("Slice", [(4, 6)], [(4, 2)], begin=(0, 3))
    yield case(
        "StridedSlice", [(4, 6, 8)], [(4, 2)], begin=(0, 3, 1), strides=(1, 1, 4), shrink=[1]
    )
    yield case("StridedSlice", [(4, 6)], [(4, 6)], begin=(3, 0), strides=(-1, 1))
    yield case("StridedSliceGrad", [(4, 2)], [(4, 6, 8)], begin=(0, 3, 1), strides=(1, 1, 4),
               shrink=[1])  # fmt: skip
    for kind in ("Pad", "PadV2", "MirrorPad"):
        extra = [()] if kind == "PadV2" else []
        yield case(kind, [(4, 6), *extra], [(4, 8)], paddings=[[0, 0], [2, 0]])
    yield case("Tile", [(4, 6)], [(4, 12)], multiples=(1, 2))
    for kind in ("Cumsum", "ReverseV2", "Roll"):
        yield case(kind, [(4, 6)], [(4, 6)], axis=1)
    for kind in ("ArgMax", "ArgMin"):
        yield case(kind, [(4, 6)], [(4,)], {0: _reals((4, 6))}, axis=-1)
    yield case("TopKV2", [(4, 6)], [(4, 2)] * 2, {0: _reals((4, 6))})


# For each update, how many tensors it writes, and what is behind them: scalars, then the gradient.
UPDATES = {
    "AssignAddVariableOp": (1, 0), "AssignSubVariableOp": (1, 0),
    "ResourceApplyGradientDescent": (1, 1), "ResourceApplyMomentum": (2, 2),
    "ResourceApplyKerasMomentum": (2, 2), "ResourceApplyAdagrad": (2, 1),
    "ResourceApplyAdagradV2": (2, 2), "ResourceApplyAdam": (3, 6), "ResourceApplyRMSProp": (3, 4),
    "ResourceApplyAdadelta": (3, 3), "ResourceApplyFtrl": (3, 4), "ResourceApplyFtrlV2": (3, 5),
}  # fmt: skip


def _updates():
    shape = (4, 6)
    # The old value is of no account.
    yield case("AssignVariableOp", [shape], [shape])
    for kind, (states, scalars) in UPDATES.items():
        yield case(kind, [shape] * states + [()] * scalars + [shape], [shape] * states)


# For each, how many tensors it writes, scalars before the updates, those behind, and whether row
# numbers come before the updates.
SPARSE = {
    **dict.fromkeys(
        [f"ResourceScatter{name}" for name in ["Add", "Sub", "Mul", "Div", "Min", "Max", "Update"]],
        (1, 0, 0, True),
    ),
    **{f"ResourceSparseApply{name}": (*counts, False) for name, counts in {
        "Adagrad": (2, 1, 0), "AdagradV2": (2, 2, 0), "ProximalAdagrad": (2, 3, 0),
        "Momentum": (2, 1, 1), "KerasMomentum": (2, 1, 1), "Adadelta": (3, 3, 0),
        "RMSProp": (3, 4, 0), "CenteredRMSProp": (4, 4, 0), "Ftrl": (3, 0, 4),
        "FtrlV2": (3, 0, 5), "ProximalGradientDescent": (1, 3, 0),
    }.items()},
}  # fmt: skip


def _sparse_updates():
    """Of rows some twice; numbers in two dimensions, and one number for all rows, where that is."""
    for kind, (states, before, behind, ids_first) in SPARSE.items():
        ids = np.array([7, 0, 3, 3])
        both = [(4,), (4, 6)] if ids_first else [(4, 6), (4,)]
        shapes = [(8, 6)] * states + [()] * before + both + [()] * behind
        at = states + before + (not ids_first)
        yield case(kind, shapes, [(8, 6)] * states, {at: ids})
    ids = np.array([[7, 0], [3, 3]])
    yield case("ResourceScatterAdd", [(8, 6), (2, 2), (2, 2, 6)], [(8, 6)], {1: ids})
    yield case("ResourceScatterSub", [(8, 6), (2, 2), ()], [(8, 6)], {1: ids})


def _sparse_kernel(kind):
    states, before, _, ids_first = SPARSE[kind]
    at = states + before
    return functools.partial(
        operator_kernels.sparse_update, ids=at + (not ids_first), updates=at + ids_first
    )


KERNELS |= {kind: _sparse_kernel(kind) for kind in SPARSE}
KERNELS |= dict.fromkeys(["AssignVariableOp", *UPDATES], operator_kernels.update)
CASES = [
    *_contractions(), *_elementwise(), *_reductions(), *_normalizations(), *_gathers(), *_images(),
    *_windows(), *_shapes(), *_updates(), *_sparse_updates(), *_control_flow(),
]  # fmt: skip
