# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ids that differ, rows put in their places, and sums of the rows of equal ids."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tf_fuse import _native

_SUMMED = [tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int32, tf.int64]


def _unique(ids):
    return _native.load().tf_fuse_unique_ids(ids=ids)


def _place(rows, places, ids):
    return _native.load().tf_fuse_place_rows(rows=rows, places=places, ids=ids)


def _sum(values, places, ids):
    return _native.load().tf_fuse_sum_rows(values=values, places=places, ids=ids)


def _bits(tensor):
    return tensor.dtype.name, tensor.shape.as_list(), tensor.numpy().tobytes()


_IDS = arrays.arrays(
    st.sampled_from([np.int32, np.int64]),
    arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9),
    # Few of them, which repeat; and any, also those that are not rows of a table.
    elements=st.integers(-2, 9) | st.integers(-(2**31), 2**31 - 1),
)


@settings(max_examples=300, deadline=None)
@given(_IDS)
def test_ids_are_those_of_tensorflow(ids):
    found = _unique(tf.constant(ids))
    stock = tf.unique(tf.constant(ids.reshape(-1)))
    assert _bits(found.unique) == _bits(stock.y)
    assert _bits(found.places) == _bits(stock.idx)


def test_many_ids():
    ids = np.random.default_rng(1).integers(-(2**62), 2**62, 100_000)
    ids = np.concatenate([ids, ids[::7], ids >> 40])
    found, stock = _unique(tf.constant(ids)), tf.unique(tf.constant(ids))
    assert _bits(found.unique) == _bits(stock.y) and _bits(found.places) == _bits(stock.idx)


@settings(max_examples=100, deadline=None)
@given(_IDS, st.sampled_from([[], [1], [3, 2], [0], [1000]]))
def test_each_place_gets_its_row(ids, row):
    found = _unique(tf.constant(ids))
    table = np.random.default_rng(2).normal(size=[found.unique.shape[0], *row])
    placed = _place(tf.constant(table), found.places, tf.constant(ids))
    assert placed.shape.as_list() == [*ids.shape, *row]
    np.testing.assert_array_equal(
        placed.numpy().reshape([ids.size, *row]), table[found.places.numpy()]
    )


@pytest.mark.parametrize("dtype", [*_SUMMED, tf.bool, tf.int8, tf.complex64])
def test_rows_of_each_type(dtype):
    ids = tf.constant([[5, 7], [5, 5]])
    rows = tf.cast(tf.reshape(tf.range(6), [2, 3]), dtype)
    placed = _place(rows, _unique(ids).places, ids)
    assert _bits(placed) == _bits(tf.gather(rows, [[0, 1], [0, 0]]))


@settings(max_examples=200, deadline=None)
@given(_IDS, st.sampled_from([[], [1], [3, 2], [0], [1000]]), st.sampled_from(_SUMMED))
def test_sums_have_the_bits_of_tensorflow(ids, row, dtype):
    found = _unique(tf.constant(ids))
    values = np.random.default_rng(3).normal(size=[ids.size, *row]) * 100
    flat = tf.cast(tf.constant(values), dtype)
    shaped = tf.reshape(flat, [*ids.shape, *row])
    stock = tf.math.unsorted_segment_sum(flat, found.places, tf.size(found.unique))
    sums = _sum(shaped, found.places, tf.constant(ids))
    assert _bits(sums) == _bits(stock)


def test_one_row_of_an_id_keeps_the_sign_of_a_zero():
    ids = tf.constant([4, 9, 4])
    values = tf.constant([[1.0], [-0.0], [2.0]])
    sums = _sum(values, _unique(ids).places, ids)
    assert np.signbit(sums.numpy()[1, 0]) and sums.numpy()[0, 0] == 3.0


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ([0, 1, 2], "returned 2 rows, and there is none for place 2"),
        ([0, -1, 0], "returned 2 rows, and there is none for place -1"),
        ([0, 1], r"places of shape \[2\] for ids of shape \[3\]"),
    ],
)
def test_places_without_a_row(places, text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        _place(tf.zeros([2, 4]), places, [7, 8, 9])


def test_a_scalar_has_no_rows():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"at least rank 1|cannot be placed"):
        _place(tf.zeros([]), [0], [7])


def test_text_cannot_be_placed():
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"rows of type string"):
        _place(tf.constant(["a"]), [0], [7])


@pytest.mark.parametrize("places", [[0, 2, 1], [-1, 0, 1], [1, 0, 0]])
def test_places_that_are_not_in_order(places):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"place -?[0-9] after [0-9] ids"):
        _sum(tf.zeros([3, 2]), places, [7, 8, 9])


@pytest.mark.parametrize("shape", [[2, 3], [3], [2, 2, 1]])
def test_gradients_of_another_shape(shape):
    ids = tf.zeros([2, 2], tf.int32) if len(shape) < 3 else tf.zeros([2, 3], tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"at least rank 2|gradients of shape"):
        _sum(tf.zeros(shape), [0] * int(tf.size(ids)), ids)


def test_shapes_are_known_in_graphs():
    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.int64), tf.TensorSpec([None, 5])])
    def shapes(ids, rows):
        found = _unique(ids)
        placed = _place(rows, found.places, ids)
        return found.unique, found.places, placed, _sum(placed, found.places, ids)

    function = shapes.get_concrete_function()
    assert [one.shape.as_list() for one in function.outputs] == [
        [None], [None], [None, 3, 5], [None, 5],
    ]  # fmt: skip
