# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans: modes, pins, what they say, and what becomes of them in files."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.layout import exhaustive_search
from tests import scripted
from tests.unit.layout.optimize import problems as layout_problems
from tests.unit.layout.optimize.problems import limited, problem, simple
from tf_fuse.layout import LayoutError, Mesh
from tf_fuse.layout.optimize import (
    Candidate,
    Edge,
    Limits,
    MemoryLimitError,
    Node,
    Plan,
    Problem,
    search,
    search_meshes,
    shapes,
)
from tf_fuse.layout.optimize.plans import alternatives, saved_plan
from tf_fuse.layout.optimize.tables import tables_of
from tf_fuse.v1 import layout_pb2

MS = 1e-3


def example(limit: int | None = None, mesh: Mesh | None = None, fast: float = 1.0) -> Problem:
    """Two matmuls; splitting what they contract saves memory."""
    both = [
        Candidate("batch", 4 * MS, 1 * MS, 4_000, 0, frozenset({"data"})),
        Candidate("hidden", 4 * MS * fast, 2 * MS, 1_000),
    ]
    return Problem(
        [
            Node("up", tuple(both), "MatMul(64, 32)"),
            Node("down", tuple(both), "MatMul(32, 64)"),
        ],
        [Edge("up", "down", np.array([[0, 3 * MS], [2 * MS, 0]]), "h")],
        limit,
        mesh or Mesh({"x": 2}),
    )


def text_of(what) -> str:
    console = Console(width=180, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(what)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


def cells(what) -> list[list[str]]:
    """The cells of a table, with its header."""
    lines = [line.replace("┃", "│") for line in text_of(what).splitlines()]
    rows = [line.strip().strip("│").split("│") for line in lines if line.startswith("│")]
    return [[cell.strip() for cell in row] for row in rows]


def error(call, *args, **kwargs) -> str:
    with pytest.raises(LayoutError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def test_what_a_plan_costs():
    plan = search(example(limit=5_000))
    assert plan.strategies == {"up": "hidden", "down": "hidden"}
    assert (plan.compute_seconds, plan.communication_seconds) == (8 * MS, 4 * MS)
    assert (plan.relayout_seconds, plan.seconds, plan.memory_bytes) == (0.0, 12 * MS, 2_000)
    assert (plan.gap_seconds, plan.optimal) == (0.0, True)
    assert str(plan) == "2 operations, 12 ms, 2,000 bytes per device (elimination with frontiers)"
    cheaper = search(example())
    assert cheaper.strategies == {"up": "batch", "down": "batch"}
    assert [dataclasses.astuple(one) for one in cheaper.operations] == [
        ("up", "batch", 4 * MS, 1 * MS, 0.0, 4_000, 0, False),
        ("down", "batch", 4 * MS, 1 * MS, 0.0, 4_000, 0, False),
    ]


def test_modes():
    assert search(example(), "data").strategies == {"up": "batch", "down": "batch"}
    follows = search(example(), "propagate", {"up": "hidden"})
    assert follows.strategies == {"up": "hidden", "down": "hidden"}
    assert [one.pinned for one in follows.operations] == [True, False]
    both = search(example(), "propagate", {"up": ["hidden", "batch"]})
    assert both.strategies == {"up": "batch", "down": "batch"}


@given(seed=st.integers(0, 10**9), share=st.integers(0, 8))
@settings(max_examples=40, deadline=None)
def test_pins_are_kept_and_the_rest_is_cheapest(seed, share):
    one = problem(seed, "general", most_nodes=5)
    wanted = {node.name: node.names[seed % len(node.names)] for node in one.nodes[::2]}
    tables = tables_of(one, one.allowed(wanted))
    limit = (exhaustive_search.least_memory(tables) or 0) + share
    best = exhaustive_search.best(dataclasses.replace(tables, limit=limit))
    plan = search(limited(one, limit), "propagate", wanted)
    assert {name: plan.strategies[name] for name in wanted} == wanted
    assert (plan.picoseconds, plan.optimal) == (best[0], True)


def test_errors_of_modes_and_pins():
    assert error(search, example(), "best") == "mode is one of data, auto, propagate, got 'best'"
    assert error(search, example(), "propagate") == (
        "mode 'propagate' needs pins: give the strategy of one operation at least, or take mode "
        "'auto'"
    )
    assert error(search, example(), pins={"up": "rows", "side": "batch", "down": []}) == (
        "- pin: operation 'down' is left no strategy; name one at least\n"
        "- pin: operation 'up' has no strategy 'rows'; it has: batch, hidden\n"
        "- pin: there is no operation 'side'; there are: down, up"
    )
    assert error(search, example(), "data", {"up": "hidden"}) == (
        "operation 'up' is pinned to hidden, but mode 'data' allows batch; drop the pin, or take "
        "mode 'propagate'"
    )
    assert error(search, simple([[1, 2]]), "data") == (
        "operation 'a' has no strategy with the tag 'data', which mode 'data' needs; it has: s0, s1"
    )


def test_errors_of_problems():
    node = Node("a", (Candidate("s"),))
    nan, inf = float("nan"), float("inf")
    assert error(Problem, [node, node]) == (
        "operation 'a' is there 2 times; give each its own name"
    )
    assert error(Problem, [Node("a", ())]) == (
        "operation 'a' has no strategies; give it one at least, as to replicate it"
    )
    assert error(Problem, [Node("a", (Candidate("s"), Candidate("s")))]) == (
        "operation 'a' has strategy 's' 2 times; give each its own name"
    )
    bad = Candidate("s", nan, inf, -1, 1.5)  # type: ignore[arg-type]
    assert error(Problem, [Node("a", (bad,), live=(0, 1))]) == (
        "- operation 'a', strategy 's': communication_seconds is a finite number, 0 or more, got "
        "inf\n"
        "- operation 'a', strategy 's': compute_seconds is a finite number, 0 or more, got nan\n"
        "- operation 'a', strategy 's': memory_bytes is a whole number, 0 or more, got -1\n"
        "- operation 'a', strategy 's': transient_bytes is a whole number, 0 or more, got 1.5"
    )
    assert error(Problem, [dataclasses.replace(node, live=(2, 1))]) == (
        "operation 'a' is live from 2 to 1; give first <= last"
    )
    assert error(Problem, [Node("a", (Candidate("s", transient_bytes=1),))]) == (
        "operation 'a' has transient_bytes, but no time points; set live"
    )
    assert error(Problem, [node], memory_limit_bytes=-1) == (
        "memory_limit_bytes is a whole number, 0 or more, or None, got -1"
    )
    two = [node, Node("b", (Candidate("s"), Candidate("t")))]
    assert error(Problem, two, [Edge("a", "c", np.zeros((1, 1)), "x")]) == (
        "edge a -> c (x): there is no operation 'c'; there are: a, b"
    )
    assert error(Problem, two, [Edge("a", "a", np.zeros((1, 1)))]) == (
        "edge a -> a leads back to itself; add its cost to that of the strategies"
    )
    assert error(Problem, two, [Edge("a", "b", np.zeros((2, 1)))]) == (
        "edge a -> b has seconds of shape (2, 1), but its operations have 1 and 2 strategies; give "
        "one number for each pair"
    )
    assert error(Problem, two, [Edge("a", "b", np.zeros((1, 2)), "", np.zeros(2, int))]) == (
        "edge a -> b has memory_bytes of shape (2,), but its operations have 1 and 2 strategies; "
        "give one number for each pair"
    )
    for value in (nan, -1.0):
        assert error(Problem, two, [Edge("a", "b", np.array([[0, value]]))]) == (
            f"edge a -> b: seconds[0, 1] is 0 or more, or infinite, got {value}"
        )
    assert error(Problem, two, [Edge("a", "b", np.zeros((1, 2)), "", np.zeros((1, 2)))]) == (
        "edge a -> b: memory_bytes are whole numbers, 0 or more"
    )
    many = Problem([dataclasses.replace(node, name=f"n{i:02}") for i in range(11)])
    assert error(many.node, "x") == (
        "there is no operation 'x'; there are: n00, n01, n02, n03, n04, n05, n06, n07 and 3 more"
    )
    assert error(search, Problem([Node("a", (Candidate("s", 2e6),))])) == (
        "a: 2e+18 is too large; times are below 1152922 seconds and memory below "
        "1152921504606846976 bytes"
    )
    slow = Candidate("s", 1e6)
    assert error(search, Problem([Node("a", (slow,)), Node("b", (slow,))])) == (
        "the largest costs add up to 2e+06 seconds and 0 bytes; the sums are to be below 1152922 "
        "seconds and 1152921504606846976 bytes"
    )


@pytest.mark.parametrize("limits", [Limits(), Limits(max_table_entries=1)])
@given(seed=st.integers(0, 10**9), share=st.integers(0, 8))
@settings(max_examples=25, deadline=None)
def test_second_best_and_alternatives(limits, seed, share):
    one = problem(seed, "general", most_nodes=4, infinite=0.1)
    least = exhaustive_search.least_memory(tables_of(one))
    if least is None:
        return
    one = limited(one, least + share)
    plan = search(one)
    tables = plan.tables
    others = [
        (tables.cost_of(choice), choice)
        for choice in itertools.product(*map(range, tables.sizes))
        if choice != plan.choice and tables.fits(choice)
    ]
    second = plan.second_best(limits)
    assert (second.plan.picoseconds if second else None) == min(others, default=(None,))[0]
    if second:
        assert tables.fits(second.plan.choice) and second.plan.choice != plan.choice
        assert second.plan.optimal and second.changed
    for node, name in enumerate(one.indices):
        wanted = [cost for cost, choice in others if choice[node] != plan.choice[node]]
        found = plan.alternative(name, limits)
        assert (found.plan.picoseconds if found else None) == min(wanted, default=None)


def test_alternatives_keep_pins_and_mode():
    plan = search(example(), "propagate", {"up": "hidden"})
    second = plan.second_best()
    assert second is not None
    assert second.changed == {"down": ("batch", "hidden")}
    assert second.seconds == pytest.approx(13 * MS, abs=1e-15)
    assert plan.alternative("up") is None
    assert error(plan.alternative, "side") == "there is no operation 'side'; there are: down, up"
    batch = alternatives.data_parallel(plan)
    assert isinstance(batch, alternatives.Alternative)
    assert (batch.plan.mode, batch.plan.pinned, batch.plan.picoseconds) == ("data", (), 10**10)
    small = search(example(limit=5_000))
    assert alternatives.data_parallel(small) == (
        "no plan fits into memory_limit_bytes=5,000: the least that any plan needs is 8,000 bytes "
        "per device, 3,000 more (the most by down 4,000, up 4,000); raise the limit, use more "
        "devices, or offer strategies that split more"
    )


def test_table():
    plan = search(example(limit=5_000), pins={"up": "hidden"})
    plan = dataclasses.replace(plan, search_seconds=0.0025, computed=3, reused=1)
    assert cells(plan.table()) == [
        ["operation", "strategy", "compute ms", "communication ms", "relayout ms", "bytes/device"],
        ["up", "hidden (pinned)", "4.000", "2.000", "0.000", "1,000"],
        ["down", "hidden", "4.000", "2.000", "0.000", "1,000"],
        ["sum", "", "8.000", "4.000", "0.000", "2,000"],
    ]
    assert text_of(plan.table()).splitlines()[-2:] == [
        "12.000 ms, 2,000 bytes per device of 5,000; no plan is cheaper (elimination, mode auto)",
        "searched for 2.500 ms: 3 eliminations, and 1 that equalled one of them",
    ]
    gap = dataclasses.replace(plan, bound_picoseconds=11 * 10**9, computed=0, notes=("a reason",))
    short = text_of(gap.table(most=1))
    assert "│ and 1 more" in short and "down" not in short
    assert short.splitlines()[-2:] == [
        "12.000 ms, 2,000 bytes per device of 5,000; a plan may be cheaper by 1.000 ms at most "
        "(elimination, mode auto)",
        "note: a reason",
    ]


def test_why():
    other = "down: hidden, not batch; up: hidden, not batch"
    assert cells(search(example()).why(["up"])) == [
        ["plan", "differs in", "ms", "more", "bytes/device"],
        ["this one", "", "10.000", "", "8,000"],
        ["second best", other, "12.000", "2.000 (+20.0%)", "2,000"],
        ["data parallel", "", "10.000", "0.000 (+0.0%)", "8,000"],
        ["other up", other, "12.000", "2.000 (+20.0%)", "2,000"],
    ]
    only = simple([[1]])
    assert cells(search(only).why(["a"]))[2:] == [
        ["second best", "there is no other plan that fits", "", "", ""],
        [
            "data parallel",
            "operation 'a' has no strategy with the tag 'data', which mode 'data' needs; it has: "
            "s0",
            "", "", "",
        ],
        ["other a", "there is no other plan that fits", "", "", ""],
    ]  # fmt: skip


# Files.


@given(seed=st.integers(0, 10**9), share=st.integers(0, 8))
@settings(max_examples=30, deadline=None)
def test_a_plan_comes_back(tmp_path_factory, seed, share):
    one = problem(seed, "general", points=True, copies=True)
    one = limited(one, (exhaustive_search.least_memory(tables_of(one)) or 0) + share)
    node = one.nodes[0]
    plan = search(one, pins={node.name: node.names} if seed % 2 else None)
    path = tmp_path_factory.mktemp("plans") / "plan"
    plan.save(path)
    assert [entry.name for entry in path.parent.iterdir()] == ["plan"]
    back = Plan.load(path, one)
    assert (back.choice, back.mode, back.method, back.pinned, back.bound_picoseconds) == (
        plan.choice, plan.mode, plan.method, plan.pinned, plan.bound_picoseconds,
    )  # fmt: skip
    # It can be pinned, and is then all that is left.
    assert search(one, "propagate", back.strategies).choice == plan.choice


def test_what_is_in_a_file():
    plan = search(example(limit=5_000), pins={"up": "hidden"})
    assert str(saved_plan.to_proto(plan)).splitlines()[:10] == [
        "version: 1",
        "mesh {",
        '  name: "x"',
        "  size: 2",
        "}",
        "operations {",
        '  name: "up"',
        '  signature: "MatMul(64, 32)"',
        '  strategy: "hidden"',
        "  compute_picoseconds: 4000000000",
    ]


def test_a_bound_is_kept_only_for_the_same_numbers():
    message = saved_plan.to_proto(search(example()))
    assert saved_plan.from_proto(message, example(), Plan).optimal
    other = saved_plan.from_proto(message, example(fast=0.5), Plan)
    assert (other.picoseconds, other.bound_picoseconds) == (10**10, 10**10)
    faster = example()
    slow = [
        dataclasses.replace(
            node,
            candidates=tuple(
                dataclasses.replace(one, compute_seconds=1 * MS) for one in node.candidates
            ),
        )
        for node in faster.nodes
    ]
    other = saved_plan.from_proto(message, Problem(slow, faster.edges, None, faster.mesh), Plan)
    assert (other.picoseconds, other.bound_picoseconds) == (4 * 10**9, 0)
    assert saved_plan.from_proto(message, example(limit=8_000), Plan).bound_picoseconds == 0


def test_plans_that_do_not_fit(tmp_path):
    message = saved_plan.to_proto(search(example()))
    load = functools.partial(saved_plan.from_proto, kind=Plan)
    assert error(load, message, example(mesh=Mesh({"x": 2, "y": 4}))) == (
        "the plan is for mesh 'x:2', and the model is laid over 'x:2;y:4'"
    )
    one = example()
    renamed = [one.nodes[0], dataclasses.replace(one.nodes[1], name="out")]
    edge = dataclasses.replace(one.edges[0], target="out")
    assert error(load, message, Problem(renamed, [edge], None, one.mesh)) == (
        "- the model has operations that the plan has not: out\n"
        "- the plan has operations that the model has not: down"
    )
    reshaped = [dataclasses.replace(one.nodes[0], signature="MatMul(64, 48)"), one.nodes[1]]
    assert error(load, message, Problem(reshaped, one.edges, None, one.mesh)) == (
        "operation 'up' is 'MatMul(64, 32)' in the plan, and 'MatMul(64, 48)' in the model"
    )
    assert error(load, message, Problem(one.nodes, (), None, one.mesh)) == (
        "the plan has 1 tensors between operations, and the model has 0; only in the plan: up -> "
        "down; only in the model: none"
    )
    assert error(load, message, example(limit=7_000)) == (
        "the plan needs 8,000 bytes per device, and memory_limit_bytes is 7,000, 1,000 less; raise "
        "the limit, or search again"
    )
    inf = dataclasses.replace(one.edges[0], seconds=np.full((2, 2), np.inf))
    assert error(load, message, Problem(one.nodes, [inf], None, one.mesh)) == (
        "the plan cannot be: there is no relayout of up -> down (h) between 'batch' and 'batch'; "
        "search again"
    )
    message.operations[0].strategy = "rows"
    assert error(load, message, one) == (
        "operation 'up' has strategy 'rows' in the plan, and in the model it has: batch, hidden"
    )
    message.operations[0].strategy = "batch"
    message.mode = "best"
    assert error(load, message, one) == (
        "the plan's mode is 'best', and modes are data, auto, propagate"
    )
    message.version = 2
    assert error(load, message, one) == (
        "the plan has version 2, and this is for version 1; search again"
    )
    path = tmp_path / "plan"
    path.write_bytes(message.SerializeToString())
    assert error(Plan.load, path, one) == (
        f"{path}: the plan has version 2, and this is for version 1; search again"
    )
    path.write_bytes(b"\xff" * 9)
    assert error(Plan.load, path, one).startswith(f"{path} holds no plan: ")
    path.write_bytes(b"")
    assert "has version 0" in error(Plan.load, path, one)


def test_operations_that_are_twice_in_a_file():
    message = saved_plan.to_proto(search(example()))
    message.operations.add().CopyFrom(message.operations[0])
    message.operations[2].strategy = "hidden"
    assert error(saved_plan.from_proto, message, example(), Plan) == (
        "the plan has operation 'up' 2 times, with strategies batch, hidden"
    )


@given(content=st.binary(max_size=80), flips=st.lists(st.integers(0, 10**6), max_size=4))
@settings(max_examples=150, deadline=None)
def test_files_that_are_broken(tmp_path_factory, content, flips):
    """Whatever a file holds, it is a plan that fits or an error of ours."""
    whole = bytearray(saved_plan.to_proto(search(example())).SerializeToString())
    for flip in flips:
        whole[flip % len(whole)] ^= 1 << flip % 8
    path = tmp_path_factory.mktemp("broken") / "plan"
    for data in (content, bytes(whole)):
        path.write_bytes(data)
        try:
            plan = Plan.load(path, example())
        except LayoutError:
            continue
        assert plan.tables.fits(plan.choice)
        assert plan.bound_picoseconds <= plan.picoseconds


# Meshes.


def test_shapes_of_meshes():
    assert shapes(1) == ((1,),)
    assert shapes(8) == ((8,), (2, 4), (4, 2), (2, 2, 2))
    assert shapes(8, 2) == ((8,), (2, 4), (4, 2))
    assert shapes(16) == (
        (16,), (2, 8), (4, 4), (8, 2), (2, 2, 4), (2, 4, 2), (4, 2, 2),
    )  # fmt: skip
    assert shapes(12, 3) == (
        (12,), (2, 6), (3, 4), (4, 3), (6, 2), (2, 2, 3), (2, 3, 2), (3, 2, 2),
    )  # fmt: skip
    assert error(shapes, 0) == "devices is 1 or more, got 0"
    assert error(shapes, 2.0) == "devices is a whole number, got 2.0"
    assert error(shapes, "4") == "devices is a whole number, got '4'"
    assert error(shapes, 8, 0) == "max_axes is 1 or more, got 0"


def test_search_over_meshes():
    def on(mesh: Mesh) -> Problem:
        if mesh.shape == (4, 2):
            raise LayoutError("4 does not divide 6")
        return example(limit=None, mesh=mesh, fast=0.5 if mesh.shape == (2, 4) else 0.9)

    times = iter([0.0, 0.25, 1.0, 1.5, 2.0, 2.125, 3.0, 6.0])
    found = search_meshes(8, on, clock=lambda: next(times))
    assert str(found.best.problem.mesh) == "x:2;y:4"
    assert [one.plan and one.plan.picoseconds for one in found.tried] == [
        10**10, 8 * 10**9, None, 10**10,
    ]  # fmt: skip
    assert cells(found.table()) == [
        ["mesh", "ms", "bytes/device", "searched, s", ""],
        ["x:8", "10.000", "8,000", "0.25", ""],
        ["x:2;y:4", "8.000", "2,000", "0.50", "best"],
        ["x:4;y:2", "", "", "0.12", "4 does not divide 6"],
        ["x:2;y:2;z:2", "10.000", "8,000", "3.00", ""],
    ]

    def never(mesh: Mesh) -> Problem:
        return example(limit=100, mesh=mesh)

    text = error(search_meshes, 2, never)
    assert text.startswith("mesh x:2: no plan fits into memory_limit_bytes=100: ")
    with pytest.raises(MemoryLimitError):
        search(never(Mesh({"x": 2})))


# Determinism.

_PLANS = """
from tests import scripted
from tests.unit.layout.optimize import problems as layout_problems
from tf_fuse.layout.optimize import search, Limits
from tf_fuse.layout.optimize.plans import saved_plan
found = []
for graph in sorted(layout_problems.GRAPHS):
    for seed in range(12):
        one = layout_problems.problem(seed, graph, copies=True, points=seed % 2 == 0)
        for limits in (Limits(), Limits(max_table_entries=6), Limits(max_table_entries=1)):
            plan = search(one, limits=limits)
            found.append([graph, seed, plan.choice, plan.method, plan.computed, plan.reused])
            found.append(saved_plan.to_proto(plan).SerializeToString(deterministic=True).hex())
scripted.give(found)
"""


def test_the_same_plan_whatever_the_hash_seed():
    found = []
    for seed in ("0", "1"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        found.append(scripted.result_of([sys.executable, "-c", _PLANS], env))
    assert found[0] == found[1]
    assert len(found[0]) == 3 * 12 * 3 * 2
    assert layout_pb2.LayoutPlan.FromString(bytes.fromhex(found[0][1])).version == 1


def test_problems_of_tests_are_what_they_say():
    """Each kind of graph is there, and infinite entries are."""
    kinds = {
        kind: {len(problem(seed, kind).edges) for seed in range(50)}
        for kind in layout_problems.GRAPHS
    }
    assert kinds["chain"] == {0, 1, 2, 3, 4, 5}
    assert max(kinds["series_parallel"]) > 5 and max(kinds["general"]) > 5
    many = [edge for seed in range(50) for edge in problem(seed, "general", infinite=0.5).edges]
    assert any(np.isinf(edge.seconds).any() for edge in many)
