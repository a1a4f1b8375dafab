# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Search for the cheapest plan, among the strategies that a mode allows."""

from __future__ import annotations

import dataclasses
import time

from tf_fuse._deprecated.former_keyword import former_keyword
from tf_fuse.layout.optimize import solver
from tf_fuse.layout.optimize.allowed_strategies import AUTO, ShardingConstraints, allowed_in
from tf_fuse.layout.optimize.errors import MemoryLimitError, NoChoiceError, SearchLimitError
from tf_fuse.layout.optimize.methods.tables import Tables
from tf_fuse.layout.optimize.plans.plan import Plan
from tf_fuse.layout.optimize.problem import DATA, Problem
from tf_fuse.layout.optimize.round_problem import tables_of
from tf_fuse.layout.optimize.solution import Limits


@former_keyword("pins", "constraints")
def search(
    problem: Problem,
    mode: str = AUTO,
    constraints: ShardingConstraints | None = None,
    limits: Limits | None = None,
) -> Plan:
    """Find the cheapest plan that fits.

    Args:
      problem: operations, their strategies, and tensors between them.
      mode: "auto": all strategies. "data": those that split nothing but the batch, which have the
        tag "data". "propagate": some strategies are given, and the rest follows: as "auto", but
        constraints have to be there.
      constraints: by name of an operation, its strategy, or several to choose from.
      limits: what the search may take.

    Returns:
      The plan; it fits into the problem's memory limit. How far from the best it may be is in
      `Plan.gap_seconds`. It costs no more than data parallelism, nor than the first strategy of
      each operation, where mode and constraints allow these and they fit.

    Raises:
      MemoryLimitError: no plan fits; the error says how much is missing.
      NoChoiceError: no plan can be, whatever the limit.
      SearchLimitError: none was found within the limits.
      LayoutError: the mode or a constraint is unknown, an operation has no strategy that splits
        nothing but the batch, or scipy is needed and not installed.
    """
    begin = time.monotonic()
    limits = limits or Limits()
    tables = tables_of(problem, allowed_in(problem, mode, constraints or {}))
    names = [node.name for node in problem.nodes]
    # The first strategy of a graph's operation splits nothing.
    known = [(0,) * tables.size]
    if mode != DATA:
        # Without a time limit, so that it is the same whatever that is.
        untimed = dataclasses.replace(limits, time_limit_seconds=None)
        known = [*_data(problem, tables, untimed), *known]
    found = solver.solve(tables, limits, names, known)
    return Plan(
        problem, tables.original(found.choice), mode, found.method, found.bound,
        tuple(sorted(constraints or {})), time.monotonic() - begin, found.computed, found.reused,
        found.notes,
    )  # fmt: skip


def _data(problem: Problem, tables: Tables, limits: Limits) -> list[tuple[int, ...]]:
    """Return the cheapest choice that splits the batch alone, or nothing if none is found.

    Operations whose strategies with that tag are excluded by constraints have their first one.
    """
    tagged = {
        i: [s for s, at in enumerate(kept) if DATA in node.candidates[at].tags] or [0]
        for i, (node, kept) in enumerate(zip(problem.nodes, tables.kept, strict=True))
    }
    if all(len(mine) == 1 for mine in tagged.values()):
        return [tuple(mine[0] for mine in tagged.values())]
    try:
        found = solver.solve(tables.restricted(tagged), limits)
    except (MemoryLimitError, NoChoiceError, SearchLimitError):
        return []
    return [tuple(tagged[i][s] for i, s in enumerate(found.choice))]
