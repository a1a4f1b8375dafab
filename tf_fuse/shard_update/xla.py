# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes of a cone a function that XLA compiles, and the call of it.

Variables are read and assigned inside: XLA then writes the new values where the old ones were,
which takes two thirds of the time of assigning its results. It rounds a product and a sum once
where it computes both by one instruction, so last bits are others.

Functions for weights of one shape are the same, and compiled once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.cones import Cone, Rules, is_small_constant
from tf_fuse.shard_update.graph_view import ASSIGNS, GraphView, control_inputs, data_inputs
from tf_fuse.shard_update.ops import ELEMENTWISE
from tf_fuse.shard_update.origins import Site
from tf_fuse.shard_update.outline import Operation, results_of

# Calls cost more than they save in smaller tensors.
MIN_ELEMENTS = 65536
FUNCTION_PREFIX = "__tf_fuse_update_"

_RESOURCE = 20  # DT_RESOURCE

# DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64, DT_BOOL. Of narrower floating types, XLA leaves out the
# rounding between operations: that is not the same update any more.
TYPES = frozenset({1, 2, 3, 9, 10})

# What XLA computes elementwise, of each of the types, with a NaN where TensorFlow has one: of
# infinity and NaN, the larger one may be infinity in XLA.
COMPILED = (ELEMENTWISE - {"ClipByValue", "Maximum", "Minimum", "Round"}) | {"Reshape"}


class XlaMaker:
    """Makes calls of compiled functions."""

    @property
    def rules(self) -> Rules:
        """What may be in them."""
        return Rules(lambda op, *types: op in COMPILED, TYPES, least_elements=MIN_ELEMENTS)

    def make(
        self, view: GraphView, cone: Cone, shapes: Mapping[str, Shape | None], site: Site
    ) -> Operation:
        """Makes one."""
        from tensorflow.core.framework import node_def_pb2

        body = _Body(view, cone)
        call = node_def_pb2.NodeDef(device=cone.device)
        call.op = "StatefulPartitionedCall" if cone.variables else "PartitionedCall"
        call.input.extend(body.arguments)
        signature = body.function.signature
        call.attr["f"].func.name = signature.name
        call.attr["Tin"].list.type.extend(argument.type for argument in signature.input_arg)
        call.attr["Tout"].list.type.extend(result.type for result in signature.output_arg)
        # (An empty list is a value, too.)
        call.attr["Tout"].list.SetInParent()
        for key in ("config", "config_proto", "executor_type"):
            call.attr[key].s = b""
        call.attr["_XlaMustCompile"].b = True
        return Operation(call, body.results, "output", body.function)


class _Body:
    """The function of a cone. Equal cones have equal functions, with the same name.

    Attributes:
      function: the `FunctionDef`.
      arguments: what it is called with.
      results: tensors of the cone that are read elsewhere.
    """

    def __init__(self, view: GraphView, cone: Cone):
        from tensorflow.core.framework import function_pb2

        self._view = view
        self.function = function_pb2.FunctionDef()
        self.arguments: list[str] = []
        self.results: list[str] = []
        self._inner: dict[str, str] = {}
        self._names = {name: f"n{i}" for i, name in enumerate(cone.nodes)}
        for name in cone.nodes:
            self._add(view.nodes[name])
        self._return(cone)
        for key in ("_XlaMustCompile", "_noinline"):
            self.function.attr[key].b = True
        bits = self.function.SerializeToString(deterministic=True)
        self.function.signature.name = FUNCTION_PREFIX + hashlib.sha256(bits).hexdigest()[:16]

    def _add(self, node: Any) -> None:
        copy = self.function.node_def.add()
        copy.CopyFrom(node)
        copy.name, copy.device = self._names[node.name], ""
        copy.ClearField("experimental_debug_info")
        for key in [key for key in copy.attr if key.startswith("_")]:
            del copy.attr[key]
        del copy.input[:]
        inputs = [self._input(tensor) for tensor in data_inputs(node)]
        copy.input.extend(inputs)
        before = [self._names[b] for b in control_inputs(node) if b in self._names]
        copy.input.extend(f"^{name}" for name in sorted(before))

    def _input(self, tensor: str) -> str:
        """What a tensor is called in the function."""
        view = self._view
        if view.dtype(tensor) == _RESOURCE:
            tensor = view.resource(tensor)
        if tensor not in self._inner:
            producer, _, output = tensor.partition(":")
            if producer in self._names:
                self._inner[tensor] = f"{self._names[producer]}:{output}"
            elif is_small_constant(view, tensor):
                self._inner[tensor] = self._constant(view.nodes[producer])
            else:
                argument = self.function.signature.input_arg.add()
                argument.name, argument.type = f"a{len(self.arguments)}", view.dtype(tensor)
                self.arguments.append(tensor)
                self._inner[tensor] = argument.name
        return self._inner[tensor]

    def _constant(self, node: Any) -> str:
        copy = self.function.node_def.add(name=f"c{len(self._inner)}", op="Const")
        for key in ("dtype", "value"):
            copy.attr[key].CopyFrom(node.attr[key])
        return f"{copy.name}:output:0"

    def _return(self, cone: Cone) -> None:
        view, signature = self._view, self.function.signature
        for name in cone.nodes:
            if view.nodes[name].op in ASSIGNS:
                signature.is_stateful = True
                signature.control_output.append(self._names[name])
                self.function.control_ret[self._names[name]] = self._names[name]
        self.results = results_of(view, cone)
        for index, tensor in enumerate(self.results):
            result = signature.output_arg.add(name=f"r{index}")
            result.type = view.dtype(tensor)
            self.function.ret[result.name] = self._input(tensor)
