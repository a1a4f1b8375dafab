# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""An interpreter of partitioned graphs, by the rules of TensorFlow's executor.

It knows what the pass has to keep: dead tensors, frames and iterations, at most so many parallel
iterations, and one rendezvous under keys of name, frame and iteration. It looks at graphs only. The
order in which nodes run is random. (TensorFlow: common_runtime/propagator_state.cc, executor.cc.)

Values are computed as the tests need them, not as the kernels do: AddN makes a number between 0 and
1 that depends on its name and on all its inputs.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import random
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

DEAD = "dead"
_TRANSFERS = ("_Send", "_HostSend", "_Recv", "_HostRecv")
_RECEIVES = ("_Recv", "_HostRecv", "_FuseRecv")


@dataclasses.dataclass
class Result:
    """What happened in a step.

    Attributes:
      values: (node, frame, iteration) to the outputs, or DEAD. A frame is a tuple of (iteration of
        the enclosing frame, name), from the outside inwards.
      stuck: the receives that never got what they waited for, as (node, frame, iteration).
      left: keys of what was sent and never received.
      deferred: how often an iteration had to wait for an earlier one to end.
      most_parallel: the most iterations that one frame had at a time.
    """

    values: dict[tuple, Any]
    stuck: set[tuple]
    left: set[tuple]
    deferred: int
    most_parallel: int


def run(
    graphs: Mapping[str, Any],
    sources: Mapping[str, Any],
    seed: int,
    together: Iterable[Iterable[str]] = (),
) -> Result:
    """Runs one step of all partitions.

    Args:
      graphs: device to GraphDef.
      sources: values of the nodes Placeholder; 0.5 for those that are missing.
      seed: of the order in which nodes run.
      together: names of receives that are to complete as one, each when all of them can, in each
        iteration.

    Returns:
      The result; values of a step that gets stuck are those until then.
    """
    return _Step(graphs, sources, random.Random(seed), together).run()


class _Node:
    """A node of a partition, with its edges parsed."""

    def __init__(self, node_def: Any):
        self.name = node_def.name
        self.op = node_def.op
        self.attr = node_def.attr
        data = [i for i in node_def.input if not i.startswith("^")]
        self.inputs = [(name, int(slot or 0)) for name, _, slot in (i.partition(":") for i in data)]
        self.controls = [i[1:] for i in node_def.input if i.startswith("^")]
        self.outputs: list[tuple[_Node, int, int]] = []  # node, own slot, its slot
        self.control_outputs: list[_Node] = []
        self.is_transfer = self.op in _TRANSFERS
        self.frame_name = self.attr["frame_name"].s.decode()
        names = self.attr["tensor_names"].list.s or [self.attr["tensor_name"].s]
        self.tensor_names = [name.decode() for name in names]


class _Iteration:
    def __init__(self, number: int):
        self.number = number
        self.pending: dict[str, int] = {}
        self.dead: dict[str, int] = defaultdict(int)
        self.inputs: dict[str, dict[int, Any]] = defaultdict(dict)
        self.ops = 0  # that are ready or run
        self.frames = 0  # within it


class _Frame:
    def __init__(self, parent: _Frame | None, of: _Iteration | None, name: str, parallel: int):
        self.parent, self.of = parent, of
        self.id: tuple = (*parent.id, (of.number, name)) if parent and of else ()
        self.parallel = parallel
        self.iterations = {0: _Iteration(0)}
        self.last = 0
        self.pending_inputs = 0
        self.deferred: list[tuple[_Node, list]] = []
        self.invariants: list[tuple[_Node, list]] = []
        self.dead_exits: list[_Node] = []


@dataclasses.dataclass(eq=False)
class _Ready:
    executor: _Executor
    node: _Node
    frame: _Frame
    iteration: _Iteration
    dead: bool

    @property
    def key(self) -> tuple:
        return self.node.name, self.frame.id, self.iteration.number

    @property
    def tensor_keys(self) -> list[tuple]:
        return [(name, *self.key[1:]) for name in self.node.tensor_names]


class _Step:
    """All partitions, and what was sent."""

    def __init__(self, graphs, sources, rng, together):
        self.sources, self.rng = sources, rng
        self.sent: dict[tuple, Any] = {}
        self.result = Result({}, set(), set(), 0, 1)
        self.turns: list[tuple] = []  # a heap of (turn, serial number, what may run)
        self.serial = itertools.count()
        self.waiting: dict[tuple, _Ready] = {}  # by key of the receive
        self.wanted: dict[tuple, _Ready] = {}  # by key of the tensor
        self.partners = {name: tuple(group) for group in together for name in group}
        # Half of the orders have nodes that are slow in every iteration.
        self.slowness: dict[str, float] = {}
        self.weight = rng.choice([0.0, 1.0])
        self.executors = [_Executor(graph, self) for _, graph in sorted(graphs.items())]

    def run(self) -> Result:
        for executor in self.executors:
            executor.start()
        while self.turns:
            self._advance(heapq.heappop(self.turns)[2])
        self.result.stuck = set(self.waiting)
        self.result.left = set(self.sent)
        return self.result

    def may_run(self, one: _Ready) -> None:
        """Gives a node its turn, or a receive the one to complete."""
        slowness = self.slowness.setdefault(one.node.name, self.rng.random())
        turn = self.rng.random() + self.weight * 4 * slowness
        heapq.heappush(self.turns, (turn, next(self.serial), one))

    def _advance(self, one: _Ready) -> None:
        if one.key in self.waiting:
            del self.waiting[one.key]
            taken = [self.sent.pop(key) for key in one.tensor_keys]
            outputs = taken if one.node.op != "_FuseRecv" else _fused_outputs(one.node, taken)
            one.executor.finish(one, outputs)
        elif one.dead and not one.node.is_transfer:
            one.executor.finish(one, None)
        elif one.node.op in _RECEIVES:
            self.waiting[one.key] = one
            self.wanted |= dict.fromkeys(one.tensor_keys, one)
            self._complete_if_possible(one)
        elif one.node.is_transfer:
            (key,) = one.tensor_keys
            assert key not in self.sent, f"{key} was sent twice"
            inputs = one.iteration.inputs[one.node.name]
            self.sent[key] = DEAD if one.dead else inputs[0]
            one.executor.finish(one, [])
            if key in self.wanted:
                self._complete_if_possible(self.wanted[key])
        else:
            inputs = one.iteration.inputs[one.node.name]
            one.executor.finish(one, self._compute(one.node, inputs))

    def _complete_if_possible(self, one: _Ready) -> None:
        keys = [(name, *one.key[1:]) for name in self.partners.get(one.node.name, [one.node.name])]
        group = [self.waiting[key] for key in keys if key in self.waiting]
        if len(group) == len(keys) and all(k in self.sent for r in group for k in r.tensor_keys):
            for receive in group:
                self.may_run(receive)

    def _compute(self, node: _Node, inputs: dict[int, Any]) -> list[Any]:
        if node.op == "Merge":
            return [next(iter(inputs.values()))]
        data = [inputs[slot] for slot in range(len(node.inputs))]
        if node.op == "Switch":
            return [DEAD, data[0]] if data[1] else [data[0], DEAD]
        if node.op == "Placeholder":
            return [self.sources.get(node.name, 0.5)]
        if node.op == "AddN":
            return [zlib.crc32(repr((node.name, data)).encode()) / 2**32]
        simple = {
            "AddV2": lambda a, b: a + b,
            "Less": lambda a, b: a < b,
            "LogicalAnd": lambda a, b: a and b,
            "Const": lambda: 0.0,
        }
        if node.op in simple:
            return [simple[node.op](*data)]
        forwarding = ("Enter", "Exit", "Identity", "LoopCond", "NextIteration")
        assert node.op in forwarding, f"what does {node.op} compute?"
        return data


def _fused_outputs(node: _Node, taken: list[Any]) -> list[Any]:
    may_be_dead = list(node.attr["may_be_dead"].list.b) or [False] * len(taken)
    for name, value, may in zip(node.tensor_names, taken, may_be_dead, strict=True):
        assert may or value is not DEAD, f"{node.name} was told that {name} is never dead"
    alive = [value is not DEAD for value, may in zip(taken, may_be_dead, strict=True) if may]
    return ["empty" if value is DEAD else value for value in taken] + alive


class _Executor:
    """One partition."""

    def __init__(self, graph: Any, step: _Step):
        self.step = step
        self.nodes = {n.name: _Node(n) for n in graph.node}
        for node in self.nodes.values():
            for slot, (name, output) in enumerate(node.inputs):
                self.nodes[name].outputs.append((node, output, slot))
            for name in node.controls:
                self.nodes[name].control_outputs.append(node)
        self.root = _Frame(None, None, "", 1)
        self.frames: dict[tuple, _Frame] = {}

    def start(self) -> None:
        iteration = self.root.iterations[0]
        for node in self.nodes.values():
            if not node.inputs and not node.controls:
                self._make_ready(node, self.root, iteration, False)

    def _make_ready(self, node: _Node, frame: _Frame, iteration: _Iteration, dead: bool) -> None:
        iteration.ops += 1
        self.step.may_run(_Ready(self, node, frame, iteration, dead))

    def finish(self, one: _Ready, outputs: list[Any] | None) -> None:
        """Hands the outputs of a node on; None if it is dead."""
        key = one.key
        assert key not in self.step.result.values, f"{key} ran twice"
        self.step.result.values[key] = DEAD if outputs is None else outputs
        # A receive may have a value although one of its inputs was dead.
        outputs = None if one.dead else outputs
        if one.node.op == "Enter":
            self._enter(one, outputs)
        elif one.node.op == "Exit":
            self._exit(one, outputs)
        elif one.node.op == "NextIteration":
            self._next_iteration(one, outputs)
        else:
            self._activate(one.node, outputs, one.frame, one.iteration)
        one.iteration.ops -= 1
        self._clean_up(one.frame, one.iteration)

    def _enter(self, one: _Ready, outputs: list[Any] | None) -> None:
        frame = self._child(one)
        if one.node.attr["is_constant"].b:
            frame.invariants.append((one.node, outputs))
            for iteration in list(frame.iterations.values()):
                self._activate(one.node, outputs, frame, iteration)
        else:
            self._activate(one.node, outputs, frame, frame.iterations[0])
        frame.pending_inputs -= 1

    def _child(self, one: _Ready) -> _Frame:
        name = one.node.frame_name
        key = (*one.frame.id, (one.iteration.number, name))
        if key not in self.frames:
            parallel = one.node.attr["parallel_iterations"].i
            frame = self.frames[key] = _Frame(one.frame, one.iteration, name, parallel)
            frame.pending_inputs = sum(
                n.op == "Enter" and n.frame_name == name for n in self.nodes.values()
            )
            one.iteration.frames += 1
        return self.frames[key]

    def _exit(self, one: _Ready, outputs: list[Any] | None) -> None:
        if outputs is not None:
            self._activate(one.node, outputs, one.frame.parent, one.frame.of)
        elif one.iteration.number == one.frame.last:
            one.frame.dead_exits.append(one.node)

    def _next_iteration(self, one: _Ready, outputs: list[Any] | None) -> None:
        if outputs is None:
            return
        frame, number = one.frame, one.iteration.number + 1
        if number > frame.last:
            if len(frame.iterations) == frame.parallel:
                self.step.result.deferred += 1
                frame.deferred.append((one.node, outputs))
                return
            self._increment(frame)
        self._activate(one.node, outputs, frame, frame.iterations[number])

    def _increment(self, frame: _Frame) -> None:
        frame.last += 1
        iteration = frame.iterations[frame.last] = _Iteration(frame.last)
        result = self.step.result
        result.most_parallel = max(result.most_parallel, len(frame.iterations))
        frame.dead_exits.clear()
        for node, outputs in frame.deferred:
            self._activate(node, outputs, frame, iteration)
        frame.deferred.clear()
        for node, outputs in frame.invariants:
            self._activate(node, outputs, frame, iteration)

    def _clean_up(self, frame: _Frame, iteration: _Iteration) -> None:
        number = iteration.number
        while number in frame.iterations and self._is_done(frame, frame.iterations[number]):
            del frame.iterations[number]
            if frame.deferred:
                self._increment(frame)
            number += 1
        if frame.parent is None or frame.pending_inputs or frame.iterations:
            return
        for node in frame.dead_exits:
            self._activate(node, None, frame.parent, frame.of)
        del self.frames[frame.id]
        frame.of.frames -= 1
        self._clean_up(frame.parent, frame.of)

    @staticmethod
    def _is_done(frame: _Frame, iteration: _Iteration) -> bool:
        if iteration.ops or iteration.frames:
            return False
        if iteration.number == 0:
            return frame.pending_inputs == 0
        return iteration.number - 1 not in frame.iterations

    def _activate(
        self, source: _Node, outputs: list[Any] | None, frame: _Frame, iteration: _Iteration
    ) -> None:
        for node, output, slot in source.outputs:
            value = DEAD if outputs is None else outputs[output]
            if value is not DEAD:
                iteration.inputs[node.name][slot] = value
            if node.op == "Merge":
                self._data_of_merge(node, value, source.op == "Enter", frame, iteration)
            else:
                self._arrived(node, value is DEAD, frame, iteration)
        for node in source.control_outputs:
            if node.op == "Merge":
                self._control_of_merge(node, frame, iteration)
            else:
                self._arrived(node, outputs is None, frame, iteration)

    def _arrived(self, node: _Node, dead: bool, frame: _Frame, iteration: _Iteration) -> None:
        total = len(node.inputs) + len(node.controls)
        pending = iteration.pending[node.name] = iteration.pending.get(node.name, total) - 1
        iteration.dead[node.name] += dead
        if pending == 0:
            self._make_ready(node, frame, iteration, iteration.dead[node.name] > 0)

    def _data_of_merge(
        self, node: _Node, value: Any, entered: bool, frame: _Frame, iteration: _Iteration
    ) -> None:
        """A Merge waits for its control inputs, and for a live input or for all of them."""
        waits = iteration.pending.setdefault(node.name, len(node.controls))
        live = len(iteration.inputs[node.name])
        if value is not DEAD:
            if live == 1 and waits == 0:
                self._make_ready(node, frame, iteration, False)
            return
        iteration.dead[node.name] += 1
        # A dead Enter is enough: nothing will come round.
        if live == 0 and waits == 0 and (entered or self._all_dead(node, iteration)):
            self._make_ready(node, frame, iteration, True)

    def _control_of_merge(self, node: _Node, frame: _Frame, iteration: _Iteration) -> None:
        waits = iteration.pending.get(node.name, len(node.controls)) - 1
        iteration.pending[node.name] = waits
        live = len(iteration.inputs[node.name])
        if waits == 0 and (live or self._all_dead(node, iteration)):
            self._make_ready(node, frame, iteration, live == 0)

    @staticmethod
    def _all_dead(node: _Node, iteration: _Iteration) -> bool:
        return iteration.dead[node.name] == len(node.inputs)
