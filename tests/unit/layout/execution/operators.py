# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions of an operation each, with arguments, for plans that are run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

# What DTensor gets wrong or fails at, if it is given it.
KNOWN_BAD = {"Relayout", "RelayoutLike", "CopyToMesh", "Roll", "ReverseV2"}
_RANDOM = np.random.default_rng(11)


def real(*shape: int) -> np.ndarray:
    return _RANDOM.normal(size=shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray:
    return np.abs(real(*shape)) + 0.5


def whole(high: int, *shape: int) -> np.ndarray:
    return _RANDOM.integers(0, high, shape).astype(np.int32)


def _pool_gradient(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.max_pool2d(x, 2, 2, "VALID")
    return tape.gradient(y, x, tf.ones_like(y) * 3)


def _average_gradient(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.avg_pool2d(x, 2, 2, "VALID")
    return tape.gradient(y, x, tf.ones_like(y) * 3)


def _convolution_gradient(which: int) -> Any:
    def function(x: Any, kernel: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = tf.nn.conv2d(x, kernel, 1, "SAME")
            loss = tf.reduce_sum(y * y)
        return tape.gradient(loss, [x, kernel])[which]

    return function


def _depthwise_gradient(which: int, step: int = 1) -> Any:
    def function(x: Any, kernel: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            y = tf.nn.depthwise_conv2d(x, kernel, [1, step, step, 1], "SAME")
            loss = tf.reduce_sum(y * y)
        return tape.gradient(loss, [x, kernel])[which]

    return function


def _draws() -> Iterator[tuple[str, Any, list[np.ndarray]]]:
    """Numbers of each kind and type; slices begin within a group of numbers, and carry."""
    random = tf.random
    seed = np.array([5, 7], np.int32)
    # The counter's lower half has to carry over.
    counter = np.array([2**64 - 1, 3], np.uint64)

    def uniform(counter: Any) -> Any:
        return tf.raw_ops.StatelessRandomUniformV2(
            shape=[6, 5], key=tf.constant([9], tf.uint64), counter=counter, alg=1
        )

    yield "StatelessRandomUniformV2/carry", uniform, [counter]
    for kind, function in (
        ("StatelessRandomUniformV2", random.stateless_uniform),
        ("StatelessRandomNormalV2", random.stateless_normal),
        ("StatelessTruncatedNormalV2", random.stateless_truncated_normal),
    ):
        for dtype in ("float16", "float32", "float64"):
            yield f"{kind}/{dtype}", partial(_drawn, function, dtype=dtype), [seed]
    for dtype in ("int32", "int64"):
        for kind, limits in (("Int", (-5, 1000)), ("FullInt", (None, None))):
            drawn = partial(_drawn, random.stateless_uniform, limits, dtype=dtype)
            yield f"StatelessRandomUniform{kind}V2/{dtype}", drawn, [seed]


def _drawn(function: Any, *given: Any, dtype: str) -> Any:
    *limits, seed = given
    return function([6, 5], seed, *(limits[0] if limits else ()), dtype=dtype)


def _batch_norm(data_format: str = "NHWC", training: bool = True, factor: float = 1.0) -> Any:
    """y, and the mean and variance that are kept."""

    def function(x: Any, scale: Any, offset: Any, *running: Any) -> Any:
        empty = tf.constant([], tf.float32)
        found = tf.raw_ops.FusedBatchNormV3(
            x=x, scale=scale, offset=offset, mean=running[0] if running else empty,
            variance=running[1] if running else empty, data_format=data_format,
            is_training=training, exponential_avg_factor=factor, epsilon=1e-3,
        )  # fmt: skip
        return found[:3]

    return function


def _batch_norm_gradient(data_format: str, training: bool = True) -> Any:
    def function(*args: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(args[:3])
            y = _batch_norm(data_format, training)(*args)[0]
            loss = tf.reduce_sum(y * y * y)
        return tape.gradient(loss, args[:3])

    return function


def _slice_gradient(x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x[:, 1:3]
        loss = tf.reduce_sum(y * y)
    return tape.gradient(loss, x)


IMAGE, KERNEL = real(4, 4, 4, 4), real(3, 3, 4, 2)
CHANNELS = [real(4), real(4), real(4), positive(4)]
# Kind, with what tells several of one kind apart behind it; function; arguments.
CASES: tuple[tuple[str, Any, list[np.ndarray]], ...] = (
    ("MatMul", lambda a, b: tf.matmul(a, b, transpose_b=True), [real(4, 6), real(8, 6)]),
    ("BatchMatMulV2", tf.matmul, [real(2, 4, 6), real(2, 6, 2)]),
    ("Einsum", lambda a, b: tf.einsum("bsd,dhk->bhsk", a, b), [real(2, 4, 6), real(6, 2, 4)]),
    ("AddV2", tf.add, [real(4, 6), real(6)]),
    ("AddN", lambda a, b, c: tf.add_n([a, b, c]), [real(4, 6), real(4, 6), real(4, 6)]),
    ("BiasAdd", tf.nn.bias_add, [real(4, 6), real(6)]),
    ("Mul", tf.multiply, [real(4, 6), real(4, 1)]),
    ("RealDiv", tf.divide, [real(4, 6), positive(4, 6)]),
    ("SelectV2", tf.where, [real(4, 6) > 0, real(4, 6), real(4, 6)]),
    ("LeakyRelu", lambda x: tf.nn.leaky_relu(x, 0.3), [real(4, 6)]),
    ("Cast", lambda x: tf.cast(x, tf.int32), [real(4, 6) * 5]),
    ("CheckNumerics", lambda x: tf.debugging.check_numerics(x, "x"), [real(4, 6)]),
    ("Sum", lambda x: tf.reduce_sum(x, 1), [real(4, 6)]),
    ("Mean", lambda x: tf.reduce_mean(x, [0, 2], keepdims=True), [real(4, 6, 2)]),
    ("Mean/integers", lambda x: tf.reduce_mean(x, 1), [whole(99, 4, 6)]),
    ("Max", lambda x: tf.reduce_max(x, -1), [real(4, 6)]),
    ("Min", lambda x: tf.reduce_min(x), [real(4, 6)]),
    ("Prod", lambda x: tf.reduce_prod(x, 0), [real(4, 6)]),
    ("Any", lambda x: tf.reduce_any(x, 0), [real(4, 6) > 1]),
    ("All", lambda x: tf.reduce_all(x), [real(4, 6) > -9]),
    ("L2Loss", tf.nn.l2_loss, [real(4, 6)]),
    ("BiasAddGrad", lambda x: tf.raw_ops.BiasAddGrad(out_backprop=x), [real(4, 6)]),
    ("FusedBatchNormV3", _batch_norm(), [IMAGE + 30, *CHANNELS[:2]]),
    ("FusedBatchNormV3/running", _batch_norm("NCHW", factor=0.25), [IMAGE, *CHANNELS]),
    ("FusedBatchNormV3/inference", _batch_norm(training=False), [IMAGE, *CHANNELS]),
    ("FusedBatchNormV3/deep", _batch_norm("NDHWC"), [real(2, 2, 2, 2, 4), *CHANNELS[:2]]),
    ("FusedBatchNormGradV3", _batch_norm_gradient("NHWC"), [IMAGE, *CHANNELS[:2]]),
    ("FusedBatchNormGradV3/first", _batch_norm_gradient("NCHW"), [IMAGE, *CHANNELS[:2]]),
    ("FusedBatchNormGradV3/inference", _batch_norm_gradient("NHWC", False), [IMAGE, *CHANNELS]),
    ("Softmax", lambda x: tf.nn.softmax(x), [real(4, 6)]),
    ("LogSoftmax", lambda x: tf.nn.log_softmax(x), [real(4, 6)]),
    ("SoftmaxCrossEntropyWithLogits",
     lambda a, b: tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=a, labels=b),
     [real(4, 6), positive(4, 6)]),
    ("SparseSoftmaxCrossEntropyWithLogits",
     lambda a, b: tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=a, labels=b),
     [real(4, 6), whole(6, 4)]),
    ("SparseSoftmaxCrossEntropyWithLogits/int64",
     lambda a, b: tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=a, labels=b),
     [real(4, 6), whole(6, 4).astype(np.int64)]),
    ("GatherV2", tf.gather, [real(8, 6), whole(8, 4, 2)]),
    ("GatherV2/batch", lambda a, b: tf.gather(a, b, axis=1, batch_dims=1),
     [real(4, 6, 2), whole(6, 4, 2)]),
    ("GatherV2/int64", tf.gather, [real(8, 6), whole(8, 4).astype(np.int64)]),
    ("GatherV2/logical", tf.gather, [real(8, 6) > 0, whole(8, 4)]),
    ("GatherV2/int16", tf.gather, [real(600, 2), whole(600, 4).astype(np.int16)]),
    ("UnsortedSegmentSum/int64", lambda a, b: tf.math.unsorted_segment_sum(a, b, 8),
     [real(4, 6), whole(9, 4).astype(np.int64) - 1]),
    ("UnsortedSegmentSum", lambda a, b: tf.math.unsorted_segment_sum(a, b, 8),
     [real(4, 6), whole(9, 4) - 1]),
    ("OneHot", lambda x: tf.one_hot(x, 6), [whole(7, 4)]),
    ("OneHot/int64", lambda x: tf.one_hot(x, 6), [whole(7, 4).astype(np.int64)]),
    ("OneHot/uint8", lambda x: tf.one_hot(x, 600), [whole(250, 4).astype(np.uint8)]),
    ("OneHot/int8", lambda x: tf.one_hot(x, 6), [whole(9, 4).astype(np.int8) - 2]),
    ("OneHot/axis", lambda x: tf.one_hot(x, 6, 2.0, -1.0, axis=0), [whole(7, 4)]),
    ("Conv2D", lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), [IMAGE, KERNEL]),
    ("Conv2D/patches", lambda x, k: tf.nn.conv2d(x, k, 2, "VALID"), [IMAGE, real(2, 2, 4, 2)]),
    ("Conv2DBackpropInput", _convolution_gradient(0), [IMAGE, KERNEL]),
    ("Conv2DBackpropFilter", _convolution_gradient(1), [IMAGE, KERNEL]),
    ("DepthwiseConv2dNative",
     lambda x, k: tf.nn.depthwise_conv2d(x, k, [1, 1, 1, 1], "SAME"), [IMAGE, real(3, 3, 4, 2)]),
    ("DepthwiseConv2dNativeBackpropInput", _depthwise_gradient(0), [IMAGE, real(3, 3, 4, 2)]),
    ("DepthwiseConv2dNativeBackpropInput/patches", _depthwise_gradient(0, 2),
     [IMAGE, real(2, 2, 4, 1)]),
    ("DepthwiseConv2dNativeBackpropFilter", _depthwise_gradient(1), [IMAGE, real(3, 3, 4, 2)]),
    ("DepthwiseConv2dNativeBackpropFilter/patches", _depthwise_gradient(1, 2),
     [IMAGE, real(2, 2, 4, 1)]),
    *_draws(),
    ("AvgPool", lambda x: tf.nn.avg_pool2d(x, 2, 2, "VALID"), [IMAGE]),
    ("MaxPool", lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), [IMAGE]),
    ("AvgPoolGrad", _average_gradient, [IMAGE]),
    ("MaxPoolGrad", _pool_gradient, [IMAGE]),
    ("Reshape", lambda x: tf.reshape(x, [2, 12, 2]), [real(4, 12)]),
    ("Reshape/merge", lambda x: tf.reshape(x, [8, 6]), [real(4, 2, 6)]),
    ("ExpandDims", lambda x: tf.expand_dims(x, 1), [real(4, 6)]),
    ("Squeeze", lambda x: tf.squeeze(x), [real(2, 1, 6)]),
    ("Transpose", lambda x: tf.transpose(x, [2, 0, 1]), [real(4, 6, 2)]),
    ("BroadcastTo", lambda x: tf.broadcast_to(x, [4, 6]), [real(1, 6)]),
    ("BroadcastTo/Fill", lambda x: tf.fill([4, 6], x), [real()]),
    ("ConcatV2", lambda a, b: tf.concat([a, b], 1), [real(4, 2), real(4, 6)]),
    ("Split", lambda x: tf.split(x, 2, 1), [real(4, 6)]),
    ("SplitV", lambda x: tf.split(x, [2, 4], 1), [real(4, 6)]),
    ("Pack", lambda a, b: tf.stack([a, b], 1), [real(4, 6), real(4, 6)]),
    ("Unpack", lambda x: tf.unstack(x, axis=1), [real(4, 2)]),
    ("Slice", lambda x: tf.slice(x, [0, 1], [4, 3]), [real(4, 6)]),
    ("StridedSlice", lambda x: x[:, ::-2, 1], [real(4, 6, 2)]),
    ("StridedSlice/outside", lambda x: x[:, -9:2], [real(4, 6)]),
    ("StridedSlice/backwards", lambda x: x[:, 9:3:-1], [real(4, 6)]),
    ("StridedSlice/ellipsis", lambda x: x[..., 1:3], [real(4, 6, 4)]),
    ("StridedSliceGrad", _slice_gradient, [real(4, 6)]),
    ("Pad", lambda x: tf.pad(x, [[0, 0], [1, 2]]), [real(4, 6)]),
    ("PadV2", lambda x: tf.pad(x, [[0, 0], [1, 2]], constant_values=3.0), [real(4, 6)]),
    ("MirrorPad", lambda x: tf.pad(x, [[0, 0], [1, 2]], "REFLECT"), [real(4, 6)]),
    ("Tile", lambda x: tf.tile(x, [1, 3]), [real(4, 6)]),
    ("Cumsum", lambda x: tf.cumsum(x, 1, reverse=True), [real(4, 6)]),
    ("ReverseV2", lambda x: tf.reverse(x, [1]), [real(4, 6)]),
    ("Roll", lambda x: tf.roll(x, 2, 1), [real(4, 6)]),
    ("ArgMax", lambda x: tf.argmax(x, 1, tf.int32), [real(4, 6)]),
    ("TopKV2", lambda x: tf.math.top_k(x, 2), [real(4, 6)]),
)  # fmt: skip
# One more of a rule, type or geometry that another case has.
MORE = {
    "BatchMatMulV2", "RealDiv", "Min", "Prod", "All", "SparseSoftmaxCrossEntropyWithLogits/int64",
    "FusedBatchNormV3/deep", "FusedBatchNormGradV3/first", "GatherV2/int64",
    "UnsortedSegmentSum/int64", "OneHot/int64", "OneHot/int8", "Conv2D/patches",
    "DepthwiseConv2dNativeBackpropInput/patches", "DepthwiseConv2dNativeBackpropFilter/patches",
    "StatelessRandomUniformV2/float16", "StatelessRandomUniformV2/float64",
    "StatelessRandomNormalV2/float16", "StatelessRandomNormalV2/float32",
    "StatelessTruncatedNormalV2/float32", "StatelessTruncatedNormalV2/float64",
    "StatelessRandomUniformIntV2/int64", "StatelessRandomUniformFullIntV2/int32", "Squeeze",
    "StridedSlice/backwards", "SplitV", "Pad", "Cumsum", "ReverseV2",
}  # fmt: skip
