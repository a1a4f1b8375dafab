# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Emit the computation of this replica's shard of a new weight, from the weight's assignments."""

from __future__ import annotations

from typing import Any

from tf_fuse.function_graph.builder import Builder, Range
from tf_fuse.function_graph.operations import type_of
from tf_fuse.function_graph.view import control_inputs
from tf_fuse.shard_update.plan import UpdateCluster
from tf_fuse.sharded_variable.shard_spec import window

_OP_OF_ASSIGN = {"AssignAddVariableOp": "AddV2", "AssignSubVariableOp": "Sub"}
# What makes them is never a sum, whatever Grappler does with it.
_NO_SUM = frozenset({"Mul", "Neg", "ReadVariableOp", "RealDiv", "Slice"})


class WeightShards:
    """Replaces the assignments of weights."""

    def __init__(self, builder: Builder):
        """Take the function.

        Args:
          builder: of the copy that is changed.
        """
        self._builder = builder

    def shard(self, scope: str, cluster: UpdateCluster, own: Range) -> str:
        """Return this replica's shard of the weight, as the last of its assignments makes it."""
        range_ = window(own, cluster.size)
        value = ""
        for number, name in enumerate(cluster.chain):
            node = self._builder.nodes[name]
            here = f"{scope}/version_{number}"
            if node.op == "AssignVariableOp":
                value = node.input[1]
            else:
                old = value or self._old_weight(here, node, range_)
                value = self._changed(here, cluster, node, old, range_)
            for read in sorted(read for read, n in cluster.versions.items() if n == number):
                self._builder.replace(f"{read}:value:0", value)
                self._builder.idle(read)
            if number < len(cluster.chain) - 1:
                self._builder.idle(name)
        last = self._builder.nodes[cluster.chain[-1]]
        return self._builder.own(scope, value, type_of(last), own, range_, last.device)

    def _old_weight(self, scope: str, sink: Any, range_: Range) -> str:
        """Return the window of a weight's value right before an assignment."""
        before = [f"^{name}" for name in control_inputs(sink)]
        inputs = [sink.input[0], *before]
        read = self._builder.add(
            f"{scope}/weight", "ReadVariableOp", inputs, sink.device, dtype=type_of(sink)
        )
        value = f"{read.name}:value:0"
        return self._builder.part(f"{scope}/old", value, type_of(sink), range_, sink.device)

    def _changed(
        self, scope: str, cluster: UpdateCluster, sink: Any, old: str, range_: Range
    ) -> str:
        """Return what an assignment makes of the window of a weight."""
        builder = self._builder
        if sink.op in _OP_OF_ASSIGN:
            op = _OP_OF_ASSIGN[sink.op]
            terms = [
                self._term(f"{scope}/before", old, sink, range_),
                self._term(f"{scope}/change", sink.input[1], sink, range_),
            ]
            node = builder.add(f"{scope}/new", op, terms, sink.device, T=type_of(sink))
            return f"{node.name}:z:0"
        # The operation wants a variable: one that is there as long as it runs.
        dtype, device = type_of(sink), sink.device
        name = f"{builder.function.signature.name}/{scope}"
        handle = builder.variable(f"{scope}/variable", name, range_, dtype, device)
        assign = builder.add(
            f"{scope}/assign", "AssignVariableOp", [handle, old], device, dtype=dtype
        )
        apply = builder.add(f"{scope}/apply", sink.op, list(sink.input), device)
        for key, value in sink.attr.items():
            apply.attr[key].CopyFrom(value)
        apply.attr.pop("_output_shapes", None)
        apply.input[0] = handle
        apply.input.append(f"^{assign.name}")
        read = builder.add(
            f"{scope}/read", "ReadVariableOp", [handle, f"^{apply.name}"], device, dtype=dtype
        )
        end = builder.add(f"{scope}/end", "DestroyResourceOp", [handle, f"^{read.name}"], device)
        end.attr["ignore_lookup_error"].b = True
        sink.input.append(f"^{end.name}")
        return f"{read.name}:value:0"

    def _term(self, name: str, tensor: str, sink: Any, range_: Range) -> str:
        """Return what is added or subtracted, as one term.

        Grappler makes one sum of a sum and the sums that are its terms, in an order of its own, and
        adds what is negated and subtracted.
        """
        producer = self._builder.nodes.get(tensor.partition(":")[0])
        op = "" if producer is None else producer.op
        if op in _NO_SUM if sink.op == "AssignAddVariableOp" else op != "Neg":
            return tensor
        return self._builder.sized(name, tensor, type_of(sink), range_, sink.device)

    def assign(self, cluster: UpdateCluster, value: str) -> None:
        """Make the last assignment of a weight assign the gathered value."""
        sink = self._builder.nodes[cluster.chain[-1]]
        dtype = type_of(sink)
        before = control_inputs(sink)
        weight = self._builder.view.nodes[sink.name].input[0]
        name, device = sink.name, sink.device
        sink.Clear()
        sink.name, sink.op, sink.device = name, "AssignVariableOp", device
        sink.input.extend([weight, value, *(f"^{one}" for one in before)])
        sink.attr["dtype"].type = dtype
