# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bound all choices by passing messages, and rule out strategies by the bound.

The method is sequential reweighted message passing ("A new look at reweighted message passing",
Kolmogorov, 2015; TRW-S on pairwise tables). Costs move between the table of a pair and those of its
operations, so that each choice keeps its cost. The sum of all tables' least entries is then a bound
that no choice is below, and it grows with each sweep towards that of the linear program.

A choice is read off on the way: each operation takes what is cheapest by the present tables,
those before it having chosen. It is mostly far above the bound, while the best choice is near it.
So `core_problem.py` looks among the strategies whose own bound, that of all choices with them, is
little above the bound of all. Where it is above the cost of a known choice, no better choice has
that strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tf_fuse.layout.optimize.methods.tables import Tables

# Sweeps at most, forward and backward; after how many the bound is looked at; the share of the gap
# by which it has to have grown then, and the gap, as a part of the cost, that is small enough, or
# they end.
_SWEEPS = 64
_LOOK = 8
_SHARE = 0.02
_CLOSE = 1_000_000


class _PairTable:
    """A table between two operations, and what moved from it to them."""

    def __init__(self, a: int, b: int, table: np.ndarray):
        self.ends = a, b
        self.table = table
        self.moved = [np.zeros(size, np.int64) for size in table.shape]

    def least(self, side: int) -> np.ndarray:
        """Return, for each strategy of an end, the least entry."""
        if side == 0:
            return (self.table + self.moved[1]).min(axis=1) + self.moved[0]
        return (self.table + self.moved[0][:, None]).min(axis=0) + self.moved[1]

    def row(self, side: int, other: int) -> np.ndarray:
        """Return the entries for each strategy of an end, and one of the other end."""
        part = self.table[:, other] if side == 0 else self.table[other]
        return part + self.moved[side] + self.moved[1 - side][other]


class Messages:
    """Tables between which costs have moved; more of them with each `run`.

    Attributes:
      choice: the cheapest that is known.
      cost: of it; picoseconds.
      bound: no choice that costs less than `cost` costs less than this.
    """

    def __init__(self, tables: Tables, known: Sequence[int]):
        """Begin.

        Args:
          tables: a problem; its memory is ignored.
          known: a choice that is possible.
        """
        self.choice = tuple(known)
        self.cost = tables.cost_of(known)
        self._tables = tables
        # What costs more than the known choice is in no better one, whatever else that has.
        cap = self.cost + 1
        self._alone = [np.minimum(one, cap) for one in tables.cost]
        self._pair_tables = [
            _PairTable(a, b, np.minimum(pair, cap)) for (a, b), pair in tables.pairs.items()
        ]
        # For each operation its tables with earlier ones, and with later ones.
        self._near: tuple[list[list[_PairTable]], ...] = tuple(
            [[] for _ in self._alone] for _ in (0, 1)
        )
        for table in self._pair_tables:
            a, b = table.ends
            self._near[1][a].append(table)
            self._near[0][b].append(table)
        self._lowest = self._sum()

    @property
    def bound(self) -> int:
        """See above."""
        return min(self._lowest, self.cost)

    @property
    def gap(self) -> int:
        """How many picoseconds the best choice may be cheaper at most."""
        return self.cost - self.bound

    def offer(self, choice: Sequence[int]) -> None:
        """Keep a choice if it is cheaper than the known one."""
        cost = self._tables.cost_of(choice)
        if cost < self.cost:
            self.choice, self.cost = tuple(choice), cost

    def run(self, late: Callable[[], bool]) -> None:
        """Pass messages, until the bound stops growing.

        Args:
          late: whether to end; asked before each sweep.
        """
        for sweep in range(1, _SWEEPS + 1):
            if self.gap * _CLOSE <= self.cost or late():
                break
            self._sweep(forward=True)
            self._sweep(forward=False)
            if sweep % _LOOK == 0:
                before, self._lowest = self._lowest, max(self._lowest, self._sum())
                if self._lowest - before < _SHARE * self.gap:
                    break
        self._lowest = self._sum()

    def keep(self, slack: int) -> dict[int, np.ndarray]:
        """Return, for each operation, the strategies of all choices that may cost little.

        Args:
          slack: no choice with any other strategy costs `bound + slack` or less.
        """
        mine = [one - one.min() for one in self._alone]
        for table in self._pair_tables:
            for side in (0, 1):
                least = table.least(side)
                mine[table.ends[side]] = mine[table.ends[side]] + (least - least.min())
        return {node: np.flatnonzero(one <= slack) for node, one in enumerate(mine)}

    def _sweep(self, forward: bool) -> None:
        """Move costs from earlier tables to each operation in turn, and on to later ones."""
        count = len(self._alone)
        earlier, later = self._near if forward else self._near[::-1]
        side = 1 if forward else 0
        chosen = [0] * count
        for node in range(count) if forward else range(count - 1, -1, -1):
            total = self._alone[node]
            seen = total.copy()
            for table in earlier[node]:
                seen += table.row(side, chosen[table.ends[1 - side]])
                least = table.least(side)
                table.moved[side] -= least
                total += least
            chosen[node] = int(seen.argmin())
            share = total // max(len(earlier[node]), len(later[node]), 1)
            for table in later[node]:
                table.moved[1 - side] += share
                total -= share
        self.offer(chosen)

    def _sum(self) -> int:
        found = sum(int(one.min()) for one in self._alone)
        return found + sum(int(table.least(0).min()) for table in self._pair_tables)
