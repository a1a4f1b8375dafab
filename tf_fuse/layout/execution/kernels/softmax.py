# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compute softmax and cross-entropy over classes that are split.

Infinite and NaN logits give the values that they give on one device.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import tensorflow as tf

from tf_fuse.layout.execution.kernels.local_operation import LocalOperation


def softmax(device: LocalOperation, x: Any) -> Any:
    """Run `Softmax` and `LogSoftmax`; over a split dimension by the maximum and the sum of all."""
    at = device.attribute("axis", -1) % x.shape.rank
    factor = f"d{at}"
    if not device.axes(factor):
        return device.again([x])
    log = device.operation.kind == "LogSoftmax"
    apart = not log and _keeps_nan_apart(x.dtype)
    lowest = tf.constant(x.dtype.min, x.dtype)
    numbers = tf.where(x > lowest, x, lowest) if apart else x
    most = yield factor, "max", tf.reduce_max(numbers, at, keepdims=True)
    left = x - most
    exponentials = tf.exp(left)
    if apart:
        exponentials = tf.where(tf.math.is_nan(left), tf.constant(math.inf, x.dtype), exponentials)
    sums = yield factor, "sum", tf.reduce_sum(exponentials, at, keepdims=True)
    return [left - tf.math.log(sums) if log else exponentials / sums]


@functools.lru_cache
def _keeps_nan_apart(dtype: Any) -> bool:
    """Return whether one device's softmax of a row with NaN, or inf, has it in that place only.

    TensorFlow's does with oneDNN, whose maximum leaves NaN and -inf out, and whose exponential of
    NaN is inf when it is added up; its other one has it in the whole row. Which one there is
    depends on type, processor and environment.
    """
    with tf.init_scope():
        return not bool(tf.math.is_nan(tf.nn.softmax(tf.constant([math.nan, 0.0], dtype))[1]))


def cross_entropy(device: LocalOperation, logits: Any, labels: Any) -> Any:
    """Run `SoftmaxCrossEntropyWithLogits`, of split classes by the maximum and three sums."""
    if not device.axes("classes"):
        return device.again([logits, labels])
    most = yield "classes", "max", tf.reduce_max(logits, 1)
    left = logits - most[:, None]
    exponentials = tf.exp(left)
    # TensorFlow's own kernel multiplies first, so a logit of -inf gives NaN also for a label of 0.
    terms = [exponentials, labels, left * labels]
    sums = yield "classes", "sum", tf.stack([tf.reduce_sum(one, 1) for one in terms])
    back = exponentials / sums[0][:, None] - labels
    return [tf.math.log(sums[0]) * sums[1] - sums[2], back]


def sparse_cross_entropy(device: LocalOperation, logits: Any, labels: Any) -> Any:
    """Run `SparseSoftmaxCrossEntropyWithLogits`, of split classes by the maximum and two sums."""
    if not device.axes("classes"):
        return device.again([logits, labels])
    count = logits.shape[1]
    most = yield "classes", "max", tf.reduce_max(logits, 1)
    left = logits - most[:, None]
    mine = tf.one_hot(
        own_numbers(device, labels, "classes", count, count), count, dtype=logits.dtype
    )
    # As on one device, a label outside of the classes is an error on a CPU, and gives NaN on a GPU.
    classes = device.operation.inputs[0].shape[1]
    wrong = tf.logical_or(labels < 0, labels >= classes)
    if "CPU" in wrong.device.upper():
        says = f"Received a label value which is outside the valid range of [0, {classes}): "
        valid = tf.logical_not(tf.reduce_any(wrong))
        with tf.control_dependencies([tf.raw_ops.Assert(condition=valid, data=[says, labels])]):
            wrong = tf.identity(wrong)
    exponentials = tf.exp(left)
    terms = [exponentials, tf.math.multiply_no_nan(left, mine)]
    sums = yield "classes", "sum", tf.stack([tf.reduce_sum(one, 1) for one in terms])
    nan = tf.constant(float("nan"), logits.dtype)
    loss = tf.where(wrong, nan, tf.math.log(sums[0]) - sums[1])
    back = exponentials / sums[0][:, None] - mine
    return [loss, tf.where(wrong[:, None], nan, back)]


def counted(ids: Any) -> Any:
    """Cast row numbers to a type that can count all rows; one of one or two bytes may not."""
    return tf.cast(ids, tf.int32) if ids.dtype.size < 4 else ids


def own_numbers(device: LocalOperation, ids: Any, factor: str, length: int, other: int) -> Any:
    """Return the numbers from the first one that this device has; `other` where another has it."""
    own = ids - tf.cast(device.first(factor, length), ids.dtype)
    here = tf.logical_and(own >= 0, own < length)
    return tf.where(here, own, tf.cast(other, ids.dtype))
