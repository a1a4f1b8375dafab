# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A cone as it was traced, where it is not known what TensorFlow's graph optimizer makes of it.

Last bits may be others than in TensorFlow then. On parameter servers that is better than an update
that others are in the middle of; see `simplify.py` for the one that has the bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.cone_copy import Simple
from tf_fuse.shard_update.cones import Cone, is_small_constant
from tf_fuse.shard_update.graph_view import GraphView, data_inputs
from tf_fuse.shard_update.outline import results_of

_RESOURCE = 20  # DT_RESOURCE


def plain(view: GraphView, cone: Cone, shapes: Mapping[str, Shape | None]) -> Simple | None:
    """Makes a function of a cone.

    Args:
      view: of the function that it is of.
      cone: whose tensors all have known shapes.
      shapes: of the function's tensors.

    Returns:
      The function. Constants are nodes of it. None if it reads a tensor of another size.
    """
    return _Copy(view, cone, shapes).simple()


class _Copy:
    def __init__(self, view: GraphView, cone: Cone, shapes: Mapping[str, Shape | None]):
        from tensorflow.core.framework import function_pb2

        self._view, self._cone, self._shapes = view, cone, shapes
        self._inside = set(cone.nodes)
        self._function = function_pb2.FunctionDef()
        self._function.signature.name = "cone"
        self._arguments: dict[str, str] = {}
        self._constants: dict[str, str] = {}

    def simple(self) -> Simple | None:
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
            (variables if view.dtype(tensor) == _RESOURCE else inputs)[argument] = tensor
        nodes = [*self._constants.values(), *self._cone.nodes]
        return Simple(made, nodes, inputs, variables, results, results)

    def _source(self, tensor: str) -> str | None:
        """What stands for a tensor."""
        view = self._view
        if tensor.partition(":")[0] in self._inside:
            return tensor
        if view.dtype(tensor) == _RESOURCE:
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
