# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Neighbourhoods: bounds of mini-buckets, and improvements of a choice."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.layout import exhaustive_search
from tests.unit.layout.optimize.problems import limited, problem
from tests.unit.layout.optimize.search_checks import GRAPHS, SEEDS, WAYS
from tf_fuse.layout.optimize import Candidate, Edge, Node, Problem, search
from tf_fuse.layout.optimize.methods import integer_program, neighbourhoods
from tf_fuse.layout.optimize.methods.tables import INFINITE
from tf_fuse.layout.optimize.round_problem import tables_of


@given(seed=SEEDS, graph=st.sampled_from(GRAPHS), entries=st.sampled_from([2, 8, 64, 1 << 20]))
@settings(max_examples=80, deadline=None)
def test_bounds_of_mini_buckets(seed, graph, entries):
    """No choice is below the bound; where tables are large enough it is the least cost."""
    tables = tables_of(problem(seed, graph, infinite=0.1))
    best = exhaustive_search.best(tables)
    bound, choice = neighbourhoods.relaxed(tables, entries)
    wanted = INFINITE if best is None else best[0]
    assert bound <= wanted <= tables.cost_of(choice)
    if entries == 1 << 20:
        assert bound == wanted == tables.cost_of(choice)


@given(seed=SEEDS, data=st.data())
@settings(max_examples=40, deadline=None)
def test_neighbourhoods_are_never_dearer(seed, data):
    tables = tables_of(problem(seed, "general"))
    choice = tuple(data.draw(st.integers(0, size - 1)) for size in tables.sizes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbourhoods, "_ENTRIES", 6)
        found = neighbourhoods.improved(tables, choice, lambda: False)
        assert tables.cost_of(found) <= tables.cost_of(choice)
        assert neighbourhoods.improved(tables, choice, lambda: True) == choice
        fixed = dict(enumerate(choice))
        assert neighbourhoods._with_fixed(tables, fixed, choice, random.Random(0)) == choice


def crowd() -> Problem:
    """45 operations; each shares a table with each other, and 40 have one strategy."""
    rng = np.random.default_rng(0)
    nodes = [Node(f"n{i}", (Candidate("only", 1e-9),)) for i in range(40)]
    nodes += [
        Node(f"hub{i}", tuple(Candidate(f"s{s}", 1e-12 * s) for s in range(3))) for i in range(5)
    ]
    edges = [
        Edge(one.name, other.name, rng.integers(0, 9, (len(one.names), len(other.names))) * 1e-12)
        for one, other in itertools.combinations(nodes, 2)
    ]
    return Problem(nodes, edges)


def test_neighbourhoods_of_operations_with_one_strategy(monkeypatch):
    """More neighbours than an array has dimensions; none can be fixed any more."""
    monkeypatch.setattr(neighbourhoods, "_ENTRIES", 6)
    tables = tables_of(crowd())
    bound, choice = neighbourhoods.relaxed(tables, 1 << 20)
    found = neighbourhoods.improved(tables, choice, lambda: False)
    assert bound <= tables.cost_of(found) <= tables.cost_of(choice)
    assert search(crowd(), limits=WAYS["neighbourhoods"]).picoseconds == tables.cost_of(found)


def test_what_is_found_without_a_program(monkeypatch):
    """Where a program does not end in time, a choice that fits is there all the same."""
    monkeypatch.setattr(
        integer_program,
        "solve",
        lambda *args, **kw: integer_program.ProgramAnswer(None, 0, False, False),
    )
    one = limited(problem(5, "chain"), 16)
    found = search(one, limits=WAYS["program"])
    best = exhaustive_search.best(tables_of(one))
    assert found.method == "neighbourhoods" and found.memory_bytes <= 16
    assert best is not None and found.bound_picoseconds <= best[0] <= found.picoseconds
