# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the exact cheapest choice within a memory limit, by elimination with frontiers.

Each table entry is a Pareto frontier: all pairs of cost and memory that no other pair beats in
both. Prices (`lagrange.py`) bound the cost of the rest of the problem; pairs that cannot become
better than a known choice are dropped. If the tables still grow too large, an integer program takes
over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tf_fuse.layout.optimize.methods.elimination import spread
from tf_fuse.layout.optimize.methods.lagrange import Bound
from tf_fuse.layout.optimize.methods.order import EliminationOrder
from tf_fuse.layout.optimize.methods.tables import INFINITE, Tables

# Entries of the largest table, frontiers and all.
MAX_ENTRIES = 1 << 21


class Frontiers(NamedTuple):
    """Frontiers over some operations.

    Attributes:
      scope: the operations, in order.
      cost: [strategies..., pairs], by rising cost, filled up with `INFINITE`.
      memory: likewise.
      maker: place in the order of the operation whose elimination left it; -1 for a given one.
    """

    scope: tuple[int, ...]
    cost: np.ndarray
    memory: np.ndarray
    maker: int


def solve(
    tables: Tables, order: EliminationOrder, bound: Bound, max_entries: int = MAX_ENTRIES
) -> tuple[int, ...] | None:
    """Find the cheapest choice that fits, of equal ones that with the least memory.

    Args:
      tables: a problem with a limit and one time point.
      order: without a core.
      bound: of these tables and this order.
      max_entries: of a table.

    Returns:
      The choice; None if tables would be larger.
    """
    assert tables.limit is not None
    waiting = _given(tables)
    taken: list[list[Frontiers]] = []
    ends: list[Frontiers] = []
    for i, (node, scope) in enumerate(zip(order.nodes, order.scopes, strict=True)):
        mine = [one for one in waiting if node in one.scope]
        waiting = [one for one in waiting if node not in one.scope]
        made = _eliminated(mine, node, scope, i, tables.limit, max_entries)
        if made is None:
            return None
        made = _without(made, bound.marginals.outside[i], bound)
        (waiting if scope else ends).append(made)
        taken.append(mine)
    whole = _eliminated(ends, None, (), -1, tables.limit, max_entries)
    if whole is None:
        return None
    goal = (int(whole.cost[0]), int(whole.memory[0]))
    return _decoded(order, taken, ends, goal)


def _given(tables: Tables) -> list[Frontiers]:
    return [
        Frontiers((i,), cost[:, None], memory[:, None], -1)
        for i, (cost, memory) in enumerate(zip(tables.cost, tables.memory_at(0), strict=True))
    ] + [
        Frontiers(
            key, pair[..., None], np.broadcast_to(tables.between(key), pair.shape)[..., None], -1
        )
        for key, pair in tables.pairs.items()
    ]


def _eliminated(
    mine: Sequence[Frontiers],
    node: int | None,
    scope: tuple[int, ...],
    maker: int,
    limit: int,
    max_entries: int,
) -> Frontiers | None:
    """Return the sum of frontiers, and the frontier of it over one operation; None if too large."""
    whole = scope if node is None else (*scope, node)
    place = {one: i for i, one in enumerate(whole)}
    cost = memory = np.zeros((1,) * (len(whole) + 1), np.int64)
    # Those with one pair first: they make nothing larger.
    for one in sorted(mine, key=lambda one: one.cost.shape[-1]):
        at = [*(place[other] for other in one.scope), len(whole)]
        costs, memories = (spread(both, at, len(whole) + 1) for both in one[1:3])
        shape = np.broadcast_shapes(cost.shape[:-1], costs.shape[:-1])
        if math.prod(shape) * cost.shape[-1] * costs.shape[-1] > max_entries:
            return None
        cost, memory = _added(cost, costs), _added(memory, memories)
        if one.cost.shape[-1] > 1:
            cost, memory = frontier(cost, memory, limit)
    cost, memory = (np.broadcast_to(a, np.broadcast_shapes(cost.shape, memory.shape))
                    for a in (cost, memory))  # fmt: skip
    if node is not None:
        cost, memory = (a.reshape(*a.shape[:-2], -1) for a in (cost, memory))
    return Frontiers(scope, *frontier(cost, memory, limit), maker)


def _added(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return each pair's sums with each of the other's, along the last dimension."""
    total = one[..., :, None] + other[..., None, :]
    return np.minimum(total, INFINITE).reshape(*total.shape[:-2], -1)


def frontier(cost: np.ndarray, memory: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Remove pairs that another pair beats, that exceed the limit, or that are impossible."""
    cost, memory = np.broadcast_arrays(cost, memory)
    by = np.lexsort((memory, cost), axis=-1)
    cost, memory = (np.take_along_axis(one, by, axis=-1) for one in (cost, memory))
    kept = (cost < INFINITE) & (memory <= limit)
    lowest = np.minimum.accumulate(np.where(kept, memory, INFINITE), axis=-1)
    kept[..., 1:] &= memory[..., 1:] < lowest[..., :-1]
    return _packed(cost, memory, kept)


def _packed(
    cost: np.ndarray, memory: np.ndarray, kept: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Move kept entries to the front; keep as many columns as the longest frontier."""
    most = max(1, int(kept.sum(axis=-1).max(initial=0)))
    by = np.argsort(~kept, axis=-1, kind="stable")[..., :most]
    return tuple(  # type: ignore[return-value]
        np.take_along_axis(np.where(kept, one, INFINITE), by, axis=-1) for one in (cost, memory)
    )


def _without(made: Frontiers, outside: np.ndarray | None, bound: Bound) -> Frontiers:
    """Remove pairs that cannot become better than the known choice."""
    if outside is None:
        return made
    totals = made.cost + bound.price * made.memory + outside[..., None]
    kept = (made.cost < INFINITE) & (totals <= bound.ceiling)
    cost, memory = _packed(made.cost, made.memory, kept)
    return made._replace(cost=cost, memory=memory)


def _decoded(
    order: EliminationOrder,
    taken: Sequence[Sequence[Frontiers]],
    ends: Sequence[Frontiers],
    goal: tuple[int, int],
) -> tuple[int, ...]:
    """Return the strategies, from the root down: which pairs add up to what was found."""
    goals: dict[int, tuple[int, int]] = {}
    found: dict[int, int] = {}
    _split(ends, {}, goal, goals)
    for i in reversed(range(len(order.nodes))):
        node = order.nodes[i]
        strategies = max(one.cost.shape[one.scope.index(node)] for one in taken[i])
        for strategy in range(strategies):
            if _split(taken[i], {**found, node: strategy}, goals[i], goals):
                found[node] = strategy
                break
    return tuple(found[node] for node in sorted(found))


def _split(
    mine: Sequence[Frontiers],
    known: dict[int, int],
    goal: tuple[int, int],
    goals: dict[int, tuple[int, int]],
) -> bool:
    """Find a pair of each frontier that add up to a goal, and give it to its sources."""
    # Sums of the first frontiers, with one way to get each.
    sums: dict[tuple[int, int], tuple] = {(0, 0): ()}
    for one in mine:
        at = tuple(known[other] for other in one.scope)
        pairs = [
            (int(c), int(m))
            for c, m in zip(one.cost[at], one.memory[at], strict=True)
            if c < INFINITE
        ]
        sums = {
            (c + a, m + b): (*way, (a, b))
            for (c, m), way in sums.items()
            for a, b in pairs
            if c + a <= goal[0] and m + b <= goal[1]
        }
    if goal not in sums:
        return False
    for one, pair in zip(mine, sums[goal], strict=True):
        if one.maker >= 0:
            goals[one.maker] = pair
    return True
