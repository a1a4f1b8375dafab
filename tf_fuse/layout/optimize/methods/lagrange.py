# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bound the cost under a memory limit by Lagrange multipliers, and rule strategies out.

With a price for each byte, the cheapest choice is found by elimination as before. For any price,
its total less the price of the limit is not above the cost of the best choice that fits: what fits
pays for no more bytes than the limit. The price at which this bound is highest is found by drawing
a line through the best two choices known, one that fits and one that does not, until there is
nothing below the line.

These sums are floating-point numbers. They rule out only what is worse than a known choice by a
margin far above their rounding errors. Returned costs are whole numbers.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tf_fuse.layout.optimize.methods.elimination import (
    Eliminated,
    Input,
    Store,
    eliminate,
    memory_of,
)
from tf_fuse.layout.optimize.methods.marginals import Marginals, marginals_of
from tf_fuse.layout.optimize.methods.order import EliminationOrder
from tf_fuse.layout.optimize.methods.tables import INFINITE, Tables

# Far above the rounding errors of a sum of some thousand terms.
_MARGIN = 1e-9
# How many lines are drawn; a few are enough in practice.
_MAX_LINES = 50


@dataclasses.dataclass(frozen=True)
class Bound:
    """A bound from prices of bytes.

    Attributes:
      best: the cheapest choice found that fits.
      best_cost: its cost.
      bound: no choice that fits costs less; picoseconds.
      price: picoseconds per byte.
      marginals: least totals at this price.
      ceiling: totals above this one belong to no choice that is better than `best`.
    """

    best: tuple[int, ...]
    best_cost: int
    bound: float
    price: float
    marginals: Marginals
    ceiling: float

    def keep(self) -> dict[int, np.ndarray]:
        """Return, for each operation, the strategies that are not ruled out."""
        return {
            node: np.flatnonzero(totals <= self.ceiling)
            for node, totals in enumerate(self.marginals.totals)
        }


def priced(tables: Tables, order: EliminationOrder, price: float) -> Eliminated:
    """Eliminate with a price per byte, in picoseconds; for problems with one time point."""
    memory = memory_of(tables)
    alone = [
        Input((i,), np.where(cost >= INFINITE, np.inf, cost + price * held), held.astype(float))
        for i, (cost, held) in enumerate(zip(tables.cost, memory, strict=True))
    ]
    pairs = [
        Input(key, np.where(pair >= INFINITE, np.inf, pair + price * held), held.astype(float))
        for key, pair in tables.pairs.items()
        for held in [tables.between(key)]
    ]
    return eliminate(order, [*alone, *pairs], Store())


def bound_of(
    tables: Tables, order: EliminationOrder, above: tuple[int, ...], within: tuple[int, ...]
) -> Bound:
    """Find the best price.

    Args:
      tables: a problem with a limit and one time point.
      order: without a core.
      above: the cheapest choice; it does not fit.
      within: a choice that fits.
    """
    assert tables.limit is not None
    price = 0.0
    best = within
    for _ in range(_MAX_LINES):
        more = tables.peak_of(above) - tables.peak_of(within)
        price = max(0.0, (tables.cost_of(within) - tables.cost_of(above)) / more)
        choice = tuple(priced(tables, order, price).choice())
        if tables.peak_of(choice) <= tables.limit and tables.cost_of(choice) < tables.cost_of(best):
            best = choice
        line = tables.cost_of(above) + price * tables.peak_of(above)
        at = tables.cost_of(choice) + price * tables.peak_of(choice)
        if at >= line - _MARGIN * line or choice in (above, within):
            break
        if tables.peak_of(choice) <= tables.limit:
            within = choice
        else:
            above = choice
    return at_price(tables, order, price, best)


def at_price(tables: Tables, order: EliminationOrder, price: float, best: tuple[int, ...]) -> Bound:
    """Return the bound at a price, given a choice that fits."""
    assert tables.limit is not None
    done = priced(tables, order, price)
    paid = price * tables.limit
    cost = tables.cost_of(best)
    slack = _MARGIN * (abs(done.total[0]) + paid + cost + 1)
    return Bound(
        best, cost, done.total[0] - paid - slack, price, marginals_of(done), cost + paid + slack
    )
