# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compute a batch norm on slices, with the statistics of the whole batch.

If axes split only channels, or nothing, TensorFlow's operation runs. Otherwise the devices add up
each channel's values, and then the squares of the differences from the mean, so that a large mean
costs no digits. The gradient needs two sums at once.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tf_fuse.layout.execution.kernels.local_operation import LocalOperation
from tf_fuse.layout.types.errors import LayoutError

# TensorFlow's sixth output is for its own gradient on GPUs; CPUs neither make nor read it.
_SPARE = 5


def batch_norm(device: LocalOperation, x: Any, scale: Any, offset: Any, *running: Any) -> Any:
    """Run `FusedBatchNormV3`: y, the statistics that are kept, and those for the gradient."""
    split = _split(device)
    _check_cpu(device)
    if not device.attribute("is_training", True) or not split:
        made = device.again([x, scale, offset, *running], {} if running else {3: [], 4: []})
        return [*made[:_SPARE], tf.zeros([])]
    axes, count = _summed(device, x), _count(device)
    wide = tf.cast(x, scale.dtype)
    mean = tf.reduce_sum(wide, axes)
    for factor in split:
        mean = yield factor, "sum", mean
    mean = mean / tf.cast(count, mean.dtype)
    left = wide - _along(device, mean)
    variance = tf.reduce_sum(tf.square(left), axes)
    for factor in split:
        variance = yield factor, "sum", variance
    variance = variance / tf.cast(count, mean.dtype)
    factor_of = scale * tf.math.rsqrt(variance + device.node_attribute("epsilon"))
    y = left * _along(device, factor_of) + _along(device, offset)
    kept = [mean, variance * tf.cast(count / max(count - 1, 1), mean.dtype)]
    share = device.node_attribute("exponential_avg_factor")
    if share != 1.0:
        both = zip(running, kept, strict=True)
        kept = [old * (1.0 - share) + new * share for old, new in both]
    return [tf.cast(y, x.dtype), *kept, mean, variance, tf.zeros([])]


def batch_norm_gradient(
    device: LocalOperation, dy: Any, x: Any, scale: Any, mean: Any, variance: Any, *spare: Any
) -> Any:
    """Run `FusedBatchNormGradV3`: the gradients of x, scale and offset."""
    split = _split(device)
    _check_cpu(device)
    if not split:
        made = device.again([dy, x, scale, mean, variance, *spare])
        return [*made[:3], tf.zeros([]), tf.zeros([])]
    axes = _summed(device, x)
    inverse = tf.math.rsqrt(variance + device.node_attribute("epsilon"))
    back, left = tf.cast(dy, scale.dtype), tf.cast(x, scale.dtype) - _along(device, mean)
    sums = tf.stack([tf.reduce_sum(back, axes), tf.reduce_sum(back * left, axes)])
    for factor in split:
        sums = yield factor, "sum", sums
    dx = back
    if device.attribute("is_training", True):
        count = tf.cast(_count(device), scale.dtype)
        dx = back - _along(device, sums[0] / count)
        dx -= left * _along(device, tf.square(inverse) * sums[1] / count)
    dx *= _along(device, scale * inverse)
    return [tf.cast(dx, x.dtype), sums[1] * inverse, sums[0], tf.zeros([]), tf.zeros([])]


def _split(device: LocalOperation) -> list[str]:
    """Return the factors that the statistics add up over and that axes split."""
    return [one for one in ("batch", "depth", "height", "width") if device.axes(one)]


def _channel(device: LocalOperation) -> int:
    first = str(device.attribute("data_format", "NHWC")).startswith("NC")
    return 1 if first else len(device.operation.inputs[0].shape) - 1


def _summed(device: LocalOperation, x: Any) -> list[int]:
    at = _channel(device)
    return [i for i in range(x.shape.rank) if i != at]


def _count(device: LocalOperation) -> int:
    """Return the numbers of each channel, on all devices together."""
    shape = device.operation.inputs[0].shape
    return math.prod(shape) // shape[_channel(device)]


def _along(device: LocalOperation, value: Any) -> Any:
    """Return a number for each channel, as one that multiplies images."""
    rank = len(device.operation.inputs[0].shape)
    return tf.reshape(value, [-1] + [1] * (rank - 1 - _channel(device)))


def _check_cpu(device: LocalOperation) -> None:
    """Check for CPUs: on GPUs TensorFlow's gradient takes other numbers of the forward pass."""
    if "GPU" in tf.zeros([]).device:
        raise LayoutError(
            f"{device.operation} runs on CPUs only by a plan; on GPUs take a batch norm that is "
            "made of single operations, as tf.nn.moments and tf.nn.batch_normalization"
        )
