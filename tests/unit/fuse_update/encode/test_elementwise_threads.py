# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each worker's thread of the coordinator rewrites functions, by the encoder that all share."""

import os
import threading
from unittest import mock

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf

import tf_fuse  # noqa: F401  (registers the operations)
from tf_fuse.function_graph.function_lookup import op_defs, static_shapes
from tf_fuse.function_graph.view import GraphView
from tf_fuse.fuse_update.encode import elementwise
from tf_fuse.fuse_update.outline import outline


def _outline(encoder):
    """Outline a function with two clusters."""
    variables = [tf.Variable(tf.ones([size])) for size in (3, 4)]

    def step():
        for one in variables:
            one.assign_sub(0.25 * one)

    function = tf.function(step, autograph=False).get_concrete_function()
    view = GraphView(function.function_def, op_defs(lambda name: None))
    shapes = static_shapes(view, function.graph)
    made = outline(view, shapes, lambda device, variable: True, encoder)
    assert len(made.clusters) == 2
    return view


def test_each_function_is_analyzed_once_while_another_thread_rewrites_one():
    encoder, stock = elementwise.ElementwiseEncoder(bytes), elementwise.simplify
    analyzed, used, other = [], [], []

    def note(view, is_inner):
        analyzed.append(view)
        return mock.DEFAULT

    def simplify(view, *args, subexpressions, **more):
        used.append((view, subexpressions._view))
        if threading.current_thread() is threading.main_thread() and not other:
            thread = threading.Thread(target=lambda: other.append(_outline(encoder)))
            thread.start()
            thread.join()
        return stock(view, *args, subexpressions=subexpressions, **more)

    kind = elementwise.CommonSubexpressions
    with (
        mock.patch.object(elementwise, "simplify", simplify),
        mock.patch.object(elementwise, "CommonSubexpressions", side_effect=note, wraps=kind),
    ):
        mine = _outline(encoder)
    assert all(view is of for view, of in used)
    assert [view is mine for view in analyzed] == [True, False]
    assert analyzed[1] is other[0]
