# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gradients that are rounded to bfloat16, and what rounding loses."""

import gc
import itertools

import numpy as np
import pytest
import tensorflow as tf

from tf_fuse import _native

_names = itertools.count()
# Rounded to 1; what two of them lose is more than half of the last digit, 2**-7.
_PART = 1.0 + 3 * 2.0**-10


@pytest.fixture
def key():
    """A key that no other test has."""
    return f"test/{next(_names)}"


def _function(key, shape=None):
    @tf.function(input_signature=[tf.TensorSpec(shape, tf.float32)])
    def rounded(gradient):
        return _native.load().tf_fuse_round_with_feedback(gradient=gradient, key=key)

    return rounded


def _nearest(values):
    """The nearest bfloat16, of two the even one, by the bits of float32."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).view(np.float32)


def _bits(values):
    return np.asarray(values, np.float32).view(np.uint32).tolist()


def test_rounds_to_nearest_even(key):
    bits = np.random.default_rng(1).integers(0, 2**32, 100_000, dtype=np.uint32)
    ties = np.arange(0, 2**16, dtype=np.uint32) << 16 | 0x8000
    values = np.concatenate([bits, ties]).view(np.float32)
    # (TensorFlow's threads take numbers below the smallest normal one for zero.)
    values = values[np.isfinite(values) & (np.abs(values) >= np.finfo(np.float32).tiny)]
    got = _function(key)(values)
    assert got.dtype == tf.bfloat16
    assert _bits(tf.cast(got, tf.float32)) == _bits(_nearest(values))
    # As TensorFlow's own Cast, which rounds rows.
    assert _bits(tf.cast(tf.cast(values, tf.bfloat16), tf.float32)) == _bits(_nearest(values))


def test_what_is_lost_is_added_to_the_next(key):
    rounded = _function(key)
    generator = np.random.default_rng(2)
    lost = np.zeros([5, 7], np.float32)
    for _ in range(20):
        gradient = generator.normal(size=[5, 7]).astype(np.float32)
        total = gradient + lost
        expected = _nearest(total)
        lost = total - expected
        assert _bits(tf.cast(rounded(gradient), tf.float32)) == _bits(expected)


def test_small_gradients_arrive_in_the_end(key):
    # Beside 1, each of them alone is nothing in bfloat16.
    rounded = _function(key)
    gradient = np.array([1.0 + 2.0**-10], np.float32)
    total = sum(float(tf.cast(rounded(gradient), tf.float32)[0]) for _ in range(1024))
    assert total == pytest.approx(1025.0, abs=2.0**-7)
    assert 1024 * float(tf.cast(tf.cast(gradient, tf.bfloat16), tf.float32)[0]) == 1024.0


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so_and_is_forgotten(key, value):
    rounded = _function(key)
    first = tf.cast(rounded(np.array([value, 1.0], np.float32)), tf.float32).numpy()
    np.testing.assert_array_equal(first, np.array([value, 1.0], np.float32))
    assert tf.cast(rounded(np.array([2.0, 3.0], np.float32)), tf.float32).numpy().tolist() == [2, 3]


def test_another_shape_begins_anew(key):
    rounded = _function(key)
    rounded(np.array([_PART], np.float32))
    two = np.array([_PART, _PART], np.float32)
    for expected in (1.0, 1.0 + 2.0**-7):
        assert tf.cast(rounded(two), tf.float32).numpy().tolist() == [expected] * 2


def test_an_empty_gradient(key):
    assert _function(key)(np.zeros([0, 3], np.float32)).shape == [0, 3]


def test_a_function_that_is_traced_again_goes_on(key):
    first, second = _function(key), _function(key, [1])
    gradient = np.array([_PART], np.float32)
    first(gradient)
    second.get_concrete_function()
    assert tf.cast(second(gradient), tf.float32).numpy().tolist() == [1.0 + 2.0**-7]


def test_keys_do_not_share(key):
    gradient = np.array([_PART], np.float32)
    _function(key)(gradient)
    assert tf.cast(_function(f"{key}/other")(gradient), tf.float32).numpy().tolist() == [1.0]


def test_it_is_forgotten_with_the_last_function(key):
    gradient = np.array([_PART], np.float32)
    rounded = _function(key)
    rounded(gradient)
    del rounded
    gc.collect()
    assert tf.cast(_function(key)(gradient), tf.float32).numpy().tolist() == [1.0]
