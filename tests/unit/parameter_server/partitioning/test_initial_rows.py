# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Initial values of pieces, which are computed without those of the whole."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_fuse.parameter_server.partitioning import initial_rows

_ROWS, _WIDTH = 40009, 7  # of 4 bytes: more than a mebibyte
_CASES = {
    "uniform": keras.initializers.RandomUniform(seed=3),
    "normal": keras.initializers.RandomNormal(1.0, 2.0, seed=3),
    "truncated": keras.initializers.TruncatedNormal(seed=3),
    "glorot": keras.initializers.GlorotUniform(),
    "he": keras.initializers.HeNormal(seed=5),
    "zeros": keras.initializers.Zeros(),
    "ones": keras.initializers.Ones(),
    "constant": keras.initializers.Constant(3.5),
}
_whole: dict[str, np.ndarray] = {}


def _rows(initializer, shape=(_ROWS, _WIDTH), dtype="float32"):
    def initial():
        return initializer(shape, dtype=dtype)

    return initial, initial_rows.by_rows(initial, initializer, shape, dtype)


@pytest.mark.parametrize("name", _CASES)
@given(st.integers(0, _ROWS - 1), st.integers(1, _ROWS))
@settings(deadline=None, max_examples=12)
def test_rows_have_the_bits_of_the_whole(name, first, count):
    count = min(count, _ROWS - first)
    initial, rows = _rows(_CASES[name])
    whole = _whole.setdefault(name, initial().numpy())
    found = rows(partition_shape=(count, _WIDTH), partition_offset=(first, 0)).numpy()
    np.testing.assert_array_equal(found, whole[first : first + count])


def test_the_whole_is_the_initializers():
    initial, rows = _rows(_CASES["normal"])
    np.testing.assert_array_equal(rows().numpy(), initial().numpy())


def test_the_counter_of_random_numbers_carries():
    from tensorflow.python.ops import gen_stateless_random_ops_v2 as random_ops

    class Late(keras.initializers.Initializer):
        """Begins four groups before the low half of the counter is used up."""

        def __call__(self, shape, dtype=None):
            import tensorflow as tf

            counter = tf.constant(np.array([2**64 - 4, 7], np.uint64))
            key = tf.constant([9], tf.uint64)
            return random_ops.stateless_random_uniform_v2(shape, key, counter, 1)

    Late.__module__ = "keras.test"
    initial, rows = _rows(Late())
    whole = initial().numpy()
    for first in (0, 1, 2, 3, 100):
        found = rows(partition_shape=(9, _WIDTH), partition_offset=(first, 0)).numpy()
        np.testing.assert_array_equal(found, whole[first : first + 9])


@pytest.mark.parametrize(
    ("initializer", "more"),
    [
        (keras.initializers.Orthogonal(seed=1), {"shape": (1024, 260)}),
        (keras.initializers.RandomUniform(seed=1), {"dtype": "float16"}),
        (keras.initializers.RandomUniform(seed=1), {"shape": (9, 9)}),
        (keras.initializers.RandomUniform(seed=1), {"shape": ()}),
        (keras.initializers.RandomUniform(seed=keras.random.SeedGenerator(1)), {}),
        (lambda shape, dtype: keras.ops.zeros(shape, dtype), {}),
    ],
)
def test_what_tensorflow_computes_whole(initializer, more):
    assert _rows(initializer, **more)[1] is None
