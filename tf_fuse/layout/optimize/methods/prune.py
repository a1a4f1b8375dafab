# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Remove strategies that no best choice needs."""

from __future__ import annotations

import collections

import numpy as np

from tf_fuse.layout.optimize.methods.tables import INFINITE, Tables


def undominated(tables: Tables) -> Tables:
    """Remove strategies that another one of the operation beats in everything.

    That is in cost, in bytes of each kind, and next to each strategy of each neighbour. In any
    choice the other one can take its place, so some best choice, and the least memory, remain.
    """
    return _Pruning(tables).run()


class _Pruning:
    """Operations are looked at until nothing changes; what equal ones have left is known."""

    def __init__(self, tables: Tables):
        self._tables = tables
        self._left = [np.arange(size) for size in tables.sizes]
        self._known: dict[tuple, np.ndarray] = {}
        # Arrays that are part of keys, so that no other one gets their identity.
        self._used: dict[int, np.ndarray] = {}

    def run(self) -> Tables:
        waiting = collections.deque(range(self._tables.size))
        queued = set(waiting)
        while waiting:
            node = waiting.popleft()
            queued.discard(node)
            keep = self._kept(node)
            if len(keep) == len(self._left[node]):
                continue
            self._left[node] = self._left[node][keep]
            again = [one for one in self._tables.neighbours[node] if one not in queued]
            waiting.extend(again)
            queued.update(again)
        return self._tables.restricted(dict(enumerate(self._left)))

    def _kept(self, node: int) -> np.ndarray:
        tables, mine = self._tables, self._left[node]
        parts: list[tuple] = [(one[node],) for one in (tables.cost, tables.held, tables.transient)]
        for other in tables.neighbours[node]:
            low, high = min(node, other), max(node, other)
            for pairs in (tables.pairs[low, high], tables.between((low, high))):
                parts.append((pairs, node == low, self._left[other].tobytes()))
        key = (mine.tobytes(), *((id(one[0]), *one[1:]) for one in parts))
        if key not in self._known:
            self._used.update((id(one[0]), one[0]) for one in parts)
            self._known[key] = _undominated(self._columns(node))
        return self._known[key]

    def _columns(self, node: int) -> np.ndarray:
        """Return [strategies that are left] the figures by which each is compared."""
        tables, mine = self._tables, self._left[node]
        rows = [one[node][mine, None] for one in (tables.cost, tables.held, tables.transient)]
        for other in tables.neighbours[node]:
            low, high = min(node, other), max(node, other)
            pair = tables.pairs[low, high]
            held = np.broadcast_to(tables.between((low, high)), pair.shape)
            for table in (pair, held) if held.any() else (pair,):
                side = table if node == low else table.T
                rows.append(side[np.ix_(mine, self._left[other])])
        return np.concatenate(rows, axis=1)


def _undominated(table: np.ndarray) -> np.ndarray:
    """Return the rows that no other one beats in everything; of equal ones the first."""
    better = (table[:, None, :] <= table[None, :, :]).all(axis=2)
    equal = better & better.T
    better &= ~equal | np.triu(equal, 1)
    np.fill_diagonal(better, False)
    return np.flatnonzero(~better.any(axis=0))


def impossible(tables: Tables) -> list[int]:
    """Return operations none of whose strategies goes with the neighbours', seen locally.

    Strategies without a partner are left out, over and over. Empty if all that remains has
    partners, which does not mean that there is a choice.
    """
    alive = [cost < INFINITE for cost in tables.cost]
    changed = True
    while changed:
        changed = False
        for (a, b), pair in tables.pairs.items():
            for node, other, possible in ((a, b, pair), (b, a, pair.T)):
                left = alive[node] & ((possible < INFINITE) & alive[other]).any(axis=1)
                changed |= bool((left != alive[node]).any())
                alive[node] = left
                if not left.any():
                    return sorted({a, b})
    return []
