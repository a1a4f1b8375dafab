# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans: modes, constraints, alternatives and tables; the same plan whatever the hash seed."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.layout import exhaustive_search
from tests import scripted
from tests.unit.layout.optimize.plan_examples import MS, cells, error, example, text_of
from tests.unit.layout.optimize.problems import limited, problem, simple
from tf_fuse.layout.optimize import Limits, search
from tf_fuse.layout.optimize.plans import alternatives
from tf_fuse.layout.optimize.round_problem import tables_of
from tf_fuse.v1 import layout_pb2


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
    assert [one.constrained for one in follows.operations] == [True, False]
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
        "mode 'propagate' needs constraints: give the strategy of one operation at least, or take "
        "mode 'auto'"
    )
    assert error(search, example(), constraints={"up": "rows", "side": "batch", "down": []}) == (
        "- constraint: operation 'down' is left no strategy; name one at least\n"
        "- constraint: operation 'up' has no strategy 'rows'; it has: batch, hidden\n"
        "- constraint: unknown operation 'side'; known operations: down, up"
    )
    assert error(search, example(), "data", {"up": "hidden"}) == (
        "operation 'up' is constrained to hidden, but mode 'data' allows batch; drop the "
        "constraint, or take mode 'propagate'"
    )
    assert error(search, simple([[1, 2]]), "data") == (
        "operation 'a' has no strategy with the tag 'data', which mode 'data' needs; it has: s0, s1"
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
    assert error(plan.alternative, "side") == "unknown operation 'side'; known operations: down, up"
    batch = alternatives.data_parallel(plan)
    assert isinstance(batch, alternatives.Alternative)
    assert (batch.plan.mode, batch.plan.constrained, batch.plan.picoseconds) == ("data", (), 10**10)
    small = search(example(limit=5_000))
    assert alternatives.data_parallel(small) == (
        "no plan fits into memory_limit_bytes=5,000: the least that any plan needs is 8,000 bytes "
        "per device, 3,000 more (the most by down 4,000, up 4,000); raise the limit, use more "
        "devices, or offer strategies that split more"
    )


def test_table():
    plan = search(example(limit=5_000), constraints={"up": "hidden"})
    plan = dataclasses.replace(plan, search_seconds=0.0025, computed=3, reused=1)
    assert cells(plan.table()) == [
        ["operation", "strategy", "compute ms", "communication ms", "relayout ms", "bytes/device"],
        ["up", "hidden (constrained)", "4.000", "2.000", "0.000", "1,000"],
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
