# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What else there was to choose, and what it would have cost."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from tf_fuse.layout.errors import LayoutError
from tf_fuse.layout.optimize import integer_program, solver
from tf_fuse.layout.optimize.elimination import Store, cheapest
from tf_fuse.layout.optimize.marginals import marginals_of
from tf_fuse.layout.optimize.modes import allowed_in
from tf_fuse.layout.optimize.order import order_of
from tf_fuse.layout.optimize.plan import Plan
from tf_fuse.layout.optimize.problem import DATA
from tf_fuse.layout.optimize.solver import Limits
from tf_fuse.layout.optimize.tables import INFINITE, Tables, tables_of


@dataclasses.dataclass(frozen=True)
class Alternative:
    """Another plan.

    Attributes:
      plan: all of it.
      changed: by name of the operation, (the strategy it has, the one that it had).
    """

    plan: Plan
    changed: dict[str, tuple[str, str]]

    @property
    def seconds(self) -> float:
        """Its cost."""
        return self.plan.seconds


def second_best(plan: Plan, limits: Limits | None = None) -> Alternative | None:
    """The cheapest plan that fits and is not the given one, in its mode and with its pins."""
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
        found = _alternative(plan, choice, least[node], solver.ELIMINATION)
        if found.plan.tables.fits(choice):
            return found
    answer = integer_program.solve(tables, limits.time_limit_seconds, excluded=[own])
    if answer.choice is None:
        return None
    cost = tables.cost_of(answer.choice)
    bound = solver.bound_in_picoseconds(answer.bound, cost, answer.optimal)
    return _alternative(plan, tables.original(answer.choice), bound, solver.PROGRAM)


def alternative(plan: Plan, operation: str, limits: Limits | None = None) -> Alternative | None:
    """The cheapest plan that fits in which one operation has another strategy.

    Raises:
      LayoutError: there is no such operation.
    """
    plan.problem.node(operation)
    at = plan.problem.indices[operation]
    tables = _tables(plan)
    mine = np.flatnonzero(tables.kept[at] != plan.choice[at])
    if not len(mine):
        return None
    tables = tables.restricted({at: mine})
    try:
        found = solver.solve(tables, limits)
    except LayoutError:
        return None
    return _alternative(plan, tables.original(found.choice), found.bound, found.method)


def data_parallel(plan: Plan, limits: Limits | None = None) -> Alternative | str:
    """The plan that splits the batch alone; why there is none, where that is so."""
    problem = plan.problem
    begin = time.monotonic()
    try:
        tables = tables_of(problem, allowed_in(problem, DATA, {}))
        found = solver.solve(tables, limits, [node.name for node in problem.nodes])
    except LayoutError as error:
        return str(error)
    made = _alternative(plan, tables.original(found.choice), found.bound, found.method)
    other = dataclasses.replace(
        made.plan, mode=DATA, pinned=(), search_seconds=time.monotonic() - begin
    )
    return dataclasses.replace(made, plan=other)


def _tables(plan: Plan) -> Tables:
    """The problem as the plan's mode and pins leave it."""
    pins = {name: plan.strategies[name] for name in plan.pinned}
    return tables_of(plan.problem, allowed_in(plan.problem, plan.mode, pins))


def _own(tables: Tables, plan: Plan) -> tuple[int, ...]:
    """The plan's choice by the numbers of restricted tables."""
    return tuple(
        int(np.searchsorted(kept, s)) for kept, s in zip(tables.kept, plan.choice, strict=True)
    )


def _alternative(plan: Plan, choice: tuple[int, ...], bound: int, method: str) -> Alternative:
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
