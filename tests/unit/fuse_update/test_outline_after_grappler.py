# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Why fused updates are found before Grappler: lowered branches lose what a cluster needs.

After Grappler, conditionals are lowered to Switch and Merge. Two branches that assign the
same variable are then nodes of one graph, and only one of them runs.
"""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf
from tensorflow.core.framework import function_pb2
from tensorflow.python.framework import convert_to_constants, op_def_registry

import tf_fuse  # noqa: F401
from tf_fuse.function_graph.view import ASSIGNS, GraphView
from tf_fuse.fuse_update.analysis.fusion_clusters import Finder
from tf_fuse.fuse_update.encode.elementwise import ElementwiseEncoder
from tf_fuse.fuse_update.outline import outline


def _lowered():
    """Make a function whose branches both update one variable, and lower its conditional."""
    variable = tf.Variable(tf.ones([4]))

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.bool), tf.TensorSpec([4])])
    def step(is_finite, gradient):
        def apply():
            variable.assign_add(0.5 * gradient)
            return 0.0

        def shrink():
            variable.assign_sub(0.25 * variable)
            return 0.0

        return tf.cond(is_finite, apply, shrink)

    graph = convert_to_constants._run_inline_graph_optimization(
        step.get_concrete_function(), lower_control_flow=True, aggressive_inlining=True
    )
    nodes = {node.name: node for node in graph.node}
    function = function_pb2.FunctionDef()

    def source(text):
        """Return the name of a tensor in the FunctionDef, looking through Switches of handles."""
        name, _, index = text.partition(":")
        node = nodes[name.lstrip("^")]
        if text.startswith("^"):
            return text
        is_resource = "T" in node.attr and node.attr["T"].type == tf.resource.as_datatype_enum
        if is_resource and node.op in ("Switch", "Identity"):
            return source(node.input[0])
        if node.op == "Placeholder":
            return name
        output = op_def_registry.get(node.op).output_arg[int(index or 0)]
        return f"{name}:{output.name}:0"

    for node in graph.node:
        if node.op == "Placeholder":
            function.signature.input_arg.add(name=node.name, type=node.attr["dtype"].type)
            continue
        copy = function.node_def.add()
        copy.CopyFrom(node)
        copy.input[:] = [source(text) for text in node.input]
    view = GraphView(function, op_def_registry.get)
    shapes = {n.name: (4,) for n in graph.node if n.op == "Placeholder"}
    for node in function.node_def:
        shapes |= dict.fromkeys(view.outputs(node), () if node.op == "Const" else (4,))
    return view, shapes


def test_branches_become_one_cluster():
    """Where handles are followed through Switch, nodes that exclude each other share a cluster."""
    view, shapes = _lowered()
    encoder = ElementwiseEncoder(bytes, lambda: True)
    finder = Finder(view, shapes, lambda device, variable: True, encoder.rules)
    (cluster,) = finder.find().clusters
    assigned = {view.nodes[name].op for name in cluster.nodes} & ASSIGNS
    assert assigned == {"AssignAddVariableOp", "AssignSubVariableOp"}


def test_lowered_branches_stay():
    view, shapes = _lowered()
    encoder = ElementwiseEncoder(bytes, lambda: True)
    found = outline(view, shapes, lambda device, variable: True, encoder)
    assert found.function is None
    assert {left.reason for left in found.left} == {"control_flow"}
