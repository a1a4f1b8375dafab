# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hold a problem in whole numbers: picoseconds and bytes.

Sums of floating-point numbers depend on their order, so the cheapest of two close choices would,
too. So `optimize/round_problem.py` rounds times to picoseconds once. From then on all sums are
exact, whatever method adds them up, and can be compared for equality.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

#: Picoseconds.
PER_SECOND = 10**12
# The cost of impossible choices; two of them can be added without overflow.
INFINITE = 1 << 61
_NONE = np.zeros((1, 1), np.int64)
# The largest sum of all finite numbers of a problem.
LARGEST = 1 << 60


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
        return LARGEST // (1 + self.points * sum(map(total, parts)))

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


def total(tables: Iterable[np.ndarray]) -> int:
    """Return the sum of the largest number of each table."""
    return sum(int(table.max(initial=0)) for table in tables)
