# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Searches of strategies: every method against all choices counted through."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import subprocess
import sys
import types

import numpy as np
import psutil
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.layout import exhaustive_search
from tests import scripted
from tests.unit.layout.optimize import problems as layout_problems
from tests.unit.layout.optimize.problems import limited, problem, simple
from tf_fuse.layout import LayoutError
from tf_fuse.layout.optimize import (
    DATA,
    Candidate,
    Edge,
    Limits,
    MemoryLimitError,
    NoChoiceError,
    Node,
    Problem,
    SearchLimitError,
    search,
    solution,
    solver,
)
from tf_fuse.layout.optimize.methods import (
    elimination,
    integer_program,
    lagrange,
    neighbourhoods,
    pareto,
    prune,
)
from tf_fuse.layout.optimize.methods.elimination import Store
from tf_fuse.layout.optimize.methods.marginals import marginals_of
from tf_fuse.layout.optimize.methods.order import order_of
from tf_fuse.layout.optimize.tables import INFINITE, Tables, tables_of

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
# A core that is no elimination's and too large for a program.
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


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("way", EXACT)
@given(seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_the_cheapest_without_a_limit(graph, way, seed):
    found = check(problem(seed, graph, infinite=0.0), WAYS[way])
    assert found is not None
    if way == "tables":
        assert found.method == solution.ELIMINATION


@pytest.mark.parametrize("graph", GRAPHS)
@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_with_relayouts_that_cannot_be(graph, seed):
    for way in EXACT:
        check(problem(seed, graph, infinite=0.4), WAYS[way])


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("way", sorted(WAYS))
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


def crowd() -> Problem:
    """45 operations, each of which shares a table with each other; 40 have one strategy."""
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
    """More neighbours than an array has dimensions, none of which can be fixed any more."""
    monkeypatch.setattr(neighbourhoods, "_ENTRIES", 6)
    tables = tables_of(crowd())
    bound, choice = neighbourhoods.relaxed(tables, 1 << 20)
    found = neighbourhoods.improved(tables, choice, lambda: False)
    assert bound <= tables.cost_of(found) <= tables.cost_of(choice)
    assert search(crowd(), limits=WAYS["neighbourhoods"]).picoseconds == tables.cost_of(found)


# Of `scipy.optimize.milp`.
LARGEST = {
    "c": -np.ones(1), "integrality": np.ones(1), "bounds": (0, 3),
    "constraints": (np.ones((1, 1)), -np.inf, 2.0),
}  # fmt: skip


def test_a_program_that_does_not_end_in_time_is_ended():
    assert integer_program._elsewhere(LARGEST, 9, 1e-3) is None
    found = integer_program._elsewhere(LARGEST, 9, None)
    assert found is not None and (found[0], found[1].tolist()) == (0, [2.0])


# Arguments with which the process of a program reports its number, and then waits for ever.
WAITS = """
import sys
from tf_fuse.layout.optimize.methods import integer_program

class Runs:
    def __init__(self, code):
        self.code = code

    def __reduce__(self):
        return eval, (self.code,)

says = Runs(f"open({sys.argv[1]!r}, 'w').write(str(os.getpid()))")
integer_program._elsewhere({"says": says, "waits": Runs("signal.pause()")}, 1, None)
"""


def test_a_process_of_a_program_ends_with_the_one_that_waits(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    parent = subprocess.Popen([sys.executable, "-c", WAITS, str(fifo)], cwd=scripted.ROOT)
    try:
        child = psutil.Process(int(fifo.read_text()))
    finally:
        parent.kill()
        parent.wait()
    _, alive = psutil.wait_procs([child], timeout=60)
    for process in alive:
        process.kill()
    assert alive == []


def test_a_process_of_a_program_that_fails_says_why():
    with pytest.raises(LayoutError) as caught:
        integer_program._elsewhere({"what": 1}, 9, None)
    assert str(caught.value).startswith("HiGHS ended with 1: Traceback")
    assert "unexpected keyword argument 'what'" in str(caught.value)


@given(seed=SEEDS)
@settings(max_examples=5, deadline=None)
def test_programs_of_their_own_process_have_the_same_answers(seed):
    tables = tables_of(problem(seed, "general"))
    here = integer_program.solve(tables, 100)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_program, "_MAX_COLUMNS_HERE", 0)
        assert integer_program.solve(tables, 100) == here
        assert integer_program.solve(tables, 100, 0.5).choice is None


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


# Errors.


def test_memory_that_is_missing():
    one = simple(
        [[1, 2], [1, 2]], [(0, 1, [[0, 0], [0, 0]])], [[500, 400], [3000, 1000]], limit=1200
    )
    with pytest.raises(MemoryLimitError) as caught:
        search(one)
    assert str(caught.value) == (
        "no plan fits into memory_limit_bytes=1,200: the least that any plan needs is 1,400 bytes "
        "per device, 200 more (the most by b 1,000, a 400); raise the limit, use more devices, or "
        "offer strategies that split more"
    )
    assert (caught.value.least_bytes, caught.value.limit_bytes) == (1400, 1200)
    with pytest.raises(MemoryLimitError) as other:
        search(one, limits=WAYS["program"])
    assert str(other.value) == str(caught.value)


def test_memory_error_of_a_bound():
    error = MemoryLimitError(1400, 1200, proven=False)
    assert str(error) == (
        "no plan fits into memory_limit_bytes=1,200: the least that any plan needs is at least "
        "1,400 bytes per device, 200 more; raise the limit, use more devices, or offer strategies "
        "that split more"
    )


def test_no_choice():
    inf = float("inf")
    one = simple([[1, 1], [1]], [(0, 1, [[inf], [inf]])])
    text = (
        "no choice of strategies can be: no strategy of 'a' and 'b' goes with the others'; allow "
        "more relayout steps, offer more strategies, or pin fewer operations"
    )
    for way in EXACT:
        with pytest.raises(NoChoiceError) as caught:
            search(one, limits=WAYS[way])
        assert str(caught.value) == text
    # Each edge has a pair that can be, and no choice has all.
    same, other = [[0, inf], [inf, 0]], [[inf, 0], [0, inf]]
    one = simple([[1, 1]] * 3, [(0, 1, same), (1, 2, same), (0, 2, other)])
    with pytest.raises(NoChoiceError) as caught:
        search(one)
    assert str(caught.value) == text.replace(
        "no strategy of 'a' and 'b' goes with the others'", "edges exclude all"
    )


def poor(tables: Tables) -> tuple[int, ...]:
    """The dearest choice of those with the same number for each operation."""
    same = [tuple(min(s, size - 1) for size in tables.sizes) for s in range(max(tables.sizes))]
    return max(same, key=tables.cost_of)


@given(seed=SEEDS, share=st.none() | st.integers(0, 8), way=st.sampled_from(sorted(WAYS)))
@settings(max_examples=80, deadline=None)
def test_no_dearer_than_what_is_known(seed, share, way):
    """Whatever the steps of a search find, what is known before is as good a plan as theirs."""
    one = problem(seed, "general", points=True, copies=True)
    tagged = [min(seed % 3, len(node.candidates) - 1) for node in one.nodes]
    one = Problem(
        [
            dataclasses.replace(
                node,
                candidates=tuple(
                    dataclasses.replace(mine, tags=frozenset({DATA} if s == at else {}))
                    for s, mine in enumerate(node.candidates)
                ),
            )
            for node, at in zip(one.nodes, tagged, strict=True)
        ],
        one.edges,
    )
    if share is not None:
        one = limited(one, (exhaustive_search.least_memory(tables_of(one)) or 0) + share)
    tables = tables_of(one)
    known = [choice for choice in (tuple(tagged), (0,) * tables.size) if tables.fits(choice)]

    def program(tables, *args, **kwargs):
        return integer_program.ProgramAnswer(poor(tables), 0.0, False, False)

    def bucket(tables, entries):
        return 0, poor(tables)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integer_program, "solve", program)
        patch.setattr(neighbourhoods, "relaxed", bucket)
        patch.setattr(neighbourhoods, "improved", lambda tables, choice, late: choice)
        try:
            found = search(one, limits=WAYS[way])
        except SearchLimitError:
            assert not known
            return
    assert tables.fits(found.choice)
    assert all(found.picoseconds <= tables.cost_of(choice) for choice in known)


def test_no_dearer_than_the_best_of_several_data_strategies(monkeypatch):
    """What is found for the batch alone is known to the search of all strategies, too."""
    none = frozenset()
    nodes = [
        Node(
            name, tuple(Candidate(f"s{s}", cost, tags=tags) for s, (cost, tags) in enumerate(mine))
        )
        for name, mine in {
            "a": [(9e-12, none), (5e-12, frozenset({DATA})), (3e-12, frozenset({DATA}))],
            "b": [(9e-12, none), (4e-12, frozenset({DATA})), (4e-12, none)],
        }.items()
    ]
    # Each strategy is the best beside one of the other operation's.
    pairs = [[0, 20, 20], [20, 20, 0], [20, 0, 20]]
    one = Problem(nodes, [Edge("a", "b", np.array(pairs) * 1e-12)])
    nothing = integer_program.ProgramAnswer(None, 0.0, False, False)
    monkeypatch.setattr(integer_program, "solve", lambda *args, **kw: nothing)
    monkeypatch.setattr(neighbourhoods, "choices", lambda *args: (0, []))
    limits = Limits(max_table_entries=6)
    assert search(one, DATA, limits=limits).picoseconds == 7
    found = search(one, limits=limits)
    assert (found.picoseconds, found.method, found.choice) == (7, solution.KNOWN, (2, 1))
    # It is the same whatever the time limit is.
    asked, solve = [], solver.solve
    monkeypatch.setattr(
        solver, "solve", lambda tables, *rest: asked.append(rest[0]) or solve(tables, *rest)
    )
    hurried = dataclasses.replace(limits, time_limit_seconds=1.0)
    assert search(one, limits=hurried).choice == (2, 1)
    assert asked == [limits, hurried]


@given(seed=SEEDS, share=st.none() | st.integers(0, 4), way=st.sampled_from(sorted(WAYS)))
# The program of the core found a choice that fits only when it was cut short.
@example(seed=575951, share=1, way="program")
@settings(max_examples=15, deadline=None)
def test_more_time_never_gives_a_dearer_plan(seed, share, way):
    """Of a clock that moves when it is looked at: each limit ends the search at another step."""
    _more_time(seed, share, way)


@pytest.mark.slow
@given(seed=SEEDS, share=st.none() | st.integers(0, 4), way=st.sampled_from(sorted(WAYS)))
@settings(max_examples=40, deadline=None)
def test_more_time_never_gives_a_dearer_plan_of_more_problems(seed, share, way):
    _more_time(seed, share, way)


def _more_time(seed, share, way):
    one = problem(seed, "general", points=True, copies=True)
    if share is not None:
        one = limited(one, (exhaustive_search.least_memory(tables_of(one)) or 0) + share)
    tables = tables_of(one)
    whole = solver.solve(tables, WAYS[way])
    costs = []
    for steps in range(1, 40):
        # Of a program's seconds there are always enough.
        ticks = itertools.count(0, 1000)
        limits = dataclasses.replace(WAYS[way], time_limit_seconds=1000 * steps)
        try:
            found = solver.solve(tables, limits, clock=lambda ticks=ticks: next(ticks))
        except SearchLimitError:
            assert not costs
            continue
        costs.append(found.cost)
        assert tables.fits(found.choice) and found.bound <= whole.cost
    assert costs == sorted(costs, reverse=True)
    assert not costs or costs[-1] >= whole.cost


def test_without_a_time_limit_no_clock_is_read(monkeypatch):
    """What is found is a function of the problem, however fast the machine is."""

    def clock():
        raise AssertionError("a search read the clock")

    monkeypatch.setattr(integer_program, "time", types.SimpleNamespace(monotonic=clock))
    options = []
    milp = integer_program._scipy().milp
    monkeypatch.setattr(
        integer_program._scipy(),
        "milp",
        lambda **kw: options.append(dict(kw["options"])) or milp(**kw),
    )
    for seed, (way, limits) in itertools.product(range(8), sorted(WAYS.items())):
        one = problem(seed, "general", points=True, copies=True)
        one = limited(one, (exhaustive_search.least_memory(tables_of(one)) or 0) + 2)
        found = solver.solve(tables_of(one), limits, clock=clock)
        assert found == solver.solve(tables_of(one), limits, clock=clock), way
    assert options and all(one == {"node_limit": 100, "mip_rel_gap": 0.0} for one in options)


def test_nothing_within_the_limits(monkeypatch):
    monkeypatch.setattr(
        integer_program,
        "solve",
        lambda *args, **kw: integer_program.ProgramAnswer(None, 0, False, False),
    )
    monkeypatch.setattr(neighbourhoods, "choices", lambda *args: (0, []))
    one = limited(problem(5, "chain"), 16)
    text = (
        "no plan that fits into 16 bytes was found within Limits(time_limit_seconds={seconds}, "
        "max_table_entries=1, max_frontier_entries=2097152, max_program_columns=1, "
        "max_program_nodes=100); raise max_program_nodes, max_program_columns{time} or the limit "
        "of memory"
    )
    for seconds, time in ((None, ""), (1, ", time_limit_seconds")):
        limits = Limits(seconds, max_table_entries=1, max_program_columns=1)
        with pytest.raises(SearchLimitError) as caught:
            solver.solve(tables_of(one), limits, clock=lambda: 1e9)
        assert str(caught.value) == text.format(seconds=seconds, time=time)


def test_scipy_that_is_missing(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(LayoutError) as caught:
        search(problem(7, "general"), limits=WAYS["program"])
    assert str(caught.value) == (
        "this problem needs an integer program, and scipy is not installed: "
        'python -m pip install "tf_fuse[layout]"'
    )
    assert search(problem(7, "general")).method == "elimination"


def test_too_much_for_brute_force():
    with pytest.raises(LayoutError) as caught:
        exhaustive_search.best(tables_of(simple([[1] * 10] * 7)))
    assert str(caught.value) == (
        "there are 10000000 choices, and brute force takes 2000000 at most; take a smaller "
        "problem, or search"
    )


@given(seed=SEEDS, graph=st.sampled_from(GRAPHS), above=st.integers(-1, 3))
@settings(max_examples=60, deadline=None)
def test_the_cheapest_below_a_ceiling(seed, graph, above):
    tables = tables_of(problem(seed, graph, infinite=0.2))
    best = exhaustive_search.best(tables)
    ceiling = 20 if best is None else best[0] + above
    wanted = None if best is None or above < 0 else best[0]
    assert exhaustive_search.cheapest(tables, ceiling) == wanted


def test_too_many_below_a_ceiling(monkeypatch):
    tables = tables_of(simple([[1] * 3] * 3))
    assert exhaustive_search.cheapest(tables, 3) == 3
    monkeypatch.setattr(exhaustive_search, "_MAX_NUMBERS", 26 * 3)
    assert exhaustive_search.cheapest(tables, 3) is None


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


def test_no_plan_by_a_mean_of_time_points():
    """Two operations, each of which is large at a time point of its own, whatever is chosen."""
    nodes = [
        Node(
            f"n{i}", (Candidate("a", 1e-9, 0.0, 5, 6), Candidate("b", 2e-9, 0.0, 6, 4)), "", (i, i)
        )
        for i in range(3)
    ]
    # All of "a" is 15 + 6, one "b" at its own time point 16 + 6 at others, all "b" 18 + 4.
    assert exhaustive_search.least_memory(tables_of(Problem(nodes))) == 21
    with pytest.raises(MemoryLimitError) as caught:
        search(Problem(nodes, (), 20))
    assert caught.value.least_bytes == 21
    assert search(Problem(nodes, (), 21)).strategies == dict.fromkeys(("n0", "n1", "n2"), "a")


def test_limits_of_a_search():
    with pytest.raises(LayoutError) as caught:
        Limits(time_limit_seconds=0)
    assert str(caught.value) == "time_limit_seconds is above 0, got 0"
    with pytest.raises(LayoutError) as caught:
        Limits(max_program_nodes=None)  # type: ignore[arg-type]
    assert str(caught.value) == "max_program_nodes is above 0, got None"


@given(seed=SEEDS)
@settings(max_examples=30, deadline=None)
def test_a_choice_that_is_excluded(seed):
    tables = tables_of(problem(seed, "general", most_nodes=4))
    best = exhaustive_search.best(tables)
    answer = integer_program.solve(tables, 100, excluded=[best[2]])
    rest = [
        tables.cost_of(choice)
        for choice in itertools.product(*map(range, tables.sizes))
        if choice != best[2]
    ]
    assert (answer.choice is None) == (not rest)
    if rest:
        assert tables.cost_of(answer.choice) == min(rest)


def test_orders_have_no_more_dimensions_than_numpy():
    """Operations with one strategy each, all of which share tables with all others."""
    count = 40
    others = [[i for i in range(count) if i != node] for node in range(count)]
    order = order_of([1] * count, others)
    assert (order.nodes, order.core) == ((), tuple(range(count)))
    order = order_of([1] * 32, [[i for i in range(32) if i != node] for node in range(32)])
    assert order.core == () and max(map(len, order.scopes)) == 31


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
