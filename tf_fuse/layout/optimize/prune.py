# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Strategies that no best choice needs."""

from __future__ import annotations

import numpy as np

from tf_fuse.layout.optimize.tables import INFINITE, Tables


def undominated(tables: Tables) -> Tables:
    """Without strategies that another one of the operation beats in everything.

    That is in cost, in bytes of each kind, and next to each strategy of each neighbour. In any
    choice the other one can take its place, so some best choice, and the least memory, remain.
    """
    changed = True
    while changed:
        changed = False
        for node in range(tables.size):
            keep = _kept(tables, node)
            if len(keep) < tables.sizes[node]:
                tables = tables.restricted({node: keep})
                changed = True
    return tables


def _kept(tables: Tables, node: int) -> np.ndarray:
    columns = [tables.cost[node], tables.held[node], tables.transient[node]]
    rows = [column[:, None] for column in columns]
    for other in tables.neighbours[node]:
        low, high = min(node, other), max(node, other)
        pair = tables.pairs[low, high]
        held = np.broadcast_to(tables.between((low, high)), pair.shape)
        rows += [pair, held] if node == low else [pair.T, held.T]
    table = np.concatenate(rows, axis=1)
    better = (table[:, None, :] <= table[None, :, :]).all(axis=2)
    # Of equal ones the first stays.
    equal = better & better.T
    better &= ~equal | np.triu(equal, 1)
    np.fill_diagonal(better, False)
    return np.flatnonzero(~better.any(axis=0))


def impossible(tables: Tables) -> list[int]:
    """Operations of which no strategy goes with the neighbours', as far as that shows locally.

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
