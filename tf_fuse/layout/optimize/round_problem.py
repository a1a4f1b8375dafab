# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Round a problem's times to picoseconds, for methods that add them up in any order."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

import numpy as np

from tf_fuse.layout.optimize.methods.tables import INFINITE, LARGEST, PER_SECOND, Tables, total
from tf_fuse.layout.optimize.problem import Node, Problem
from tf_fuse.layout.types.errors import LayoutError


def tables_of(problem: Problem, keep: Mapping[int, Sequence[int]] | None = None) -> Tables:
    """Round a problem's times to picoseconds.

    Args:
      problem: what is to be solved.
      keep: by number of an operation, the strategies that are left of it; all of others.

    Raises:
      LayoutError: times or bytes add up to more than whole numbers of 61 bits hold.
    """
    nodes = problem.nodes
    known: dict[tuple, np.ndarray] = {}

    def column(node: Node, name: str, unit: int) -> np.ndarray:
        """Return the numbers of an operation's strategies; equal operations share them."""
        key = name, id(node.candidates)
        if key not in known:
            values = [getattr(one, name) * unit for one in node.candidates]
            known[key] = _whole(values, node.name)
        return known[key]

    def cost(node: Node) -> np.ndarray:
        key = "cost", id(node.candidates)
        if key not in known:
            # Rounded one by one, so that the parts add up to the whole.
            parts = ("compute_seconds", "communication_seconds")
            one, other = (column(node, name, PER_SECOND) for name in parts)
            known[key] = one + other
        return known[key]

    pairs: dict[tuple[int, int], np.ndarray] = {}
    between: dict[tuple[int, int], np.ndarray] = {}
    for edge in problem.edges:
        a, b = problem.indices[edge.source], problem.indices[edge.target]
        for into, name, unit in ((pairs, "seconds", PER_SECOND), (between, "memory_bytes", 1)):
            table = getattr(edge, name)
            if table is None:
                continue
            key = name, id(table), a < b
            if key not in known:
                whole = _whole(np.asarray(table, float) * unit, str(edge))
                known[key] = np.ascontiguousarray(whole if a < b else whole.T)
            _add(into, (min(a, b), max(a, b)), known[key])
    live, points = _points([node.live for node in nodes])
    found = Tables(
        tuple(map(cost, nodes)),
        tuple(column(node, "memory_bytes", 1) for node in nodes),
        tuple(column(node, "transient_bytes", 1) for node in nodes),
        live,
        points,
        {key: pairs[key] for key in sorted(pairs)},
        {key: between[key] for key in sorted(between)},
        tuple(np.arange(len(node.candidates)) for node in problem.nodes),
        problem.memory_limit_bytes,
    )
    _check(found)
    return found.restricted(keep) if keep else found


def _whole(values: Sequence[float] | np.ndarray, who: str) -> np.ndarray:
    table = np.asarray(values, float)
    if np.any(np.isfinite(table) & (table >= LARGEST)):
        raise LayoutError(
            f"{who}: {table[np.isfinite(table)].max():.3g} is too large; times are below "
            f"{LARGEST / PER_SECOND:.0f} seconds and memory below {LARGEST} bytes"
        )
    return np.where(np.isfinite(table), np.rint(np.minimum(table, LARGEST)), INFINITE).astype(
        np.int64
    )


def _add(into: dict[tuple[int, int], np.ndarray], key: tuple[int, int], table: np.ndarray) -> None:
    into[key] = np.minimum(into[key] + table, INFINITE) if key in into else table


def _points(live: Sequence[tuple[int, int] | None]) -> tuple[tuple[frozenset[int], ...], int]:
    """Return the time points whose set of held tensors is not part of another one's.

    What is live at a time point changes where an interval begins. Between two beginnings sets only
    shrink, so beginnings are all that can matter; of these, one whose set is part of the next
    one's, which is so where nothing ended in between, does not either.
    """
    begins = sorted({one[0] for one in live if one is not None})
    ends = sorted({one[1] for one in live if one is not None})
    kept = [
        begin
        for i, begin in enumerate(begins)
        if i + 1 == len(begins)
        or bisect.bisect_left(ends, begin) < bisect.bisect_left(ends, begins[i + 1])
    ]
    return (
        tuple(
            frozenset()
            if one is None
            else frozenset(range(bisect.bisect_left(kept, one[0]), bisect.bisect(kept, one[1])))
            for one in live
        ),
        max(1, len(kept)),
    )


def _check(tables: Tables) -> None:
    """Raise if a sum can overflow."""
    pairs = [np.where(pair >= INFINITE, 0, pair) for pair in tables.pairs.values()]
    cost = total(tables.cost) + total(pairs)
    memory = sum(map(total, (tables.held, tables.transient, tables.held_between.values())))
    if cost >= LARGEST or memory * tables.points >= LARGEST:
        raise LayoutError(
            f"the largest costs add up to {cost / PER_SECOND:.3g} seconds and {memory:.3g} bytes; "
            f"the sums are to be below {LARGEST / PER_SECOND:.0f} seconds and {LARGEST} bytes"
        )
