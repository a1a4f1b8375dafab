# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reduce a problem to the operations that an elimination with small tables leaves.

Of a training step's graph on two axes these are about a fifth. What went is exactly the cheapest
for each choice of what is left, so a choice of the core, and a bound, hold for the whole problem.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from tf_fuse.layout.optimize.methods import messages, neighbourhoods, prune
from tf_fuse.layout.optimize.methods.elimination import Eliminated, Store, cheapest
from tf_fuse.layout.optimize.methods.order import order_of
from tf_fuse.layout.optimize.tables import INFINITE, Tables

# Entries of tables for the first choice.
_BUCKET_ENTRIES = 1 << 16
# How often messages pass, each time with the strategies that are left.
_ROUNDS = 3


@dataclasses.dataclass(frozen=True, eq=False)
class CoreProblem:
    """What is left of a problem; without memory.

    Attributes:
      tables: of the operations that are left, with the strategies that a best choice may need, and
        tables over at most two operations.
      done: what was eliminated.
    """

    tables: Tables
    done: Eliminated

    @property
    def shift(self) -> int:
        """Picoseconds of what is eliminated, whatever the core's choice is."""
        return int(self.done.total[0])

    @property
    def is_possible(self) -> bool:
        """Whether there may be a choice."""
        return self.shift < INFINITE

    def whole(self, choice: Sequence[int]) -> tuple[int, ...]:
        """Return the cheapest choice of the whole problem that has this one of the core."""
        kept = self.tables.original(choice)
        return tuple(self.done.choice(dict(zip(self.done.order.core, kept, strict=True))))

    def bound(self, below: int) -> int:
        """Return a bound of the whole problem from one of the core, in picoseconds."""
        return min(below + self.shift, INFINITE)


@dataclasses.dataclass(frozen=True)
class CoreAnswer:
    """What a search of a core found.

    Attributes:
      bound: no choice of the whole problem costs less; picoseconds.
      choice: of the whole problem; None if none is known.
      improved: one that costs at most as much, where the choice is not proven to be the cheapest.
      left: the core, with the strategies that a cheaper choice may have.
    """

    bound: int
    choice: tuple[int, ...] | None
    improved: tuple[int, ...] | None
    left: CoreProblem


def searched(
    core: CoreProblem, max_entries: int, store: Store, late: Callable[[], bool]
) -> CoreAnswer:
    """Search a core, without regard to memory.

    Messages bound all choices, and mostly leave so few strategies that the rest can be eliminated.

    Args:
      core: a problem that has a choice.
      max_entries: of a table.
      store: where tables are kept.
      late: whether to end; asked between steps.
    """
    tables = core.tables
    lowest, known = neighbourhoods.relaxed(tables, min(_BUCKET_ENTRIES, max_entries))
    if lowest >= INFINITE or tables.cost_of(known) >= INFINITE:
        # No choice is known from which messages could begin.
        return CoreAnswer(core.bound(lowest), None, None, core)
    bound = lowest
    for _ in range(_ROUNDS):
        found = messages.passed(tables, known, late)
        bound = max(bound, found.bound)
        # What is ruled out is not cheaper than the choice, which is left.
        tables = tables.restricted(dict(enumerate(found.keep)))
        known = tuple(
            int(np.searchsorted(kept, s)) for kept, s in zip(found.keep, found.choice, strict=True)
        )
        left = prune.undominated(tables).folded()
        smaller = dataclasses.replace(core, tables=left)
        order = order_of(left.sizes, left.neighbours, max_entries)
        if not order.core:
            best = smaller.whole(cheapest(left, order, store).choice())
            return CoreAnswer(core.bound(bound), best, None, smaller)
        if found.bound >= found.cost or late():
            break
    own = dataclasses.replace(core, tables=tables)
    better = None
    if bound < found.cost:
        better = own.whole(neighbourhoods.improved(tables, known, late))
    return CoreAnswer(core.bound(min(bound, found.cost)), own.whole(known), better, smaller)


def core_of(tables: Tables, max_entries: int, store: Store) -> CoreProblem:
    """Eliminate the operations that have at most two neighbours.

    Args:
      tables: the problem.
      max_entries: of a table.
      store: where tables are kept.
    """
    order = order_of(tables.sizes, tables.neighbours, max_entries, most=2)
    done = cheapest(tables, order, store)
    left = done.core_tables(tables)
    return CoreProblem(prune.undominated(left) if done.total[0] < INFINITE else left, done)
