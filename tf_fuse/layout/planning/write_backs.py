# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Add what it costs to bring values back to where they are kept, to the problem of a function."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tf_fuse.layout.cost.model import Rates
from tf_fuse.layout.optimize.graph_problem import GraphProblem
from tf_fuse.layout.optimize.local_relayouts import only_alike
from tf_fuse.layout.optimize.problem import Edge, Problem
from tf_fuse.layout.relayout.pairwise_seconds import relayout_seconds
from tf_fuse.layout.relayout.steps import StepSet
from tf_fuse.layout.types.tensor_layout import TensorLayout

if TYPE_CHECKING:
    from tf_fuse.layout.trace.function import TracedFunction


def with_write_backs(
    graph: GraphProblem, traced: TracedFunction, rates: Rates, steps: StepSet | None
) -> GraphProblem:
    """Add the costs of bringing written values back to the variables' layouts.

    What a loop carries comes back, in each of its trips, to the layout in which its body reads it.
    """
    makers = {
        tensor.name: (number, o)
        for number, one in enumerate(graph.operations)
        for o, tensor in enumerate(one.outputs)
    }
    edges = []
    for variable, tensor in traced.writes:
        (source, o), (target, _) = makers[tensor], makers[variable]
        item_bytes = graph.operations[target].outputs[0].item_bytes
        made = [one.outputs[o] for one in graph.strategies[source]]
        kept = [one.outputs[0] for one in graph.strategies[target]]
        seconds = relayout_seconds(made, kept, item_bytes, rates.links, steps)
        ends = graph.operations[source].name, graph.operations[target].name
        edges.append(Edge(ends[0], ends[1], seconds, f"{tensor} kept"))
    for region in traced.control_flow.regions:
        for entered, last in region.carried:
            (source, o), (target, _) = makers[last], makers[entered]
            read = graph.operations[target].outputs[0]
            made = [one.outputs[o] for one in graph.strategies[source]]
            kept = [one.outputs[0] for one in graph.strategies[target]]
            seconds = relayout_seconds(made, kept, read.item_bytes, rates.links, steps)
            if read.is_list:
                seconds = only_alike(seconds, made, kept)
            needed = _whole([one.output_gradients[o] for one in graph.strategies[source]])
            given = _whole([one.output_gradients[0] for one in graph.strategies[target]])
            if graph.training and needed and given:
                back = relayout_seconds(given, needed, read.item_bytes, rates.links, steps)
                seconds = seconds + back.T
            seconds = traced.control_flow.times(region.blocks[1]) * seconds
            ends = graph.operations[source].name, graph.operations[target].name
            edges.append(Edge(ends[0], ends[1], seconds, f"{last} carried"))
    whole = graph.problem
    problem = Problem(whole.nodes, [*whole.edges, *edges], whole.memory_limit_bytes, whole.mesh)
    return dataclasses.replace(graph, problem=problem)


def _whole(layouts: Sequence[TensorLayout | None]) -> list[TensorLayout]:
    """Return layouts of gradients; nothing if one has none."""
    found = [one for one in layouts if one is not None]
    return found if len(found) == len(layouts) else []
