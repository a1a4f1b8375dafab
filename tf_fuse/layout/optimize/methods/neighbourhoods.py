# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find good choices and a bound where elimination and integer programs are too large.

**The choice.** Each round fixes the strategies of some operations, and finds the best strategies of
all others by elimination. No round makes the choice worse.

**The bound** is that of mini-buckets ("Mini-buckets: a general scheme for bounded inference",
Dechter and Rish, 2003): an operation whose table would be too large goes by several smaller ones,
as if it could have another strategy in each. No choice costs less than the result.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np

from tf_fuse.layout.optimize.methods.elimination import Factor, Store, cheapest
from tf_fuse.layout.optimize.methods.order import MAX_DIMENSIONS, order_of
from tf_fuse.layout.optimize.methods.tables import INFINITE, Tables

# Rounds without improvement before the end; and the most rounds in all.
_PATIENCE = 9
_ROUNDS = 300
# Shares of the remaining core that a round fixes at least, in turn.
_SHARES = (0.1, 0.3, 0.5)
# The share of the still remaining core that is fixed next.
_MORE = 0.3
# Entries of tables of a round's elimination.
_ENTRIES = 1 << 20
# As large as may be: the order is needed, whatever the tables' sizes.
_ANY = 1 << 62
# By how much the price of a byte is raised.
_PRICE_STEP = 4


def choices(
    tables: Tables, entries: int, late: Callable[[], bool]
) -> tuple[int, list[tuple[int, ...]]]:
    """Return a bound that no choice is below, and good choices.

    While the choice needs more memory than the limit, the price of a byte is raised.

    Args:
      tables: a problem.
      entries: the most that a table of the mini-buckets may have.
      late: whether to end; asked before each round.

    Returns:
      (picoseconds, choices). There may be no choice, and a choice may need more memory than the
      limit.
    """
    lowest, choice = relaxed(tables, entries)
    if lowest >= INFINITE or tables.cost_of(choice) >= INFINITE:
        return lowest, []
    choice = improved(tables, choice, late)
    price = 1
    paid = tables
    while not tables.fits(choice) and not late() and price < tables.most_price:
        paid = tables.priced(price)
        choice = relaxed(paid, entries)[1]
        price *= _PRICE_STEP
    return lowest, [choice] if paid is tables else [choice, improved(paid, choice, late)]


def improved(tables: Tables, choice: tuple[int, ...], late: Callable[[], bool]) -> tuple[int, ...]:
    """Return a choice that costs at most as much, without regard to the memory limit.

    Args:
      tables: a problem.
      choice: to begin with.
      late: whether to end; asked before each round.
    """
    rng = random.Random(0)  # The same rounds in each run.
    core = order_of(tables.sizes, tables.neighbours, _ENTRIES).core
    patience = _PATIENCE
    for _ in range(_ROUNDS):
        if not core or not patience or late():
            break
        share = _SHARES[patience % len(_SHARES)]
        some = rng.sample(core, math.ceil(share * len(core)))
        found = _with_fixed(tables, {node: choice[node] for node in some}, choice, rng)
        patience -= 1
        if tables.cost_of(found) < tables.cost_of(choice):
            choice, patience = found, _PATIENCE
    return choice


def _with_fixed(
    tables: Tables, fixed: dict[int, int], known: Sequence[int], rng: random.Random
) -> tuple[int, ...]:
    """Return the best choice with some strategies fixed; fix more while tables are too large."""
    fixed = dict(fixed)
    while True:
        restricted = tables.restricted({node: [one] for node, one in fixed.items()}).folded()
        order = order_of(restricted.sizes, restricted.neighbours, _ENTRIES)
        if not order.core:
            break
        some = rng.sample(order.core, math.ceil(_MORE * len(order.core)))
        fixed |= {node: known[node] for node in some}
    choice = cheapest(restricted.without_limit(), order, Store()).choice()
    return tuple(fixed.get(node, one) for node, one in enumerate(choice))


def relaxed(tables: Tables, max_entries: int) -> tuple[int, tuple[int, ...]]:
    """Return a lower bound of all costs, and a choice near it; ignore the memory limit.

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
        """Take an operation out; return the tables that it was in."""
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
    """Return factors in groups whose tables are small enough, the largest ones first."""
    found: list[tuple[set[int], list[Factor]]] = []
    for one in sorted(factors, key=lambda one: -math.prod(sizes[node] for node in one.scope)):
        for scope, bucket in found:
            both = scope | set(one.scope)
            entries = math.prod(sizes[node] for node in both)
            if entries <= max_entries and len(both) <= MAX_DIMENSIONS:
                scope |= both
                bucket.append(one)
                break
        else:
            found.append((set(one.scope), [one]))
    return [bucket for _, bucket in found]
