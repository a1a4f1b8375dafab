# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Sessions: each task alone, by stamps, finds what the whole graph gives."""

import random

import pytest

from tests.slow_cases import slow
from tests.unit.passes.fuse_recv.test_pipeline_random_loops import _compare, _random_loops
from tests.unit.passes.graph_interpreters import evaluate, stuck
from tests.unit.passes.pass_testing import (
    PS0,
    W0,
    nodes_of,
    skips,
    sorted_groups,
    source,
    trace,
    use,
)
from tests.unit.passes.random_graphs import random_choices, random_conditionals, random_exchange
from tests.unit.passes.sessions.stamped_graphs import (
    STAMP,
    changed,
    copy,
    found,
    stamp_of,
    stamped_nodes,
    two_reads,
)
from tf_fuse.explain import rewrite

# --- Against the whole graph -------------------------------------------------------------------


@pytest.mark.parametrize("make", [random_exchange, random_conditionals])
@pytest.mark.parametrize("block", [0, slow(1), slow(2)])
def test_each_task_alone_finds_what_the_whole_graph_gives(make, block):
    fused = 0
    for seed in range(block * 30, block * 30 + 30):
        alone = rewrite(make(seed), session=True)
        whole = rewrite(alone.before)
        assert found(alone) == found(whole), f"seed {seed}"
        assert "not_stamped" not in skips(alone), f"seed {seed}"
        assert stuck(alone.after) == set(), f"seed {seed}"
        fused += sum(len(g.slots) for g in alone.report.groups)
    assert fused > 150, "the graphs are too dull to find anything"


@pytest.mark.parametrize("block", [0, slow(1), slow(2)])
def test_rewritten_parts_are_dead_and_live_where_stock_is(block):
    partly = 0
    for seed in range(block * 30, block * 30 + 30):
        result = rewrite(random_conditionals(seed), session=True)
        received = {s.recv_node for group in result.report.groups for s in group.slots}
        for choice in random_choices():
            before, after = evaluate(result.before, choice), evaluate(result.after, choice)
            kept = before.keys() - received
            assert {k: before[k] for k in kept} == {k: after[k] for k in kept}, (seed, choice)
            partly += any(before[name] == "dead" for name in received)
    assert partly > 20, "the graphs are too dull to find anything"


def test_partitions_differ_from_a_functions_only_by_stamps_and_names():
    alone = rewrite(random_exchange(7), session=True)
    function = rewrite(random_exchange(7))

    def shape(graphs):
        return {d: sorted(n.op for n in g.node) for d, g in graphs.items()}

    assert shape(alone.before) == shape(function.before)
    assert stamped_nodes(alone.before)
    assert not stamped_nodes(function.before)


@pytest.mark.parametrize("block", [0, slow(1), slow(2)])
def test_lost_stamps_never_deadlock(block):
    lost = dynamic = fused = 0
    for seed in range(block * 30, block * 30 + 30):
        rng = random.Random(seed)
        graphs = copy(rewrite(random_exchange(seed), session=True).before)
        for n in stamped_nodes(graphs).values():
            if rng.random() < 0.25:
                del n.attr[STAMP]
        result = rewrite(graphs, session=True)
        assert stuck(result.after) == set(), f"seed {seed}"
        lost += len(skips(result).get("not_stamped", []))
        dynamic += sum(len(g.slots) for g in result.report.groups if g.dynamic)
        fused += sum(len(g.slots) for g in result.report.groups if not g.dynamic)
    assert min(lost, dynamic, fused) > 20, "the graphs are too dull to find anything"


def test_loops_of_each_task_alone_run_as_stock_s():
    """Of the groups of the whole graph, those whose every use could be stamped."""
    fused = 0
    for seed in range(20):
        result, _ = _compare(*_random_loops(seed), seed, session=True)
        assert set(skips(result)) <= {"alone", "loop_frame", "not_stamped"}, f"seed {seed}"
        fused += sum(len(g.slots) for g in result.report.groups if g.frame)
    assert fused > 60, "the graphs are too dull to find anything"


# --- Fused dynamically -------------------------------------------------------------------------


@pytest.mark.parametrize("make", [random_exchange, random_conditionals])
def test_each_task_alone_fuses_dynamically_what_the_master_says(make):
    fused = 0
    for seed in range(20):
        alone = rewrite(make(seed), session=True, splitting="dynamic")
        whole = rewrite(alone.before, splitting="dynamic")
        assert found(alone) == found(whole), f"seed {seed}"
        assert all(group.dynamic for group in alone.report.groups)
        fused += sum(len(g.slots) for g in alone.report.groups)
    assert fused > 150, "the graphs are too dull to find anything"


def test_dynamic_loops_of_each_task_alone_run_as_stock_s():
    fused = 0
    for seed in range(10):
        result, _ = _compare(*_random_loops(seed), seed, session=True, splitting="dynamic")
        assert set(skips(result)) <= {"alone", "loop_frame", "not_stamped"}, f"seed {seed}"
        fused += sum(len(g.slots) for g in result.report.groups if g.frame)
    assert fused > 30, "the graphs are too dull to find anything"


def test_dynamic_stamp_of_two_reads():
    result = rewrite(two_reads(), session=True, splitting="dynamic")
    stamp = stamp_of(stamped_nodes(result.before)["x_in0"])
    # A worker that does not know `dynamic` takes it for a stamp without sense.
    (decision,) = stamp.inputs
    assert (stamp.version, decision.group, decision.reason, decision.dynamic) == (1, 0, "", True)
    assert sorted_groups(result) == [["a", "b"]]
    assert [n.attr["dynamic"].b for n in nodes_of(result.after[W0], "_FuseRecv")] == [True, True]


def test_static_and_dynamic_stamps_are_not_mixed():
    def build():
        use(W0, "x", *(source(PS0, name) for name in "abcd"))

    graphs = copy(rewrite(trace(build), session=True).before)
    for name in ("x_in1", "x_in3"):
        n = stamped_nodes(graphs)[name]
        n.attr[STAMP].s = changed(stamp_of(n), group=0, dynamic=True)
    report = rewrite(graphs, session=True).report
    assert sorted((g.dynamic, [s.sender_node for s in g.slots]) for g in report.groups) == [
        (False, ["a", "c"]),
        (True, ["b", "d"]),
    ]


def test_a_task_keeps_its_own_limits():
    """The master that stamped the graph does not know them."""
    names = ["a", "b", "c", "d", "e" * 80]
    graph = trace(lambda: use(W0, "x", *[source(PS0, name) for name in names]))
    stamped = rewrite(graph, session=True)
    assert [len(group.slots) for group in stamped.report.groups] == [5]
    limit = len(PS0) + len(W0) + len("e" * 80) + 61 - 1
    result = rewrite(stamped.before, session=True, max_keys_per_request=2, max_key_bytes=limit)
    assert [len(group.slots) for group in result.report.groups] == [2, 2]
    assert skips(result) == {"key_too_long": ["e" * 80]}
    result = rewrite(stamped.before, session=True, max_keys_per_request=3)
    assert [len(group.slots) for group in result.report.groups] == [2, 3]
    result = rewrite(stamped.before, session=True, max_keys_per_request=4)
    assert [len(group.slots) for group in result.report.groups] == [2, 3]


@pytest.mark.parametrize("splitting", ["consumer", "cost"])
def test_grouping_is_the_masters(splitting):
    divided = 0
    for seed in range(10):
        options = {"splitting": splitting, "rpc_us": 1.0}
        alone = rewrite(random_exchange(seed), session=True, **options)
        assert found(alone) == found(rewrite(alone.before, **options)), f"seed {seed}"
        divided += found(alone) != found(rewrite(alone.before))
    assert divided > 2, "the graphs are too dull to find anything"
