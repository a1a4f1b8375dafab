# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Random graphs on three tasks: with conditionals, and acyclic ones with many crossings."""

import itertools
import random

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tests.unit.passes.pass_testing import PS0, PS1, W0, const, node

_DEVICES = [PS0, PS1, W0]


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


def random_conditionals(seed: int) -> graph_pb2.GraphDef:
    builder = _Builder(seed, predicates=2)
    values = [builder.source() for _ in range(4)]
    builder.block(values, size=7, depth=2)
    return builder.graph


def random_choices(count: int = 2):
    for values in itertools.product([False, True], repeat=count):
        yield {f"p{i}": value for i, value in enumerate(values)}


def random_exchange(seed: int) -> graph_pb2.GraphDef:
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
