# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Limits of a search: memory, time and sizes; and the errors where nothing fits."""

from __future__ import annotations

import dataclasses
import itertools
import types

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from benchmarks.layout import exhaustive_search
from tests.unit.layout.optimize.problems import limited, problem, simple
from tests.unit.layout.optimize.search_checks import EXACT, SEEDS, WAYS
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
from tf_fuse.layout.optimize.methods import integer_program, neighbourhoods
from tf_fuse.layout.optimize.methods.core_problem import CoreAnswer
from tf_fuse.layout.optimize.methods.tables import Tables
from tf_fuse.layout.optimize.round_problem import tables_of

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
        "more relayout steps, offer more strategies, or constrain fewer operations"
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
    monkeypatch.setattr(solver, "searched", lambda core, *args: CoreAnswer(0, None, None, core))
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


def test_no_plan_by_a_mean_of_time_points():
    """Two operations; each is large at a time of its own, whatever is chosen."""
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
