# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Record the bodies of loops and conditionals, so that they are planned like all else.

A body is recorded if everything in it can be planned: shapes are known, and it has no effects, no
resources beside variables, and no random state but that of draws that become stateless. Otherwise
the loop or conditional is one operation, which all devices run whole.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tf_fuse.layout.operators.random_numbers import STATELESS
from tf_fuse.layout.trace.constants import origin_of, whole_number
from tf_fuse.layout.trace.effects import is_stateful
from tf_fuse.layout.trace.known_branch import (
    BRANCHES,
    KnownBranch,
    body_of,
    known_branch,
    negation_and_check,
)
from tf_fuse.layout.trace.records import Made, Origin, Record, can_be_planned
from tf_fuse.layout.trace.tracer import LOOPS, Handle, Tracer, Value
from tf_fuse.layout.types.control_flow import (
    ASSUMED_TRIPS,
    ENTER,
    EXIT,
    MERGE,
    OUTSIDE,
    PREDICATE,
    ControlFlow,
    Region,
)

_CONDITIONALS: Final = ("If", "StatelessIf")


class _NotPlannedError(Exception):
    """A body cannot be planned."""


class BodyTracer(Tracer):
    """A tracer that records bodies, too."""

    def __init__(self, variables: Mapping[int, Any], bodies: bool = True):
        """Start without records.

        Args:
          variables: by the `id` of their handles.
          bodies: whether bodies are recorded.
        """
        super().__init__(variables)
        self._bodies = bodies
        self._blocks: dict[str, str] = {}
        self._regions: list[Region] = []
        # What counters of loops are in the end.
        self._counted: dict[str, int] = {}
        self._makers: dict[str, Record] = {}
        # Lists whose elements are all one constant, which loops keep for their gradients.
        self._filled: dict[str, str] = {}
        # Of the bodies that are recorded.
        self._begins: list[str] = []

    @property
    def control_flow(self) -> ControlFlow:
        """The bodies that were recorded."""
        return ControlFlow(tuple(self._regions), self._blocks)

    def check_seen(self, names: Iterable[str]) -> None:
        """Check tensors that are seen outside of the function."""
        del names

    def record(
        self,
        name: str,
        kind: str,
        inputs: Iterable[str],
        outputs: Sequence[Made],
        attributes: Mapping[str, Any],
        named: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Record an operation, in the body that it is in."""
        # Other bodies, too, read constants.
        inside = self.block != OUTSIDE and kind != "Const"
        if inside:
            read = [self.tensors[one] for one in inputs]
            if not all(map(can_be_planned, [*read, *outputs])):
                raise _NotPlannedError
        made = super().record(name, kind, inputs, outputs, attributes, named)
        self._makers.update(dict.fromkeys(made, self.records[-1]))
        if inside:
            self._blocks[self.records[-1].name] = self.block
        return made

    def operation(self, operation: Any, prefix: str, inputs: Sequence[Value]) -> list[Value]:
        """Record an operation, or the branches of a conditional."""
        if operation.type in _CONDITIONALS:
            name = prefix + operation.name
            known = known_branch(operation) if self._is_predicate(inputs[0]) else None
            if known is not None and self.block == OUTSIDE and inputs[0] not in self.constants:
                return self._assumed(known, name, inputs)
            made = self._planned(self._conditional, operation, name, inputs)
            if made is not None:
                return made
        elif self.block != OUTSIDE and operation.type not in ("NoOp", *LOOPS):
            of_variables = any(isinstance(one, Handle) for one in inputs)
            if is_stateful(operation) and not (of_variables or operation.type in STATELESS):
                raise _NotPlannedError
        found = super().operation(operation, prefix, inputs)
        first = inputs[0] if inputs else None
        if isinstance(first, str) and first in self._filled and len(found) == 2:
            # An element is taken from the list.
            rest, _ = found
            assert isinstance(rest, str)
            self._filled[rest] = self._filled[first]
            return [rest, self._filled[first]]
        return found

    def is_of_known_length(self, value: Value) -> bool:
        """Return whether a list has as many elements as its shape says."""
        name: Any = value
        while self._makers[name].kind in ("Identity", ENTER, "TensorListSetItem"):
            if any(name == entered for one in self._regions for entered, _ in one.carried):
                return False
            name = self._makers[name].inputs[0]
        return self._makers[name].kind == "TensorListFromTensor"

    def loop(self, operation: Any, name: str, inputs: Sequence[Value]) -> list[Value]:
        """Record a loop."""
        made = self._planned(self._while, operation, name, inputs)
        return super().loop(operation, name, inputs) if made is None else made

    def _planned(
        self, record: Any, operation: Any, name: str, inputs: Sequence[Value]
    ) -> list[Value] | None:
        """Return what a loop or conditional makes; None if it cannot be planned."""
        if not self._bodies:
            return None
        if self.block != OUTSIDE:
            return record(operation, name, inputs)
        before = {key: copy.copy(value) for key, value in vars(self).items() if key != "variables"}
        before["effects"] = self.effects.copied()
        try:
            return record(operation, name, inputs)
        except _NotPlannedError:
            vars(self).update(before)
            return None

    def _while(self, operation: Any, name: str, inputs: Sequence[Value]) -> list[Value]:
        condition, body = (body_of(operation, one) for one in ("cond", "body"))
        outer, self._begins = self._begins, []
        name = self.free(name)
        same = [
            origin_of(made).name == given.name
            for given, made in zip(body.inputs, body.outputs, strict=True)
        ]
        entered = [
            value if kept and value in self.constants else self._enter(f"{name}/{i}", value)
            for i, (value, kept) in enumerate(zip(inputs, same, strict=True))
        ]
        claims = {}
        for value, start in zip(inputs, entered, strict=True):
            if isinstance(value, str) and isinstance(start, str) and value in self._filled:
                claims[start] = self._filled[start] = self._filled[value]
        before = self._enter_variables(name, inputs)
        own = {variable: self.current[variable] for variable in before}
        begins, self._begins = self._begins, outer
        blocks = f"{name}/condition", f"{name}/body"
        (decided,) = self._block(blocks[0], condition, entered)
        with_predicate = self._predicate(name, decided, blocks[0])
        made = self._block(blocks[1], body, entered)
        carried = []
        outputs: list[Value] = []
        ends: list[str] = []
        for i, (value, last) in enumerate(zip(inputs, made, strict=True)):
            if not isinstance(value, str) or same[i]:
                outputs.append(value)
                continue
            start = entered[i]
            assert isinstance(start, str)
            carried.append((start, self._alike(start, last)))
            if start in claims and claims[start] != self._filled.get(self._copied(last)):
                raise _NotPlannedError
            end = self._end(f"{name}/exit_{i}", EXIT, [start], ends)
            pushed = self._pushed(value, start, last)
            if pushed is not None:
                self._filled[end] = pushed
            outputs.append(end)
        for variable, first in before.items():
            last = self.current[variable]
            if last == own[variable]:
                self.current[variable] = first
                continue
            carried.append((own[variable], self._alike(own[variable], last)))
            end = self._end(f"{variable} after {name}", EXIT, [own[variable]], ends)
            self.current[variable] = end
        trips = self._trips(condition, body, inputs, outputs)
        self._regions.append(
            Region(
                name,
                self.block,
                blocks,
                with_predicate,
                tuple(carried),
                tuple(begins),
                tuple(ends),
                trips,
            )
        )
        return outputs

    def _conditional(self, operation: Any, name: str, inputs: Sequence[Value]) -> list[Value]:
        decides, *given = inputs
        branches = [body_of(operation, one) for one in BRANCHES]
        if isinstance(decides, str) and decides in self.constants:
            taken = branches[0 if np.any(self.constants[decides]) else 1]
            return self._inlined(taken, f"{name}/", given)
        name = self.free(name)
        predicate = self._predicate(name, decides, self.block)
        blocks = f"{name}/then", f"{name}/else"
        made, after, begins = [], [], []
        for block, graph in zip(blocks, branches, strict=True):
            outer, self._begins = self._begins, []
            entered = [self._enter(f"{block}/{i}", one) for i, one in enumerate(given)]
            before = self._enter_variables(block, given)
            begins += self._begins
            self._begins = outer
            own = {variable: self.current[variable] for variable in before}
            made.append(self._block(block, graph, entered))
            after.append({one: (own[one], self.current[one]) for one in before})
            self.current.update(before)
        ends: list[str] = []
        outputs: list[Value] = []
        for i, (first, second) in enumerate(zip(*made, strict=True)):
            if not isinstance(first, str) or not isinstance(second, str):
                if first is None or first != second:
                    raise _NotPlannedError
                outputs.append(first)
                continue
            pair = [first, self._alike(first, second)]
            outputs.append(self._end(f"{name}/merge_{i}", MERGE, pair, ends))
        for variable in after[0]:
            (one, first), (other, second) = (mine[variable] for mine in after)
            if first != one or second != other:
                self.current[variable] = self._end(
                    f"{variable} after {name}", MERGE, [first, second], ends
                )
        self._regions.append(
            Region(name, self.block, blocks, predicate, (), tuple(begins), tuple(ends))
        )
        return outputs

    def _is_predicate(self, value: Value) -> bool:
        return isinstance(value, str) and self.tensors[value] == Made([], "bool")

    def _assumed(self, branch: KnownBranch, name: str, inputs: Sequence[Value]) -> list[Value]:
        """Record one branch, and a check that the other one is not taken."""
        negation, check, text = negation_and_check(name)
        holds = inputs[0]
        assert isinstance(holds, str)
        if branch.number == 1:
            made = self.record(f"{name}/not", "LogicalNot", [holds], [self.tensors[holds]], {})
            self.origins[self.records[-1].name] = Origin(negation, (0,), {}, {}, ())
            holds = made[0]
        told = self.constant(f"{name}/text", np.array(text, object))
        self.effects.operation(self.free(f"{name}/check"), check, (holds, told), ())
        return self._inlined(branch.graph, f"{name}/", inputs[1:])

    def _block(self, block: str, graph: Any, values: Sequence[Value]) -> list[Value]:
        """Record a body, and return what it makes."""
        outer, self.block = self.block, block
        found = self._inlined(graph, f"{block}/", values)
        self.block = outer
        return found

    def _inlined(self, graph: Any, prefix: str, given: Sequence[Value]) -> list[Value]:
        values = {one.name: value for one, value in zip(graph.inputs, given, strict=True)}
        self.graph(graph, prefix, values)
        return [values[one.name] for one in graph.outputs]

    def _predicate(self, name: str, decides: Value, block: str) -> str:
        """Record what decides, which all devices have alike."""
        if not self._is_predicate(decides):
            raise _NotPlannedError
        assert isinstance(decides, str)
        outer, self.block = self.block, block
        made = self.record(f"{name}/predicate", PREDICATE, [decides], [Made([], "bool")], {})[0]
        self.block = outer
        return made

    def _enter(self, name: str, value: Value) -> Value:
        """Record that a value comes into a body."""
        if isinstance(value, Handle):
            return value
        if not isinstance(value, str) or not can_be_planned(self.tensors[value]):
            raise _NotPlannedError
        made = self.tensors[value]._replace(parameter=False, constant=False)
        found = self.record(name, ENTER, [value], [made], {})[0]
        self._begins.append(self.records[-1].name)
        return found

    def _enter_variables(self, name: str, inputs: Sequence[Value]) -> dict[str, str]:
        """Record that variables come into a body; return what they held before."""
        found = {}
        for one in inputs:
            if isinstance(one, Handle) and one.variable not in found:
                found[one.variable] = before = self.current[one.variable]
                entered = self._enter(f"{name}/{one.variable}", before)
                assert isinstance(entered, str)
                self.current[one.variable] = entered
        return found

    def _copied(self, name: Any) -> str:
        """Return the tensor that identities pass on."""
        while self._makers[name].kind == "Identity":
            (name,) = self._makers[name].inputs
        return name

    def _pushed(self, value: str, start: str, last: Any) -> str | None:
        """Return the constant that a loop adds to an empty list, if it does nothing else to it."""
        one = self._makers[self._copied(last)]
        empty = self._makers[self._copied(value)].kind == "EmptyTensorList"
        if not empty or one.kind != "TensorListPushBack" or self._copied(one.inputs[0]) != start:
            return None
        return one.inputs[1] if one.inputs[1] in self.constants else None

    def _alike(self, first: str, second: Value) -> str:
        """Return a tensor that takes another one's place."""
        alike = isinstance(second, str) and self.tensors[first][:2] == self.tensors[second][:2]
        if not alike:
            raise _NotPlannedError
        assert isinstance(second, str)
        return second

    def _end(self, name: str, kind: str, inputs: Sequence[str], ends: list[str]) -> str:
        made = self.tensors[inputs[0]]._replace(parameter=False, constant=False)
        found = self.record(name, kind, inputs, [made], {})[0]
        ends.append(self.records[-1].name)
        return found

    def _trips(
        self, condition: Any, body: Any, inputs: Sequence[Value], outputs: Sequence[Value]
    ) -> int:
        """Return how often a loop runs, by counters that its condition compares, or assumed."""
        places = {one.name: i for i, one in enumerate(condition.inputs)}
        found = []
        for one in condition.get_operations():
            if one.type != "Less":
                continue
            counter, limit = (places.get(origin_of(each).name) for each in one.inputs)
            fixed = whole_number(one.inputs[1]) if limit is None else self._known(inputs[limit])
            start = None if counter is None else self._known(inputs[counter])
            step = None if counter is None else self._step(body, counter, inputs)
            if fixed is None or start is None or not step:
                continue
            found.append(max(0, math.ceil((fixed - start) / step)))
        if not found:
            return ASSUMED_TRIPS
        for i, value in enumerate(outputs):
            start, step = self._known(inputs[i]), self._step(body, i, inputs)
            if start is not None and step and isinstance(value, str):
                self._counted[value] = start + step * min(found)
        return max(1, min(found))

    def _step(self, body: Any, counter: int, inputs: Sequence[Value]) -> int | None:
        """Return what a body adds to a counter."""
        names = [one.name for one in body.inputs]
        made = origin_of(body.outputs[counter]).op
        if made.type not in ("Add", "AddV2") or origin_of(made.inputs[0]).name != names[counter]:
            return None
        added = origin_of(made.inputs[1])
        is_given = added.name in names
        step = self._known(inputs[names.index(added.name)]) if is_given else whole_number(added)
        return step if step is not None and step > 0 else None

    def _known(self, value: Value) -> int | None:
        if not isinstance(value, str):
            return None
        constant = self.constants.get(value)
        if constant is None:
            return self._counted.get(value)
        return int(constant) if constant.ndim == 0 and constant.dtype.kind in "iu" else None
