# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Build the search problem of a graph: strategies from rules, and resharding costs between them.

Each tensor that no operation makes gets a source, so that a parameter's layout is a choice like any
other, and each reader pays for its relayouts from the source.

Each result of the graph gets a reader that takes any layout but a partial one, since nobody outside
adds up its terms.

The memory of a choice is a sum: parameters, their gradients and optimizer slots, tensors that
gradients need, and the copies that relayouts make of these for gradients. Other tensors count while
they are live. `GraphProblem.memory` replays a plan moment by moment.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tf_fuse.layout.cost.memory import Memory, memory
from tf_fuse.layout.cost.model import Rates, operation_cost
from tf_fuse.layout.operators import rule_of
from tf_fuse.layout.optimize.data_parallel_strategies import FED, data_strategies
from tf_fuse.layout.optimize.local_relayouts import only_alike
from tf_fuse.layout.optimize.plans.plan import Plan
from tf_fuse.layout.optimize.problem import DATA, Candidate, Edge, Node, Problem, is_count, listed
from tf_fuse.layout.relayout.pairwise_seconds import relayout_seconds
from tf_fuse.layout.relayout.steps import StepSet
from tf_fuse.layout.strategies.strategy import EVERYTHING, Allowed, Strategy, strategies
from tf_fuse.layout.types.control_flow import NO_CONTROL_FLOW, ControlFlow
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.mesh import check_names
from tf_fuse.layout.types.operation import Operation, Tensor, check_graph
from tf_fuse.layout.types.tensor_layout import TensorLayout

SOURCE = FED
RESULT = "Identity"
# The attribute of those that read results, unlike the graph's own.
_MARK = "result"


@dataclasses.dataclass(frozen=True, eq=False)
class GraphProblem:
    """A problem, and the graph that it is of.

    Attributes:
      problem: its nodes are the operations, in their order, after sources and before results.
      operations: with a source for each tensor that none of them makes, and a reader for each
        result.
      strategies: of each operation, in the order of its candidates.
      training: whether gradients count.
    """

    problem: Problem
    operations: tuple[Operation, ...]
    strategies: tuple[tuple[Strategy, ...], ...]
    training: bool

    def chosen(self, plan: Plan) -> tuple[Strategy, ...]:
        """Return the strategy of each operation."""
        return tuple(mine[s] for mine, s in zip(self.strategies, plan.choice, strict=True))

    def layouts(self, plan: Plan) -> dict[str, TensorLayout]:
        """Return the layout in which each tensor is made, by its name."""
        return {
            tensor.name: layout
            for operation, strategy in zip(self.operations, self.chosen(plan), strict=True)
            for tensor, layout in zip(operation.outputs, strategy.outputs, strict=True)
        }

    def memory(self, plan: Plan) -> Memory:
        """Return what a device holds at each moment; count copies that readers share once."""
        return memory(self.operations, self.chosen(plan), self.training)


def problem_of(
    operations: Sequence[Operation],
    rates: Rates,
    training: bool = False,
    memory_limit_bytes: int | None = None,
    slots: int = 0,
    batch: Mapping[str, int | None] | None = None,
    allowed: Allowed = EVERYTHING,
    steps: StepSet | None = None,
    results: Sequence[str] = (),
    layouts: Mapping[str, TensorLayout] | None = None,
    control_flow: ControlFlow = NO_CONTROL_FLOW,
) -> GraphProblem:
    """Make a problem of a graph.

    Args:
      operations: in an order in which they can run.
      rates: of the mesh that they are laid over.
      training: whether the gradient of each operation runs, too, as far as parameters need it. A
        graph that has gradients as operations needs none.
      memory_limit_bytes: of a device.
      slots: copies of each parameter that an optimizer holds: 0 for plain descent, 2 for Adam.
      batch: by name of a tensor that is fed, its batch dimension, or None if it has none; by
        default dimension 0. Mode "data" splits these.
      allowed: which strategies there may be.
      steps: of relayouts; as of `plan_relayout` if None.
      results: names of tensors that leave the graph: these must not stay partial.
      layouts: by name of an operation, the layout of its first output. Equal operations have equal
        ones.
      control_flow: the loops and conditionals that some operations are in.

    Raises:
      LayoutError: the operations are in no order in which they can run, or do not fit their rules;
        `batch` names what is not fed, or a dimension that is not there; `results` what no operation
        makes; `slots` is not a whole number, 0 or more.
    """
    check_graph(operations)
    if not is_count(slots):
        raise LayoutError(f"slots is a whole number, 0 or more, got {slots!r}")
    check_names("results", results)
    whole = (*_sources(operations), *operations, *_results(operations, results))
    if training:
        whole = _with_constants(whole)
    builder = _Builder(
        whole, rates, training, slots, batch or {}, allowed, steps, layouts or {}, control_flow
    )
    return builder.build(memory_limit_bytes)


class _Builder:
    def __init__(
        self, operations: Sequence[Operation], rates: Rates, training: bool, slots: int,
        batch: Mapping[str, int | None], allowed: Allowed, steps: StepSet | None,
        layouts: Mapping[str, TensorLayout], control_flow: ControlFlow,
    ):  # fmt: skip
        self._flow = control_flow
        self._operations = tuple(operations)
        self._rates = rates
        self._training = training
        self._slots = slots
        self._batch = batch
        self._steps = steps
        self._strategies = tuple(
            _in_layout(one, strategies(one, rates.mesh, allowed), layouts.get(one.name))
            for one in self._operations
        )
        self._readers: dict[str, list[tuple[int, int]]] = {}
        for number, one in enumerate(self._operations):
            for i, tensor in enumerate(one.inputs):
                self._readers.setdefault(tensor.name, []).append((number, i))
        # Layers repeat: what was computed for one is kept.
        self._candidates: dict[tuple, tuple[Candidate, ...]] = {}
        self._tables: dict[tuple, tuple[np.ndarray, np.ndarray | None]] = {}

    def build(self, memory_limit_bytes: int | None) -> GraphProblem:
        data = data_strategies(
            self._operations, self._strategies, self._batch, self._rates, self._flow
        )
        nodes = [self._node(i, data[i]) for i in range(len(self._operations))]
        problem = Problem(nodes, self._edges(), memory_limit_bytes, self._rates.mesh)
        return GraphProblem(problem, self._operations, self._strategies, self._training)

    def _node(self, number: int, data: int) -> Node:
        one = self._operations[number]
        last = max(
            [number, *(r for tensor in one.outputs for r, _ in self._readers.get(tensor.name, ()))]
        )
        return Node(one.name, self._all(number, data), signature_of(one), (number, last))

    def _all(self, number: int, data: int) -> tuple[Candidate, ...]:
        """Return the candidates of an operation; they depend on its readers by what these save."""
        one = self._operations[number]
        read = tuple(self._read_later(tensor) for tensor in one.outputs)
        times = self._flow.repeats(one.name)
        key = one.nameless, read, data, times
        if key not in self._candidates:
            self._candidates[key] = tuple(
                self._candidate(one, strategy, read, s == data, times)
                for s, strategy in enumerate(self._strategies[number])
            )
        return self._candidates[key]

    def _candidate(
        self, one: Operation, strategy: Strategy, read: Sequence[bool], data: bool, times: int
    ) -> Candidate:
        cost = operation_cost(strategy, self._rates, self._training)
        held, transient = self._bytes(one, strategy, read)
        return Candidate(
            str(strategy),
            times * (cost.forward_compute + cost.backward_compute),
            times * (cost.forward_communication + cost.backward_communication),
            held,
            transient,
            frozenset([DATA] if data else []),
        )

    def _bytes(self, one: Operation, strategy: Strategy, read: Sequence[bool]) -> tuple[int, int]:
        """Return (bytes always held, bytes held while live) of an operation's outputs."""
        rule = rule_of(one)
        held = transient = 0
        placed = {output for output, _ in rule.aliases}
        for o, (tensor, layout) in enumerate(zip(one.outputs, strategy.outputs, strict=True)):
            size = layout.bytes_per_device(tensor.item_bytes)
            runs_back = self._training and any(strategy.input_gradients)
            saved = read[o] or (runs_back and o in rule.saved_outputs)
            if tensor.parameter:
                gradient = self._training and tensor.has_gradient
                held += size * (1 + gradient + self._slots * (not tensor.constant))
            elif o in placed:
                continue
            elif not one.inputs or saved:
                held += size
            else:
                transient += size
        return held, transient

    def _read_later(self, tensor: Tensor) -> bool:
        """Return whether the gradient of a reader needs a tensor."""
        return any(self._saves(reader, i) for reader, i in self._readers.get(tensor.name, ()))

    def _saves(self, reader: int, number: int) -> bool:
        """Return whether an operation's gradient needs one of its inputs."""
        saved = rule_of(self._operations[reader]).saved_inputs
        runs_back = self._training and any(self._strategies[reader][0].input_gradients)
        return runs_back and number in saved

    def _edges(self) -> list[Edge]:
        makers = {
            tensor.name: (number, o)
            for number, one in enumerate(self._operations)
            for o, tensor in enumerate(one.outputs)
        }
        found = []
        for number, one in enumerate(self._operations):
            for i, tensor in enumerate(one.inputs):
                maker, o = makers[tensor.name]
                seconds, held = self._table(tensor, (maker, o), (number, i))
                source = self._operations[maker].name
                found.append(Edge(source, one.name, seconds, tensor.name, held))
        return found

    def _table(
        self, tensor: Tensor, maker: tuple[int, int], reader: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the seconds of relayouts, and bytes of copies, for each two strategies."""
        key = (
            self._operations[maker[0]].nameless, maker[1],
            self._operations[reader[0]].nameless, reader[1],
            self._flow.repeats(self._operations[reader[0]].name),
        )  # fmt: skip
        if key not in self._tables:
            self._tables[key] = self._new_table(tensor, maker, reader)
        return self._tables[key]

    def _new_table(
        self, tensor: Tensor, maker: tuple[int, int], reader: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        makers, readers = self._strategies[maker[0]], self._strategies[reader[0]]
        made, needed = (
            _numbered([getattr(one, side)[maker[1]] for one in makers])
            for side in ("outputs", "output_gradients")
        )
        read, given = (
            _numbered([getattr(one, side)[reader[1]] for one in readers])
            for side in ("inputs", "input_gradients")
        )
        times = self._flow.repeats(self._operations[reader[0]].name)
        seconds = times * self._relayouts(made, read, tensor.item_bytes, tensor.is_list)
        if self._training and None not in given.layouts and None not in needed.layouts:
            shown = times * (1.0 - (self._rates.overlap if tensor.parameter else 0.0))
            seconds = seconds + shown * self._relayouts(given, needed, tensor.item_bytes).T
        if not self._saves(*reader):
            return seconds, None
        copies = np.array(
            [
                [0 if one == other else other.bytes_per_device(tensor.item_bytes)
                 for other in read.layouts]
                for one in made.layouts
            ],
            np.int64,
        )[np.ix_(made.numbers, read.numbers)]  # fmt: skip
        return seconds, copies if copies.any() else None

    def _relayouts(
        self, sources: _Numbered, targets: _Numbered, item_bytes: int, is_list: bool = False
    ) -> np.ndarray:
        """Return seconds by strategies' numbers; infinite where no sequence of steps leads."""
        links = self._rates.links
        found = relayout_seconds(sources.layouts, targets.layouts, item_bytes, links, self._steps)
        if is_list:
            found = only_alike(found, sources.layouts, targets.layouts)
        return found[np.ix_(sources.numbers, targets.numbers)]


def _in_layout(
    one: Operation, mine: Sequence[Strategy], wanted: TensorLayout | None
) -> tuple[Strategy, ...]:
    """Return the strategies that make a result whole, or a tensor in the layout it must have."""
    if one.attribute(_MARK):
        return tuple(strategy for strategy in mine if not strategy.outputs[0].partial)
    if wanted is None:
        return tuple(mine)
    found = tuple(strategy for strategy in mine if strategy.outputs[0] == wanted)
    if not found:
        raise LayoutError(
            f"{one} has no strategy that makes its tensor as {wanted}; give the axes of a "
            "dimension in the mesh's order, and allow strategies that split it so"
        )
    return found


class _Numbered(NamedTuple):
    """The layouts that strategies have of one tensor, each once, and each strategy's number."""

    layouts: list[Any]
    numbers: np.ndarray


def _numbered(layouts: Sequence[TensorLayout | None]) -> _Numbered:
    number = {one: i for i, one in enumerate(dict.fromkeys(layouts))}
    return _Numbered(list(number), np.array([number[one] for one in layouts], np.intp))


def _with_constants(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return the same, where each tensor says whether a gradient goes back to it.

    One does where a parameter is trained by it: not to what is fed, nor to what is made of that
    alone, nor after what has no gradient.
    """
    known: dict[str, Tensor] = {}
    found = []
    for one in operations:
        inputs = [known[tensor.name] for tensor in one.inputs]
        stopped = rule_of(one).constants
        trained = any(tensor.has_gradient and i not in stopped for i, tensor in enumerate(inputs))
        outputs = [
            tensor
            if trained or (tensor.parameter and not inputs)
            else dataclasses.replace(tensor, constant=True)
            for tensor in one.outputs
        ]
        known |= {tensor.name: tensor for tensor in outputs}
        found.append(Operation(one.name, one.kind, inputs, outputs, one.attributes))
    return tuple(found)


def signature_of(operation: Operation) -> str:
    """Return kind, attributes, types and shapes, by which a saved plan recognises the operation."""
    words = [f"{name}={value}" for name, value in operation.attributes]
    tensors = [
        ", ".join(f"{one.dtype}{list(one.shape)}" for one in side)
        for side in (operation.inputs, operation.outputs)
    ]
    head = operation.kind + (f"[{', '.join(words)}]" if words else "")
    return f"{head}({tensors[0]}) -> {tensors[1]}"


def _sources(operations: Sequence[Operation]) -> list[Operation]:
    """Return a source for each tensor that no operation makes, ordered by first reader."""
    made = {tensor.name for one in operations for tensor in one.outputs}
    names = {one.name for one in operations}
    found: dict[str, Operation] = {}
    for one in operations:
        for tensor in one.inputs:
            if tensor.name not in made and tensor.name not in found:
                name = f"source of {tensor.name}" if tensor.name in names else tensor.name
                found[tensor.name] = Operation(name, SOURCE, [], [tensor])
    return list(found.values())


def _results(operations: Sequence[Operation], names: Sequence[str]) -> list[Operation]:
    """Return a reader for each result, in the given order."""
    made = {tensor.name: tensor for one in operations for tensor in one.outputs}
    unknown = sorted(set(names) - set(made))
    if unknown:
        raise LayoutError(
            f"results: no operation makes {', '.join(map(repr, unknown))}; there are: "
            f"{listed(sorted(made))}"
        )
    return [
        Operation(
            f"result {name}",
            RESULT,
            [made[name]],
            [dataclasses.replace(made[name], name=f"result {name}", parameter=False)],
            {_MARK: True},
        )
        for name in dict.fromkeys(names)
    ]
