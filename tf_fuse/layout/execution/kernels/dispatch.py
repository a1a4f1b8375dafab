# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Choose the kernel of each operation that must run differently on slices.

Most operations are the same on slices (`same`). The others depend on the whole: a reshape takes the
slice's shape, a term of a mean is divided by the whole count, and row numbers count from the first
row of the device.

A kernel takes its device's `LocalOperation` and tensors, and returns tensors. A kernel that
exchanges tensors with other devices is a generator: it yields (factor, reduction, tensor) and gets
the tensor back, reduced over the axes that split the factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import tensorflow as tf

from tf_fuse.layout.execution.kernels import halo
from tf_fuse.layout.execution.kernels.batch_norm import batch_norm, batch_norm_gradient
from tf_fuse.layout.execution.kernels.distinct_rows import distinct, or_other, with_meaning
from tf_fuse.layout.execution.kernels.lists import with_element_shape
from tf_fuse.layout.execution.kernels.local_operation import LocalOperation
from tf_fuse.layout.execution.kernels.random_numbers import draw, seeded_draw
from tf_fuse.layout.execution.kernels.softmax import (
    counted,
    cross_entropy,
    own_numbers,
    softmax,
    sparse_cross_entropy,
)
from tf_fuse.layout.operators import TABLE
from tf_fuse.layout.operators.random_numbers import FULL, STATELESS

Kernel = Callable[..., Any]


def same(device: LocalOperation, *inputs: Any) -> list[Any]:
    """Return the operation itself."""
    return device.again(inputs)


def identity(device: LocalOperation, x: Any) -> list[Any]:
    """Run `Identity`, and what is one for a plan. A variable in place is passed on."""
    del device
    return [x if isinstance(x, tf.Variable) else tf.identity(x)]


def assign(device: LocalOperation, value: Any) -> list[Any]:
    """Run `AssignVariableOp`: what the variable holds then."""
    del device
    return [tf.identity(value)]


def assign_add(device: LocalOperation, variable: Any, value: Any) -> list[Any]:
    """Run `AssignAddVariableOp`."""
    del device
    return [variable + value]


def assign_sub(device: LocalOperation, variable: Any, value: Any) -> list[Any]:
    """Run `AssignSubVariableOp`."""
    del device
    return [variable - value]


def reshape(device: LocalOperation, x: Any) -> list[Any]:
    """Run `Reshape`, `ExpandDims` and `Squeeze`: to the slice's shape."""
    return [tf.reshape(x, device.shape())]


def broadcast_to(device: LocalOperation, x: Any) -> list[Any]:
    """Run `BroadcastTo` and `Fill`."""
    return [tf.broadcast_to(x, device.shape())]


def _reduced(device: LocalOperation) -> tuple[int, ...]:
    rank = len(device.operation.inputs[0].shape)
    axes = device.attribute("axes", tuple(range(rank)))
    axes = axes if isinstance(axes, tuple) else (axes,)
    return tuple(sorted({one % rank for one in axes}))


def mean(device: LocalOperation, x: Any) -> list[Any]:
    """Run `Mean`: a term of it, where the sum is over more than this device's slice."""
    layout = device.instruction.strategy.inputs[0]
    axes = _reduced(device)
    if not any(layout.splits[i] for i in axes) and not layout.partial:
        return device.again([x])
    count = math.prod(layout.shape[i] for i in axes)
    total = tf.reduce_sum(x, axes, keepdims=bool(device.attribute("keep_dims")))
    return [total / tf.cast(count, x.dtype)]


def extreme(device: LocalOperation, x: Any) -> Any:
    """Run `Max`, `Min`, `Prod`, `Any` and `All`: reduced once more, among devices."""
    kind = device.operation.kind
    how = {"Max": "max", "Min": "min", "Prod": "prod", "Any": "max", "All": "min"}[kind]
    (found,) = device.again([x])
    for i in _reduced(device):
        if device.axes(f"d{i}"):
            found = yield f"d{i}", how, found
    return [found]


def gather(device: LocalOperation, table: Any, ids: Any) -> list[Any]:
    """Run `GatherV2`, `Gather` and `ResourceGather`: rows of others are zeros."""
    axis = device.attribute("axis", 0) % table.shape.rank
    batch = device.attribute("batch_dims", 0)
    ids = or_other(device, ids, 0)
    if not device.axes("vocabulary"):
        return [tf.gather(table, ids, axis=axis, batch_dims=batch)]
    count = table.shape[axis]
    whole = device.operation.inputs[0].shape[axis]
    ids = counted(ids)
    own = ids - tf.cast(device.first("vocabulary", count), ids.dtype)
    here = tf.logical_and(own >= 0, own < count)
    # A number outside of the table stays so, so that it is an error as on one device.
    valid = tf.logical_and(ids >= 0, ids < whole)
    rows = tf.where(here, own, tf.where(valid, tf.zeros_like(ids), tf.cast(count, ids.dtype)))
    found = tf.gather(table, rows, axis=axis, batch_dims=batch)
    shape = [1] * axis + here.shape.as_list()[batch:] + [1] * (table.shape.rank - axis - 1)
    shape[:batch] = here.shape.as_list()[:batch]
    return [tf.where(tf.reshape(here, shape), found, tf.zeros([], found.dtype))]


def one_hot(device: LocalOperation, ids: Any, *values: Any) -> list[Any]:
    """Run `OneHot`: numbers that another device has are off here."""
    axis = device.attribute("axis", -1) % len(device.shape())
    depth = device.shape()[axis]
    if not device.axes("depth"):
        return device.again([ids, *values], {1: depth})
    own = own_numbers(device, counted(ids), "depth", depth, -1)
    on, off = values
    return [tf.raw_ops.OneHot(indices=own, depth=depth, on_value=on, off_value=off, axis=axis)]


def segment_sum(device: LocalOperation, data: Any, ids: Any) -> list[Any]:
    """Run `UnsortedSegmentSum`: rows of segments that another device has are left out."""
    count = device.shape()[0]
    ids = or_other(device, ids, -1)
    if not device.axes("vocabulary"):
        return [tf.math.unsorted_segment_sum(data, ids, count)]
    whole = device.operation.outputs[0].shape[0]
    own = own_numbers(device, ids, "vocabulary", count, -1)
    # As on one device: below 0 is left out, and above all segments is an error.
    own = tf.where(ids >= whole, tf.cast(count, ids.dtype), own)
    return [tf.math.unsorted_segment_sum(data, own, count)]


def sparse_update(device: LocalOperation, *inputs: Any) -> list[Any]:
    """Update rows by their numbers; a device takes the updates of its own rows."""
    assert device.origin is not None
    names = [one.name for one in device.origin.operation.op_def.input_arg]
    places = {names[number]: i for i, number in enumerate(device.origin.numbers)}
    at, rows = places["indices"], places.get("updates", places.get("grad"))
    given = list(inputs)

    def keep(mine: Any) -> None:
        given[at] = tf.boolean_mask(given[at], mine)
        if rows is not None and given[rows].shape.rank:
            given[rows] = tf.boolean_mask(given[rows], mine)

    known = with_meaning(device, inputs[at])
    if known is not None:
        keep(known)
    if not device.axes("vocabulary"):
        return device.again(given)
    ids, count = given[at], device.shape()[0]
    own = own_numbers(device, ids, "vocabulary", count, -1)
    # A number outside of the table is taken, so that it is an error as on one device.
    wrong = tf.logical_or(ids < 0, ids >= device.operation.outputs[0].shape[0])
    own = tf.where(wrong, tf.cast(count, ids.dtype), own)
    given[at] = own
    keep(own >= 0)
    return device.again(given)


def cut(device: LocalOperation, x: Any) -> list[Any]:
    """Run `Slice` and `StridedSlice`: a dimension that is split is taken whole."""
    small = device.shape()
    begin, end, strides, masks = _strided(device, x.shape.as_list(), small)
    return [tf.strided_slice(x, begin, end, strides, **masks)]


def cut_gradient(device: LocalOperation, dy: Any) -> list[Any]:
    """Run `StridedSliceGrad`."""
    shape = device.shape()
    begin, end, strides, masks = _strided(device, shape, dy.shape.as_list())
    return [
        tf.raw_ops.StridedSliceGrad(
            shape=list(shape), begin=begin, end=end, strides=strides, dy=dy, **masks
        )
    ]


def _strided(
    device: LocalOperation, big: Any, small: Any
) -> tuple[list[int], list[int], list[int], dict[str, int]]:
    begin = list(device.operation.required("begin"))
    strides = list(device.attribute("strides", (1,) * len(big)))
    gone = set(device.attribute("shrink", ()))
    counts = iter(small)
    end, mask = [], 0
    for i, (first, stride) in enumerate(zip(begin, strides, strict=True)):
        if i in gone:
            end.append(first + 1)
            strides[i] = 1
            continue
        last = first + stride * (next(counts) - 1)
        end.append(last + (1 if stride > 0 else -1))
        if end[-1] < 0:
            mask |= 1 << i
            end[-1] = 0
    return begin, end, strides, {
        "end_mask": mask,
        "shrink_axis_mask": sum(1 << i for i in gone),
    }  # fmt: skip


def split_sizes(device: LocalOperation, x: Any) -> list[Any]:
    """Run `SplitV`."""
    axis = device.attribute("axis")
    sizes = [one.slice_shape[axis] for one in device.instruction.strategy.outputs]
    return list(tf.split(x, sizes, axis))


def with_input_shape(number: int) -> Kernel:
    """Rebuild an operation that takes its output's shape as an input."""

    def kernel(device: LocalOperation, *inputs: Any) -> list[Any]:
        return device.again(inputs, {number: np.array(device.shape(), np.int32)})

    return kernel


KERNELS: Final[Mapping[str, Kernel]] = {
    **dict.fromkeys(
        [
            "Identity",
            "Snapshot",
            "ReadVariableOp",
            "PreventGradient",
            "StopGradient",
            "Enter",
            "Exit",
            "LoopCond",
        ],
        identity,
    ),
    **dict.fromkeys(["Any", "All", "Max", "Min", "Prod"], extreme),
    **dict.fromkeys(["Reshape", "ExpandDims", "Squeeze"], reshape),
    **dict.fromkeys(["GatherV2", "Gather", "ResourceGather"], gather),
    **dict.fromkeys(["Slice", "StridedSlice"], cut),
    **dict.fromkeys(["Softmax", "LogSoftmax"], softmax),
    **dict.fromkeys(["Conv2D", "DepthwiseConv2dNative"], halo.or_whole(halo.convolution, same)),
    **dict.fromkeys(
        ["Conv2DBackpropInput", "DepthwiseConv2dNativeBackpropInput"],
        halo.or_whole(halo.input_gradient, with_input_shape(0)),
    ),
    **dict.fromkeys(
        ["Conv2DBackpropFilter", "DepthwiseConv2dNativeBackpropFilter"],
        halo.or_whole(halo.filter_gradient, with_input_shape(1)),
    ),
    **dict.fromkeys(["AvgPool", "MaxPool"], halo.or_whole(halo.pooling, same)),
    "AvgPoolGrad": halo.or_whole(halo.average_gradient, with_input_shape(0)),
    "MaxPoolGrad": halo.or_whole(halo.maximum_gradient, same),
    **dict.fromkeys(
        [one for one in TABLE if one.startswith(("ResourceScatter", "ResourceSparseApply"))],
        sparse_update,
    ),
    **dict.fromkeys(["EmptyTensorList", "TensorListReserve"], with_element_shape(0, 0, True)),
    **dict.fromkeys(["TensorListFromTensor", "TensorListStack"], with_element_shape(1, 0, True)),
    "TensorListGetItem": with_element_shape(2, 0, False),
    "TensorListPopBack": with_element_shape(1, 1, False),
    **dict.fromkeys(STATELESS, seeded_draw),
    **dict.fromkeys([*STATELESS.values(), FULL], draw),
    "AssignAddVariableOp": assign_add,
    "AssignSubVariableOp": assign_sub,
    "AssignVariableOp": assign,
    "BroadcastTo": broadcast_to,
    "FusedBatchNormGradV3": batch_norm_gradient,
    "FusedBatchNormV3": batch_norm,
    "Mean": mean,
    "OneHot": one_hot,
    "SoftmaxCrossEntropyWithLogits": cross_entropy,
    "SparseSoftmaxCrossEntropyWithLogits": sparse_cross_entropy,
    "SplitV": split_sizes,
    "StridedSliceGrad": cut_gradient,
    "Unique": distinct,
    "UnsortedSegmentSum": segment_sum,
}
