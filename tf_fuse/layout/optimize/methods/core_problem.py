# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reduce a problem to the operations that an elimination with small tables leaves.

Of a training step's graph on two axes these are about a fifth. What went is exactly the cheapest
for each choice of what is left, so a choice of the core, and a bound, hold for the whole problem.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from tf_fuse.layout.optimize.methods import messages, neighbourhoods, prune
from tf_fuse.layout.optimize.methods.elimination import Eliminated, Store, cheapest
from tf_fuse.layout.optimize.methods.order import order_of
from tf_fuse.layout.optimize.methods.tables import INFINITE, Tables, renumbered

# Entries of tables for the first choice.
_BUCKET_ENTRIES = 1 << 16
# How often messages pass, each time with a better choice.
_ROUNDS = 3
# The first slack as a part of the bound, and by how much it grows each time.
_FIRST_SLACK = 100_000
_MORE_SLACK = 3


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
      near: whether it was found by elimination near the bound of messages.
      left: the core, with the strategies that a cheaper choice may have.
    """

    bound: int
    choice: tuple[int, ...] | None
    near: bool
    left: CoreProblem


def searched(
    core: CoreProblem, max_entries: int, store: Store, late: Callable[[], bool]
) -> CoreAnswer:
    """Search a core, without regard to memory.

    Messages bound all choices. The best choice among the strategies whose own bounds are near that
    is mostly the best of all, and then this is proven, too.

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
        return CoreAnswer(core.bound(lowest), None, False, core)
    passed = messages.Messages(tables, known)
    found = 0
    for _ in range(_ROUNDS):
        passed.run(late)
        lowest = max(lowest, passed.bound)
        slack = passed.gap if found else core.bound(passed.bound) // _FIRST_SLACK
        found = _eliminated_near(tables, passed, slack, max_entries, store, late) or found
        if not found and not late():
            left = tables.restricted(passed.keep(passed.gap))
            known = renumbered(tables, passed.choice, left)
            passed.offer(renumbered(left, neighbourhoods.improved(left, known, late), tables))
        lowest = max(lowest, found)
        if lowest >= passed.cost or late():
            break
    left = prune.undominated(tables.restricted(passed.keep(passed.gap))).folded()
    bound = core.bound(min(lowest, passed.cost))
    smaller = dataclasses.replace(core, tables=left)
    return CoreAnswer(bound, core.whole(passed.choice), found > 0, smaller)


def _eliminated_near(
    tables: Tables,
    passed: messages.Messages,
    slack: int,
    max_entries: int,
    store: Store,
    late: Callable[[], bool],
) -> int:
    """Find the best choice near the bound of messages, then farther from it, by elimination.

    Args:
      tables: whose costs moved.
      passed: gets the choice.
      slack: how far above the bound the strategies' own bounds may be at first.
      max_entries: of a table.
      store: where tables are kept.
      late: whether to end.

    Returns:
      No choice costs less; 0 if the first tables are too large.
    """
    found = 0
    while not late():
        slack = min(max(slack, 1), passed.gap)
        keep = passed.keep(slack)
        # Where an operation has no strategy left, all choices cost more.
        if all(map(len, keep.values())):
            left = prune.undominated(tables.restricted(keep)).folded()
            order = order_of(left.sizes, left.neighbours, max_entries)
            if order.core:
                break
            done = cheapest(left, order, store)
            if done.total[0] < passed.cost:
                passed.offer(renumbered(left, done.choice(), tables))
        # Whatever has another strategy costs more than the bound and the slack.
        found = min(passed.bound + slack, passed.cost)
        if found == passed.cost:
            break
        slack *= _MORE_SLACK
    return found


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
