# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Limits that make a search take each of its ways, and what each answer is compared with."""

from __future__ import annotations

from hypothesis import strategies as st

from benchmarks.layout import exhaustive_search
from tests.unit.layout.optimize import problems as layout_problems
from tests.unit.layout.optimize.problems import simple
from tf_fuse.layout.optimize import (
    Limits,
    MemoryLimitError,
    NoChoiceError,
    Problem,
    solution,
    solver,
)
from tf_fuse.layout.optimize.methods.order import order_of
from tf_fuse.layout.optimize.methods.tables import Tables
from tf_fuse.layout.optimize.round_problem import tables_of

GRAPHS = sorted(layout_problems.GRAPHS)
SEEDS = st.integers(0, 10**9)
# Each takes another way: all by tables; a core by a program; neither frontiers nor a program.
WAYS = {
    "tables": Limits(),
    "core": Limits(max_table_entries=6),
    "program": Limits(max_table_entries=1),
    "no frontiers": Limits(max_frontier_entries=1),
    "prices": Limits(max_frontier_entries=1, max_program_columns=1),
}
# A core that is too large for elimination and for an integer program.
WAYS["neighbourhoods"] = Limits(max_table_entries=6, max_program_columns=1)
EXACT = [name for name in sorted(WAYS) if name not in ("prices", "neighbourhoods")]


# Of each operation the second strategy costs time and no memory.
KNAPSACK = simple(
    [[0, 3], [0, 5], [0, 7], [0, 9]],
    [(i, i + 1, [[0, 1], [1, 0]]) for i in range(3)],
    [[4, 0], [6, 0], [9, 0], [10, 0]],
)


def order(tables: Tables, entries: int = 1 << 22):
    return order_of(tables.sizes, tables.neighbours, entries)


def check(one: Problem, limits: Limits) -> solution.Solution | None:
    """Searches, and compares with all choices; what is returned has to fit in any case."""
    tables = tables_of(one)
    best = exhaustive_search.best(tables)
    least = exhaustive_search.least_memory(tables)
    try:
        found = solver.solve(tables, limits)
    except NoChoiceError:
        assert least is None
        return None
    except MemoryLimitError as error:
        assert best is None and least is not None and tables.limit is not None
        assert error.limit_bytes == tables.limit < error.least_bytes <= least
        if error.proven:
            assert error.least_bytes == least
        return None
    assert best is not None
    assert tables.fits(found.choice)
    assert found.cost == tables.cost_of(found.choice)
    assert found.peak == tables.peak_of(found.choice)
    assert found.bound <= best[0] <= found.cost
    if limits.max_program_columns > 1:
        assert found.cost == found.bound == best[0]
    if found.method in (solution.ELIMINATION, solution.FRONTIERS) and tables.points == 1:
        assert found.peak == best[1]
    return found
