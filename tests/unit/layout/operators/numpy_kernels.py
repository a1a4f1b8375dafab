# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What each operation computes, of a device's slices: see `numpy_execution`."""

from __future__ import annotations

import math

import numpy as np

from tf_fuse.layout.operators import random_numbers

_ERF = np.vectorize(math.erf)
_SELU = 1.0507009873554805, 1.6732632423543772


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _elu(x, alpha=1.0):
    return np.where(x > 0, x, alpha * np.expm1(x))


ELEMENTWISE = {
    "Add": np.add,
    "AddV2": np.add,
    "Sub": np.subtract,
    "AddN": lambda *terms: sum(terms),
    "Neg": np.negative,
    "Real": np.real,
    "Imag": np.imag,
    "Conj": np.conj,
    **dict.fromkeys(["Enter", "Exit", "Identity", "LoopCond"], np.array),
    "Snapshot": np.array,
    "ReadVariableOp": np.array,
    "PreventGradient": np.array,
    "StopGradient": np.array,
    "CheckNumerics": np.array,
    "SelectV2": np.where,
    "Mul": np.multiply,
    "MulNoNan": np.multiply,
    "RealDiv": np.divide,
    "Div": np.divide,
    "DivNoNan": np.divide,
    "ReluGrad": lambda dy, x: dy * (x > 0),
    "Relu6Grad": lambda dy, x: dy * ((x > 0) & (x < 6)),
    "LeakyReluGrad": lambda dy, x: np.where(x > 0, dy, 2 * dy),
    "EluGrad": lambda dy, y: np.where(y > 0, dy, dy * (y + 1)),
    "SeluGrad": lambda dy, y: np.where(y > 0, dy * _SELU[0], dy * (y + _SELU[0] * _SELU[1])),
    "SoftplusGrad": lambda dy, x: dy * _sigmoid(x),
    "SoftsignGrad": lambda dy, x: dy / (1 + np.abs(x)) ** 2,
    "TanhGrad": lambda y, dy: dy * (1 - y * y),
    "SigmoidGrad": lambda y, dy: dy * y * (1 - y),
    "SqrtGrad": lambda y, dy: dy / (2 * y),
    "RsqrtGrad": lambda y, dy: -dy * y**3 / 2,
    "InvGrad": lambda y, dy: -dy * y * y,
    "ReciprocalGrad": lambda y, dy: -dy * y * y,
    "Abs": np.abs,
    "Maximum": np.maximum,
    "Minimum": np.minimum,
    "SquaredDifference": lambda x, y: (x - y) ** 2,
    "Square": np.square,
    "FloorDiv": np.floor_divide,
    "FloorMod": np.mod,
    "Cast": lambda x: x.astype(np.float32),
    "Pow": lambda x, y: np.power(x.astype(float), y),
    "Log": np.log,
    "Log1p": np.log1p,
    "Erf": _ERF,
    "Erfc": lambda x: 1 - _ERF(x),
    "Sin": np.sin,
    "Cos": np.cos,
    "Softplus": lambda x: np.log1p(np.exp(x)),
    "Xdivy": np.divide,
    "Xlogy": lambda x, y: x * np.log(y),
    "Relu": lambda x: np.maximum(x, 0),
    "Relu6": lambda x: np.clip(x, 0, 6),
    "LeakyRelu": lambda x: np.where(x > 0, x, 2 * x),
    "Reciprocal": lambda x: 1 / x,
    "Inv": lambda x: 1 / x,
    "Exp": np.exp,
    "Expm1": np.expm1,
    "Tanh": np.tanh,
    "Sigmoid": _sigmoid,
    "Sqrt": np.sqrt,
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "Elu": _elu,
    "Selu": lambda x: _SELU[0] * _elu(x, _SELU[1]),
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
    "LogicalAnd": np.logical_and,
    "LogicalOr": np.logical_or,
    "LogicalNot": np.logical_not,
    "Sign": np.sign,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.round,
    "Rint": np.rint,
    "IsFinite": np.isfinite,
    "IsNan": np.isnan,
    "IsInf": np.isinf,
    "ZerosLike": np.zeros_like,
    "OnesLike": np.ones_like,
}


def elementwise(device, *inputs):
    return [np.asarray(ELEMENTWISE[device.operation.kind](*inputs))]


def bias_add(device, x, bias):
    if device.attribute("data_format", "NHWC").startswith("NC"):
        bias = bias.reshape(-1, *[1] * (x.ndim - 2))
    return [x + bias]


def matmul(device, x, y):
    x = x.swapaxes(-1, -2) if device.attribute("transpose_a") or device.attribute("adj_x") else x
    y = y.swapaxes(-1, -2) if device.attribute("transpose_b") or device.attribute("adj_y") else y
    return [x @ y]


def einsum(device, *inputs):
    return [np.einsum(device.attribute("equation"), *inputs)]


def _reduced(device, rank):
    axes = device.attribute("axes", tuple(range(rank)))
    axes = axes if isinstance(axes, tuple) else (axes,)
    return tuple(sorted(one % rank for one in axes))


def reduction(device, x):
    """All reductions: over each split dimension that is gone the devices reduce, or do not."""
    axes = _reduced(device, x.ndim)
    keep = bool(device.attribute("keep_dims"))
    kind = device.operation.kind
    if kind in ("Sum", "Mean", "L2Loss"):
        found = (x * x / 2 if kind == "L2Loss" else x).sum(axis=axes, keepdims=keep)
        whole = device.operation.inputs[0].shape
        count = math.prod(whole[i] for i in axes)
        return [np.asarray(found / count if kind == "Mean" else found)]
    how, function = {
        "Max": ("max", np.max),
        "Min": ("min", np.min),
        "Prod": ("prod", np.prod),
        "Any": ("max", np.any),
        "All": ("min", np.all),
    }[kind]
    found = np.asarray(function(x, axis=axes, keepdims=keep))
    for i in axes:
        found = yield f"d{i}", how, found
    return [np.asarray(found)]


def total(device, x):
    """`reduction` of what is never reduced among devices."""
    try:
        next(reduction(device, x))
    except StopIteration as end:
        return end.value
    raise AssertionError("it exchanged")


def bias_add_grad(device, x):
    keep = 1 if device.attribute("data_format", "NHWC").startswith("NC") else x.ndim - 1
    return [x.sum(axis=tuple(i for i in range(x.ndim) if i != keep))]


def softmax(device, x):
    at = device.attribute("axis", -1) % x.ndim
    most = yield f"d{at}", "max", x.max(at)
    left = x - np.expand_dims(most, at)
    sums = yield f"d{at}", "sum", np.exp(left).sum(at)
    sums = np.expand_dims(sums, at)
    log = device.operation.kind == "LogSoftmax"
    return [left - np.log(sums) if log else np.exp(left) / sums]


def softmax_gradient(device, y, dy):
    """Of the output, which is what is kept."""
    at = device.attribute("axis", -1) % y.ndim
    sums = yield f"d{at}", "sum", (dy * y).sum(at)
    return [y * (dy - np.expand_dims(sums, at))]


def cross_entropy(device, logits, labels):
    most = yield "classes", "max", logits.max(-1)
    left = logits - most[:, None]
    sums = yield (
        "classes",
        "sum",
        np.stack([np.exp(left).sum(-1), labels.sum(-1), (labels * left).sum(-1)]),
    )
    back = np.exp(left) / sums[0][:, None] * sums[1][:, None] - labels
    return [np.log(sums[0]) * sums[1] - sums[2], back]


def sparse_cross_entropy(device, logits, labels):
    most = yield "classes", "max", logits.max(-1)
    left = logits - most[:, None]
    own = labels - device.first("classes", logits.shape[1])
    mine = one_hot_of(own, logits.shape[1])
    sums = yield "classes", "sum", np.stack([np.exp(left).sum(-1), (mine * left).sum(-1)])
    return [np.log(sums[0]) - sums[1], np.exp(left) / sums[0][:, None] - mine]


def one_hot_of(ids, depth):
    return (ids[..., None] == np.arange(depth)).astype(int)


_IMAGE_AXES = {"NHWC": (0, 1, 2), "NCHW": (0, 2, 3)}


def _along_channels(device, value):
    return value[:, None, None] if device.attribute("data_format") == "NCHW" else value


def batch_norm(device, x, scale, offset, *given):
    axes = _IMAGE_AXES[device.attribute("data_format", "NHWC")]
    if device.attribute("is_training", True):
        shape = device.operation.inputs[0].shape
        mean = x.sum(axes) / math.prod(shape[i] for i in axes)
        for factor in ("batch", "height", "width"):
            mean = yield factor, "sum", mean
        variance = ((x - _along_channels(device, mean)) ** 2).sum(axes)
        for factor in ("batch", "height", "width"):
            variance = yield factor, "sum", variance
        variance = variance / math.prod(shape[i] for i in axes)
    else:
        mean, variance = given
    wide = [_along_channels(device, one) for one in (mean, variance, scale, offset)]
    return [(x - wide[0]) / np.sqrt(wide[1] + 1e-3) * wide[2] + wide[3], mean, variance]


def batch_norm_grad(device, dy, x, scale, mean, variance, *_):
    axes = _IMAGE_AXES[device.attribute("data_format", "NHWC")]
    shape = device.operation.inputs[0].shape
    count = math.prod(shape[i] for i in axes)
    wide = [_along_channels(device, one) for one in (mean, np.sqrt(variance + 1e-3), scale)]
    left = (x - wide[0]) / wide[1]
    sums = np.stack([dy.sum(axes), (dy * left).sum(axes)])
    for factor in ("batch", "height", "width"):
        sums = yield factor, "sum", sums
    both = [_along_channels(device, one) / count for one in sums]
    return [wide[2] / wide[1] * (dy - both[0] - left * both[1]), sums[1], sums[0]]


def gather(device, table, ids):
    axis = device.attribute("axis", 0) % table.ndim
    batch = device.attribute("batch_dims", 0)
    if batch:
        inner = [_rows(device, one, two, axis - 1) for one, two in zip(table, ids, strict=True)]
        assert batch == 1
        return [np.stack(inner)]
    return [_rows(device, table, ids, axis)]


def _rows(device, table, ids, axis):
    count = table.shape[axis]
    own = ids - device.first("vocabulary", count)
    here = (own >= 0) & (own < count)
    found = np.take(table, np.where(here, own, 0), axis=axis)
    shape = [1] * axis + list(ids.shape) + [1] * (table.ndim - axis - 1)
    return np.where(here.reshape(shape), found, 0)


def one_hot(device, ids, *_):
    axis = device.attribute("axis", -1)
    count = device.strategy.outputs[0].slice_shape[axis]
    return [np.moveaxis(one_hot_of(ids - device.first("depth", count), count), -1, axis)]


def draw(device, *inputs):
    """Numbers that depend on their place and on all inputs."""
    layout = device.strategy.outputs[0]
    places = np.arange(np.prod(layout.shape)).reshape(layout.shape)
    return [(places * 7 % 5 + sum(one.sum() for one in inputs))[layout.slice_of(device.number)]]


def key_and_counter(device, seed):
    return [seed[:1] * 3, seed + 1]


def segment_sum(device, data, ids):
    found = np.zeros(device.strategy.outputs[0].slice_shape, data.dtype)
    own = ids - device.first("vocabulary", len(found))
    here = (own >= 0) & (own < len(found))
    np.add.at(found, own[here], data[here])
    return [found]


def update(device, *inputs):
    """Some formula on elements for each state; scalars and the gradient come behind them."""
    states = len(device.operation.outputs)
    change = sum(inputs[1:])
    return [one + (i + 1) * change for i, one in enumerate(inputs[:states])]


def sparse_update(device, *inputs, ids, updates):
    """Adds rows, times a number for each state and the scalars, to those of this device."""
    found = []
    table = inputs[0]
    own = inputs[ids] - device.first("vocabulary", len(table))
    here = (own >= 0) & (own < len(table))
    rows = np.broadcast_to(inputs[updates], (*own.shape, *table.shape[1:]))[here]
    for i, state in enumerate(inputs[: len(device.operation.outputs)]):
        change = state.copy()
        np.add.at(change, own[here], (i + 1) * (1 + sum(x for x in inputs if not x.ndim)) * rows)
        found.append(change)
    return found


KERNELS = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    "BiasAdd": bias_add,
    "MatMul": matmul,
    "BatchMatMulV2": matmul,
    "Einsum": einsum,
    "Sum": total,
    "Mean": total,
    "L2Loss": total,
    "BiasAddGrad": bias_add_grad,
    **dict.fromkeys(["Max", "Min", "Prod", "Any", "All"], reduction),
    "Softmax": softmax,
    "LogSoftmax": softmax,
    "SoftmaxCrossEntropyWithLogits": cross_entropy,
    "SparseSoftmaxCrossEntropyWithLogits": sparse_cross_entropy,
    "FusedBatchNormV3": batch_norm,
    "FusedBatchNormGradV3": batch_norm_grad,
    **dict.fromkeys(["GatherV2", "Gather", "ResourceGather"], gather),
    "UnsortedSegmentSum": segment_sum,
    "OneHot": one_hot,
    **dict.fromkeys(random_numbers.DRAWS, draw),
    "StatelessRandomGetKeyCounter": key_and_counter,
}
