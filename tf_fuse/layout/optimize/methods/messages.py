# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bound all choices by passing messages, and rule out strategies by the bound.

The method is sequential reweighted message passing ("A new look at reweighted message passing",
Kolmogorov, 2015; TRW-S on pairwise tables). Costs move between the table of a pair and those of its
operations, so that each choice keeps its cost. The sum of all tables' least entries is then a bound
that no choice is below, and it grows with each sweep towards that of the linear program.

A choice is read off on the way: each operation takes what is cheapest by the present tables,
those before it having chosen. Where the bound of all choices with some strategy is above the cost
of the best choice, no better choice has that strategy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from tf_fuse.layout.optimize.tables import Tables

# Sweeps at most, forward and backward; after how many the bound is looked at; the share of the gap
# by which it has to have grown then, and the gap, as a part of the cost, that is small enough, or
# they end.
_SWEEPS = 120
_LOOK = 8
_SHARE = 0.02
_CLOSE = 1_000_000


@dataclasses.dataclass(frozen=True)
class Messages:
    """What message passing found.

    Attributes:
      bound: no choice that costs less than `cost` costs less than this; picoseconds.
      choice: the cheapest that was found.
      cost: of it.
      keep: for each operation the strategies that a cheaper choice may have.
    """

    bound: int
    choice: tuple[int, ...]
    cost: int
    keep: tuple[np.ndarray, ...]


def passed(tables: Tables, known: Sequence[int], late: Callable[[], bool]) -> Messages:
    """Pass messages.

    Args:
      tables: a problem; its memory is ignored.
      known: a choice that is possible.
      late: whether to end; asked before each sweep.
    """
    return _Sweeps(tables, tuple(known)).run(late)


class _Edge:
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


class _Sweeps:
    def __init__(self, tables: Tables, known: tuple[int, ...]):
        self._tables = tables
        self._choice = known
        self._cost = tables.cost_of(known)
        # What costs more than the known choice is in no better one, whatever else that has.
        cap = self._cost + 1
        self._alone = [np.minimum(one, cap) for one in tables.cost]
        self._edges = [_Edge(a, b, np.minimum(pair, cap)) for (a, b), pair in tables.pairs.items()]
        # For each operation its tables with earlier ones, and with later ones.
        self._near: tuple[list[list[_Edge]], ...] = tuple([[] for _ in self._alone] for _ in (0, 1))
        for edge in self._edges:
            a, b = edge.ends
            self._near[1][a].append(edge)
            self._near[0][b].append(edge)

    def run(self, late: Callable[[], bool]) -> Messages:
        best = self._bound()
        for sweep in range(1, _SWEEPS + 1):
            if (self._cost - best) * _CLOSE <= self._cost or late():
                break
            self._sweep(forward=True)
            self._sweep(forward=False)
            if sweep % _LOOK == 0:
                before, best = best, max(best, self._bound())
                if best - before < _SHARE * (self._cost - best):
                    break
        return Messages(min(best, self._cost), self._choice, self._cost, self._keep())

    def _sweep(self, forward: bool) -> None:
        """Move costs from earlier tables to each operation in turn, and on to later ones."""
        count = len(self._alone)
        earlier, later = self._near if forward else self._near[::-1]
        side = 1 if forward else 0
        chosen = [0] * count
        for node in range(count) if forward else range(count - 1, -1, -1):
            total = self._alone[node]
            seen = total.copy()
            for edge in earlier[node]:
                seen += edge.row(side, chosen[edge.ends[1 - side]])
                least = edge.least(side)
                edge.moved[side] -= least
                total += least
            chosen[node] = int(seen.argmin())
            share = total // max(len(earlier[node]), len(later[node]), 1)
            for edge in later[node]:
                edge.moved[1 - side] += share
                total -= share
        cost = self._tables.cost_of(chosen)
        if cost < self._cost:
            self._choice, self._cost = tuple(chosen), cost

    def _bound(self) -> int:
        found = sum(int(one.min()) for one in self._alone)
        return found + sum(int(edge.least(0).min()) for edge in self._edges)

    def _keep(self) -> tuple[np.ndarray, ...]:
        """Return the strategies whose own bound is not above the cost of the best choice."""
        mine = [one - one.min() for one in self._alone]
        for edge in self._edges:
            for side in (0, 1):
                least = edge.least(side)
                mine[edge.ends[side]] = mine[edge.ends[side]] + (least - least.min())
        slack = self._cost - self._bound()
        found = [np.flatnonzero(one <= slack) for one in mine]
        return tuple(
            one if s in one else np.sort(np.append(one, s))
            for one, s in zip(found, self._choice, strict=True)
        )
