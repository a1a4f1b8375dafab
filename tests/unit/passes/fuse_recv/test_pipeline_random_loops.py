# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The pass on random graphs with loops: before and after, run by an interpreter of the executor.

Nested loops, loops in conditionals and conditionals in loops, on three tasks, with conditions that
cross tasks and one, few or many parallel iterations.

`make random SEEDS=2000` tries more of them.
"""

import collections
import itertools
import random
import sys

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.slow_cases import slow
from tests.unit.passes.fuse_recv import executor_model
from tests.unit.passes.fuse_recv.executor_model import DEAD
from tests.unit.passes.pass_testing import (
    PS0,
    PS1,
    SPLITTINGS,
    UNDIVIDED,
    W0,
    node,
    parts_of_groups,
    skips,
)
from tf_fuse.explain import rewrite

_DEVICES = [PS0, PS1, W0]


class _Builder:
    """Makes a random graph with loops.

    A block is built from values that are live whenever it runs, and a pivot: a node that is live
    then, which starts what would have no input in the block. Beside them are values that may be
    dead, on their own.
    """

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.graph = graph_pb2.GraphDef()
        self.counter = itertools.count()
        self.sources: dict[str, float] = {}

    def add(self, op: str, inputs: list[str], **attrs) -> str:
        name = f"{op.lower()}{next(self.counter)}"
        self.graph.node.append(node(name, op, inputs, self.rng.choice(_DEVICES), **attrs))
        return name

    def source(self, pivot: str | None, value: float) -> str:
        name = self.add("Placeholder", [f"^{pivot}"] if pivot else [], dtype=tf.float32)
        self.sources[name] = value
        return name

    def control(self, values: list[str], chance: float) -> list[str]:
        if self.rng.random() > chance:
            return []
        return ["^" + self.rng.choice(values).split(":")[0]]

    def op(self, values: list[str]) -> str:
        chosen = self.rng.choices(values, k=self.rng.randint(1, 2))
        inputs = [*chosen, *self.control(values, 0.2)]
        return self.add("AddN", inputs, T=tf.float32, N=len(chosen))

    def identity(self, value: str, pivot: str | None = None) -> str:
        return self.add("Identity", [value, *([f"^{pivot}"] if pivot else [])], T=tf.float32)

    def compare(self, a: str, b: str) -> str:
        return self.add("Less", [a, b], T=tf.float32)

    def switch(self, value: str, predicate: str) -> str:
        return self.add("Switch", [value, predicate], T=tf.float32)

    def merge(self, values: list[str]) -> str:
        return self.add("Merge", values, T=tf.float32, N=len(values))

    def conditional(self, values: list[str], pivot: str | None, depth: int) -> list[str]:
        half = self.source(pivot, 0.5)
        predicate = self.compare(self.rng.choice(values), half)
        switches = [self.switch(v, predicate) for v in self.rng.choices(values, k=2)]
        branches = []
        for output in range(2):
            inside = [f"{s}:{output}" for s in switches]
            pivot_inside = self.identity(inside[0])
            branches.append(self.block(inside, pivot_inside, self.rng.randint(1, 2), depth - 1, []))
        pairs = zip(*(self.rng.choices(branch, k=2) for branch in branches), strict=True)
        return [self.merge(list(pair)) for pair in pairs]

    def loop(self, values: list[str], pivot: str | None, depth: int) -> list[str]:
        frame = f"loop{next(self.counter)}"
        parallel = self.rng.choice([1, 2, 10, 10])

        def enter(value: str, constant: bool) -> str:
            more = {"frame_name": frame, "is_constant": constant, "parallel_iterations": parallel}
            return self.add("Enter", [value], T=tf.float32, **more)

        entered = [enter(v, False) for v in self.rng.choices(values, k=self.rng.randint(1, 3))]
        invariants = [enter(v, True) for v in self.rng.choices(values, k=self.rng.randint(0, 2))]
        entered.append(enter(self.source(pivot, 0.0), False))
        # What comes round is made below; nodes may be named before.
        merges, rounds = [], []
        for value in entered:
            rounds.append(f"nextiteration{next(self.counter)}")
            merges.append(self.merge([value, rounds[-1]]))
        condition = self.condition(merges, invariants)
        switches = [self.switch(merge, condition) for merge in merges]
        inside = [f"{s}:1" for s in switches]
        pivot_inside = self.identity(inside[-1])
        one = self.source(pivot_inside, 1.0)
        counted = self.add("AddV2", [inside[-1], one], T=tf.float32)
        inside += [self.identity(value, pivot_inside) for value in invariants]
        made = self.block(inside, pivot_inside, self.rng.randint(1, 4), depth - 1, [])
        for name, value in zip(rounds, [*self.rng.choices(made, k=len(rounds) - 1), counted],
                               strict=True):  # fmt: skip
            device = self.rng.choice(_DEVICES)
            self.graph.node.append(node(name, "NextIteration", [value], device, T=tf.float32))
        return [self.add("Exit", [s], T=tf.float32) for s in switches]

    def condition(self, merges: list[str], invariants: list[str]) -> str:
        """While the counter is below a limit, and sometimes while a value is, too."""
        pivot = merges[0]
        values = merges + [self.identity(value, pivot) for value in invariants]
        for _ in range(self.rng.randint(0, 2)):
            values.append(self.op(values))
        limit = self.source(pivot, float(self.rng.choice([0, 1, 2, 3, 4])))
        condition = self.compare(merges[-1], limit)
        if self.rng.random() < 0.4:
            more = self.compare(self.op(values), self.source(pivot, 0.8))
            condition = self.add("LogicalAnd", [condition, more])
        return self.add("LoopCond", [condition])

    def block(
        self, values: list[str], pivot: str | None, size: int, depth: int, doubted: list[str]
    ) -> list[str]:
        values = list(values)
        for _ in range(size):
            kind = self.rng.randrange(10)
            if kind < 4 or (depth == 0 and kind < 8):
                values.append(self.op(values))
            elif kind < 6:
                values.extend(self.loop(values, pivot, depth))
            elif kind < 8:
                values.extend(self.conditional(values, pivot, depth))
            elif kind == 8 or not doubted:
                half = self.source(pivot, 0.5)
                predicate = self.compare(self.rng.choice(values), half)
                doubted.append(f"{self.switch(self.rng.choice(values), predicate)}:1")
            else:
                doubted.append(self.op([*values, *doubted]))
        return values


def _random_loops(seed: int) -> tuple[graph_pb2.GraphDef, dict[str, float]]:
    builder = _Builder(seed)
    values = [builder.source(None, builder.rng.random()) for _ in range(3)]
    values = builder.loop(values, None, 2) + values
    builder.block(values, None, size=2, depth=2, doubted=[])
    return builder.graph, builder.sources


def _kept(values: dict[tuple, object], replaced: set[str]) -> dict[tuple, object]:
    """What happened to the nodes that are in both graphs."""
    return {
        key: value
        for key, value in values.items()
        if key[0] not in replaced and not key[0].startswith("tf_fuse/")
    }


def _compare(graph, sources, seed, **options):
    """Rewrites, runs both graphs, and compares; returns the rewrite and how the first one ran."""
    result = rewrite(graph, **options)
    before = executor_model.run(result.before, sources, seed)
    after = executor_model.run(result.after, sources, seed + 1)
    assert (before.stuck, before.left) == (set(), set()), f"seed {seed}: no good graph"
    assert (after.stuck, after.left) == (set(), set()), f"seed {seed}"
    replaced = {s.recv_node for group in result.report.groups for s in group.slots}
    assert _kept(before.values, replaced) == _kept(after.values, replaced), f"seed {seed}"
    return result, before


@pytest.mark.parametrize("block", [0, slow(1), slow(2), slow(3)])
def test_rewritten_loops_run_as_stock_s(block):
    seen = collections.Counter()
    for seed in range(block * 25, block * 25 + 25):
        result, before = _compare(*_random_loops(seed), seed)
        assert set(skips(result)) <= {"alone"}, f"seed {seed}"
        seen["deferred"] += before.deferred
        seen["parallel"] += before.most_parallel > 2
        dead = collections.defaultdict(dict)  # by receive, frame and iteration
        for (name, *when), value in before.values.items():
            dead[name][tuple(when)] = value == [DEAD]
        for group in result.report.groups:
            if not group.frame:
                continue
            seen["fused"] += len(group.slots)
            members = [dead[slot.recv_node] for slot in group.slots]
            assert all(member.keys() == members[0].keys() for member in members), f"seed {seed}"
            for frame, iteration in members[0]:
                now = [member[frame, iteration] for member in members]
                seen["all" if all(now) else "some" if any(now) else "none"] += 1
                seen["nested"] += len(frame) > 1
    wanted = ("fused", "all", "some", "none", "nested", "deferred")
    assert min(seen[what] for what in wanted) > 30, f"too dull to find anything: {seen}"
    assert seen["parallel"] > 2


@pytest.mark.parametrize("splitting", SPLITTINGS)
def test_divided_groups_run_as_stock_s(splitting):
    in_loops = parts = 0
    for seed in range(1000, 1025):
        graph, sources = _random_loops(seed)
        result, _ = _compare(graph, sources, seed, **SPLITTINGS[splitting])
        assert set(skips(result)) <= {"alone", "split_off"}, f"seed {seed}"
        in_loops += sum(group.frame != "" for group in result.report.groups)
        parts += parts_of_groups(rewrite(graph, **UNDIVIDED[splitting]), result)
    assert min(in_loops, parts) > 30, "the graphs are too dull to find anything"


@pytest.mark.parametrize("seed", [5055, 5423, 5608, 5699, 5855])
def test_what_waits_for_a_loop_as_a_whole(seed):
    # Found by leaving out the edges from all that enters a loop to all that leaves it: what comes
    # after the loop then seems to be no deeper than what enters it late.
    _compare(*_random_loops(seed), seed)


def test_verifier_drops_groups_that_would_deadlock_in_a_loop():
    refused = stuck = 0
    for seed in range(25):
        graph, sources = _random_loops(seed)
        result, _ = _compare(graph, sources, seed, grouping="all")
        wanted = collections.defaultdict(list)
        dropped = [s for s in result.report.skips if s.reason == "would_cycle"]
        controls = {n.name: tuple(n.input) for g in result.before.values() for n in g.node}
        for skip in dropped:
            start = controls[skip.slot.recv_node]
            wanted[skip.send_device, skip.recv_device, start].append(skip.slot.recv_node)
        refused += len(dropped) > 0
        step = executor_model.run(result.before, sources, seed, wanted.values())
        stuck += step.stuck != set()
    # Not each one: a loop may end before it comes to that.
    assert 0.5 * refused < stuck <= refused > 5


def test_verifier_drops_groups_that_span_loops():
    refused = 0
    for seed in range(25):
        result, _ = _compare(*_random_loops(seed), seed, grouping="any_frame")
        refused += len(skips(result).get("loop_frame", []))
        assert set(skips(result)) <= {"alone", "loop_frame"}
    assert refused > 100


@pytest.mark.parametrize("seed", range(3))
def test_order_of_nodes_does_not_matter(seed):
    before = rewrite(_random_loops(seed)[0]).before
    rng = random.Random(seed)
    reports = [rewrite(before).report]
    for _ in range(3):
        shuffled = {}
        for name in rng.sample(sorted(before), len(before)):
            nodes = list(before[name].node)
            rng.shuffle(nodes)
            shuffled[name] = graph_pb2.GraphDef(versions=before[name].versions, node=nodes)
        reports.append(rewrite(shuffled).report)
    assert len(reports[0].groups) > 0
    assert reports[1:] == reports[:-1]


def main(seeds: int) -> None:
    """Compares many graphs that the tests do not use; ends at the first failure."""
    groups = 0
    splittings = [{}, *SPLITTINGS.values()]
    for seed in range(10_000, 10_000 + seeds):
        options = splittings[seed % len(splittings)]
        result, _ = _compare(*_random_loops(seed), seed, **options)
        groups += sum(group.frame != "" for group in result.report.groups)
    print(f"{seeds} graphs run as before, with {groups} fused receives in loops")


if __name__ == "__main__":
    main(int(sys.argv[1]))
