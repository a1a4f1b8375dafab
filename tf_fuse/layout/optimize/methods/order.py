# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Choose the order in which operations are eliminated.

Eliminating an operation leaves one table over its neighbours: the least cost of the operation for
each choice of theirs. With no neighbour or one this is FlexFlow's and MindSpore's node elimination
of a leaf, with two it is that of a link of a chain; tables over the same two operations are added
when one of the two goes, which is edge elimination. Chains and series-parallel graphs never need
more. With three neighbours and more it is bucket elimination ("Bucket elimination: a unifying
framework for reasoning", Dechter, 1999), exact on any graph, and feasible while tables are small.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

# Chains and series-parallel graphs need no more neighbours than these.
_FEW = 2
# Entries of the largest table by default: 32 MiB of whole numbers.
MAX_TABLE_ENTRIES = 1 << 22
# Operations that a table may be over beside the one that goes: NumPy broadcasts 32 dimensions at
# most, also where all of them have one element only.
MAX_DIMENSIONS = 31


@dataclasses.dataclass(frozen=True)
class EliminationOrder:
    """Which operations go when.

    Attributes:
      nodes: numbers of operations, in the order in which they are eliminated.
      scopes: for each of these the operations that its table is over, in order.
      core: operations that are left, because their tables would be too large.
    """

    nodes: tuple[int, ...]
    scopes: tuple[tuple[int, ...], ...]
    core: tuple[int, ...]


def order_of(
    sizes: Sequence[int],
    neighbours: Sequence[Sequence[int]],
    max_entries: int = MAX_TABLE_ENTRIES,
    most: int | None = None,
) -> EliminationOrder:
    """Choose an order.

    It goes in rounds. In each, operations with few neighbours go that do not touch one another: of
    a chain every other one. So blocks that repeat go alike, and what one needs the others have
    already (`elimination.py`): a chain of n equal blocks takes about log2(n) products of tables.

    Args:
      sizes: number of strategies of each operation.
      neighbours: of each operation.
      max_entries: of a table, the eliminated operation's strategies among its dimensions.
      most: neighbours that an operation may have; None for any number.
    """
    near = {node: set(others) for node, others in enumerate(neighbours)}
    nodes: list[int] = []
    scopes: list[tuple[int, ...]] = []
    while near:
        allowed = _round(sizes, near, max_entries, most)
        if not allowed:
            break
        touched: set[int] = set()
        for node in allowed:
            if node in touched:
                continue
            scope = near.pop(node)
            touched |= scope
            for one in scope:
                near[one] |= scope
                near[one] -= {one, node}
            nodes.append(node)
            scopes.append(tuple(sorted(scope)))
    return EliminationOrder(tuple(nodes), tuple(scopes), tuple(sorted(near)))


def _round(
    sizes: Sequence[int], near: dict[int, set[int]], max_entries: int, most: int | None
) -> list[int]:
    """Return who may go: all with few neighbours; else those with the smallest tables."""
    entries = {
        node: sizes[node] * math.prod(sizes[one] for one in others)
        for node, others in near.items()
        if len(others) <= (MAX_DIMENSIONS if most is None else most)
    }
    small = [node for node, count in entries.items() if count <= max_entries]
    few = [node for node in small if len(near[node]) <= _FEW]
    if few or not small:
        return sorted(few)
    least = min(entries[node] for node in small)
    return sorted(node for node in small if entries[node] == least)
