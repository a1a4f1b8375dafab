# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Copy a cluster as it was traced, where Grappler's result is unknown.

Its last bits may differ from TensorFlow's. On parameter servers that is better than an update whose
middle others can observe. `simplify.py` makes the copy with TensorFlow's bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import RESOURCE
from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import GraphView, data_inputs
from tf_fuse.fuse_update.analysis.fusion_clusters import (
    FusionCluster,
    is_small_constant,
    results_of,
)
from tf_fuse.fuse_update.grappler.simplified_cluster import SimplifiedCluster


def cluster_as_traced(
    view: GraphView, cluster: FusionCluster, shapes: Mapping[str, Shape | None]
) -> SimplifiedCluster | None:
    """Copy a cluster to a function of its own.

    Args:
      view: of the function that contains the cluster.
      cluster: the shapes of all its tensors are known.
      shapes: of the function's tensors.

    Returns:
      The function with constants as nodes, or None if the cluster reads a tensor of another size.
    """
    return _Copy(view, cluster, shapes).simple()


class _Copy:
    def __init__(self, view: GraphView, cluster: FusionCluster, shapes: Mapping[str, Shape | None]):
        from tensorflow.core.framework import function_pb2

        self._view, self._cone, self._shapes = view, cluster, shapes
        self._inside = set(cluster.nodes)
        self._function = function_pb2.FunctionDef()
        self._function.signature.name = "cluster"
        self._arguments: dict[str, str] = {}
        self._constants: dict[str, str] = {}

    def simple(self) -> SimplifiedCluster | None:
        view = self._view
        for name in self._cone.nodes:
            node = self._function.node_def.add()
            node.CopyFrom(view.nodes[name])
            del node.input[:]
            for index, tensor in enumerate(data_inputs(view.nodes[name])):
                is_shape = node.op == "Reshape" and index == 1
                source = tensor if is_shape else self._source(tensor)
                if source is None:
                    return None
                node.input.append(source)
        results = results_of(view, self._cone)
        made = GraphView(self._function, view.op_def)
        inputs: dict[str, str] = {}
        variables: dict[str, str] = {}
        for tensor, argument in self._arguments.items():
            (variables if view.dtype(tensor) == RESOURCE else inputs)[argument] = tensor
        nodes = [*self._constants.values(), *self._cone.nodes]
        return SimplifiedCluster(made, nodes, inputs, variables, results, results)

    def _source(self, tensor: str) -> str | None:
        """Return the input that stands for a tensor."""
        view = self._view
        if tensor.partition(":")[0] in self._inside:
            return tensor
        if view.dtype(tensor) == RESOURCE:
            return self._argument(view.resource(tensor))
        shape = self._shapes.get(tensor)
        if is_small_constant(view, tensor):
            return self._constant(tensor)
        if shape is None or math.prod(shape) not in (1, self._cone.size):
            return None
        return self._argument(tensor)

    def _argument(self, tensor: str) -> str:
        if tensor not in self._arguments:
            name = f"a{len(self._arguments)}"
            self._arguments[tensor] = name
            self._function.signature.input_arg.add(name=name, type=self._view.dtype(tensor))
        return self._arguments[tensor]

    def _constant(self, tensor: str) -> str | None:
        from tensorflow.python.framework import tensor_util

        name = tensor.partition(":")[0]
        if name not in self._constants:
            node = self._function.node_def.add(name=name, op="Const")
            for key in ("dtype", "value"):
                node.attr[key].CopyFrom(self._view.nodes[name].attr[key])
            value = tensor_util.MakeNdarray(node.attr["value"].tensor)
            if value.size != 1:
                first: Any = value.reshape(-1)[:1]
                if value.size == 0 or value.tobytes() != first.tobytes() * value.size:
                    return None
                one = tensor_util.make_tensor_proto(first.reshape(()))
                node.attr["value"].tensor.CopyFrom(one)
            self._constants[name] = name
        return f"{name}:output:0"
