# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hold a problem in whole numbers: picoseconds and bytes.

Sums of floating-point numbers depend on their order, so the cheapest of two close choices would,
too. This module rounds times to picoseconds once. From then on all sums are exact, whatever method
adds them up, and can be compared for equality.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from tf_fuse.layout.optimize.problem import Node, Problem
from tf_fuse.layout.types.errors import LayoutError

PER_SECOND = 10**12
# The cost of impossible choices; two of them can be added without overflow.
INFINITE = 1 << 61
_NONE = np.zeros((1, 1), np.int64)
# The largest sum of all finite numbers of a problem.
_LARGEST = 1 << 60


@dataclasses.dataclass(frozen=True, eq=False)
class Tables:
    """Costs and memory by numbers of operations and strategies.

    Attributes:
      cost: for each operation, [strategies] in picoseconds.
      held: for each operation, [strategies] bytes, held all the time.
      transient: likewise, held while it is live.
      live: for each operation the numbers of the time points in `points` at which it is live.
      points: number of time points that matter, 1 or more.
      pairs: by the numbers of two operations, the lower one first, [strategies of it, strategies of
        the other one] in picoseconds, `INFINITE` where it cannot be.
      held_between: likewise, bytes held all the time; a pair that is missing holds none.
      kept: for each operation the numbers that its strategies have in the problem.
      limit: bytes; None if memory does not matter.
    """

    cost: tuple[np.ndarray, ...]
    held: tuple[np.ndarray, ...]
    transient: tuple[np.ndarray, ...]
    live: tuple[frozenset[int], ...]
    points: int
    pairs: Mapping[tuple[int, int], np.ndarray]
    held_between: Mapping[tuple[int, int], np.ndarray]
    kept: tuple[np.ndarray, ...]
    limit: int | None

    @property
    def size(self) -> int:
        """Number of operations."""
        return len(self.cost)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of strategies of each operation."""
        return tuple(map(len, self.cost))

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """For each operation those that it shares a table with, in order."""
        found: list[set[int]] = [set() for _ in self.cost]
        for a, b in self.pairs:
            found[a].add(b)
            found[b].add(a)
        return tuple(tuple(sorted(one)) for one in found)

    def between(self, key: tuple[int, int]) -> np.ndarray:
        """Return the bytes that two operations hold together: [strategies, strategies]."""
        return self.held_between.get(key, _NONE)

    def memory_at(self, point: int) -> tuple[np.ndarray, ...]:
        """Return, for each operation, [strategies] bytes at a time point."""
        return tuple(
            held + transient if point in live else held
            for held, transient, live in zip(self.held, self.transient, self.live, strict=True)
        )

    def cost_of(self, choice: Sequence[int]) -> int:
        """Return the picoseconds of a choice; `INFINITE` if it is not possible."""
        total = sum(int(cost[s]) for cost, s in zip(self.cost, choice, strict=True))
        total += sum(int(pair[choice[a], choice[b]]) for (a, b), pair in self.pairs.items())
        return min(total, INFINITE)

    def peak_of(self, choice: Sequence[int]) -> int:
        """Return the most bytes of a device at any time point."""
        return int(self.bytes_of(choice).max())

    def bytes_of(self, choice: Sequence[int]) -> np.ndarray:
        """Return [points] bytes of a device."""
        found = np.zeros(self.points, np.int64)
        for held, transient, live, s in zip(
            self.held, self.transient, self.live, choice, strict=True
        ):
            found += held[s]
            found[sorted(live)] += transient[s]
        for (a, b), pair in self.held_between.items():
            found += pair[choice[a], choice[b]]
        return found

    def fits(self, choice: Sequence[int]) -> bool:
        """Return whether a choice has no infinite table entry and fits at each time point."""
        if self.cost_of(choice) >= INFINITE:
            return False
        return self.limit is None or self.peak_of(choice) <= self.limit

    def original(self, choice: Sequence[int]) -> tuple[int, ...]:
        """Return a choice by the problem's numbers."""
        return tuple(int(kept[s]) for kept, s in zip(self.kept, choice, strict=True))

    def restricted(self, keep: Mapping[int, Sequence[int] | np.ndarray]) -> Tables:
        """Return the problem with some strategies only.

        Args:
          keep: by number of an operation, the numbers of its strategies here; all of others.
        """
        at = [np.asarray(keep.get(i, range(size)), np.intp) for i, size in enumerate(self.sizes)]
        taken = [
            tuple(one[places] for one, places in zip(values, at, strict=True))
            for values in (self.cost, self.held, self.transient, self.kept)
        ]
        return dataclasses.replace(
            self,
            cost=taken[0],
            held=taken[1],
            transient=taken[2],
            kept=taken[3],
            pairs=_restricted(self.pairs, at),
            held_between=_restricted(self.held_between, at),
        )

    def folded(self) -> Tables:
        """Return the same problem without tables between an operation of one strategy and others.

        What they cost and hold is part of the others' own. Choices have the same numbers, and the
        same costs and bytes.
        """
        cost, held = list(self.cost), list(self.held)
        for (a, b), pair in self.pairs.items():
            if 1 in pair.shape:
                at = b if pair.shape[0] == 1 else a
                cost[at] = np.minimum(cost[at] + pair.reshape(-1), INFINITE)
        for (a, b), pair in self.held_between.items():
            if 1 in pair.shape:
                at = b if pair.shape[0] == 1 else a
                held[at] = held[at] + pair.reshape(-1)
        pairs, between = (
            {key: pair for key, pair in both.items() if 1 not in pair.shape}
            for both in (self.pairs, self.held_between)
        )
        return dataclasses.replace(
            self, cost=tuple(cost), held=tuple(held), pairs=pairs, held_between=between
        )

    def relaxed(self, points: Sequence[int]) -> Tables:
        """Return the problem with one time point, which sums the given ones.

        The limit is the sum of theirs: a choice that fits at each of them fits there.

        Args:
          points: one may be there several times.
        """
        counts = [sum(point in live for point in points) for live in self.live]
        times = len(points)
        return dataclasses.replace(
            self,
            held=tuple(
                held * times + transient * count
                for held, transient, count in zip(self.held, self.transient, counts, strict=True)
            ),
            transient=tuple(np.zeros_like(one) for one in self.held),
            live=(frozenset(),) * self.size,
            points=1,
            held_between={key: pair * times for key, pair in self.held_between.items()},
            limit=None if self.limit is None else self.limit * times,
        )

    @property
    def most_price(self) -> int:
        """The most picoseconds that a byte may cost, so that no sum overflows."""
        parts = (self.held, self.transient, self.held_between.values())
        return _LARGEST // (1 + self.points * sum(map(_total, parts)))

    def priced(self, price: int) -> Tables:
        """Return the problem with a price per byte at each time point, at most `most_price`."""
        each = [
            held * self.points + transient * len(live)
            for held, transient, live in zip(self.held, self.transient, self.live, strict=True)
        ]
        pairs = {
            key: np.minimum(pair + price * self.points * self.between(key), INFINITE)
            for key, pair in self.pairs.items()
        }
        cost = tuple(
            np.minimum(one + price * held, INFINITE)
            for one, held in zip(self.cost, each, strict=True)
        )
        return dataclasses.replace(self, cost=cost, pairs=pairs)

    def without_limit(self) -> Tables:
        """Return the problem without its memory limit."""
        return dataclasses.replace(self, limit=None)


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
    if np.any(np.isfinite(table) & (table >= _LARGEST)):
        raise LayoutError(
            f"{who}: {table[np.isfinite(table)].max():.3g} is too large; times are below "
            f"{_LARGEST / PER_SECOND:.0f} seconds and memory below {_LARGEST} bytes"
        )
    return np.where(np.isfinite(table), np.rint(np.minimum(table, _LARGEST)), INFINITE).astype(
        np.int64
    )


def _add(into: dict[tuple[int, int], np.ndarray], key: tuple[int, int], table: np.ndarray) -> None:
    into[key] = np.minimum(into[key] + table, INFINITE) if key in into else table


def _restricted(
    pairs: Mapping[tuple[int, int], np.ndarray], at: Sequence[np.ndarray]
) -> dict[tuple[int, int], np.ndarray]:
    # Operations of equal layers keep sharing their tables.
    known: dict[tuple, np.ndarray] = {}
    found = {}
    for (a, b), pair in pairs.items():
        key = id(pair), at[a].tobytes(), at[b].tobytes()
        if key not in known:
            known[key] = pair[np.ix_(at[a], at[b])]
        found[a, b] = known[key]
    return found


def renumbered(tables: Tables, choice: Sequence[int], parent: Tables) -> tuple[int, ...]:
    """Return a choice by the numbers of the tables that some were restricted from."""
    return tuple(
        int(np.searchsorted(mine, one))
        for mine, one in zip(parent.kept, tables.original(choice), strict=True)
    )


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
    cost = _total(tables.cost) + _total(pairs)
    memory = sum(map(_total, (tables.held, tables.transient, tables.held_between.values())))
    if cost >= _LARGEST or memory * tables.points >= _LARGEST:
        raise LayoutError(
            f"the largest costs add up to {cost / PER_SECOND:.3g} seconds and {memory:.3g} bytes; "
            f"the sums are to be below {_LARGEST / PER_SECOND:.0f} seconds and {_LARGEST} bytes"
        )


def _total(tables: Iterable[np.ndarray]) -> int:
    return sum(int(table.max(initial=0)) for table in tables)
