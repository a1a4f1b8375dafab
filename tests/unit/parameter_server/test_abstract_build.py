# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Models that are built abstractly: their variables are recorded, and nothing else is noticed."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_fuse.parameter_server as parameter_server
from tf_fuse.parameter_server.abstract_build import record
from tf_fuse.parameter_server.planning import expected_of


def _model():
    model = keras.Sequential(
        [
            keras.layers.Embedding(100, 8),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(16),
            keras.layers.Dense(4),
        ]
    )
    model.build((None, 5))
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return model, optimizer


# --- Models that are built abstractly ------------------------------------------------------------


def test_all_variables_of_a_keras_model_are_recorded_with_their_slots():
    expected = {e.variable.name: e.variable for e in expected_of(record(_model), in_graph=False)}
    weights = {k: v for k, v in expected.items() if v.is_trained}
    assert {(k.rpartition("/")[2], v.shape, v.slots) for k, v in weights.items()} == {
        ("embeddings", (100, 8), 2),
        ("kernel", (8, 16), 2),
        ("bias", (16,), 2),
        ("kernel", (16, 4), 2),
        ("bias", (4,), 2),
    }
    others = {k.rpartition("/")[2]: v.slots for k, v in expected.items() if k not in weights}
    assert others == {"seed_generator_state": 0, "iteration": 0, "learning_rate": 0}


def test_nothing_is_noticed_of_the_first_run():
    names = []

    def build():
        layer = keras.layers.Dense(2)
        layer.build((None, 2))
        names.append((layer.name, random.random(), np.random.random(), layer.kernel.path))
        keras.random.uniform((2,))

    keras.utils.set_random_seed(1)
    record(build)
    build()
    assert names[0] == names[1]
    keras.utils.set_random_seed(1)
    build()
    assert names[1][1:3] == names[2][1:3]


def test_names_are_those_that_the_program_gave():
    def build():
        with tf.name_scope("a"):
            tf.Variable([1.0], name="x")
            with tf.name_scope("b"):
                tf.Variable([1.0], name="x")
        with tf.name_scope("a"), tf.device("/job:ps/task:1"):
            tf.Variable([1.0], name="x")
        tf.Variable([1.0])

    recorded = record(build)
    assert [one.name for one in recorded] == ["a/x", "a/b/x", "a/x", "Variable"]
    assert [one.graph_name for one in recorded] == ["a/x", "a/b/x", "a_1/x", "Variable"]
    assert [one.server for one in recorded] == [None, None, 1, None]
    with tf.name_scope("outer"):
        assert next(one.name for one in record(build)) == "outer/a/x"


def test_values_from_outside_are_of_no_use_and_not_needed():
    tensor, array = tf.ones([3, 2]), np.ones([500, 2], np.float32)
    recorded = record(
        lambda: (tf.Variable(tensor), tf.Variable(array), tf.Variable(lambda: tensor))
    )
    assert [one.shape for one in recorded] == [(3, 2), (500, 2), (3, 2)]


def test_no_initial_values_of_keras_are_computed():
    asked = []

    def build():
        layer = keras.layers.Dense(3, kernel_initializer=draw, dtype="float16")
        layer.build((None, 2))

    def draw(shape, dtype):
        asked.append((tuple(shape), dtype))
        return tf.ones(shape, dtype)

    recorded = record(build)
    assert [(one.shape, one.dtype) for one in recorded] == [((2, 3), "float16"), ((3,), "float16")]
    assert asked == []
    build()
    assert asked == [((2, 3), "float16")]


def test_a_model_that_needs_values_is_not_planned(caplog):
    def build():
        return float(tf.Variable(1.0) + 1.0)

    plan = parameter_server.plan(build, servers=2)
    assert plan.places == ()
    assert plan.reason.startswith("the model cannot be built abstractly: ")
    assert plan.reason in caplog.text


def test_an_explicit_server_that_there_is_not():
    def build():
        with tf.device("/job:ps/task:2"):
            tf.Variable(1.0, name="x")

    with pytest.raises(ValueError, match=r"'x' is to be on /job:ps/task:2, but there are 2 param"):
        parameter_server.plan(build, servers=2)


def test_without_a_strategy_a_model_is_just_built():
    assert parameter_server.build(lambda: 7) == 7
