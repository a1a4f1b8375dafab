# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Encode a cluster as the call of a function that XLA compiles.

The function reads and assigns the variables itself: XLA then writes new values over the old ones,
in two thirds of the time of assigning the function's results. XLA rounds once where one instruction
computes a product and a sum, so last bits differ from TensorFlow's.

Weights of one shape share one function, which is compiled once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import BOOL, DOUBLE, FLOAT, INT32, INT64, RESOURCE
from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.operations import ELEMENTWISE
from tf_fuse.function_graph.view import ASSIGNS, GraphView, control_inputs, data_inputs
from tf_fuse.fuse_update.analysis.fusion_clusters import (
    FusionCluster,
    Rules,
    is_small_constant,
    results_of,
)
from tf_fuse.fuse_update.analysis.grappler_inputs import CallSite
from tf_fuse.fuse_update.encode.encoder_interface import FusedOperation

# Calls cost more than they save in smaller tensors.
MIN_ELEMENTS = 65536
FUNCTION_PREFIX = "__tf_fuse_update_"


# For narrower floating types, XLA omits the
# rounding between operations, which changes the update.
TYPES = frozenset({FLOAT, DOUBLE, INT32, INT64, BOOL})

# Operations that XLA computes elementwise for each of the types, with NaNs where TensorFlow has
# them. (XLA's maximum of infinity and NaN may be infinity, so Maximum is not here.)
COMPILED = (ELEMENTWISE - {"ClipByValue", "Maximum", "Minimum", "Round"}) | {"Reshape"}


class XlaEncoder:
    """Encodes clusters as calls of compiled functions."""

    @property
    def rules(self) -> Rules:
        """What may be in them."""
        return Rules(lambda op, *types: op in COMPILED, TYPES, least_elements=MIN_ELEMENTS)

    def encode(
        self,
        view: GraphView,
        cluster: FusionCluster,
        shapes: Mapping[str, Shape | None],
        site: CallSite,
    ) -> FusedOperation:
        """Make one."""
        from tensorflow.core.framework import node_def_pb2

        body = _Body(view, cluster)
        call = node_def_pb2.NodeDef(device=cluster.device)
        call.op = "StatefulPartitionedCall" if cluster.variables else "PartitionedCall"
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
        return FusedOperation(call, body.results, "output", body.function)


class _Body:
    """Builds the function of a cluster. Equal clusters have equal functions with equal names.

    Attributes:
      function: the `FunctionDef`.
      arguments: the tensors to call it with.
      results: tensors of the cluster that other nodes read.
    """

    def __init__(self, view: GraphView, cluster: FusionCluster):
        from tensorflow.core.framework import function_pb2

        self._view = view
        self.function = function_pb2.FunctionDef()
        self.arguments: list[str] = []
        self.results: list[str] = []
        self._inner: dict[str, str] = {}
        self._names = {name: f"n{i}" for i, name in enumerate(cluster.nodes)}
        for name in cluster.nodes:
            self._add(view.nodes[name])
        self._return(cluster)
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
        """Return a tensor's name in the function."""
        view = self._view
        if view.dtype(tensor) == RESOURCE:
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

    def _return(self, cluster: FusionCluster) -> None:
        view, signature = self._view, self.function.signature
        for name in cluster.nodes:
            if view.nodes[name].op in ASSIGNS:
                signature.is_stateful = True
                signature.control_output.append(self._names[name])
                self.function.control_ret[self._names[name]] = self._names[name]
        self.results = results_of(view, cluster)
        for index, tensor in enumerate(self.results):
            result = signature.output_arg.add(name=f"r{index}")
            result.type = view.dtype(tensor)
            self.function.ret[result.name] = self._input(tensor)
