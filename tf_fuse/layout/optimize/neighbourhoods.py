# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A good choice and a bound where neither elimination nor an integer program can do it.

**The choice.** With the strategies of some operations fixed, all others are chosen at best by
elimination. Which are fixed changes from round to round; none is worse than the one before.

**The bound** is that of mini-buckets ("Mini-buckets: a general scheme for bounded inference",
Dechter and Rish, 2003): an operation whose table would be too large goes by several smaller ones,
as if it could have another strategy in each. What comes out is no more than any choice costs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np

from tf_fuse.layout.optimize.elimination import Factor, Store, cheapest
from tf_fuse.layout.optimize.order import order_of
from tf_fuse.layout.optimize.tables import INFINITE, Tables

# Rounds without anything better after which it ends.
_PATIENCE = 6
# Of the operations that are in the way, those that are fixed in a round, at least.
_SHARE = 0.5
# As large as may be: it tells an order, whatever the tables' sizes.
_ANY = 1 << 62


def good_choice(
    tables: Tables, max_entries: int, left: Callable[[], float]
) -> tuple[int, ...] | None:
    """Finds a cheap choice, whatever the limit of memory.

    Args:
      tables: a problem.
      max_entries: of tables of an elimination.
      left: seconds that are left.

    Returns:
      The choice; None if none was found.
    """
    rng = random.Random(0)  # The same choice in each run, if time allows.
    core = order_of(tables.sizes, tables.neighbours, max_entries).core
    best: tuple[int, ...] | None = None
    least = INFINITE
    fixed = dict.fromkeys(core, 0)
    patience = _PATIENCE
    while patience and (left() > 0 or best is None):
        choice = _with_fixed(tables, fixed, best, max_entries)
        cost = tables.cost_of(choice)
        patience = _PATIENCE if cost < least else patience - 1
        if cost < least:
            best, least = choice, cost
        if best is None:
            return None
        some = rng.sample(core, math.ceil(_SHARE * len(core)))
        fixed = {node: best[node] for node in some}
    return best


def _with_fixed(
    tables: Tables, fixed: dict[int, int], best: Sequence[int] | None, max_entries: int
) -> tuple[int, ...]:
    """The best choice with some strategies; more are fixed, as long as tables are too large."""
    fixed = dict(fixed)
    while True:
        restricted = tables.restricted({node: [one] for node, one in fixed.items()})
        order = order_of(restricted.sizes, restricted.neighbours, max_entries)
        if not order.core:
            break
        fixed |= {node: 0 if best is None else best[node] for node in order.core}
    choice = cheapest(restricted.without_limit(), order, Store()).choice()
    return tuple(fixed.get(node, one) for node, one in enumerate(choice))


def lower_bound(tables: Tables, max_entries: int) -> int:
    """Picoseconds that no choice is below, whatever the limit of memory.

    Args:
      tables: a problem.
      max_entries: of tables.
    """
    order = order_of(tables.sizes, tables.neighbours, _ANY)
    store = Store()
    of_node: list[dict[int, Factor]] = [{} for _ in range(tables.size)]
    count = 0
    total = 0

    def add(scope: tuple[int, ...], table: int) -> None:
        nonlocal count, total
        if not scope:
            total += int(store.pairs[table][0].item())
        for node in scope:
            of_node[node][count] = Factor(scope, table)
        count += 1

    for scope, cost in (*(((i,), one) for i, one in enumerate(tables.cost)), *tables.pairs.items()):
        add(scope, store.add(cost, np.zeros((1,) * cost.ndim, np.int64)))
    for node in (*order.nodes, *order.core):
        mine = of_node[node]
        for number, factor in mine.items():
            for other in factor.scope:
                if other != node:
                    del of_node[other][number]
        for bucket in _buckets(list(mine.values()), tables.sizes, max_entries):
            scope = tuple(sorted({other for one in bucket for other in one.scope} - {node}))
            add(scope, store.project(bucket, (node, *scope), 1).table)
    return min(total, INFINITE)


def _buckets(
    factors: Sequence[Factor], sizes: Sequence[int], max_entries: int
) -> list[list[Factor]]:
    """Factors in groups whose tables are small enough, the largest ones first."""
    found: list[tuple[set[int], list[Factor]]] = []
    for one in sorted(factors, key=lambda one: -math.prod(sizes[node] for node in one.scope)):
        for scope, bucket in found:
            if math.prod(sizes[node] for node in scope | set(one.scope)) <= max_entries:
                scope |= set(one.scope)
                bucket.append(one)
                break
        else:
            found.append((set(one.scope), [one]))
    return [bucket for _, bucket in found]
