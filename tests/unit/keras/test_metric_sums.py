# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What steps return is added to the metrics of `fit` with the bits of TensorFlow's sums."""

import os
import types
import warnings

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("keras")

import keras

from tf_fuse.keras.metric_sums import MetricSums
from tf_fuse.keras.packing import Packing


def _returned(additions, steps):
    """What a call of some steps returned, with how it is packed."""
    packing = Packing()
    structure = {"additions": additions, "logs": {"loss": tf.constant(7.0), "sum": None}}
    return packing, [one.numpy() for one in packing.pack(structure, steps)]


def _sums(*variables):
    def results():
        return {"sum": variables[0].value, "loss": tf.constant(0.0)}

    model = types.SimpleNamespace(
        metrics_variables=variables, optimizer=None, get_metrics_result=results
    )
    return MetricSums(model)


def _variable(values, dtype):
    return keras.Variable(np.asarray(values), dtype=dtype, trainable=False)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int64"])
@pytest.mark.parametrize("shape", [[], [5], [2, 3]])
def test_sums_have_the_bits_of_tensorflow(dtype, shape):
    rng = np.random.default_rng(3)

    def draw():
        return tf.cast(rng.standard_normal(shape) * 100, dtype)

    variable, expected = _variable(np.zeros(shape), dtype), tf.zeros(shape, dtype)
    sums = _sums(variable)
    for _ in range(3):
        additions = [[[draw(), draw()]] for _ in range(2)]  # of two steps
        sums.add(*_returned(additions, steps=2))
        for step in additions:
            for one in step[0]:
                expected += one
    logs = sums.logs()
    assert logs["loss"].numpy() == 7.0
    assert logs["sum"].numpy().tobytes() == expected.numpy().tobytes()
    sums.end()
    assert variable.numpy().tobytes() == expected.numpy().tobytes()


def test_steps_that_found_no_data_add_nothing():
    variable = _variable(1.0, "float32")
    sums = _sums(variable)
    sums.add(*_returned([[[tf.constant(2.0)]], [[tf.constant(50.0)]]], steps=1))
    sums.add(*_returned([[[tf.constant(90.0)]], [[tf.constant(70.0)]]], steps=0))
    sums.end()
    assert variable.numpy() == 3.0


def test_variables_get_the_sums_also_before_the_end():
    variable = _variable(1.0, "float32")
    sums = _sums(variable)
    for _ in range(2):
        sums.add(*_returned([[[tf.constant(2.0)]]], steps=1))
        sums.store()
    assert variable.numpy() == 5.0
    sums.end()
    variable.assign(10.0)
    sums.add(*_returned([[[tf.constant(2.0)]]], steps=1))
    sums.end()
    assert variable.numpy() == 12.0


def test_what_is_infinite_is_no_reason_to_warn():
    variable = _variable([1e38, 0.0, np.inf], "float32")
    sums = _sums(variable)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sums.add(*_returned([[[tf.constant([3e38, np.nan, -np.inf])]]], steps=1))
        sums.end()
    np.testing.assert_array_equal(variable.numpy(), np.float32([np.inf, np.nan, np.nan]))


def test_sums_that_are_given_up_leave_the_variables():
    variable = _variable(4.0, "float32")
    sums = _sums(variable)
    sums.add(*_returned([[[tf.constant(2.0)]]], steps=1))
    sums.give_up()
    sums.end()
    assert variable.numpy() == 4.0
