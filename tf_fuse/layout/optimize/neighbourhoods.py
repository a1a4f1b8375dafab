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
_PATIENCE = 9
# Of the operations that are in the way, those that are fixed in a round, at least; by turns.
_SHARES = (0.1, 0.3, 0.5)
# And of those that are still in the way, how many more at a time.
_MORE = 0.3
# Entries of tables of a round's elimination.
_ENTRIES = 1 << 20
# As large as may be: it tells an order, whatever the tables' sizes.
_ANY = 1 << 62


def improved(tables: Tables, choice: tuple[int, ...], left: Callable[[], float]) -> tuple[int, ...]:
    """A choice that is no dearer, whatever the limit of memory.

    Args:
      tables: a problem.
      choice: to begin with.
      left: seconds that are left.
    """
    rng = random.Random(0)  # The same choice in each run, if time allows.
    core = order_of(tables.sizes, tables.neighbours, _ENTRIES).core
    patience = _PATIENCE
    # A round that takes as long as the longest one before is to end in time.
    longest = 0.0
    while core and patience and (before := left()) > longest:
        share = _SHARES[patience % len(_SHARES)]
        some = rng.sample(core, math.ceil(share * len(core)))
        found = _with_fixed(tables, {node: choice[node] for node in some}, choice, rng)
        longest = max(longest, before - left())
        patience -= 1
        if tables.cost_of(found) < tables.cost_of(choice):
            choice, patience = found, _PATIENCE
    return choice


def _with_fixed(
    tables: Tables, fixed: dict[int, int], known: Sequence[int], rng: random.Random
) -> tuple[int, ...]:
    """The best choice with some strategies; more are fixed, as long as tables are too large."""
    fixed = dict(fixed)
    while True:
        restricted = tables.restricted({node: [one] for node, one in fixed.items()})
        order = order_of(restricted.sizes, restricted.neighbours, _ENTRIES)
        if not order.core:
            break
        some = rng.sample(order.core, math.ceil(_MORE * len(order.core)))
        fixed |= {node: known[node] for node in some}
    choice = cheapest(restricted.without_limit(), order, Store()).choice()
    return tuple(fixed.get(node, one) for node, one in enumerate(choice))


def relaxed(tables: Tables, max_entries: int) -> tuple[int, tuple[int, ...]]:
    """What no choice is below, and a choice that is near it, whatever the limit of memory.

    Args:
      tables: a problem.
      max_entries: of tables.

    Returns:
      Picoseconds; and the choice in which each operation takes what is cheapest by all tables that
      it went with, those that went after it having chosen.
    """
    order = order_of(tables.sizes, tables.neighbours, _ANY)
    nodes = (*order.nodes, *order.core)
    made = _MiniBuckets(tables)
    taken = [made.eliminate(node, max_entries) for node in nodes]
    found: dict[int, int] = {}
    for node, factors in reversed(list(zip(nodes, taken, strict=True))):
        total = np.zeros(tables.sizes[node], np.int64)
        for scope, table in factors:
            array = made.store.pairs[table][0]
            at = tuple(
                slice(None) if one == node else min(found[one], size - 1)
                for one, size in zip(scope, array.shape, strict=True)
            )
            total = np.minimum(total + array[at], INFINITE)
        found[node] = int(total.argmin())
    return min(made.total, INFINITE), tuple(found[node] for node in sorted(found))


class _MiniBuckets:
    """Tables on their way; each operation takes those that it is in."""

    def __init__(self, tables: Tables):
        self.store = Store()
        self.total = 0
        self._sizes = tables.sizes
        self._of_node: list[dict[int, Factor]] = [{} for _ in range(tables.size)]
        self._count = 0
        alone = [((i,), cost) for i, cost in enumerate(tables.cost)]
        for scope, cost in [*alone, *tables.pairs.items()]:
            self._add(scope, self.store.add(cost, np.zeros((1,) * cost.ndim, np.int64)))

    def eliminate(self, node: int, max_entries: int) -> list[Factor]:
        """Takes an operation out; returns the tables that it was in."""
        mine = self._of_node[node]
        for number, factor in mine.items():
            for other in factor.scope:
                if other != node:
                    del self._of_node[other][number]
        for bucket in _buckets(list(mine.values()), self._sizes, max_entries):
            scope = tuple(sorted({other for one in bucket for other in one.scope} - {node}))
            self._add(scope, self.store.project(bucket, (node, *scope), 1).table)
        return list(mine.values())

    def _add(self, scope: tuple[int, ...], table: int) -> None:
        if not scope:
            self.total += int(self.store.pairs[table][0].item())
        for node in scope:
            self._of_node[node][self._count] = Factor(scope, table)
        self._count += 1


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
