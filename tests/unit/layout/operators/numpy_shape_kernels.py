# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What convolutions, pooling and operations on shapes compute, of a device's slices."""

from __future__ import annotations

import numpy as np


def _nhwc(device, x):
    first = device.attribute("data_format", "NHWC") == "NCHW"
    return np.moveaxis(x, 1, 3) if first else x


def _back(device, x):
    first = device.attribute("data_format", "NHWC") == "NCHW"
    return np.moveaxis(x, 3, 1) if first else x


def _pair(device, name, default=(1, 1, 1, 1)):
    value = device.attribute(name, default)
    return value[2:] if device.attribute("data_format", "NHWC") == "NCHW" else value[1:3]


def _windows(device, size, count, window):
    """For each place in a window, (its place, the pixels before it is padded, the padding)."""
    strides, dilations = _pair(device, "strides"), _pair(device, "dilations")
    pads = [
        max(0, (count[i] - 1) * strides[i] + (window[i] - 1) * dilations[i] + 1 - size[i])
        for i in (0, 1)
    ]
    first = [one // 2 for one in pads]
    padding = [(first[i], pads[i] - first[i]) for i in (0, 1)]
    explicit = device.attribute("explicit_paddings")
    if explicit:
        at = 4 if device.attribute("data_format", "NHWC") == "NCHW" else 2
        padding = [tuple(explicit[at : at + 2]), tuple(explicit[at + 2 : at + 4])]
    for i in range(window[0]):
        for j in range(window[1]):
            at = i * dilations[0], j * dilations[1]
            rows = [
                slice(at[n], at[n] + (count[n] - 1) * strides[n] + 1, strides[n]) for n in (0, 1)
            ]
            yield (i, j), (slice(None), *rows), padding


def _padded(x, padding, value=0):
    return np.pad(x, [(0, 0), *padding, (0, 0)], constant_values=value)


def _shapes(device, tensor):
    """Height and width of what the device holds of an output."""
    shape = device.strategy.outputs[tensor].slice_shape
    return shape[2:] if device.attribute("data_format", "NHWC") == "NCHW" else shape[1:3]


def convolution(device, x, kernel):
    x = _nhwc(device, x)
    count = _shapes(device, 0)
    groups = x.shape[3] // kernel.shape[2]
    made = [0] * groups
    for (i, j), rows, padding in _windows(device, x.shape[1:3], count, kernel.shape[:2]):
        parts = np.split(_padded(x, padding)[rows], groups, 3)
        filters = np.split(kernel[i, j], groups, 1)
        made = [one + a @ b for one, a, b in zip(made, parts, filters, strict=True)]
    return [_back(device, np.concatenate(made, 3))]


def depthwise(device, x, kernel):
    x = _nhwc(device, x)
    made = 0
    for (i, j), rows, padding in _windows(
        device, x.shape[1:3], _shapes(device, 0), kernel.shape[:2]
    ):
        made = made + _padded(x, padding)[rows][..., None] * kernel[i, j]
    return [_back(device, made.reshape(*made.shape[:3], -1))]


def input_gradient(device, kernel, dy):
    dy = _nhwc(device, dy)
    size = _shapes(device, 0)
    made = None
    for (i, j), rows, padding in _windows(device, size, dy.shape[1:3], kernel.shape[:2]):
        if made is None:
            blank = np.zeros((len(dy), *size, kernel.shape[2]), dy.dtype)
            made = _padded(blank, padding)
            inside = [slice(one[0], one[0] + n) for one, n in zip(padding, size, strict=True)]
        made[rows] += dy @ kernel[i, j].T
    return [_back(device, made[(slice(None), *inside)])]


def depthwise_input_gradient(device, kernel, dy):
    dy = _nhwc(device, dy)
    dy = dy.reshape(*dy.shape[:3], *kernel.shape[2:])
    size = _shapes(device, 0)
    made = None
    for (i, j), rows, padding in _windows(device, size, dy.shape[1:3], kernel.shape[:2]):
        if made is None:
            made = _padded(np.zeros((len(dy), *size, kernel.shape[2]), dy.dtype), padding)
            inside = [slice(one[0], one[0] + n) for one, n in zip(padding, size, strict=True)]
        made[rows] += (dy * kernel[i, j]).sum(-1)
    return [_back(device, made[(slice(None), *inside)])]


def depthwise_filter_gradient(device, x, dy):
    x, dy = _nhwc(device, x), _nhwc(device, dy)
    made = np.zeros(device.strategy.outputs[0].slice_shape, x.dtype)
    dy = dy.reshape(*dy.shape[:3], *made.shape[2:])
    for (i, j), rows, padding in _windows(device, x.shape[1:3], dy.shape[1:3], made.shape[:2]):
        made[i, j] = np.einsum("bhwc,bhwcm->cm", _padded(x, padding)[rows], dy)
    return [made]


def filter_gradient(device, x, dy):
    x, dy = _nhwc(device, x), _nhwc(device, dy)
    made = np.zeros(device.strategy.outputs[0].slice_shape, x.dtype)
    for (i, j), rows, padding in _windows(device, x.shape[1:3], dy.shape[1:3], made.shape[:2]):
        made[i, j] = np.einsum("bhwi,bhwo->io", _padded(x, padding)[rows], dy)
    return [made]


def pooling(device, x):
    x = _nhwc(device, x)
    window = _pair(device, "ksize")
    most = device.operation.kind == "MaxPool"
    low = -(10**6) if most else 0
    found = [
        _padded(x, padding, low)[rows]
        for _, rows, padding in _windows(device, x.shape[1:3], _shapes(device, 0), window)
    ]
    made = np.max(found, 0) if most else np.sum(found, 0) / len(found)
    return [_back(device, made)]


def pooling_gradient(device, *inputs):
    most = device.operation.kind == "MaxPoolGrad"
    x, y, dy = (_nhwc(device, one) for one in inputs) if most else (None, None, inputs[0])
    dy = dy if most else _nhwc(device, dy)
    size, window = _shapes(device, 0), _pair(device, "ksize")
    made = None
    for _, rows, padding in _windows(device, size, dy.shape[1:3], window):
        if made is None:
            made = _padded(np.zeros((dy.shape[0], *size, dy.shape[3])), padding)
            inside = [slice(one[0], one[0] + n) for one, n in zip(padding, size, strict=True)]
            x = _padded(x, padding, -(10**6)) if most else None
        share = (x[rows] == y) if most else 1 / (window[0] * window[1])
        made[rows] += dy * share
    return [_back(device, made[(slice(None), *inside)])]


def reshape(device, x):
    return [x.reshape(device.strategy.outputs[0].slice_shape)]


def transpose(device, x):
    return [x.transpose(device.attribute("perm"))]


def concat(device, *inputs):
    return [np.concatenate(inputs, device.attribute("axis"))]


def split(device, x):
    axis = device.attribute("axis")
    ends = np.cumsum([one.slice_shape[axis] for one in device.strategy.outputs])
    return np.split(x, ends[:-1], axis)


def pack(device, *inputs):
    return [np.stack(inputs, device.attribute("axis", 0))]


def unpack(device, x):
    return list(np.moveaxis(x, device.attribute("axis", 0), 0))


def _cut(device, big, small):
    begin = device.attribute("begin")
    strides = device.attribute("strides", (1,) * len(big))
    gone = set(device.attribute("shrink", ()))
    counts = iter(small)
    return tuple(
        first
        if i in gone
        else first + step * np.arange(next(counts))
        for i, (first, step) in enumerate(zip(begin, strides, strict=True))
    )  # fmt: skip


def _grid(index):
    """The index of the outer product, for NumPy."""
    arrays = [one for one in index if isinstance(one, np.ndarray)]
    wide = iter(np.ix_(*arrays))
    return tuple(next(wide) if isinstance(one, np.ndarray) else one for one in index)


def cut(device, x):
    index = _cut(device, x.shape, device.strategy.outputs[0].slice_shape)
    return [x[_grid(index)]]


def cut_gradient(device, dy):
    made = np.zeros(device.strategy.outputs[0].slice_shape, dy.dtype)
    made[_grid(_cut(device, made.shape, dy.shape))] = dy
    return [made]


def pad(device, x, value=0):
    if device.operation.kind == "MirrorPad":
        return [np.pad(x, device.attribute("paddings"), mode="reflect")]
    return [np.pad(x, device.attribute("paddings"), constant_values=value)]


def tile(device, x):
    return [np.tile(x, device.attribute("multiples"))]


def broadcast_to(device, x):
    return [np.broadcast_to(x, device.strategy.outputs[0].slice_shape)]


def along(device, x):
    axis = device.attribute("axis")
    if device.operation.kind == "Cumsum":
        return [np.cumsum(x, axis)]
    return [np.flip(x, axis) if device.operation.kind == "ReverseV2" else np.roll(x, 1, axis)]


def pick(device, x):
    axis = device.attribute("axis", -1)
    if device.operation.kind == "TopKV2":
        order = np.argsort(-x, axis, kind="stable")[..., :2]
        return [np.take_along_axis(x, order, axis), order]
    return [(np.argmax if device.operation.kind == "ArgMax" else np.argmin)(x, axis)]


def merge(device, first, second):
    """Of the branches, the first one was taken; where terms are added up, both have some."""
    return [first + 0 * second]


def empty_list(device, _):
    return [np.zeros(device.strategy.outputs[0].slice_shape)]


def get_item(device, elements, at):
    return [elements[int(at)]]


def set_item(device, elements, at, one):
    found = elements.copy()
    found[int(at)] = one
    return [found]


def push_back(device, elements, one):
    return [np.concatenate([elements[1:], one[None]])]


def pop_back(device, elements):
    return [elements, elements[-1]]


def length(device, elements):
    return [np.array(len(elements))]


KERNELS = {
    "Merge": merge,
    "EmptyTensorList": empty_list,
    "TensorListReserve": empty_list,
    "TensorListFromTensor": reshape,
    "TensorListStack": reshape,
    "TensorListGetItem": get_item,
    "TensorListSetItem": set_item,
    "TensorListPushBack": push_back,
    "TensorListPopBack": pop_back,
    "TensorListLength": length,
    **dict.fromkeys(["Reshape", "ExpandDims", "Squeeze"], reshape),
    "Transpose": transpose,
    "BroadcastTo": broadcast_to,
    "ConcatV2": concat,
    "Split": split,
    "SplitV": split,
    "Pack": pack,
    "Unpack": unpack,
    "Slice": cut,
    "StridedSlice": cut,
    "StridedSliceGrad": cut_gradient,
    **dict.fromkeys(["Pad", "PadV2", "MirrorPad"], pad),
    "Tile": tile,
    **dict.fromkeys(["Cumsum", "ReverseV2", "Roll"], along),
    **dict.fromkeys(["ArgMax", "ArgMin", "TopKV2"], pick),
}
