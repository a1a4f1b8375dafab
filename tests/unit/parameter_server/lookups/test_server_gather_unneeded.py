# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A gather whose rows nobody needs does not run, as in stock TensorFlow: its ids may be wrong."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.distribute.sharded_variable import ShardedVariable

import tf_fuse  # noqa: F401  (adds the options)
from tf_fuse.parameter_server.lookups import server_gather


@pytest.fixture(autouse=True)
def _gather_on_servers(monkeypatch):
    monkeypatch.setattr(server_gather, "_is_remote", lambda read: True)
    tf.config.optimizer.set_experimental_options({"shard_weight_update": True})
    yield
    tf.config.optimizer.set_experimental_options({"shard_weight_update": False})


_ROWS = np.arange(24.0, dtype=np.float32).reshape(6, 4)


def _table(kind):
    if kind == "whole":
        return tf.Variable(_ROWS)
    return ShardedVariable([tf.Variable(part) for part in np.split(_ROWS, 3)])


@pytest.fixture(params=["whole", "pieces"])
def table(request):
    return _table(request.param)


def test_ids_out_of_range_are_no_error(table):
    @tf.function
    def step(ids):
        rows = tf.gather(tf.convert_to_tensor(table), ids)
        tf.reduce_sum(rows * 2.0)
        return tf.size(ids)

    assert step(tf.constant([7, -1])) == 2
    graph = step.get_concrete_function(tf.TensorSpec([None], tf.int32)).graph
    assert "ResourceGather" not in [op.type for op in graph.get_operations()]


def test_a_vectorized_map_over_nothing(table):
    @tf.function
    def step(ids):
        return tf.vectorized_map(lambda one: tf.gather(tf.convert_to_tensor(table), one), ids)

    assert step(tf.zeros([0], tf.int32)).shape == (0, 4)
    np.testing.assert_array_equal(step(tf.constant([5, 0, 5])), _ROWS[[5, 0, 5]])


def test_a_table_whose_rows_nobody_needs_is_not_read(table):
    @tf.function
    def step(ids):
        tf.gather(tf.convert_to_tensor(table), ids)
        return ids

    graph = step.get_concrete_function(tf.TensorSpec([None], tf.int32)).graph
    waited_for = {op.type for op in graph.control_outputs}
    assert "ReadVariableOp" not in waited_for
