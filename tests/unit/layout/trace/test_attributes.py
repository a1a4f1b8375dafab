# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Operations of traced functions: inputs, attributes, and which have a rule."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.unit.layout.trace.traced_lines import SPEC
from tf_fuse.layout.operators import rule_of
from tf_fuse.layout.trace.function import trace

# A function of x [8, 4], the kind of the operation, its inputs' shapes, and its attributes.
KINDS = {
    "mean": (lambda x: tf.reduce_mean(x, -1, keepdims=True), "Mean", [(8, 4)],
             {"axes": -1, "keep_dims": True}),
    "transpose": (lambda x: tf.transpose(x, [1, 0]), "Transpose", [(8, 4)], {"perm": (1, 0)}),
    "concat": (lambda x: tf.concat([x, x], 1), "ConcatV2", [(8, 4)] * 2, {"axis": 1}),
    "split": (lambda x: tf.split(x, 2, 1)[0], "Split", [(8, 4)], {"axis": 1}),
    "splits": (lambda x: tf.split(x, [1, 3], 1)[1], "SplitV", [(8, 4)], {"axis": 1}),
    "stack": (lambda x: tf.stack([x, x], 1), "Pack", [(8, 4)] * 2, {"axis": 1}),
    "gather": (lambda x: tf.gather(x, tf.cast(x[:, 0], tf.int32), axis=1, batch_dims=1),
               "GatherV2", [(8, 4), (8,)], {"axis": 1, "batch_dims": 1}),
    "slice": (lambda x: tf.slice(x, [2, 0], [3, 4]), "Slice", [(8, 4)], {"begin": (2, 0)}),
    "row": (lambda x: x[-1], "StridedSlice", [(8, 4)],
            {"begin": (7, 0), "shrink": (0,), "strides": (1, 1)}),
    "column": (lambda x: x[..., 1], "StridedSlice", [(8, 4)],
               {"begin": (0, 1), "shrink": (1,), "strides": (1, 1)}),
    "steps": (lambda x: x[:, ::2], "StridedSlice", [(8, 4)],
              {"begin": (0, 0), "shrink": (), "strides": (1, 2)}),
    # Beginnings outside of the tensor are those of the nearest element.
    "before": (lambda x: x[-10:2, 0:-9:-1], "StridedSlice", [(8, 4)],
               {"begin": (0, 0), "shrink": (), "strides": (1, -1)}),
    "after": (lambda x: x[8:6:-1, 9::-2], "StridedSlice", [(8, 4)],
              {"begin": (7, 3), "shrink": (), "strides": (-1, -2)}),
    "pad": (lambda x: tf.pad(x, [[0, 0], [1, 2]]), "Pad", [(8, 4)],
            {"paddings": ((0, 0), (1, 2))}),
    "tile": (lambda x: tf.tile(x, [1, 3]), "Tile", [(8, 4)], {"multiples": (1, 3)}),
    "one hot": (lambda x: tf.one_hot(tf.cast(x[:, 0], tf.int32), 5), "OneHot", [(8,), (), ()],
                {"axis": -1}),
    "cumsum": (lambda x: tf.cumsum(x, 1), "Cumsum", [(8, 4)], {"axis": 1}),
    "roll": (lambda x: tf.roll(x, [2], [1]), "Roll", [(8, 4)], {"axis": (1,)}),
    "argmax": (lambda x: tf.argmax(x, 1), "ArgMax", [(8, 4)], {"axis": 1}),
    "top": (lambda x: tf.math.top_k(x, 2).values, "TopKV2", [(8, 4)], {}),
    "reshape": (lambda x: tf.reshape(x, [2, -1]), "Reshape", [(8, 4)], {}),
    "expand": (lambda x: tf.expand_dims(x, 1), "ExpandDims", [(8, 4)], {}),
    "broadcast": (lambda x: tf.broadcast_to(x, [3, 8, 4]), "BroadcastTo", [(8, 4)], {}),
    "fill": (lambda x: tf.fill([8, 4], x[0, 0]), "BroadcastTo", [()], {}),
    "checked": (lambda x: tf.debugging.check_numerics(x, "no"), "Identity", [(8, 4)], {}),
    "einsum": (lambda x: tf.einsum("ab,cb->ac", x, x), "Einsum", [(8, 4)] * 2,
               {"equation": "ab,cb->ac"}),
    "batches": (lambda x: tf.matmul(x[None], x[None], adjoint_b=True), "BatchMatMulV2",
                [(1, 8, 4)] * 2, {"adj_x": False, "adj_y": True}),
    "convolution": (lambda x: tf.nn.conv2d(x[None, :, :, None], tf.ones([3, 3, 1, 2]), 1, "SAME"),
                    "Conv2D", [(1, 8, 4, 1), (3, 3, 1, 2)],
                    {"data_format": "NHWC", "dilations": (1,) * 4, "strides": (1,) * 4}),
    "padded convolution": (
        lambda x: tf.nn.conv2d(x[None, :, :, None], tf.ones([3, 3, 1, 2]), 1,
                               [[0, 0], [2, 0], [1, 1], [0, 0]]),
        "Conv2D", [(1, 8, 4, 1), (3, 3, 1, 2)],
        {"data_format": "NHWC", "dilations": (1,) * 4, "strides": (1,) * 4,
         "explicit_paddings": (0, 0, 2, 0, 1, 1, 0, 0)}),
    "pooling": (lambda x: tf.nn.max_pool2d(x[None, :, :, None], 2, 2, "VALID"), "MaxPool",
                [(1, 8, 4, 1)],
                {"data_format": "NHWC", "ksize": (1, 2, 2, 1), "strides": (1, 2, 2, 1)}),
    "segments": (lambda x: tf.math.unsorted_segment_sum(x, tf.cast(x[:, 0], tf.int32), 5),
                 "UnsortedSegmentSum", [(8, 4), (8,)], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_attributes(name):
    function, kind, shapes, attributes = KINDS[name]
    traced = trace(function, [tf.TensorSpec([8, 4], name="x")])
    found = [one for one in traced.operations if one.kind == kind]
    one = next(one for one in found if [t.shape for t in one.inputs] == shapes)
    assert dict(one.attributes) == attributes
    assert rule_of(one).known


def test_gradients_of_slices_and_images_have_rules():
    def f(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            image = tf.reshape(x[:, 1:], [1, 8, 3, 1])
            y = tf.nn.avg_pool2d(
                tf.nn.conv2d(image, tf.ones([3, 3, 1, 2]), 1, "SAME"), 1, 1, "SAME"
            )
            loss = tf.reduce_sum(y)
        return tape.gradient(loss, x)

    traced = trace(f, [tf.TensorSpec([8, 4], name="x")])
    kinds = [one.kind for one in traced.operations]
    assert {"StridedSliceGrad", "AvgPoolGrad", "Conv2DBackpropInput"} <= set(kinds)
    assert traced.unknown == {}
    for one in traced.operations:
        rule_of(one)


def test_operations_without_a_rule_are_kept():
    def f(x):
        return tf.linalg.inv(x[:4]), tf.reverse(x, tf.cast(x[0, :1], tf.int32))

    traced = trace(f, [SPEC])
    assert traced.unknown == {
        "MatrixInverse": ("MatrixInverse",),
        "ReverseV2 with computed axis": ("ReverseV2",),
    }


def test_what_gradients_compute_of_constants_is_known():
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_prod(tf.roll(x, [3], [1]), 1)
        return tape.gradient(y, x)

    found = trace(gradient, [SPEC])
    assert not {"ListDiff", "Neg"} & {one.kind for one in found.operations}
    assert "ListDiff" not in found.unknown
    assert [one.attribute("axis") for one in found.operations if one.kind == "Roll"] == [(1,)] * 2


def test_shapes_that_follow_from_known_numbers_are_known():
    """TensorFlow does not know them: it reads a variable's shape, and masks, when a graph runs."""
    w = tf.Variable(tf.ones([8, 4]), name="w")
    mask = np.arange(8) % 3 > 0

    def step(x):
        with tf.GradientTape() as tape:
            rows = tf.boolean_mask(tf.gather_nd(w, [[3], [3], [0], [1], [2], [7], [6], [1]]), mask)
            loss = tf.reduce_mean(rows**2) + tf.reduce_sum(tf.boolean_mask(x, mask))
        return tape.gradient(loss, w)

    traced = trace(step, [SPEC])
    shapes = {one.kind: one.outputs[0].shape for one in traced.operations}
    assert (shapes["GatherV2"], shapes["UnsortedSegmentSum"]) == ((5, 4), (8, 4))
    assert list(traced.unknown) == ["ResourceGatherNd"]
