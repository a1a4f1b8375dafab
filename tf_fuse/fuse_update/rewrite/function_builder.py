# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Build the function in which one operation replaces each fusion cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_fuse.function_graph.view import GraphView, control_inputs, data_inputs
from tf_fuse.fuse_update.analysis.fusion_clusters import FusionCluster
from tf_fuse.fuse_update.encode.encoder_interface import FusedOperation
from tf_fuse.fuse_update.rewrite.staleness_counters import count_of

CALL_PREFIX = "tf_fuse_update_"


class OutlinedFunction:
    """Builds a function in which operations replace clusters.

    Attributes:
      bodies: the functions that the operations call, by name.
    """

    def __init__(self, view: GraphView, is_counted: bool = False):
        """Start from a function.

        Args:
          view: of the function.
          is_counted: whether servers count the updates (`staleness_counters.py`).
        """
        self._view, self._is_counted = view, is_counted
        self.bodies: dict[str, Any] = {}
        self._call_of: dict[str, str] = {}
        self._tensor_of: dict[str, str] = {}

    def build(self, clusters: Sequence[FusionCluster], operations: Sequence[FusedOperation]) -> Any:
        """Return the new `FunctionDef`.

        Args:
          clusters: what is replaced.
          operations: what replaces each of them.
        """
        from tensorflow.core.framework import function_pb2

        view = self._view
        pairs = zip(clusters, operations, strict=True)
        calls = [node for i, pair in enumerate(pairs) for node in self._call(i, *pair)]
        function = function_pb2.FunctionDef()
        function.CopyFrom(view.function)
        del function.node_def[:]
        for node in view.function.node_def:
            if node.name not in self._call_of:
                self._rewire(function.node_def.add(), node)
        for call in calls:
            self._rewire(function.node_def.add(), call)
        for result, tensor in view.function.ret.items():
            function.ret[result] = self._tensor_of.get(tensor, tensor)
        for result, name in view.function.control_ret.items():
            function.control_ret[result] = self._call_of.get(name, name)
        _check(function)
        return function

    def _rewire(self, copy: Any, node: Any) -> None:
        """Make a copy of a node use the calls where the node used nodes inside clusters."""
        copy.CopyFrom(node)
        del copy.input[:]
        copy.input.extend(self._tensor_of.get(tensor, tensor) for tensor in data_inputs(node))
        before = [self._call_of.get(name, name) for name in control_inputs(node)]
        copy.input.extend(f"^{name}" for name in dict.fromkeys(before) if name != node.name)
        if "_class" in copy.attr:
            classes = [c for c in copy.attr["_class"].list.s if not self._is_gone(c)]
            copy.attr["_class"].list.s[:] = classes

    def _is_gone(self, colocation: bytes) -> bool:
        """Return whether a colocation class names a node that a call replaces."""
        prefix, separator, name = colocation.decode().partition("@")
        return prefix + separator == "loc:@" and name in self._call_of

    def _call(self, number: int, cluster: FusionCluster, made: FusedOperation) -> list[Any]:
        """Return the nodes that replace a cluster; their inputs still name the old tensors."""
        view = self._view
        name = f"{CALL_PREFIX}{number}"
        while name in view.nodes:
            name += "_"
        if made.body is not None:
            self.bodies[made.body.signature.name] = made.body
        self._call_of.update(dict.fromkeys(cluster.nodes, name))
        for index, tensor in enumerate(made.results):
            self._tensor_of[tensor] = f"{name}:{made.output}:{index}"
        made.node.name = name
        for constant in made.constants:
            old, constant.name = constant.name, f"{name}/{constant.name}"
            constant.device = cluster.device
            inputs = list(made.node.input)
            made.node.input[:] = [
                f"{constant.name}:output:0" if one == f"{old}:output:0" else one for one in inputs
            ]
        inside = set(cluster.nodes)
        counts = [count_of(view, cluster, made.node)] if self._is_counted else []
        before = {b for n in cluster.nodes for b in control_inputs(view.nodes[n])} - inside
        made.node.input.extend(f"^{b}" for b in sorted(before))
        return [*made.constants, *counts, made.node]


def _check(function: Any) -> None:
    """Raise if a node uses one that does not exist; TensorFlow would drop it silently."""
    there = {node.name for node in function.node_def}
    there |= {argument.name for argument in function.signature.input_arg}
    used = {tensor for node in function.node_def for tensor in node.input}
    used |= {*function.ret.values(), *function.control_ret.values()}
    if missing := sorted({name.lstrip("^").partition(":")[0] for name in used} - there):
        raise ValueError(f"{function.signature.name} has no {missing[:10]}, which it uses")
