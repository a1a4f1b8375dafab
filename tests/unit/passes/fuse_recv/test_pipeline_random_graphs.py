# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The pass on random graphs, against interpreters that share no code and no idea with it.

`deadness` plays the executor's rules for one choice of all predicates; `stuck` runs partitions
until nothing can fire any more. Both look at graphs only, never at the pass's report of itself.
"""

import collections
import itertools
import random

import pytest
from tensorflow.core.framework import graph_pb2

from tests.slow_cases import slow_but
from tests.unit.passes.graph_interpreters import DEAD, deadness, evaluate, stuck
from tests.unit.passes.pass_testing import (
    PS0,
    SPLITTINGS,
    UNDIVIDED,
    W0,
    analysed,
    const,
    groups,
    partitions,
    parts_of_groups,
    recv,
    send,
    skips,
)
from tests.unit.passes.random_graphs import random_choices, random_conditionals, random_exchange
from tf_fuse.explain import Rewrite, rewrite


def blocks(count):
    """Numbers of blocks of random graphs; the first two are not slow."""
    return slow_but(range(count), lambda block: block < 2)


def _compare_conditionals(seed: int, **options) -> tuple[Rewrite, collections.Counter]:
    """Compares all values for all predicates; returns the rewrite, and what was seen."""
    result = rewrite(random_conditionals(seed), **options)
    assert "may_be_dead" not in skips(result), f"seed {seed}"
    received = {s.recv_node for group in result.report.groups for s in group.slots}
    seen = collections.Counter()
    for choice in random_choices():
        before, after = evaluate(result.before, choice), evaluate(result.after, choice)
        kept = before.keys() - received
        assert before.keys() - after.keys() == received
        assert {k: before[k] for k in kept} == {k: after[k] for k in kept}, (seed, choice)
        for group in result.report.groups:
            dead = sum(before[s.recv_node] is DEAD for s in group.slots)
            seen["partly"] += 0 < dead < len(group.slots)
            seen["whole"] += dead == len(group.slots)
    return result, seen


@pytest.mark.parametrize("block", blocks(8))
def test_rewritten_graphs_are_dead_and_live_where_stock_is(block):
    seen = collections.Counter()
    for seed in range(block * 40, block * 40 + 40):
        seen += _compare_conditionals(seed)[1]
    assert min(seen[what] for what in ("partly", "whole")) > 20, f"too dull: {seen}"


@pytest.mark.parametrize("splitting", SPLITTINGS)
def test_divided_groups_are_dead_and_live_where_stock_is(splitting):
    seen = collections.Counter()
    for seed in range(1000, 1050):
        result, of_seed = _compare_conditionals(seed, **SPLITTINGS[splitting])
        assert "would_cycle" not in skips(result), f"seed {seed}"
        parts = parts_of_groups(rewrite(random_conditionals(seed), **UNDIVIDED[splitting]), result)
        seen += of_seed + collections.Counter(parts=parts)
    wanted = ("partly", "whole", "parts")
    assert min(seen[what] for what in wanted) > 30, f"too dull: {seen}"


@pytest.mark.parametrize("block", blocks(8))
def test_no_fused_receive_is_ever_dead(block):
    fused = skipped = 0
    for seed in range(block * 40, block * 40 + 40):
        result = analysed(random_conditionals(seed))
        received = {s.recv_node for group in result.report.groups for s in group.slots}
        # A receive that is alone was found to be live too; to check it checks more.
        alone = {s.slot.recv_node for s in result.report.skips if s.reason == "alone"}
        for values in itertools.product([False, True], repeat=2):
            choice = {f"p{i}": value for i, value in enumerate(values)}
            dead = deadness(result.before, choice)
            assert not received & dead, f"seed {seed}, {choice}"
            assert not alone & dead, f"seed {seed}, {choice}"
        fused += len(received)
        skipped += len(skips(result).get("may_be_dead", []))
    assert min(fused, skipped) > 50, "the graphs are too dull to find anything"


def test_most_receives_that_are_always_live_are_found():
    live = found = 0
    for seed in range(100):
        result = analysed(random_conditionals(seed))
        doubted = {s.slot.recv_node for s in result.report.skips if s.reason == "may_be_dead"}
        ever_dead: set[str] = set()
        for values in itertools.product([False, True], repeat=2):
            choice = {f"p{i}": value for i, value in enumerate(values)}
            ever_dead |= deadness(result.before, choice)
        receives = {s.slot.recv_node for s in result.report.skips} | {
            s.recv_node for group in result.report.groups for s in group.slots
        }
        live += len(receives - ever_dead)
        found += len(receives - ever_dead - doubted)
    # Not all: a Merge of P and "not P" is live, but the negation is not looked into.
    assert found > 0.9 * live, (found, live)


@pytest.mark.parametrize("block", blocks(5))
def test_groups_by_depth_never_deadlock(block):
    fused = 0
    for seed in range(block * 40, block * 40 + 40):
        result = rewrite(random_exchange(seed))
        assert stuck(result.after) == set(), f"seed {seed}"
        assert "would_cycle" not in skips(result), f"seed {seed}"
        fused += sum(map(len, groups(result)))
    assert fused > 200, "the graphs are too dull to find anything"


@pytest.mark.parametrize("splitting", SPLITTINGS)
def test_divided_groups_never_deadlock(splitting):
    parts = 0
    for seed in range(1000, 1100):
        graph = random_exchange(seed)
        result = rewrite(graph, **SPLITTINGS[splitting])
        assert stuck(result.after) == set(), f"seed {seed}"
        assert "would_cycle" not in skips(result), f"seed {seed}"
        parts += parts_of_groups(rewrite(graph, **UNDIVIDED[splitting]), result)
    assert parts > 50, "the graphs are too dull to find anything"


@pytest.mark.parametrize("block", blocks(5))
def test_verifier_drops_groups_exactly_where_they_would_deadlock(block):
    dropped = 0
    for seed in range(block * 40, block * 40 + 40):
        result = rewrite(random_exchange(seed), grouping="all")
        assert stuck(result.after) == set(), f"seed {seed}"
        wanted: dict[tuple[str, str], list[str]] = {}
        for group in result.report.groups:
            key = (group.send_device, group.recv_device)
            wanted.setdefault(key, []).extend(s.recv_node for s in group.slots)
        refused = [s for s in result.report.skips if s.reason == "would_cycle"]
        for skip in refused:
            key = (skip.send_device, skip.recv_device)
            wanted.setdefault(key, []).append(skip.slot.recv_node)
        deadlock = stuck(result.before, list(wanted.values())) != set()
        assert deadlock == bool(refused), f"seed {seed}"
        dropped += bool(refused)
    assert 5 < dropped < 35, "too few graphs with a cycle, or without one"


@pytest.mark.parametrize("seed", blocks(10))
@pytest.mark.parametrize("options", [{}, *SPLITTINGS.values()], ids=["level", *SPLITTINGS])
def test_order_of_nodes_does_not_matter(seed, options):
    before = rewrite(random_conditionals(seed)).before
    first = rewrite(before, **options)
    rng = random.Random(seed)
    for _ in range(3):
        shuffled = {}
        for name in rng.sample(sorted(before), len(before)):
            nodes = list(before[name].node)
            rng.shuffle(nodes)
            shuffled[name] = graph_pb2.GraphDef(versions=before[name].versions, node=nodes)
        again = rewrite(shuffled, **options)
        assert again.report == first.report
        for name, graph in first.after.items():
            assert _sorted(again.after[name]) == _sorted(graph)


def _sorted(graph: graph_pb2.GraphDef) -> list[bytes]:
    """Every node, with its control inputs in order, as bytes."""
    result = []
    for n in graph.node:
        data = [i for i in n.input if not i.startswith("^")]
        control = sorted(i for i in n.input if i.startswith("^"))
        n.input[:] = data + control
        result.append(n.SerializeToString(deterministic=True))
    return sorted(result)


def test_interpreter_finds_a_deadlock():
    # a -> b on one side, d needs both: without depth, {a, c} would wait for itself.
    graphs = partitions(
        const("a", PS0),
        send("a", "a", PS0, W0),
        recv("a", PS0, W0),
        send("b", "recv_a", W0, PS0),
        recv("b", W0, PS0),
        send("c", "recv_b", PS0, W0),
        recv("c", PS0, W0),
    )
    assert stuck(graphs) == set()
    together = [["recv_a", "recv_c"]]
    assert stuck(graphs, together) == {"recv_a", "send_b", "recv_b", "send_c", "recv_c"}
