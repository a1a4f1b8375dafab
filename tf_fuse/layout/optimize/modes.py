# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which strategies a search may choose from, and the search itself."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from tf_fuse.layout.errors import LayoutError, raise_if
from tf_fuse.layout.optimize import solver
from tf_fuse.layout.optimize.plan import Plan
from tf_fuse.layout.optimize.problem import DATA, Problem, listed
from tf_fuse.layout.optimize.tables import tables_of

AUTO = "auto"
PROPAGATE = "propagate"
MODES = (DATA, AUTO, PROPAGATE)

Pins = Mapping[str, str | Sequence[str]]


def search(
    problem: Problem,
    mode: str = AUTO,
    pins: Pins | None = None,
    limits: solver.Limits | None = None,
) -> Plan:
    """Finds the cheapest plan that fits.

    Args:
      problem: operations, their strategies, and tensors between them.
      mode: "auto": all strategies. "data": those that split nothing but the batch, which have the
        tag "data". "propagate": some strategies are given, and the rest follows: as "auto", but
        pins have to be there.
      pins: by name of an operation, its strategy, or several to choose from.
      limits: what the search may take.

    Returns:
      The plan; it fits into the problem's memory limit. How far from the best it may be is in
      `Plan.gap_seconds`.

    Raises:
      MemoryLimitError: no plan fits; the error tells how much is missing.
      NoChoiceError: no plan can be, whatever the limit.
      SearchTimeoutError: none was found in time.
      LayoutError: the mode or a pin is unknown, an operation has no strategy that splits nothing
        but the batch, or scipy is needed and not installed.
    """
    begin = time.monotonic()
    tables = tables_of(problem, allowed_in(problem, mode, pins or {}))
    found = solver.solve(tables, limits, [node.name for node in problem.nodes])
    return Plan(
        problem, tables.original(found.choice), mode, found.method, found.bound,
        tuple(sorted(pins or {})), time.monotonic() - begin, found.computed, found.reused,
        found.notes,
    )  # fmt: skip


def allowed_in(problem: Problem, mode: str, pins: Pins) -> dict[int, tuple[int, ...]]:
    """By number of an operation, the strategies that mode and pins leave; all of others.

    Raises:
      LayoutError: as of `search`.
    """
    if mode not in MODES:
        raise LayoutError(f"mode is one of {', '.join(MODES)}, got {mode!r}")
    if mode == PROPAGATE and not pins:
        raise LayoutError(
            "mode 'propagate' needs pins: give the strategy of one operation at least, or take "
            "mode 'auto'"
        )
    given = problem.allowed(pins)
    if mode != DATA:
        return given
    found: dict[int, tuple[int, ...]] = {}
    problems = []
    for i, node in enumerate(problem.nodes):
        tagged = [s for s, one in enumerate(node.candidates) if DATA in one.tags]
        found[i] = tuple(s for s in tagged if s in given.get(i, tagged))
        if not tagged:
            problems.append(
                f"operation {node.name!r} has no strategy with the tag {DATA!r}, which mode 'data' "
                f"needs; it has: {listed(node.names)}"
            )
        elif not found[i]:
            wanted = pins[node.name]
            several = [wanted] if isinstance(wanted, str) else sorted(wanted)
            problems.append(
                f"operation {node.name!r} is pinned to {', '.join(several)}, but mode 'data' "
                f"allows {listed([node.names[s] for s in tagged])}; drop the pin, or take mode "
                "'propagate'"
            )
    raise_if(problems)
    return found
