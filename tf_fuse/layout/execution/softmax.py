# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a device does of a softmax or cross-entropy whose classes are split: see `kernels`.

What is not finite gives what it gives on one device.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import tensorflow as tf

from tf_fuse.layout.execution.local import Local


def softmax(device: Local, x: Any) -> Any:
    """`Softmax` and `LogSoftmax`; over a split dimension by the maximum and the sum of all."""
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
    """Whether one device's softmax of a row with NaN, or inf, has it in that place only.

    TensorFlow's does with oneDNN, whose maximum leaves NaN and -inf out, and whose exponential of
    NaN is inf when it is added up; its other one has it in the whole row. Which one there is
    depends on type, processor and environment.
    """
    with tf.init_scope():
        return not bool(tf.math.is_nan(tf.nn.softmax(tf.constant([math.nan, 0.0], dtype))[1]))


def cross_entropy(device: Local, logits: Any, labels: Any) -> Any:
    """`SoftmaxCrossEntropyWithLogits`, of split classes by the maximum and three sums."""
    if not device.axes("classes"):
        return device.again([logits, labels])
    most = yield "classes", "max", tf.reduce_max(logits, 1)
    left = logits - most[:, None]
    exponentials = tf.exp(left)
    # TensorFlow's own multiplies as it is, so a logit of -inf gives NaN where the label is 0, too.
    terms = [exponentials, labels, left * labels]
    sums = yield "classes", "sum", tf.stack([tf.reduce_sum(one, 1) for one in terms])
    back = exponentials / sums[0][:, None] - labels
    return [tf.math.log(sums[0]) * sums[1] - sums[2], back]


def sparse_cross_entropy(device: Local, logits: Any, labels: Any) -> Any:
    """`SparseSoftmaxCrossEntropyWithLogits`, of split classes by the maximum and two sums."""
    if not device.axes("classes"):
        return device.again([logits, labels])
    count = logits.shape[1]
    most = yield "classes", "max", tf.reduce_max(logits, 1)
    left = logits - most[:, None]
    mine = tf.one_hot(
        own_numbers(device, labels, "classes", count, count), count, dtype=logits.dtype
    )
    # A label that is no class at all gives NaN, as on one device.
    classes = device.operation.inputs[0].shape[1]
    wrong = tf.logical_or(labels < 0, labels >= classes)
    exponentials = tf.exp(left)
    terms = [exponentials, tf.math.multiply_no_nan(left, mine)]
    sums = yield "classes", "sum", tf.stack([tf.reduce_sum(one, 1) for one in terms])
    nan = tf.constant(float("nan"), logits.dtype)
    loss = tf.where(wrong, nan, tf.math.log(sums[0]) - sums[1])
    back = exponentials / sums[0][:, None] - mine
    return [loss, tf.where(wrong[:, None], nan, back)]


def own_numbers(device: Local, ids: Any, factor: str, length: int, other: int) -> Any:
    """Numbers from the first one that this device has; `other` where another has it."""
    own = ids - tf.cast(device.first(factor, length), ids.dtype)
    here = tf.logical_and(own >= 0, own < length)
    return tf.where(here, own, tf.cast(other, ids.dtype))
