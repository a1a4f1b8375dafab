# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find a problem's best choice by trying every choice; searches are compared with it."""

from __future__ import annotations

import itertools
import math

import numpy as np

from tf_fuse.layout.optimize.methods.tables import INFINITE, Tables
from tf_fuse.layout.types.errors import LayoutError

MAX_CHOICES = 2_000_000
# Of parts of choices that are kept at once: 256 MiB.
_MAX_NUMBERS = 1 << 25


def best(tables: Tables) -> tuple[int, int, tuple[int, ...]] | None:
    """Return the cheapest choice within the limit, of equal ones that with the lowest peak.

    Returns:
      (picoseconds, bytes at the peak, strategies); None if no choice fits.

    Raises:
      LayoutError: there are more choices than `MAX_CHOICES`.
    """
    found = [
        (tables.cost_of(choice), tables.peak_of(choice), choice)
        for choice in _choices(tables)
        if tables.fits(choice)
    ]
    return min(found, default=None)


def least_memory(tables: Tables) -> int | None:
    """Return the lowest peak of all choices that can be; None if none can.

    Raises:
      LayoutError: as of `best`.
    """
    return min(
        (
            tables.peak_of(choice)
            for choice in _choices(tables)
            if tables.cost_of(choice) < INFINITE
        ),
        default=None,
    )


def cheapest(tables: Tables, ceiling: int) -> int | None:
    """Return the least cost of all choices, whatever the limit; count through more than `best` can.

    Operations are gone through one by one, with all choices for them at once. What is left out are
    those that cannot cost the ceiling or less any more, whatever the rest takes.

    Args:
      tables: the problem.
      ceiling: picoseconds that some choice is known to cost.

    Returns:
      Picoseconds; None if too many are left on the way, or none costs so little.
    """
    order = _near_ones_first(tables)
    place = {node: i for i, node in enumerate(order)}
    ahead = sum(int(one.min()) for one in (*tables.cost, *tables.pairs.values()))
    chosen = np.zeros((1, 0), np.int64)
    cost = np.zeros(1, np.int64)
    for node in order:
        ahead -= int(tables.cost[node].min())
        total = cost[:, None] + tables.cost[node]
        for other in tables.neighbours[node]:
            if place[other] < place[node]:
                pair = tables.pairs[min(node, other), max(node, other)]
                ahead -= int(pair.min())
                total += (pair if other < node else pair.T)[chosen[:, place[other]]]
        row, mine = np.nonzero(total + ahead <= ceiling)
        if len(row) * (place[node] + 1) > _MAX_NUMBERS:
            return None
        chosen = np.concatenate([chosen[row], mine[:, None]], axis=1)
        cost = total[row, mine]
    return int(cost.min()) if len(cost) else None


def _near_ones_first(tables: Tables) -> list[int]:
    """Operations, each beside as many as possible of those before it: costs are known early."""
    found: list[int] = []
    near = [0] * tables.size
    left = set(range(tables.size))
    while left:
        node = min(left, key=lambda one: (-near[one], one))
        left.discard(node)
        found.append(node)
        for other in tables.neighbours[node]:
            near[other] += 1
    return found


def count(tables: Tables) -> int:
    """Return the number of choices."""
    return math.prod(tables.sizes)


def _choices(tables: Tables) -> itertools.product:
    if count(tables) > MAX_CHOICES:
        raise LayoutError(
            f"there are {count(tables)} choices, and brute force takes {MAX_CHOICES} at most; "
            "take a smaller problem, or search"
        )
    return itertools.product(*map(range, tables.sizes))
