# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Lookups in a group read rows as TensorFlow's operation does."""

import numpy as np
import pytest
import tensorflow as tf

from tests.slow_cases import slow
from tests.unit.kernels.grouped_operations import IDS, TYPES, run, text_of
from tests.unit.passes.pass_testing import node


def _gathered(call):
    """The rows with their type and shape, or the error's type and the text of its kernel."""
    try:
        rows = call()
    except tf.errors.OpError as error:
        return type(error), text_of(error)
    value = rows.numpy()
    return rows.dtype, rows.shape, value.tolist() if value.dtype == object else value.tobytes()


def _compare_gathers(table, indices, batch_dims=0):
    raw, dtype = tf.raw_ops.ResourceGather, table.dtype
    body = [
        node(
            "rows", "ResourceGather", [":0", ":1"], "",
            dtype=dtype, Tindices=indices.dtype, batch_dims=batch_dims,
        )
    ]  # fmt: skip
    stock = _gathered(
        lambda: raw(resource=table.handle, indices=indices, dtype=dtype, batch_dims=batch_dims)
    )
    ours = _gathered(lambda: run(body, [table.handle, indices], ["rows:0"], [dtype])[0])
    assert stock == ours, (table, indices)
    return ours


@pytest.mark.parametrize("width", [1, 3, 16, slow(1000)])
def test_rows_are_read_as_tensorflow_reads_them(width):
    rng = np.random.default_rng(4)
    errors = 0
    for dtype in [*TYPES, tf.bool, tf.string]:
        numbers = tf.cast(rng.standard_normal([5, width]) * 9, tf.float32)
        values = tf.strings.as_string(numbers) if dtype == tf.string else tf.cast(numbers, dtype)
        table = tf.Variable(values)
        for ids_type in (tf.int32, tf.int64):
            for ids in [*IDS.values(), 3, [[[2]], [[4]]], [i * 7 % 5 for i in range(9000)]]:
                found = _compare_gathers(table, tf.constant(ids, ids_type))
                errors += found[0] is tf.errors.InvalidArgumentError
    assert errors == 8 * 2 * 2  # Of two lists each.
    assert _compare_gathers(table, tf.constant([2**62, 1], tf.int64))[0] is not tf.string


@pytest.mark.parametrize("shape", [[4], [4, 2, 3], [4, 0], [0, 2], [4, 9000]], ids=str)
def test_tables_of_other_shapes_are_read_as_tensorflow_reads_them(shape):
    table = tf.Variable(tf.reshape(tf.range(float(np.prod(shape))), shape))
    for ids in ([1, 3, 1], [], [4]):
        _compare_gathers(table, tf.constant(ids, tf.int32))


def test_batches_and_tables_without_a_value_are_left_to_tensorflow():
    table = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    _, _, rows = _compare_gathers(table, tf.constant([[1], [0]]), batch_dims=1)
    assert rows == np.float32([[2.0], [3.0]]).tobytes()
    empty = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[2, 2], shared_name="never assigned")
    body = [node("rows", "ResourceGather", [":0", ":1"], "", dtype=tf.float32, Tindices=tf.int32)]
    for call in (
        lambda: tf.raw_ops.ResourceGather(resource=empty, indices=[0], dtype=tf.float32),
        lambda: run(body, [empty, tf.constant([0])], ["rows:0"], [tf.float32]),
    ):
        with pytest.raises(tf.errors.OpError, match="never assigned"):
            call()
