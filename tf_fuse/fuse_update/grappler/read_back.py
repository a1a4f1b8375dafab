# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read a cluster back from the graph that Grappler has optimized."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import RESOURCE
from tf_fuse.function_graph.view import ASSIGNS, READS, GraphView, data_inputs, value_inputs
from tf_fuse.fuse_update.grappler.cluster_copy import OTHER_CPU, ClusterCopy, front_fetch
from tf_fuse.fuse_update.grappler.expression_hashes import Expressions, in_order
from tf_fuse.fuse_update.grappler.simplified_cluster import SimplifiedCluster

_READ = "ReadVariableOp"


class ReadBack:
    """Turns the optimized copy of a cluster into a `SimplifiedCluster`."""

    def __init__(self, copy: ClusterCopy):
        """Start from the copy that was optimized."""
        self._copy = copy
        # Tensors of the front that depend on constants only: any node may read them.
        self._constant_fronts: set[str] = set()

    def read_back(self, graph: Any, front: Any) -> SimplifiedCluster | None:
        """Read the optimized graphs back.

        Args:
          graph: the optimized graph with the cluster.
          front: the optimized graph of the front alone; None if there is no front.

        Returns:
          The simplified cluster, or None if it reads a tensor that will not exist.
        """
        from tensorflow.core.framework import function_pb2

        function = function_pb2.FunctionDef()
        function.signature.name = "cluster"
        nodes = {node.name: node for node in graph.node}
        inputs = {n: t for t, n in self._copy.inputs.items() if n in nodes and nodes[n].op == _READ}
        variables = {name: variable for variable, name in self._copy.variables.items()}
        inputs.update(self._cut(graph, front))
        order = in_order(graph, self._copy.fetches, inputs)
        read = {text.partition(":")[0] for name in order for text in data_inputs(nodes[name])}
        if not self._can_read(read, inputs):
            return None
        inputs = {name: tensor for name, tensor in inputs.items() if name in read}
        for name in sorted({*inputs, *variables}):
            dtype = RESOURCE if name in variables else self._copy.view.dtype(inputs[name])
            function.signature.input_arg.add(name=name, type=dtype)

        def tensor_of(text: str) -> str:
            name = text.partition(":")[0]
            if name in inputs or name in variables:
                return name
            return f"{name}:{self._copy.view.op_def(nodes[name].op).output_arg[0].name}:0"

        kept = [name for name in order if nodes[name].op not in ("NoOp", "VarHandleOp")]
        # Programs have no shapes.
        values = {t.partition(":")[0] for name in kept for t in value_inputs(nodes[name])}
        for name in kept:
            copy = function.node_def.add()
            copy.CopyFrom(nodes[name])
            copy.device = ""
            is_value = copy.op == "Const" and name in values
            if is_value and (not self._set_constant(copy) or self._is_moved(nodes[name])):
                return None
            del copy.input[:]
            copy.input.extend(tensor_of(text) for text in data_inputs(nodes[name]))
        view = GraphView(function, self._copy.view.op_def)
        results = [f"{name}:output:0" for name in self._copy.fetches[1:]]
        return SimplifiedCluster(view, kept, inputs, variables, results, self._copy.outer_results)

    def _cut(self, graph: Any, front: Any) -> dict[str, str]:
        """Return the nodes that compute a tensor of the front, and that tensor."""
        if front is None:
            return {}
        made = {node.name: node for node in front.node}
        of = Expressions(front)
        found: dict[object, str] = {}
        for tensor, name in sorted(self._copy.fronts.items()):
            end = made[front_fetch(name)]
            if end.op == "Identity":
                found[of.get(end.input[0])] = tensor
            elif end.op == "Const":
                self._constant_fronts.add(tensor)
        mine = Expressions(graph)
        cut = {}
        for node in graph.node:
            if node.op not in ("Const", "NoOp", *READS, *ASSIGNS):
                outer = found.get(mine.get(node.name))
                if outer is not None:
                    cut[str(node.name)] = outer
        return cut

    def _can_read(self, read: set[str], inputs: Mapping[str, str]) -> bool:
        """Return whether all inputs exist, and reading them does not change what Grappler does."""
        tensors = {inputs[name] for name in read if name in inputs}
        for tensor in tensors:
            shape = self._copy.shapes.get(tensor)
            elements = 1
            for size in shape or ():
                elements *= max(size, -1)
            if shape is None or elements not in (1, self._copy.size):
                return False
        # Other consumers of the front would lose a co-consumer, and Grappler would change them.
        seen = {node.input[0] for node in self._copy.graph.node if node.name in self._copy.readers}
        known = tensors | self._constant_fronts
        return all(t in known for t, name in self._copy.fronts.items() if name in seen)

    def _is_moved(self, constant: Any) -> bool:
        """Return whether Grappler folded a constant that it would not fold without results.

        A folded constant is not on the device that pins constants.
        """
        return not self._copy.has_results and constant.device != OTHER_CPU

    def _set_constant(self, node: Any) -> bool:
        """Make a constant of equal elements a scalar; return whether an operation can read it."""
        from tensorflow.python.framework import tensor_util

        value = tensor_util.MakeNdarray(node.attr["value"].tensor)
        if value.size == 1:
            return True
        first = value.reshape(-1)[:1]
        if value.size and value.tobytes() == first.tobytes() * value.size:
            node.attr["value"].tensor.CopyFrom(tensor_util.make_tensor_proto(first.reshape(())))
            return True
        return self._copy.is_sized and value.size == self._copy.size
