# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The pass on random graphs, against interpreters that share no code and no idea with it.

`_deadness` plays the executor's rules for one choice of all predicates; `_stuck` runs partitions
until nothing can fire any more. Both look at graphs only, never at the pass's report of itself.
"""

import collections
import itertools
import random

import pytest
import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.unit.passes.pass_testing import (
    PS0,
    PS1,
    SPLITTINGS,
    W0,
    analysed,
    const,
    groups,
    node,
    partitions,
    parts_of_groups,
    recv,
    send,
    skips,
)
from tf_fuse.explain import Rewrite, rewrite

_DEVICES = [PS0, PS1, W0]
_DEAD = "dead"


class _Builder:
    """Makes a random graph with conditionals, on three tasks.

    Values are names of tensors. Some of what it makes are proper conditionals, whose Merge is
    always live; around them is noise: Switches without Merge, Merges of unrelated values, control
    edges from anywhere, predicates that may be dead themselves.
    """

    def __init__(self, seed: int, predicates: int):
        self.rng = random.Random(seed)
        self.graph = graph_pb2.GraphDef()
        self.counter = itertools.count()
        self.predicates = []
        for i in range(predicates):
            self.graph.node.append(const(f"p{i}", self._device(), tf.bool))
            self.predicates.append(f"p{i}")
        self.roots = list(self.predicates)

    def _device(self) -> str:
        return self.rng.choice(_DEVICES)

    def _add(self, op: str, inputs: list[str], **attrs) -> str:
        name = f"{op.lower()}{next(self.counter)}"
        self.graph.node.append(node(name, op, inputs, self._device(), **attrs))
        return name

    def _control(self, values: list[str], chance: float = 0.15) -> list[str]:
        if not values or self.rng.random() > chance:
            return []
        return ["^" + self.rng.choice(values).split(":")[0]]

    def source(self) -> str:
        return self._add("Placeholder", [], dtype=tf.float32)

    def op(self, values: list[str]) -> str:
        chosen = self.rng.choices(values, k=self.rng.randint(1, 3))
        inputs = chosen + self._control(values)
        return self._add("AddN", inputs, T=tf.float32, N=len(chosen))

    def predicate(self) -> str:
        """A predicate: an input, one through Identity, a negation, or one that may be dead."""
        some = self.rng.choice(self.predicates)
        kind = self.rng.randrange(8)
        if kind < 4:
            return some
        if kind < 6:
            made = self._add("Identity", [some], T=tf.bool)
        elif kind == 6:
            made = self._add("LogicalNot", [some])
        else:
            other = self.rng.choice(self.predicates)
            switch = self._add("Switch", [some, other], T=tf.bool)
            made = f"{switch}:{self.rng.randrange(2)}"
        self.predicates.append(made)
        return made

    def switch(self, value: str, predicate: str) -> str:
        return self._add("Switch", [value, predicate], T=tf.float32)

    def merge(self, values: list[str], control: list[str] = ()) -> str:
        inputs = [*values, *control]
        return self._add("Merge", inputs, T=tf.float32, N=len(values))

    def conditional(self, values: list[str], depth: int) -> list[str]:
        """A proper conditional; returns the values after it."""
        predicate = self.predicate()
        switches = [self.switch(v, predicate) for v in self.rng.choices(values, k=2)]
        branches = []
        for output in range(2):
            inside = [f"{s}:{output}" for s in switches]
            inside = self.block(inside, self.rng.randint(1, 3), depth - 1)
            branches.append(inside)
        count = self.rng.randint(1, 2)
        pairs = zip(
            self.rng.choices(branches[0], k=count),
            self.rng.choices(branches[1], k=count),
            strict=True,
        )
        return [self.merge(list(p), self._control(branches[0] + branches[1], 0.3)) for p in pairs]

    def likeness_of_conditional(self, values: list[str]) -> str:
        """A Merge of both outputs of two Switches, whose predicates may differ."""
        switches = [self.switch(self.rng.choice(values), self.predicate()) for _ in range(2)]
        return self.merge([f"{s}:{output}" for output, s in enumerate(switches)])

    def block(self, values: list[str], size: int, depth: int) -> list[str]:
        values = list(values)
        for _ in range(size):
            kind = self.rng.randrange(10)
            if kind < 5:
                values.append(self.op(values))
            elif kind < 8 and depth > 0:
                values.extend(self.conditional(values, depth))
            elif kind == 8:
                switch = self.switch(self.rng.choice(values), self.predicate())
                values.append(f"{switch}:{self.rng.randrange(2)}")
            elif self.rng.random() < 0.5:
                values.append(self.likeness_of_conditional(values))
            elif len(values) > 1:
                values.append(self.merge(self.rng.sample(values, 2)))
        return values


def _random_conditionals(seed: int) -> graph_pb2.GraphDef:
    builder = _Builder(seed, predicates=2)
    values = [builder.source() for _ in range(4)]
    builder.block(values, size=7, depth=2)
    return builder.graph


def _joined(before: dict[str, graph_pb2.GraphDef]) -> dict[str, list[str]]:
    """All nodes of all partitions by name, and the Sends of each receive as further data inputs."""
    nodes = {n.name: n for graph in before.values() for n in graph.node}
    sends = {n.attr["tensor_name"].s: n.name for n in nodes.values() if n.op.endswith("Send")}
    inputs = {name: list(n.input) for name, n in nodes.items()}
    for name, n in nodes.items():
        if n.op == "_FuseRecv":
            inputs[name] += [sends[tensor] for tensor in n.attr["tensor_names"].list.s]
        elif n.op.endswith("Recv"):
            inputs[name].append(sends[n.attr["tensor_name"].s])
    return inputs


def _deadness(graphs: dict[str, graph_pb2.GraphDef], choice: dict[str, bool]) -> set[str]:
    """The nodes that are dead in a step in which the predicates have these values."""
    return {name for name, value in _evaluate(graphs, choice).items() if value is _DEAD}


def _evaluate(graphs: dict[str, graph_pb2.GraphDef], choice: dict[str, bool]) -> dict[str, object]:
    """Each node's value in a step in which the predicates have these values.

    The executor's rules: a node with a dead input, data or control, is dead; a Merge is dead when
    all its data inputs are; a Switch's untaken output is dead. Only a Recv hands a dead value on.
    """
    nodes = {n.name: n for graph in graphs.values() for n in graph.node}
    inputs = _joined(graphs)
    values: dict[str, object] = {}
    pending = list(nodes)
    while pending:
        rest = [name for name in pending if not _fire(nodes[name], inputs[name], values, choice)]
        assert len(rest) < len(pending), f"cyclic: {rest}"
        pending = rest
    return values


def _fire(n, inputs: list[str], values: dict[str, object], choice: dict[str, bool]) -> bool:
    """Evaluates one node if all its inputs are there."""
    names = [i.removeprefix("^").split(":")[0] for i in inputs]
    if any(name not in values for name in names):
        return False
    data = []
    for i, name in zip(inputs, names, strict=True):
        if i.startswith("^"):
            continue
        value = values[name]
        if isinstance(value, tuple):  # a Switch: (taken output, value)
            output = int(i.split(":")[1]) if ":" in i else 0
            value = value[1] if value[0] == output else _DEAD
        elif isinstance(value, list):  # a _FuseRecv: tensors, which are live
            value = value[int(i.split(":")[1]) if ":" in i else 0]
        data.append(value)
    control_dead = any(
        values[name] is _DEAD for i, name in zip(inputs, names, strict=True) if i.startswith("^")
    )
    live = [value for value in data if value is not _DEAD]
    if n.op == "_FuseRecv":
        values[n.name] = _DEAD if control_dead else _fused_outputs(n, data)
    elif n.op == "Merge":
        values[n.name] = live[0] if live else _DEAD
    elif control_dead or len(live) < len(data):
        values[n.name] = _DEAD
    elif n.op == "Switch":
        values[n.name] = (int(data[1]), data[0])
    elif n.op == "LogicalNot":
        values[n.name] = not data[0]
    elif n.op == "Placeholder":
        values[n.name] = choice.get(n.name, 0.0)
    else:
        values[n.name] = data[0] if data else 0.0
    return True


def _fused_outputs(n, data: list[object]) -> list[object]:
    may_be_dead = list(n.attr["may_be_dead"].list.b) or [False] * len(data)
    assert not any(
        value is _DEAD for value, may in zip(data, may_be_dead, strict=True) if not may
    ), f"{n.name} was told that this one is never dead"
    alive = [value is not _DEAD for value, may in zip(data, may_be_dead, strict=True) if may]
    return ["empty" if value is _DEAD else value for value in data] + alive


def _random_choices(count: int = 2):
    for values in itertools.product([False, True], repeat=count):
        yield {f"p{i}": value for i, value in enumerate(values)}


def _compare_conditionals(seed: int, **options) -> tuple[Rewrite, collections.Counter]:
    """Compares all values for all predicates; returns the rewrite, and what there was to see."""
    result = rewrite(_random_conditionals(seed), **options)
    assert "may_be_dead" not in skips(result), f"seed {seed}"
    received = {s.recv_node for group in result.report.groups for s in group.slots}
    seen = collections.Counter()
    for choice in _random_choices():
        before, after = _evaluate(result.before, choice), _evaluate(result.after, choice)
        kept = before.keys() - received
        assert before.keys() - after.keys() == received
        assert {k: before[k] for k in kept} == {k: after[k] for k in kept}, (seed, choice)
        for group in result.report.groups:
            dead = sum(before[s.recv_node] is _DEAD for s in group.slots)
            seen["partly"] += 0 < dead < len(group.slots)
            seen["whole"] += dead == len(group.slots)
    return result, seen


@pytest.mark.parametrize("block", range(8))
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
        parts = parts_of_groups(rewrite(_random_conditionals(seed)), result)
        seen += of_seed + collections.Counter(parts=parts)
    wanted = ("partly", "whole", "parts")
    assert min(seen[what] for what in wanted) > 30, f"too dull: {seen}"


@pytest.mark.parametrize("block", range(8))
def test_no_fused_receive_is_ever_dead(block):
    fused = skipped = 0
    for seed in range(block * 40, block * 40 + 40):
        result = analysed(_random_conditionals(seed))
        received = {s.recv_node for group in result.report.groups for s in group.slots}
        # A receive that is alone was found to be live too; to check it checks more.
        alone = {s.slot.recv_node for s in result.report.skips if s.reason == "alone"}
        for values in itertools.product([False, True], repeat=2):
            choice = {f"p{i}": value for i, value in enumerate(values)}
            dead = _deadness(result.before, choice)
            assert not received & dead, f"seed {seed}, {choice}"
            assert not alone & dead, f"seed {seed}, {choice}"
        fused += len(received)
        skipped += len(skips(result).get("may_be_dead", []))
    assert min(fused, skipped) > 50, "the graphs are too dull to find anything"


def test_most_receives_that_are_always_live_are_found():
    live = found = 0
    for seed in range(100):
        result = analysed(_random_conditionals(seed))
        doubted = {s.slot.recv_node for s in result.report.skips if s.reason == "may_be_dead"}
        ever_dead: set[str] = set()
        for values in itertools.product([False, True], repeat=2):
            choice = {f"p{i}": value for i, value in enumerate(values)}
            ever_dead |= _deadness(result.before, choice)
        receives = {s.slot.recv_node for s in result.report.skips} | {
            s.recv_node for group in result.report.groups for s in group.slots
        }
        live += len(receives - ever_dead)
        found += len(receives - ever_dead - doubted)
    # Not all: a Merge of P and "not P" is live, but the negation is not looked into.
    assert found > 0.9 * live, (found, live)


def _random_exchange(seed: int) -> graph_pb2.GraphDef:
    """A random acyclic graph on three tasks, with many crossings."""
    rng = random.Random(seed)
    graph = graph_pb2.GraphDef()
    names: list[str] = []
    for i in range(rng.randint(8, 30)):
        on = rng.choice(_DEVICES)
        name = f"n{i}"
        inputs = rng.sample(names, min(len(names), rng.randint(0, 3)))
        control = rng.sample(names, 1) if names and rng.random() < 0.2 else []
        if inputs:
            made = node(
                name, "AddN", inputs + ["^" + c for c in control], on, T=tf.float32, N=len(inputs)
            )
        else:
            made = node(name, "Placeholder", ["^" + c for c in control], on, dtype=tf.float32)
        graph.node.append(made)
        names.append(name)
    return graph


def _stuck(after: dict[str, graph_pb2.GraphDef], together: list[list[str]] = ()) -> set[str]:
    """Runs all partitions at once; returns the nodes that never fire.

    A receive fires when its control inputs have, and every Send of every tensor it names.

    Args:
      after: the partitions.
      together: names of receives that are to fire as one, each when all of them can.
    """
    nodes = {n.name: n for graph in after.values() for n in graph.node}
    partner = {name: group for group in together for name in group}
    sends = {n.attr["tensor_name"].s: n.name for n in nodes.values() if n.op.endswith("Send")}
    fired: set[str] = set()

    def ready(name: str) -> bool:
        n = nodes[name]
        needed = {i.removeprefix("^").split(":")[0] for i in n.input}
        if n.op == "_FuseRecv":
            needed |= {sends[t] for t in n.attr["tensor_names"].list.s}
        elif n.op.endswith("Recv"):
            needed.add(sends[n.attr["tensor_name"].s])
        return needed <= fired

    while True:
        new = {name for name in nodes.keys() - fired if all(map(ready, partner.get(name, [name])))}
        if not new:
            return nodes.keys() - fired
        fired |= new


@pytest.mark.parametrize("block", range(5))
def test_groups_by_depth_never_deadlock(block):
    fused = 0
    for seed in range(block * 40, block * 40 + 40):
        result = rewrite(_random_exchange(seed))
        assert _stuck(result.after) == set(), f"seed {seed}"
        assert "would_cycle" not in skips(result), f"seed {seed}"
        fused += sum(map(len, groups(result)))
    assert fused > 200, "the graphs are too dull to find anything"


@pytest.mark.parametrize("splitting", SPLITTINGS)
def test_divided_groups_never_deadlock(splitting):
    parts = 0
    for seed in range(1000, 1100):
        graph = _random_exchange(seed)
        result = rewrite(graph, **SPLITTINGS[splitting])
        assert _stuck(result.after) == set(), f"seed {seed}"
        assert "would_cycle" not in skips(result), f"seed {seed}"
        parts += parts_of_groups(rewrite(graph), result)
    assert parts > 50, "the graphs are too dull to find anything"


@pytest.mark.parametrize("block", range(5))
def test_verifier_drops_groups_exactly_where_they_would_deadlock(block):
    dropped = 0
    for seed in range(block * 40, block * 40 + 40):
        result = rewrite(_random_exchange(seed), grouping="all")
        assert _stuck(result.after) == set(), f"seed {seed}"
        wanted: dict[tuple[str, str], list[str]] = {}
        for group in result.report.groups:
            key = (group.send_device, group.recv_device)
            wanted.setdefault(key, []).extend(s.recv_node for s in group.slots)
        refused = [s for s in result.report.skips if s.reason == "would_cycle"]
        for skip in refused:
            key = (skip.send_device, skip.recv_device)
            wanted.setdefault(key, []).append(skip.slot.recv_node)
        deadlock = _stuck(result.before, list(wanted.values())) != set()
        assert deadlock == bool(refused), f"seed {seed}"
        dropped += bool(refused)
    assert 5 < dropped < 35, "too few graphs with a cycle, or without one"


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("options", [{}, *SPLITTINGS.values()], ids=["level", *SPLITTINGS])
def test_order_of_nodes_does_not_matter(seed, options):
    before = rewrite(_random_conditionals(seed)).before
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
    assert _stuck(graphs) == set()
    together = [["recv_a", "recv_c"]]
    assert _stuck(graphs, together) == {"recv_a", "send_b", "recv_b", "send_c", "recv_c"}
