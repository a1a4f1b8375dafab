# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Searches of strategies: every method against all choices counted through."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.layout import exhaustive_search
from tests.slow_cases import slow_but
from tests.unit.layout.optimize.problems import limited, problem, simple
from tests.unit.layout.optimize.search_checks import EXACT, GRAPHS, KNAPSACK, SEEDS, WAYS, check
from tf_fuse.layout.optimize import Candidate, Edge, Limits, Node, Problem, search, solution, solver
from tf_fuse.layout.optimize.methods import elimination
from tf_fuse.layout.optimize.methods.elimination import Store
from tf_fuse.layout.optimize.round_problem import tables_of


def _some_slow(ways):
    """Each way with a general graph, and each graph with one way; others are slow."""
    return slow_but(
        itertools.product(sorted(ways), GRAPHS),
        lambda case: case[0] == "tables" or case[1] == "general",
    )


@pytest.mark.parametrize(("way", "graph"), _some_slow(EXACT))
@given(seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_the_cheapest_without_a_limit(graph, way, seed):
    found = check(problem(seed, graph, infinite=0.0), WAYS[way])
    assert found is not None
    if way == "tables":
        assert found.method == solution.ELIMINATION


@pytest.mark.parametrize("graph", slow_but(GRAPHS, "general".__eq__))
@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_with_relayouts_that_cannot_be(graph, seed):
    for way in EXACT:
        check(problem(seed, graph, infinite=0.4), WAYS[way])


@pytest.mark.parametrize(("way", "graph"), _some_slow(WAYS))
@given(seed=SEEDS, share=st.integers(-1, 10), copies=st.booleans())
# An operation with one strategy forbids strategies of another one, in a chain that does not fit.
@example(seed=377317, share=-1, copies=False)
@settings(max_examples=20, deadline=None)
def test_the_cheapest_within_a_limit(graph, way, seed, share, copies):
    one = problem(seed, graph, infinite=0.1, copies=copies)
    least = exhaustive_search.least_memory(tables_of(one)) or 0
    check(limited(one, max(0, least + share)), WAYS[way])


@given(seed=SEEDS, share=st.integers(-1, 8), way=st.sampled_from(sorted(WAYS)))
@settings(max_examples=60, deadline=None)
def test_limits_at_several_time_points(seed, share, way):
    one = problem(seed, "general", points=True, copies=True)
    least = exhaustive_search.least_memory(tables_of(one)) or 0
    check(limited(one, max(0, least + share)), WAYS[way])


def test_which_method_a_problem_needs():
    assert [
        solver.solve(tables_of(limited(KNAPSACK, limit)), limits).method
        for limit, limits in (
            (None, Limits()),
            (13, Limits()),
            (13, WAYS["no frontiers"]),
            (13, WAYS["prices"]),
            (13, WAYS["program"]),
        )
    ] == [
        "elimination",
        "elimination with frontiers",
        "integer program",
        "elimination with prices",
        "integer program",
    ]


def test_the_same_choice_for_equal_costs():
    one = simple([[1, 1, 1]] * 4, [(i, i + 1, [[0] * 3] * 3) for i in range(3)])
    assert search(one).choice == (0, 0, 0, 0)
    memory = [[5, 3, 3]] * 4
    one = simple([[1, 1, 1]] * 4, [(i, i + 1, [[0] * 3] * 3) for i in range(3)], memory)
    assert search(one).choice == (1, 1, 1, 1)


def test_nothing_to_choose():
    plan = search(Problem([]))
    assert (plan.choice, plan.picoseconds, plan.memory_bytes, plan.optimal) == ((), 0, 0, True)


@pytest.mark.parametrize("fault", ["off by one", "edge left out", "largest"])
def test_a_wrong_elimination_is_found_out(fault, monkeypatch):
    """What the tests above compare with tells a broken elimination from a right one."""
    sound = elimination.least

    def broken(first, second, gone):
        if fault == "off by one" and first.shape[0] > 1:
            return sound(first[1:], second if len(second) == 1 else second[1:], gone)
        if fault == "largest":
            return sound(-first, second, gone)
        return sound(first, second, gone)

    if fault == "edge left out":
        add = Store._sum
        monkeypatch.setattr(
            Store, "_sum", lambda self, parts, rank: add(self, parts[:-1] or parts, rank)
        )
    monkeypatch.setattr(elimination, "least", broken)
    with pytest.raises((AssertionError, IndexError, ValueError)):
        for seed in range(20):
            check(problem(seed, "chain"), Limits())


def test_one_operation_among_many_with_one_strategy():
    """A table of 41 dimensions, if it went first."""
    nodes = [Node(f"n{i}", (Candidate("only", 1e-9),)) for i in range(40)]
    nodes.append(Node("hub", (Candidate("a", 2e-9), Candidate("b", 1e-9))))
    edges = [
        Edge(f"n{i}", other, np.zeros((1, 2 if other == "hub" else 1)))
        for i in range(40)
        for other in [f"n{j}" for j in range(i)] + ["hub"]
    ]
    assert search(Problem(nodes, edges)).strategies["hub"] == "b"
