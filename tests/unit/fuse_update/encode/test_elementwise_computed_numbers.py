# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A number whose bits would be others in a vector of it is computed outside of the operation."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

import tf_fuse  # noqa: F401  (loads the operations)
from tf_fuse.function_graph.function_lookup import op_defs
from tf_fuse.function_graph.view import GraphView
from tf_fuse.fuse_update.encode import elementwise
from tf_fuse.fuse_update.grappler.simplified_cluster import SimplifiedCluster


@pytest.mark.parametrize(
    ("compute", "is_other"),
    [
        (lambda number, x: x * tf.pow(0.9, number + 1.0), True),
        (lambda number, x: x * tf.exp(number * 2.0), True),
        (lambda number, x: x * tf.pow(number, 3.0), True),
        (lambda number, x: x * tf.exp(number), False),
        (lambda number, x: x * tf.sqrt(number * 2.0) / (1.0 - number), False),
        (lambda number, x: tf.exp(x * number), False),
    ],
)
def test_what_is_computed_of_a_number(compute, is_other):
    kinds = [tf.TensorSpec([], name="number"), tf.TensorSpec([4], name="x")]
    traced = tf.function(compute, kinds, autograph=False).get_concrete_function()
    function = traced.function_def
    view = GraphView(function, op_defs(lambda name: None))
    arguments = {name: name for name in view.arguments}
    shapes = dict(zip(view.arguments, [(), (4,)], strict=True))
    nodes = [node.name for node in view.in_order() if node.op != "Identity"]
    cluster = SimplifiedCluster(view, nodes, arguments, {}, [], [])
    assert elementwise._computes_numbers(cluster, shapes) is is_other
