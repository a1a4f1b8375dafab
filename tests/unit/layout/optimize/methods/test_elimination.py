# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Elimination, frontiers and prices of bytes, and the tables that they work on."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.layout import exhaustive_search
from tests.unit.layout.optimize import problems as layout_problems
from tests.unit.layout.optimize.problems import limited, problem, simple
from tests.unit.layout.optimize.search_checks import GRAPHS, KNAPSACK, SEEDS, order
from tf_fuse.layout.optimize import Edge, Problem, search
from tf_fuse.layout.optimize.methods import elimination, lagrange, pareto, prune
from tf_fuse.layout.optimize.methods.elimination import Store
from tf_fuse.layout.optimize.methods.marginals import marginals_of
from tf_fuse.layout.optimize.methods.order import order_of
from tf_fuse.layout.optimize.methods.tables import INFINITE
from tf_fuse.layout.optimize.round_problem import tables_of


@given(seed=SEEDS, price=st.integers(0, 50), data=st.data())
@settings(max_examples=40, deadline=None)
def test_prices_of_bytes(seed, price, data):
    tables = tables_of(problem(seed, "general", points=True, copies=True))
    choice = [data.draw(st.integers(0, size - 1)) for size in tables.sizes]
    paid = tables.priced(price).cost_of(choice) - tables.cost_of(choice)
    assert paid == price * int(tables.bytes_of(choice).sum())
    assert tables.most_price > 10**12


@given(seed=SEEDS, data=st.data())
@settings(max_examples=60, deadline=None)
def test_operations_with_one_strategy_are_part_of_their_neighbours(seed, data):
    tables = tables_of(problem(seed, "general", infinite=0.1, points=True, copies=True))
    keep = {i: [0] for i in range(tables.size) if data.draw(st.booleans())}
    tables = dataclasses.replace(tables.restricted(keep), limit=9)
    folded = tables.folded()
    assert folded.sizes == tables.sizes and folded.limit == 9
    assert all(1 not in pair.shape for pair in folded.pairs.values())
    for choice in itertools.product(*map(range, tables.sizes)):
        assert min(folded.cost_of(choice), INFINITE) == tables.cost_of(choice)
        assert folded.bytes_of(choice).tolist() == tables.bytes_of(choice).tolist()


@given(seed=SEEDS, graph=st.sampled_from(GRAPHS))
@settings(max_examples=40, deadline=None)
def test_least_total_for_each_strategy(seed, graph):
    tables = tables_of(problem(seed, graph, most_nodes=5, infinite=0.2))
    totals = marginals_of(elimination.cheapest(tables, order(tables), Store())).totals
    for node, strategy in ((n, s) for n in range(tables.size) for s in range(tables.sizes[n])):
        best = exhaustive_search.best(tables.restricted({node: [strategy]}))
        assert min(int(totals[node][strategy]), INFINITE) == (best[0] if best else INFINITE)


@given(seed=SEEDS, graph=st.sampled_from(GRAPHS), share=st.integers(0, 6))
@settings(max_examples=60, deadline=None)
def test_dominated_strategies_are_not_needed(seed, graph, share):
    one = problem(seed, graph, infinite=0.2, points=True, copies=True)
    tables = tables_of(limited(one, (exhaustive_search.least_memory(tables_of(one)) or 0) + share))
    fewer = prune.undominated(tables)
    best, other = exhaustive_search.best(tables), exhaustive_search.best(fewer)
    assert (best and best[:2]) == (other and other[:2])
    assert exhaustive_search.least_memory(tables) == exhaustive_search.least_memory(fewer)


def test_each_criterion_keeps_a_strategy():
    base = simple([[1, 1], [0, 0]], [(0, 1, [[1, 1], [1, 1]])], [[1, 1], [0, 0]])

    def left(cost=(1, 1), memory=(1, 1), table=((1, 1), (1, 1)), held=((1, 1), (1, 1))):
        one = simple([list(cost), [0, 0]], [(0, 1, table)], [list(memory), [0, 0]])
        edge = dataclasses.replace(one.edges[0], memory_bytes=np.array(held))
        return prune._Pruning(tables_of(Problem(one.nodes, [edge])))._kept(0).tolist()

    assert prune._Pruning(tables_of(base))._kept(0).tolist() == [0]
    assert left() == [0]
    assert left(cost=(2, 1)) == left(memory=(2, 1)) == [1]
    assert left(cost=(2, 1), memory=(1, 2)) == [0, 1]
    for better in range(2):
        other = [[2, 2], [2, 2]]
        other[1][better] = 1
        assert left(cost=(1, 2), table=other) == [0, 1]
        assert left(cost=(1, 2), held=other) == [0, 1]


@given(seed=SEEDS, data=st.data())
@settings(max_examples=80, deadline=None)
def test_memory_at_all_time_points(seed, data):
    """The time points that are kept are enough, and their sums are those of a relaxation."""
    one = problem(seed, "general", points=True, copies=True)
    tables = dataclasses.replace(tables_of(one), limit=7)
    choice = [data.draw(st.integers(0, size - 1)) for size in tables.sizes]
    index = one.indices
    held = sum(
        node.candidates[s].memory_bytes for node, s in zip(one.nodes, choice, strict=True)
    ) + sum(
        int(edge.memory_bytes[choice[index[edge.source]], choice[index[edge.target]]])
        for edge in one.edges
    )
    at = [
        sum(
            node.candidates[s].transient_bytes
            for node, s in zip(one.nodes, choice, strict=True)
            if node.live[0] <= point <= node.live[1]
        )
        for point in range(5)
    ]
    assert tables.peak_of(choice) == held + max(at)
    points = data.draw(st.lists(st.integers(0, tables.points - 1), min_size=1, max_size=3))
    relaxed = tables.relaxed(points)
    assert relaxed.peak_of(choice) == sum(int(tables.bytes_of(choice)[p]) for p in points)
    assert relaxed.limit == 7 * len(points)


@given(seed=SEEDS, graph=st.sampled_from(GRAPHS), share=st.integers(0, 6))
@settings(max_examples=40, deadline=None)
def test_prices_rule_out_no_better_choice(seed, graph, share):
    tables = tables_of(problem(seed, graph, copies=True))
    least = elimination.smallest(tables, order(tables), Store())
    limit = int(least.total[0]) + share
    tables = dataclasses.replace(tables, limit=limit)
    above = tuple(elimination.cheapest(tables, order(tables), Store()).choice())
    if tables.fits(above):
        return
    bound = lagrange.bound_of(tables, order(tables), above, tuple(least.choice()))
    best = exhaustive_search.best(tables)
    assert best is not None and bound.bound <= best[0] <= bound.best_cost
    assert tables.fits(bound.best)
    left = exhaustive_search.best(tables.restricted(bound.keep()))
    assert left is not None and left[:2] == best[:2]


def test_frontiers_say_when_they_are_too_large():
    tables = tables_of(limited(KNAPSACK, 13))
    least = tuple(elimination.smallest(tables, order(tables), Store()).choice())
    above = tuple(elimination.cheapest(tables, order(tables), Store()).choice())
    bound = lagrange.bound_of(tables, order(tables), above, least)
    assert pareto.solve(tables, order(tables), bound, max_entries=1) is None
    assert pareto.solve(tables, order(tables), bound) == exhaustive_search.best(tables)[2]


def test_frontier_keeps_what_nothing_beats():
    cost = np.array([[3, 1, 2, 2, 5, INFINITE], [1, 1, 1, 1, 1, 1]])
    memory = np.array([[1, 9, 4, 3, 1, 0], [7, 7, 8, 8, 9, 9]])
    found = pareto.frontier(cost, memory, limit=8)
    assert [one.tolist() for one in found] == [
        [[2, 3], [1, INFINITE]],
        [[3, 1], [7, INFINITE]],
    ]


def blocks(layers: int) -> Problem:
    """Layers of four operations, with a residual around them; the first strategy is the dearest."""
    rng = np.random.default_rng(0)
    table = [rng.integers(0, 9, (3, 3)) for _ in range(5)]
    costs = rng.integers(0, 9, (4, 3))
    count = 4 * layers + 1
    nodes = [
        dataclasses.replace(
            simple([[int(cost) for cost in costs[i % 4]]]).nodes[0], name=f"n{i:03}"
        )
        for i in range(count)
    ]
    edges = [(i, i + 1, table[i % 4]) for i in range(count - 1)]
    edges += [(i, i + 4, table[4]) for i in range(0, count - 1, 4)]
    picoseconds = layout_problems.PICOSECOND
    return Problem(
        nodes, [Edge(nodes[a].name, nodes[b].name, one * picoseconds) for a, b, one in edges]
    )


def test_repeated_layers_are_solved_once():
    plans = [search(blocks(layers)) for layers in (8, 16, 32, 64)]
    assert [plan.computed + plan.reused for plan in plans] == [33, 65, 129, 257]
    # Twice the layers take a few products more.
    assert [b.computed - a.computed for a, b in itertools.pairwise(plans)] == [2, 2, 2]
    # As without: each layer's tables are computed anew where names of tables differ.
    for plan in plans:
        tables = plan.tables
        fresh = [elimination.cheapest(tables, order(tables), _Forgetful())]
        assert fresh[0].total[0] == plan.picoseconds
        assert tuple(fresh[0].choice()) == plan.choice


class _Forgetful(Store):
    """Computes all anew."""

    def project(self, factors, scope, gone):
        self._made.clear()
        return super().project(factors, scope, gone)


def test_orders_have_no_more_dimensions_than_numpy():
    """Operations with one strategy each; each shares a table with each other."""
    count = 40
    others = [[i for i in range(count) if i != node] for node in range(count)]
    order = order_of([1] * count, others)
    assert (order.nodes, order.core) == ((), tuple(range(count)))
    order = order_of([1] * 32, [[i for i in range(32) if i != node] for node in range(32)])
    assert order.core == () and max(map(len, order.scopes)) == 31
