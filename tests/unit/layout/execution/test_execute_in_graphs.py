# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Executions that a `tf.function` calls."""

from __future__ import annotations

import sys

from tests import scripted

PROGRAM = """
from tests import scripted
import tensorflow as tf
cpus = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
from tf_fuse import layout
w = tf.Variable(tf.ones([8, 4]), name="w")
x, specs, mesh = tf.ones([4, 8]), [tf.TensorSpec([4, 8])], layout.Mesh({"x": 2})

def step(x):
    w.assign_add(tf.ones([8, 4]))
    return tf.reduce_sum(tf.nn.dropout(x, 0.5))

def said(action, *args):
    try:
        return float(tf.reduce_sum(action(*args)))
    except (layout.LayoutError, tf.errors.OpError) as error:
        return str(error)

layouts = {"w": (None, "x")}
reads = layout.execute(layout.plan(lambda x: x @ w, mesh, specs, layouts=layouts))
writes = layout.execute(layout.plan(step, mesh, specs, keep_layouts=True))
in_graph = tf.function(reads, autograph=False)
found = [said(in_graph, x), said(tf.function(writes, autograph=False), x), said(in_graph, x)]
writes(x)
found.append(said(in_graph, x))
reads.release()
found.append(said(in_graph, x))
again = layout.execute(reads.plan)
found.append(said(in_graph, x))
found.append(said(tf.function(again, autograph=False), x))
scripted.give(found)
"""


def test_a_call_in_a_graph_is_right_or_an_error(isolated_env):
    """It cannot take a lock or a number for each execution; after a release it finds no shards."""
    found = scripted.result_of([sys.executable, "-c", PROGRAM], isolated_env)
    first, refused, unchanged, second, released, still, again = found
    assert refused == (
        "'step' runs by a plan that writes variables and draws random numbers, and a tf.function "
        "calls it: each call of such a plan takes a lock and a number, and a graph would repeat "
        "those of its trace; call it outside of the tf.function, or plan the function around it"
    )
    assert first == unchanged == 128.0
    assert second == again == 256.0
    for error in (released, still):
        assert "unless tf_fuse.layout has released the variable; then execute the plan" in error
