# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What an edge of a graph costs for every pair of strategies of its two ends."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

from tf_fuse.layout.cost import Rates
from tf_fuse.layout.errors import LayoutError
from tf_fuse.layout.links import Link
from tf_fuse.layout.operation import Operation
from tf_fuse.layout.redistribution import plan_relayout
from tf_fuse.layout.steps import ALL_STEPS, StepSet
from tf_fuse.layout.strategy import EVERYTHING, Allowed, strategies
from tf_fuse.layout.tensor_layout import TensorLayout

# Layers of a model repeat, and so do their edges.
_KEPT = 256
_KEPT_RELAYOUTS = 1 << 16
# The layouts of a tensor and of its gradient, and (seconds, received bytes, bytes of a copy).
_End = tuple[TensorLayout, TensorLayout | None]
_Cost = tuple[float, int, int]


@dataclasses.dataclass(frozen=True)
class EdgeTable:
    """What an edge costs, by the number of the maker's strategy, then the reader's.

    Attributes:
      seconds: of the relayouts of the tensor and, in training, of its gradient.
      received_bytes: by all devices together, in them.
      copy_bytes: that each device holds of the tensor in the reader's layout; 0 where that is the
        maker's.
    """

    seconds: tuple[tuple[float, ...], ...]
    received_bytes: tuple[tuple[int, ...], ...]
    copy_bytes: tuple[tuple[int, ...], ...]


def edge_table(
    maker: tuple[Operation, int],
    reader: tuple[Operation, int],
    rates: Rates,
    training: bool = True,
    allowed: Allowed = EVERYTHING,
    steps: StepSet = ALL_STEPS,
) -> EdgeTable:
    """Computes what an edge costs for every pair of strategies.

    Args:
      maker: an operation, and which of its outputs it is.
      reader: an operation, and which of its inputs it is.
      rates: of the devices.
      training: whether gradients go back.
      allowed: which strategies there are: those of `strategies`, in their order.
      steps: of relayouts.

    Returns:
      The table; the same one for operations that differ in names alone.

    Raises:
      LayoutError: the two tensors have different shapes or types; or as of `strategies`.
    """
    made, read = maker[0].outputs[maker[1]], reader[0].inputs[reader[1]]
    if (made.shape, made.dtype) != (read.shape, read.dtype):
        raise LayoutError(
            f"{maker[0]} makes {made.dtype}{list(made.shape)} as output {maker[1]}, and "
            f"{reader[0]} reads {read.dtype}{list(read.shape)} as input {reader[1]}; an edge is "
            "one tensor"
        )
    for one in (maker[0], reader[0]):
        strategies(one, rates.mesh, allowed)  # Errors name the operation.
    ends = (maker[0].nameless, maker[1]), (reader[0].nameless, reader[1])
    return _edge_table(*ends, rates, training, allowed, steps)


@functools.lru_cache(maxsize=_KEPT)
def _edge_table(
    maker: tuple[Operation, int],
    reader: tuple[Operation, int],
    rates: Rates,
    training: bool,
    allowed: Allowed,
    steps: StepSet,
) -> EdgeTable:
    tensor = reader[0].inputs[reader[1]]
    made = strategies(maker[0], rates.mesh, allowed)
    read = strategies(reader[0], rates.mesh, allowed)
    # Many strategies have the same layouts of this one tensor.
    sources = [(one.outputs[maker[1]], one.output_gradients[maker[1]]) for one in made]
    targets = [(one.inputs[reader[1]], one.input_gradients[reader[1]]) for one in read]
    hidden = rates.overlap if tensor.parameter else 0.0
    links = rates.links
    known = {}
    for source in dict.fromkeys(sources):
        for target in dict.fromkeys(targets):
            forward = _relayout(source[0], target[0], tensor.item_bytes, links, steps)
            backward = 0.0, 0
            if training and target[1] is not None and source[1] is not None:
                backward = _relayout(target[1], source[1], tensor.item_bytes, links, steps)
            held = target[0].bytes_per_device(tensor.item_bytes)
            known[source, target] = (
                forward[0] + backward[0] * (1.0 - hidden),
                forward[1] + backward[1],
                0 if source[0] == target[0] else held,
            )
    rows = _numbered(sources, targets, known)
    return EdgeTable(
        tuple(tuple(one[0] for one in row) for row in rows),
        tuple(tuple(one[1] for one in row) for row in rows),
        tuple(tuple(one[2] for one in row) for row in rows),
    )


def _numbered(
    sources: Sequence[_End], targets: Sequence[_End], known: Mapping[tuple[_End, _End], _Cost]
) -> list[list[_Cost]]:
    """Costs by strategies' numbers; layouts are compared once for each, not for each pair."""
    by_source: dict[_End, list[_Cost]] = {}
    for source in dict.fromkeys(sources):
        row = {target: known[source, target] for target in dict.fromkeys(targets)}
        by_source[source] = [row[target] for target in targets]
    return [by_source[source] for source in sources]


@functools.lru_cache(maxsize=_KEPT_RELAYOUTS)
def _relayout(
    source: TensorLayout,
    target: TensorLayout,
    item_bytes: int,
    links: tuple[tuple[str, Link], ...],
    steps: StepSet,
) -> tuple[float, int]:
    """Seconds and received bytes of the cheapest relayout; many edges have tensors of one shape."""
    if source == target:
        return 0.0, 0
    plan = plan_relayout(source, target, item_bytes, dict(links), steps)
    return plan.seconds, plan.received_bytes
