# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Solve a problem by the cheapest method that can, and bound how good the answer is.

1. Elimination without the limit. If the cheapest choice fits, it is the answer.
2. Otherwise, elimination for the least memory, which shows whether anything fits; prices, which
   rule strategies out; and frontiers (`pareto.py`) on what is left. All exact.
3. Where tables would be too large, messages (`messages.py`) on what is left of an elimination, and
   an elimination of the few strategies near their bound. Where that fails, or the choice does not
   fit, choices that are improved step by step, and the integer program; all bound how far from the
   best the answer is at most.

The answer is the cheapest of all choices that fit, of those found on the way and of those that the
caller knows. Counts (of entries of tables, columns, nodes, rounds) limit the work: all machines
find the same answer. A time limit cuts these steps short: more time never gives a dearer one.

With several time points, step 2 looks at the worst one first, then at the mean of this one and
those at which the choice found does not fit. A choice that fits at each point fits in the mean, so
the cheapest choice in the mean is the cheapest of all if it fits at each point. A lower limit of
the mean finds a choice that fits at all points. If the integer program would be too large, that
choice is the answer, with a bound on its distance from the best.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from tf_fuse.layout.optimize import failures
from tf_fuse.layout.optimize.errors import MemoryLimitError
from tf_fuse.layout.optimize.methods import integer_program, lagrange, neighbourhoods, pareto, prune
from tf_fuse.layout.optimize.methods.core_problem import core_of, searched
from tf_fuse.layout.optimize.methods.elimination import Store, cheapest, smallest
from tf_fuse.layout.optimize.methods.integer_program import bound_in_picoseconds
from tf_fuse.layout.optimize.methods.order import EliminationOrder, order_of
from tf_fuse.layout.optimize.methods.tables import INFINITE, Tables, renumbered
from tf_fuse.layout.optimize.solution import (
    ELIMINATION,
    FRONTIERS,
    KNOWN,
    LAST_COLUMNS,
    MESSAGES,
    NEIGHBOURHOODS,
    OF_CORE,
    PRICES,
    PROGRAM,
    Deadline,
    Limits,
    Solution,
)
from tf_fuse.layout.types.errors import LayoutError

# Time points whose mean is looked at, at most.
_MAX_POINTS = 8
# The same in the search for any choice that fits, counting repetitions.
_MAX_COUNTED = 96
# Entries of tables of mini-buckets.
_BUCKET_ENTRIES = 1 << 20


def solve(
    tables: Tables,
    limits: Limits | None = None,
    names: Sequence[str] = (),
    known: Sequence[Sequence[int]] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Solution:
    """Find the cheapest choice that fits.

    Args:
      tables: the problem.
      limits: what the search may take.
      names: of the operations, for errors.
      known: choices; what is found costs no more than any of them that fits.
      clock: seconds.

    Returns:
      A choice that fits, and how good it is. Of equal costs it is that with the least memory, if an
      elimination found it.

    Raises:
      NoChoiceError: there is none, whatever the limit.
      MemoryLimitError: none fits.
      SearchLimitError: none was found within the limits of the search.
      LayoutError: scipy is needed and not installed.
    """
    return _Search(tables, limits or Limits(), names, clock).run(known)


class _Search:
    """Steps, one after the other; what they find is compared, and kept by the solved tables."""

    def __init__(
        self, tables: Tables, limits: Limits, names: Sequence[str], clock: Callable[[], float]
    ):
        self._given = tables
        # The tables to solve: the given ones, or those with fewer strategies.
        self._tables = tables
        self._limits = limits
        self._names = names or [str(i) for i in range(tables.size)]
        self._deadline = Deadline(limits.time_limit_seconds, clock)
        self._store = Store()
        self._notes: list[str] = []
        self._best: tuple[int, ...] | None = None
        self._method = ""
        # No choice that fits costs less, in picoseconds; and whether the best one is proven to.
        self._bound = -math.inf
        self._optimal = False

    def run(self, known: Sequence[Sequence[int]]) -> Solution:
        """Find a choice, by numbers of the given tables."""
        tables = self._tables
        order = order_of(tables.sizes, tables.neighbours, self._limits.max_table_entries)
        if order.core:
            # Too many strategies for tables: those that no best choice needs go first.
            self._tables = tables = prune.undominated(tables).folded()
            order = order_of(tables.sizes, tables.neighbours, self._limits.max_table_entries)
        fitting = [tuple(one) for one in known if self._given.fits(one)]
        if not order.core:
            self._by_elimination(order, bool(fitting))
        else:
            self._notes.append(
                f"{len(order.core)} operations are left of the elimination, whose tables have more "
                f"than {self._limits.max_table_entries:,} entries"
            )
            self._by_core(bool(fitting))
        if self._deadline.is_over():
            self._notes.append(
                f"the search ended at its time limit of {self._limits.time_limit_seconds:g} "
                "seconds; on another machine it may find another plan"
            )
        return self._answer(fitting)

    def _answer(self, known: Sequence[tuple[int, ...]]) -> Solution:
        """Return the best choice of all that were found and are known."""
        given = self._given
        best, method = None, self._method
        if self._best is not None:
            best = renumbered(self._tables, self._best, given)
        for one in known:
            if best is None or given.cost_of(one) < given.cost_of(best):
                best, method = one, KNOWN
        if best is None:
            raise failures.limits_reached(given, self._limits)
        assert given.fits(best), "a search returned what does not fit"
        cost = given.cost_of(best)
        bound = bound_in_picoseconds(self._bound, cost, self._optimal)
        return Solution(
            best, cost, bound, given.peak_of(best), method,
            self._store.computed, self._store.reused, tuple(self._notes),
        )  # fmt: skip

    def _offer(self, choice: tuple[int, ...], method: str) -> bool:
        """Keep a choice if none that is known is as good; return whether it fits."""
        tables = self._tables
        if not tables.fits(choice):
            return False
        if self._best is None or (tables.cost_of(choice), tables.peak_of(choice)) < (
            tables.cost_of(self._best), tables.peak_of(self._best),
        ):  # fmt: skip
            self._best, self._method = choice, method
        return True

    def _prove(self, choice: tuple[int, ...], method: str) -> None:
        """Keep a choice than which none that fits is cheaper."""
        self._best, self._method = choice, method
        self._bound = self._tables.cost_of(choice)

    def _by_elimination(self, order: EliminationOrder, known: bool) -> None:
        tables = self._tables
        done = cheapest(tables, order, self._store)
        if done.total[0] >= INFINITE:
            raise failures.no_choice(self._given, self._names)
        choice = tuple(done.choice())
        if tables.fits(choice):
            self._prove(choice, ELIMINATION)
        else:
            self._bound = tables.cost_of(choice)
            self._within(order, choice, known)

    def _within(self, order: EliminationOrder, above: tuple[int, ...], known: bool) -> None:
        """Return the cheapest choice does not fit."""
        tables = self._tables
        points: list[int] = []
        found = above
        if tables.points > 1:
            # Most choices that fit in a mean of time points do not at all.
            self._smallest_that_fits(order, above)
        while not self._deadline.is_over():
            mean = tables.relaxed([*points, int(np.argmax(tables.bytes_of(found)))])
            if mean.fits(above):
                break  # At the first one it does not.
            points.append(int(np.argmax(tables.bytes_of(found))))
            relaxed = mean
            within = self._least(relaxed, order, len(points))
            bound = lagrange.bound_of(relaxed, order, above, within)
            self._bound = max(self._bound, bound.bound)
            self._offer(bound.best, PRICES)
            reduced = relaxed.restricted(bound.keep())
            exact = self._frontiers(reduced, bound)
            found = bound.best if exact is None else renumbered(reduced, exact, tables)
            if exact is not None:
                self._bound = max(self._bound, tables.cost_of(found))
            if tables.fits(found) and tables.cost_of(found) <= self._bound:
                return self._prove(found, FRONTIERS)
            if tables.fits(found) or len(points) == _MAX_POINTS:
                break
        if self._deadline.is_over():
            return None
        self._notes.append(
            f"frontiers have more than {self._limits.max_frontier_entries:,} entries"
            if exact is None
            else f"{tables.points} time points have limits of their own"
        )
        self._lower(relaxed, len(points), order, above, [found, within])
        if self._best is None:
            return self._program(tables, known)
        # A choice that is dearer in the mean is dearer at all time points.
        left = lagrange.at_price(relaxed, order, bound.price, self._best)
        return self._program(tables.restricted(left.keep()), True)

    def _least(self, relaxed: Tables, order: EliminationOrder, points: int) -> tuple[int, ...]:
        """Return the choice with the least memory in the mean of time points.

        Raises:
          MemoryLimitError: it does not fit there.
        """
        tables = self._tables
        least = smallest(relaxed, order, self._store)
        choice = tuple(least.choice())
        assert tables.limit is not None and relaxed.limit is not None
        if least.total[0] > relaxed.limit:
            bytes_ = -int(-least.total[0] // points)
            exact = tables.peak_of(choice) == bytes_
            raise failures.out_of_memory(tables, self._names, bytes_, choice, exact)
        self._offer(choice, PRICES)
        return choice

    def _lower(
        self,
        relaxed: Tables,
        points: int,
        order: EliminationOrder,
        above: tuple[int, ...],
        found: Sequence[tuple[int, ...]],
    ) -> None:
        """Look for cheap choices that fit at all time points.

        Some choices fit in the mean, but not at each point. The limit of the mean is lowered by
        the excess, until none is left.
        """
        tables = self._tables
        assert tables.limit is not None and relaxed.limit is not None
        for one in found:
            self._offer(one, PRICES)
        choice, within = found[0], found[-1]
        limit = relaxed.limit
        for _ in range(_MAX_COUNTED):
            if tables.fits(choice) or choice == within or self._deadline.is_over():
                break
            limit -= (tables.peak_of(choice) - tables.limit) * points
            if relaxed.peak_of(within) > limit:
                break
            lowered = dataclasses.replace(relaxed, limit=limit)
            choice = lagrange.bound_of(lowered, order, above, within).best
            self._offer(choice, PRICES)

    def _smallest_that_fits(self, order: EliminationOrder, above: tuple[int, ...]) -> None:
        """Look for a choice that fits at all time points by the least memory in their mean.

        The time point at which the choice needs most counts once more in the next mean.

        Raises:
          MemoryLimitError: a mean shows that none fits.
        """
        tables = self._tables
        points = [int(np.argmax(tables.bytes_of(above)))]
        while len(points) < _MAX_COUNTED and not self._deadline.is_over():
            choice = self._least(tables.relaxed(points), order, len(points))
            if tables.fits(choice):
                return
            points.append(int(np.argmax(tables.bytes_of(choice))))

    def _frontiers(self, reduced: Tables, bound: lagrange.Bound) -> tuple[int, ...] | None:
        order = order_of(reduced.sizes, reduced.neighbours, self._limits.max_table_entries)
        keep = bound.keep()
        best = tuple(int(np.searchsorted(keep[i], s)) for i, s in enumerate(bound.best))
        again = lagrange.at_price(reduced, order, bound.price, best)
        return pareto.solve(reduced, order, again, self._limits.max_frontier_entries)

    def _by_core(self, known: bool) -> None:
        """Eliminate what can be eliminated; search the rest by messages, and by a program."""
        tables = self._tables
        core = core_of(tables, self._limits.max_table_entries, self._store)
        if not core.is_possible:
            raise failures.no_choice(self._given, self._names)
        answered = searched(
            core, self._limits.max_table_entries, self._store, self._deadline.is_over
        )
        lowest = answered.bound
        if answered.choice is not None:
            self._offer(answered.choice, MESSAGES if answered.near else NEIGHBOURHOODS)
        if tables.limit is None:
            core = answered.left
        if self._best is None:
            entries = min(_BUCKET_ENTRIES, self._limits.max_table_entries)
            below, found = neighbourhoods.choices(tables, entries, self._deadline.is_over)
            lowest = max(lowest, below)
            for one in found:
                self._offer(one, NEIGHBOURHOODS)
        if lowest >= INFINITE:
            raise failures.no_choice(self._given, self._names)
        self._bound = max(self._bound, lowest)
        if self._deadline.is_over() or (
            self._best is not None and tables.cost_of(self._best) <= self._bound
        ):
            return
        # The cheapest choice without the limit is known if it costs no more than the bound.
        known_free = answered.choice is not None and tables.cost_of(answered.choice) <= lowest
        if not known_free and self._is_small(
            core.tables, OF_CORE * self._limits.max_program_columns
        ):
            answer = self._solved(core.tables)
            if answer.infeasible:
                raise failures.no_choice(self._given, self._names)
            self._bound = max(self._bound, answer.bound + core.shift)
            # Of a program that is cut short a choice may fit where its best one does not: more time
            # would lose it.
            is_cut = tables.limit is not None and not answer.optimal and self._deadline.is_over()
            if answer.choice is not None and not is_cut:
                fits = self._offer(core.whole(answer.choice), PROGRAM)
                if fits and answer.optimal:
                    self._optimal, self._method = True, PROGRAM
                    return
        if tables.limit is not None and not self._deadline.is_over():
            # With the limit it is a program of all operations.
            self._program(tables, known)

    def _program(self, tables: Tables, known: bool) -> None:
        """Solve the integer program.

        Args:
          tables: those that are solved, or part of them in which all that is cheaper is.
          known: whether a choice that fits is known, whatever was found.
        """
        tables = prune.undominated(tables)
        known = known or self._best is not None
        most = self._limits.max_program_columns
        if not self._is_small(tables, most if known else max(most, LAST_COLUMNS)):
            return
        answer = self._solved(tables)
        if answer.infeasible:
            if not known:
                raise self._infeasible(tables)
            return
        self._bound = max(self._bound, answer.bound)
        if answer.choice is not None:
            self._offer(renumbered(tables, answer.choice, self._tables), PROGRAM)
            if answer.optimal:
                self._optimal, self._method = True, PROGRAM

    def _is_small(self, tables: Tables, most: int) -> bool:
        """Return whether a program has no more columns than it may."""
        size = integer_program.columns(tables)
        if size > most:
            self._notes.append(
                f"an integer program would have {size:,} columns, more than {most:,}"
            )
        return size <= most

    def _solved(self, tables: Tables, memory: bool = False) -> integer_program.ProgramAnswer:
        nodes, left = self._limits.max_program_nodes, self._deadline.left()
        if left == 0.0:
            answer = integer_program.NOTHING
        else:
            answer = integer_program.solve(tables, nodes, left, memory)
        if not (answer.optimal or answer.infeasible):
            also = "" if left is None else ", or in the time that was left"
            self._notes.append(f"the integer program was not solved in {nodes:,} nodes{also}")
        return answer

    def _infeasible(self, tables: Tables) -> LayoutError:
        """Return whether it is for want of memory, and how much."""
        answer = self._solved(tables, memory=True)
        if answer.infeasible or tables.limit is None:
            return failures.no_choice(self._given, self._names)
        if answer.choice is not None and answer.optimal:
            choice = renumbered(tables, answer.choice, self._tables)
            peak = self._tables.peak_of(choice)
            return failures.out_of_memory(self._tables, self._names, peak, choice, True)
        least = math.ceil(answer.bound) if math.isfinite(answer.bound) else 0
        return MemoryLimitError(max(tables.limit + 1, least), tables.limit, False)
