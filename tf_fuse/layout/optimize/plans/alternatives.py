# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find other plans and what they cost: the second best, data parallelism, another strategy."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from tf_fuse.layout.optimize import solution, solver
from tf_fuse.layout.optimize.allowed_strategies import allowed_in
from tf_fuse.layout.optimize.errors import MemoryLimitError, NoChoiceError
from tf_fuse.layout.optimize.methods import integer_program
from tf_fuse.layout.optimize.methods.elimination import Store, cheapest
from tf_fuse.layout.optimize.methods.marginals import marginals_of
from tf_fuse.layout.optimize.methods.order import order_of
from tf_fuse.layout.optimize.methods.tables import INFINITE, Tables
from tf_fuse.layout.optimize.plans.plan_figures import PlanRecord
from tf_fuse.layout.optimize.problem import DATA
from tf_fuse.layout.optimize.round_problem import tables_of
from tf_fuse.layout.optimize.solution import Limits
from tf_fuse.layout.types.errors import LayoutError


@dataclasses.dataclass(frozen=True)
class Alternative:
    """Another plan.

    Attributes:
      plan: all of it.
      changed: by name of the operation, (the strategy it has, the one that it had).
    """

    plan: PlanRecord
    changed: dict[str, tuple[str, str]]

    @property
    def seconds(self) -> float:
        """Its cost."""
        return self.plan.seconds


def second_best(plan: PlanRecord, limits: Limits | None = None) -> Alternative | None:
    """Return the cheapest other plan that fits, in the given one's mode and constraints."""
    limits = limits or Limits()
    tables = _tables(plan)
    own = _own(tables, plan)
    order = order_of(tables.sizes, tables.neighbours, limits.max_table_entries)
    if not order.core:
        # Any other plan differs in some operation: it is among the cheapest ones in which one
        # operation has one other strategy.
        totals = [one.copy() for one in marginals_of(cheapest(tables, order, Store())).totals]
        for node, s in enumerate(own):
            totals[node][s] = INFINITE
        least = [int(one.min()) for one in totals]
        node = int(np.argmin(least)) if least else 0
        if not least or least[node] >= INFINITE:
            return None
        narrow = tables.restricted({node: [int(totals[node].argmin())]})
        choice = narrow.original(cheapest(narrow, order, Store()).choice())
        other = _alternative(plan, choice, least[node], solution.ELIMINATION)
        if other.plan.tables.fits(choice):
            return other
    near = _nearest(tables, own)
    bound: float = plan.bound_picoseconds
    found, method, optimal = near, solution.NEIGHBOURHOODS, False
    if integer_program.columns(tables) <= limits.max_program_columns:
        answer = integer_program.solve(
            tables, limits.max_program_nodes, limits.time_limit_seconds, excluded=[own]
        )
        bound, optimal = max(bound, answer.bound), answer.optimal
        mine = answer.choice
        if mine is not None and (near is None or tables.cost_of(mine) <= tables.cost_of(near)):
            found, method = mine, solution.PROGRAM
    if found is None:
        return None
    cost = tables.cost_of(found)
    whole = integer_program.bound_in_picoseconds(bound, cost, optimal)
    return _alternative(plan, tables.original(found), whole, method)


def alternative(
    plan: PlanRecord, operation: str, limits: Limits | None = None
) -> Alternative | None:
    """Return the cheapest plan that fits in which one operation has another strategy.

    Raises:
      SearchLimitError: none was found within the limits of the search.
      LayoutError: there is no such operation, or scipy is needed and not installed.
    """
    plan.problem.node(operation)
    at = plan.problem.indices[operation]
    tables = _tables(plan)
    mine = np.flatnonzero(tables.kept[at] != plan.choice[at])
    if not len(mine):
        return None
    tables = tables.restricted({at: mine})
    own = _own(_tables(plan), plan)
    known = [(*own[:at], s, *own[at + 1 :]) for s in range(len(mine))]
    try:
        found = solver.solve(tables, limits, known=known)
    except (MemoryLimitError, NoChoiceError):
        return None
    return _alternative(plan, tables.original(found.choice), found.bound, found.method)


def data_parallel(plan: PlanRecord, limits: Limits | None = None) -> Alternative | str:
    """Return the plan that splits the batch alone; why there is none, where that is so."""
    problem = plan.problem
    begin = time.monotonic()
    try:
        tables = tables_of(problem, allowed_in(problem, DATA, {}))
        found = solver.solve(tables, limits, [node.name for node in problem.nodes])
    except LayoutError as error:
        return str(error)
    made = _alternative(plan, tables.original(found.choice), found.bound, found.method)
    other = dataclasses.replace(
        made.plan, mode=DATA, constrained=(), search_seconds=time.monotonic() - begin
    )
    return dataclasses.replace(made, plan=other)


def _tables(plan: PlanRecord) -> Tables:
    """Return the problem as the plan's mode and constraints leave it."""
    constraints = {name: plan.strategies[name] for name in plan.constrained}
    return tables_of(plan.problem, allowed_in(plan.problem, plan.mode, constraints))


def _own(tables: Tables, plan: PlanRecord) -> tuple[int, ...]:
    """Return the plan's choice by the numbers of restricted tables."""
    return tuple(
        int(np.searchsorted(kept, s)) for kept, s in zip(tables.kept, plan.choice, strict=True)
    )


def _nearest(tables: Tables, own: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the cheapest choice that fits and has another strategy of one operation."""
    totals = [one.copy() for one in tables.cost]
    for (a, b), pair in tables.pairs.items():
        for node, column in ((a, pair[:, own[b]]), (b, pair[own[a]])):
            totals[node] = np.minimum(totals[node] + column, INFINITE)
    more = sorted(
        (int(total) - int(mine[own[node]]), node, s)
        for node, mine in enumerate(totals)
        for s, total in enumerate(mine)
        if s != own[node] and total < INFINITE
    )
    choices = ((*own[:node], s, *own[node + 1 :]) for _, node, s in more)
    return next((one for one in choices if tables.fits(one)), None)


def _alternative(plan: PlanRecord, choice: tuple[int, ...], bound: int, method: str) -> Alternative:
    other = dataclasses.replace(
        plan, choice=choice, bound_picoseconds=bound, method=method, search_seconds=0.0,
        computed=0, reused=0, notes=(),
    )  # fmt: skip
    changed = {
        name: (other.strategies[name], was)
        for name, was in plan.strategies.items()
        if other.strategies[name] != was
    }
    return Alternative(other, changed)
