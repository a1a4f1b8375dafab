# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What an edge of a graph costs for every pair of strategies of its two ends."""

from __future__ import annotations

import dataclasses
import functools

from tf_fuse.layout.cost import Rates, edge_cost
from tf_fuse.layout.errors import LayoutError
from tf_fuse.layout.operation import Operation
from tf_fuse.layout.steps import ALL_STEPS, StepSet
from tf_fuse.layout.strategy import EVERYTHING, Allowed, strategies

# Layers of a model repeat, and so do their edges.
_KEPT = 256


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
    # Many strategies have the same layout of this one tensor.
    sources = [(one.outputs[maker[1]], one.output_gradients[maker[1]]) for one in made]
    targets = [(one.inputs[reader[1]], one.input_gradients[reader[1]]) for one in read]
    known: dict[object, tuple[float, int, int]] = {}
    rows = []
    for first, source in zip(made, sources, strict=True):
        row = []
        for second, target in zip(read, targets, strict=True):
            key = source, target
            if key not in known:
                cost = edge_cost(
                    tensor, (first, maker[1]), (second, reader[1]), rates, training, steps
                )
                copy = 0 if source[0] == target[0] else target[0].bytes_per_device(
                    tensor.item_bytes)  # fmt: skip
                known[key] = cost.seconds, cost.received_bytes, copy
            row.append(known[key])
        rows.append(row)
    return EdgeTable(
        tuple(tuple(one[0] for one in row) for row in rows),
        tuple(tuple(one[1] for one in row) for row in rows),
        tuple(tuple(one[2] for one in row) for row in rows),
    )
