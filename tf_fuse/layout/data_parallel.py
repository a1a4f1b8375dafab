# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Data parallelism of a graph with its gradients: strategies that split nothing but the batch.

What is fed is split along its batch dimension over all axes of the mesh, and variables are whole.
An operation takes the strategy that moves the fewest bytes of its inputs as they are then, of those
that split what its inputs have split, or nothing; gradients stay partial up to the first operation
that needs them whole. So a whole training step has the reductions that data parallelism has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tf_fuse.layout.cost import Rates
from tf_fuse.layout.forks import SUFFIX
from tf_fuse.layout.mesh import Mesh
from tf_fuse.layout.operation import Operation, Tensor
from tf_fuse.layout.operators import rule_of
from tf_fuse.layout.optimize.graph import GraphProblem
from tf_fuse.layout.optimize.problem import DATA, Candidate, Problem
from tf_fuse.layout.relayout_seconds import relayout_seconds
from tf_fuse.layout.strategy import GRADIENT, PARTIAL, REPLICATE, SPLIT, Choice, Strategy
from tf_fuse.layout.tensor_layout import TensorLayout


def with_tags(graph: GraphProblem, batch: Mapping[str, int | None], rates: Rates) -> GraphProblem:
    """The same problem with the tag "data" where this module says.

    Args:
      graph: of which sources are operations.
      batch: by name of a tensor that is fed, its batch dimension, or None; those that are not named
        have none.
      rates: of the mesh.
    """
    chosen = data_strategies(graph.operations, graph.strategies, batch, rates)
    # Layers repeat: of equal operations the candidates stay one object.
    known: dict[tuple[int, int], tuple[Candidate, ...]] = {}
    nodes = []
    for node, mine in zip(graph.problem.nodes, chosen, strict=True):
        key = id(node.candidates), mine
        if key not in known:
            known[key] = tuple(_tagged(one, s == mine) for s, one in enumerate(node.candidates))
        nodes.append(dataclasses.replace(node, candidates=known[key]))
    problem = Problem(
        nodes, graph.problem.edges, graph.problem.memory_limit_bytes, graph.problem.mesh
    )
    return dataclasses.replace(graph, problem=problem)


def _tagged(one: Candidate, data: bool) -> Candidate:
    tags = frozenset([DATA] if data else [])
    return one if one.tags == tags else dataclasses.replace(one, tags=tags)


def data_strategies(
    operations: Sequence[Operation],
    candidates: Sequence[Sequence[Strategy]],
    batch: Mapping[str, int | None],
    rates: Rates,
) -> list[int]:
    """The number of the strategy of each operation."""
    made: dict[str, TensorLayout] = {}
    found = []
    for one, mine in zip(operations, candidates, strict=True):
        if one.inputs:
            at = _reading(one, mine, made, rates)
        else:
            at = _feeding(one, mine, batch, rates.mesh)
        found.append(at)
        made.update((t.name, out) for t, out in zip(one.outputs, mine[at].outputs, strict=True))
    return found


def _feeding(
    one: Operation, mine: Sequence[Strategy], batch: Mapping[str, int | None], mesh: Mesh
) -> int:
    (tensor,) = one.outputs
    at = batch.get(tensor.name)
    if at is None:
        return 0
    axes = tuple(axis for axis, size in mesh.dims if size > 1)
    wanted = tuple(axes if i == at else () for i in range(len(tensor.shape)))
    for s, strategy in enumerate(mine):
        if strategy.outputs[0].splits == wanted:
            return s
    return 0


def _reading(
    one: Operation, mine: Sequence[Strategy], made: Mapping[str, TensorLayout], rates: Rates
) -> int:
    inputs = [made[tensor.name] for tensor in one.inputs]
    allowed = _choices(one, inputs)
    sizes = rates.mesh.dims

    def cost(s: int) -> tuple[float, int, int]:
        strategy = mine[s]
        moved = sum(
            _seconds(tensor, layout, wanted, rates)
            for tensor, layout, wanted in zip(one.inputs, inputs, strategy.inputs, strict=True)
        )
        inner = sum(rates.collective(each) for each in strategy.forward)
        held = sum(
            layout.bytes_per_device(tensor.item_bytes)
            for tensor, layout in zip(one.outputs, strategy.outputs, strict=True)
        )
        return moved + inner, held, s

    fitting = [
        s
        for s, strategy in enumerate(mine)
        if any(
            all(
                choice == (wanted if size > 1 else Choice())
                for choice, (_, size) in zip(strategy.choices, sizes, strict=True)
            )
            for wanted in allowed
        )
    ]
    return min(fitting or [0], key=cost)


def _choices(one: Operation, inputs: Sequence[TensorLayout]) -> list[Choice]:
    """What all axes may do: nothing, split what an input has split, or keep terms of sums."""
    rule = rule_of(one)
    found = [Choice(REPLICATE)]
    for layout, dims in zip(inputs, rule.inputs, strict=True):
        for axes, factors in zip(layout.splits, dims, strict=True):
            found += [Choice(SPLIT, factor) for factor in factors[:1] if axes]
    # For several readers, what is partial is reduced once.
    if not one.name.endswith(SUFFIX):
        found += [
            Choice(PARTIAL, inputs=numbers)
            for numbers in rule.linear
            if any(inputs[i].partial for i in numbers)
        ]
    assert all(choice.kind != GRADIENT for choice in found)
    return list(dict.fromkeys(found))


def _seconds(tensor: Tensor, source: TensorLayout, target: TensorLayout, rates: Rates) -> float:
    if source == target:
        return 0.0
    links = dict(rates.links)
    return float(relayout_seconds([source], [target], tensor.item_bytes, links)[0, 0])
