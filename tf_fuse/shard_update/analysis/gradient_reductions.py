# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Distinguish gradients from values that are reduced for a report, as a loss or a metric."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import RESOURCE
from tf_fuse.function_graph.view import READS, GraphView, data_inputs
from tf_fuse.shard_update.analysis.replication import (
    ReplicatedProgram,
    called_functions,
    has_condition,
    is_loop,
)


def leads_to_update(
    view: GraphView,
    program: ReplicatedProgram,
    tensors: Iterable[str],
    results: Collection[str] = (),
) -> bool:
    """Return whether a variable may be changed by something that is made of tensors.

    Args:
      view: of a function.
      program: what else there is.
      tensors: of the function.
      results: of the function, from which its callers may update a variable.
    """
    waiting = list(tensors)
    seen = set(waiting)
    while waiting:
        tensor = waiting.pop()
        if tensor in results:
            return True
        for use in view.uses(tensor):
            node = view.nodes[use.node]
            if has_condition(node) and use.index == 0:
                continue  # What decides which branch runs, as whether there is a batch.
            outputs = view.outputs(node)
            if node.op in ("Identity", "IdentityN"):
                outputs = [outputs[use.index]]
            elif called_functions(node):
                if _call_updates(view, program, node, use.index):
                    return True
            elif _gets_variable(view, node):
                return True
            made = [one for one in outputs if one not in seen]
            seen.update(made)
            waiting += made
    return False


def _gets_variable(view: GraphView, node: Any) -> bool:
    """Return whether a node that does not call functions may change a variable."""
    # (The resource of a collective is not a variable: it orders the collectives.)
    if node.op in READS or node.op.startswith("Collective"):
        return False
    return any(view.dtype(tensor) == RESOURCE for tensor in data_inputs(node))


def _call_updates(view: GraphView, program: ReplicatedProgram, node: Any, index: int) -> bool:
    """Return whether a function that a node calls may update a variable by one of its inputs."""
    for name in called_functions(node):
        body = program.function(name)
        if body is None:
            return True
        inner = GraphView(body, program.op_def)
        argument = inner.arguments[index - 1 if has_condition(node) else index]
        if leads_to_update(inner, program, [argument], results_with_update(inner, program, node)):
            return True
    return False


def results_with_update(
    inner: GraphView, program: ReplicatedProgram, node: Any, outputs: Sequence[bool] = ()
) -> set[str]:
    """Return the results of a function from which its caller may update a variable.

    Args:
      inner: of the function.
      program: what else there is.
      node: that calls it.
      outputs: of each output of the node, whether an update may be made of it; "no" if missing.
    """
    found = {result for result, leads in zip(inner.results, outputs, strict=False) if leads}
    if is_loop(node) and len(inner.results) == len(inner.arguments):
        # What an iteration returns is what the next one gets.
        pairs = list(zip(inner.arguments, inner.results, strict=True))
        while more := {
            result
            for argument, result in pairs
            if result not in found and leads_to_update(inner, program, [argument], found)
        }:
            found |= more
    return found
