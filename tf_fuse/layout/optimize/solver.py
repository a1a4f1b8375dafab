# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which method solves a problem, and how good its answer is proven to be.

1. Elimination without the limit. If the cheapest choice fits, it is the answer.
2. Otherwise, elimination for the least memory, which tells whether anything fits; prices, which
   rule strategies out; and frontiers (`pareto.py`) on what is left. All exact.
3. Where tables would be too large, or memory has several time points that matter, the integer
   program, within a time limit; it tells how far from the best its answer is at most.

With several time points, step 2 is tried with the one that is worst, then with the mean of this one
and of those at which what is found does not fit: what fits at each fits in the mean, so what is
cheapest in the mean, and fits at each, is cheapest. A choice that fits at all is found by a lower
limit of the mean. Where the integer program would be too large, that choice is the answer, and how
far from the best it is at most is known as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from tf_fuse.layout.errors import LayoutError
from tf_fuse.layout.optimize import integer_program, lagrange, neighbourhoods, pareto, prune
from tf_fuse.layout.optimize.elimination import Eliminated, Store, cheapest, smallest
from tf_fuse.layout.optimize.errors import MemoryLimitError, NoChoiceError, SearchTimeoutError
from tf_fuse.layout.optimize.order import MAX_TABLE_ENTRIES, Order, order_of
from tf_fuse.layout.optimize.tables import INFINITE, Tables

ELIMINATION = "elimination"
FRONTIERS = "elimination with frontiers"
PRICES = "elimination with prices"
PROGRAM = "integer program"
NEIGHBOURHOODS = "neighbourhoods"

# Time points whose mean is looked at, at most.
_MAX_POINTS = 8
# And for any choice that fits, with how often each is counted.
_MAX_COUNTED = 96
# Entries of tables of mini-buckets.
_BUCKET_ENTRIES = 1 << 20
# By how much the price of a byte is raised.
_PRICE_STEP = 4
# A program without limits of memory is easy, and may have so many times more columns.
_OF_CORE = 10
# Of what is left, what an integer program gets where it is not the last thing to do.
_PROGRAM_SHARE = 0.6
# What HiGHS leaves open when it says that an answer is optimal.
_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True)
class Limits:
    """What a search may take.

    Attributes:
      time_limit_seconds: for integer programs, all together.
      max_table_entries: of an elimination's largest table; an integer program beyond.
      max_frontier_entries: likewise, of a table with frontiers.
      max_program_columns: of an integer program, where a choice that fits is known without it.
    """

    time_limit_seconds: float = 60.0
    max_table_entries: int = MAX_TABLE_ENTRIES
    max_frontier_entries: int = pareto.MAX_ENTRIES
    max_program_columns: int = 50_000

    def __post_init__(self) -> None:
        """Checks all.

        Raises:
          LayoutError: a number is not above 0.
        """
        for name, value in dataclasses.asdict(self).items():
            if not value > 0:
                raise LayoutError(f"{name} is above 0, got {value!r}")


@dataclasses.dataclass(frozen=True)
class Solution:
    """An answer.

    Attributes:
      choice: strategies by number of the operation; by the numbers of the tables that were solved.
      cost: picoseconds.
      bound: no choice that fits costs less; picoseconds. Equal to `cost` where that is proven.
      peak: bytes of a device at the worst time point.
      method: "elimination", "elimination with frontiers", "elimination with prices", "integer
        program" or "neighbourhoods".
      computed: eliminations that were computed.
      reused: eliminations whose result was known from an equal one, as of a repeated layer.
      notes: why a method before it did not do.
    """

    choice: tuple[int, ...]
    cost: int
    bound: int
    peak: int
    method: str
    computed: int = 0
    reused: int = 0
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> int:
        """How many picoseconds the best choice may be cheaper at most."""
        return self.cost - self.bound


def solve(
    tables: Tables,
    limits: Limits | None = None,
    names: Sequence[str] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Solution:
    """Finds the cheapest choice that fits.

    Args:
      tables: the problem.
      limits: what the search may take.
      names: of the operations, for errors.
      clock: seconds.

    Returns:
      A choice that fits, and how good it is. Of equal costs it is that with the least memory, if an
      elimination found it.

    Raises:
      NoChoiceError: there is none, whatever the limit.
      MemoryLimitError: none fits.
      SearchTimeoutError: none was found in time.
      LayoutError: scipy is needed and not installed.
    """
    return _Search(tables, limits or Limits(), names, clock).run()


class _Search:
    def __init__(
        self, tables: Tables, limits: Limits, names: Sequence[str], clock: Callable[[], float]
    ):
        self._tables = tables
        self._limits = limits
        self._names = names or [str(i) for i in range(tables.size)]
        self._clock = clock
        self._end = clock() + limits.time_limit_seconds
        self._store = Store()
        self._notes: list[str] = []

    def run(self) -> Solution:
        tables = self._tables
        order = order_of(tables.sizes, tables.neighbours, self._limits.max_table_entries)
        if not order.core:
            return self._by_elimination(order)
        # Too many strategies for tables: those that no best choice needs go first.
        whole, self._tables = tables, prune.undominated(tables)
        found = self._without_dominated()
        choice = tuple(
            int(np.searchsorted(kept, one))
            for kept, one in zip(whole.kept, self._tables.original(found.choice), strict=True)
        )
        return dataclasses.replace(found, choice=choice)

    def _without_dominated(self) -> Solution:
        tables = self._tables
        order = order_of(tables.sizes, tables.neighbours, self._limits.max_table_entries)
        if not order.core:
            return self._by_elimination(order)
        self._notes.append(
            f"{len(order.core)} operations are left of the elimination, whose tables have more "
            f"than {self._limits.max_table_entries:,} entries"
        )
        return self._by_core()

    def _by_elimination(self, order: Order) -> Solution:
        tables = self._tables
        done = cheapest(tables, order, self._store)
        if done.total[0] >= INFINITE:
            raise self._no_choice()
        choice = tuple(done.choice())
        if tables.fits(choice):
            return self._solution(choice, tables.cost_of(choice), ELIMINATION)
        return self._within(order, choice)

    def _within(self, order: Order, above: tuple[int, ...]) -> Solution:
        """The cheapest choice does not fit."""
        tables = self._tables
        points: list[int] = []
        lowest = 0.0
        found = above
        # Where there are several time points, most choices that fit in a mean do not at all.
        known = self._smallest_that_fits(order, above) if tables.points > 1 else None
        while True:
            mean = tables.relaxed([*points, int(np.argmax(tables.bytes_of(found)))])
            if mean.fits(above):
                break  # At the first one it does not.
            points.append(int(np.argmax(tables.bytes_of(found))))
            relaxed = mean
            within = self._least(relaxed, order, len(points))
            bound = lagrange.bound_of(relaxed, order, above, within)
            lowest = max(lowest, bound.bound)
            reduced = relaxed.restricted(bound.keep())
            exact = self._frontiers(reduced, bound)
            found = bound.best if exact is None else self._of_parent(reduced, exact)
            if exact is not None:
                lowest = max(lowest, tables.cost_of(found))
            if tables.fits(found) and tables.cost_of(found) <= lowest:
                return self._solution(found, tables.cost_of(found), FRONTIERS)
            late = self._left() < (1 - _PROGRAM_SHARE) * self._limits.time_limit_seconds
            if tables.fits(found) or len(points) == _MAX_POINTS or late:
                break
        self._notes.append(
            f"frontiers have more than {self._limits.max_frontier_entries:,} entries"
            if exact is None
            else f"{tables.points} time points have limits of their own"
        )
        fitting = self._fitting(relaxed, len(points), order, above, [found, within])
        fitting = min(
            (one for one in (fitting, known) if one is not None), key=tables.cost_of, default=None
        )
        if fitting is None:
            return self._program(tables, lowest, None)
        # What is dearer than it in the mean alone is so at all time points.
        left = lagrange.at_price(relaxed, order, bound.price, fitting)
        return self._program(tables.restricted(left.keep()), lowest, fitting)

    def _least(self, relaxed: Tables, order: Order, points: int) -> tuple[int, ...]:
        """The choice with the least memory in the mean of time points.

        Raises:
          MemoryLimitError: it does not fit there.
        """
        tables = self._tables
        least = smallest(relaxed, order, self._store)
        choice = tuple(least.choice())
        assert tables.limit is not None and relaxed.limit is not None
        if least.total[0] > relaxed.limit:
            raise self._too_much(-int(-least.total[0] // points), choice, tables.peak_of(choice))
        return choice

    def _fitting(
        self,
        relaxed: Tables,
        points: int,
        order: Order,
        above: tuple[int, ...],
        known: Sequence[tuple[int, ...]],
    ) -> tuple[int, ...] | None:
        """A cheap choice that fits at all time points.

        Some fit in the mean, but not at all. The limit of the mean is lowered by what is too much
        elsewhere, until nothing is.
        """
        tables = self._tables
        assert tables.limit is not None and relaxed.limit is not None
        fitting = [one for one in known if tables.fits(one)]
        choice, within = known[0], known[-1]
        limit = relaxed.limit
        while not tables.fits(choice) and choice != within and self._left() > 0:
            limit -= (tables.peak_of(choice) - tables.limit) * points
            if relaxed.peak_of(within) > limit:
                break
            lowered = dataclasses.replace(relaxed, limit=limit)
            choice = lagrange.bound_of(lowered, order, above, within).best
            fitting += [choice] if tables.fits(choice) else []
        return min(fitting, key=tables.cost_of, default=None)

    def _smallest_that_fits(self, order: Order, above: tuple[int, ...]) -> tuple[int, ...] | None:
        """A choice that fits at all time points, found by the least memory in their mean.

        The time point at which the choice needs most counts once more in the next mean.

        Raises:
          MemoryLimitError: a mean tells that none fits.
        """
        tables = self._tables
        points = [int(np.argmax(tables.bytes_of(above)))]
        while len(points) < _MAX_COUNTED and self._left() > 0:
            choice = self._least(tables.relaxed(points), order, len(points))
            if tables.fits(choice):
                return choice
            points.append(int(np.argmax(tables.bytes_of(choice))))
        return None

    def _frontiers(self, reduced: Tables, bound: lagrange.Bound) -> tuple[int, ...] | None:
        order = order_of(reduced.sizes, reduced.neighbours, self._limits.max_table_entries)
        keep = bound.keep()
        best = tuple(int(np.searchsorted(keep[i], s)) for i, s in enumerate(bound.best))
        again = lagrange.at_price(reduced, order, bound.price, best)
        return pareto.solve(reduced, order, again, self._limits.max_frontier_entries)

    def _of_parent(self, reduced: Tables, choice: Sequence[int]) -> tuple[int, ...]:
        """A choice by the numbers of the tables that are solved."""
        return tuple(
            int(np.searchsorted(mine, one))
            for mine, one in zip(self._tables.kept, reduced.original(choice), strict=True)
        )

    def _by_core(self) -> Solution:
        """Without the limit, all that can be eliminated goes, and a program solves the rest."""
        tables = self._tables
        # Tables over more than two operations are not for the program.
        order = order_of(tables.sizes, tables.neighbours, self._limits.max_table_entries, most=2)
        done = cheapest(tables, order, self._store)
        core = _core_of(tables, done)
        program = prune.undominated(core)
        if integer_program.columns(program) > _OF_CORE * self._limits.max_program_columns:
            return self._nearby(-math.inf)
        # Some time is left for a choice that is found otherwise.
        answer = integer_program.solve(program, _PROGRAM_SHARE * self._left())
        if answer.infeasible:
            raise self._no_choice()
        rest = int(done.total[0])
        if answer.choice is not None:
            kept = program.original(answer.choice)
            choice = tuple(done.choice(dict(zip(order.core, kept, strict=True))))
            cost = tables.cost_of(choice)
            if tables.fits(choice):
                return self._solution(
                    choice, bound_in_picoseconds(answer.bound + rest, cost, answer.optimal), PROGRAM
                )
            # With the limit it is a program of all operations.
            size = integer_program.columns(prune.undominated(tables))
            if size <= self._limits.max_program_columns:
                with contextlib.suppress(SearchTimeoutError):
                    return self._program(tables, answer.bound + rest, None)
        return self._nearby(answer.bound + rest)

    def _nearby(self, bound: float) -> Solution:
        """A choice that is improved bit by bit, and a bound by mini-buckets."""
        tables = self._tables
        entries = min(_BUCKET_ENTRIES, self._limits.max_table_entries)
        lowest, choice = neighbourhoods.relaxed(tables, entries)
        bound = max(bound, lowest)
        if tables.cost_of(choice) >= INFINITE:
            return self._program(tables, bound, None)
        choice = neighbourhoods.improved(tables, choice, self._left)
        price = 1
        # Bytes cost more and more until it fits.
        while not tables.fits(choice) and self._left() > 0 and price < tables.most_price:
            paid = tables.priced(price)
            choice = neighbourhoods.improved(paid, neighbourhoods.relaxed(paid, entries)[1], _none)
            price *= _PRICE_STEP
        if not tables.fits(choice):
            return self._program(tables, bound, None)
        cost = tables.cost_of(choice)
        return self._solution(choice, bound_in_picoseconds(bound, cost, False), NEIGHBOURHOODS)

    def _program(self, tables: Tables, bound: float, known: tuple[int, ...] | None) -> Solution:
        """The integer program, with what is known already.

        Args:
          tables: those that are solved, or part of them.
          bound: picoseconds below which no choice is.
          known: a choice that fits.
        """
        tables = prune.undominated(tables)
        size = integer_program.columns(tables)
        if known is not None and size > self._limits.max_program_columns:
            self._notes.append(
                f"an integer program would have {size:,} columns, more than "
                f"{self._limits.max_program_columns:,}"
            )
            cost = self._tables.cost_of(known)
            return self._solution(known, bound_in_picoseconds(bound, cost, False), PRICES)
        answer = integer_program.solve(tables, self._left())
        if answer.infeasible and known is None:
            raise self._infeasible(tables)
        bound = max(bound, answer.bound if not answer.infeasible else -math.inf)
        choices = [known] if known else []
        if answer.choice is not None:
            choices.append(self._of_parent(tables, answer.choice))
        if not choices:
            raise SearchTimeoutError(
                f"no plan that fits into {self._tables.limit} bytes was found in "
                f"{self._limits.time_limit_seconds:g} seconds; raise time_limit_seconds, or "
                "the limit"
            )
        best = min(choices, key=lambda one: (self._tables.cost_of(one), self._tables.peak_of(one)))
        cost = self._tables.cost_of(best)
        return self._solution(best, bound_in_picoseconds(bound, cost, answer.optimal), PROGRAM)

    def _infeasible(self, tables: Tables) -> LayoutError:
        """Whether it is for want of memory, and how much."""
        answer = integer_program.solve(tables, self._left(), memory=True)
        if answer.infeasible or tables.limit is None:
            return self._no_choice()
        if answer.choice is not None and answer.optimal:
            choice = self._of_parent(tables, answer.choice)
            return self._too_much(self._tables.peak_of(choice), choice, None)
        least = math.ceil(answer.bound) if math.isfinite(answer.bound) else 0
        return MemoryLimitError(max(tables.limit + 1, least), tables.limit, False)

    def _too_much(self, least: int, choice: tuple[int, ...], peak: int | None) -> MemoryLimitError:
        tables = self._tables
        assert tables.limit is not None
        at = int(np.argmax(tables.bytes_of(choice)))
        mine = sorted(
            ((-int(m[s]), self._names[i]) for i, (m, s) in
             enumerate(zip(tables.memory_at(at), choice, strict=True)))
        )  # fmt: skip
        most = ", ".join(f"{name} {-held:,}" for held, name in mine[:3])
        return MemoryLimitError(
            least, tables.limit, peak is None or peak == least, f" (the most by {most})"
        )

    def _no_choice(self) -> NoChoiceError:
        found = prune.impossible(self._tables)
        where = " and ".join(repr(self._names[i]) for i in found)
        return NoChoiceError(
            "no choice of strategies can be: "
            + (f"no strategy of {where} goes with the others'" if found else "edges exclude all")
            + "; allow more relayout steps, offer more strategies, or pin fewer operations"
        )

    def _left(self) -> float:
        return max(0.0, self._end - self._clock())

    def _solution(self, choice: tuple[int, ...], bound: int, method: str) -> Solution:
        tables = self._tables
        assert tables.fits(choice), "a search returned what does not fit"
        return Solution(
            choice, tables.cost_of(choice), bound, tables.peak_of(choice), method,
            self._store.computed, self._store.reused, tuple(self._notes),
        )  # fmt: skip


def _none() -> float:
    """No time."""
    return 0.0


def _core_of(tables: Tables, done: Eliminated) -> Tables:
    """The tables over the operations that are left, as a problem without memory."""
    core = done.order.core
    place = {node: i for i, node in enumerate(core)}
    cost = [np.zeros(tables.sizes[node], np.int64) for node in core]
    pairs: dict[tuple[int, int], np.ndarray] = {}
    for factor in done.rest:
        table = done.store.pairs[factor.table][0]
        if len(factor.scope) == 1:
            at = place[factor.scope[0]]
            cost[at] = np.minimum(cost[at] + table, INFINITE)
        else:
            key = (place[factor.scope[0]], place[factor.scope[1]])
            pairs[key] = np.minimum(pairs[key] + table, INFINITE) if key in pairs else table
    zeros = tuple(np.zeros_like(one) for one in cost)
    return Tables(
        tuple(cost), zeros, zeros, (frozenset(),) * len(core), 1, pairs, {},
        tuple(np.arange(len(one)) for one in cost), None,
    )  # fmt: skip


def bound_in_picoseconds(bound: float, cost: int, optimal: bool) -> int:
    """The bound in whole picoseconds; what HiGHS says is optimal is, within its tolerance."""
    # Costs are whole numbers: what is closer to the bound than one cannot be beaten.
    if optimal and cost - bound <= max(0.5, _TOLERANCE * cost):
        return cost
    return max(0, min(cost, math.floor(bound))) if math.isfinite(bound) else 0
