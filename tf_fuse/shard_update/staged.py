# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes one operation of an update that changes rows of variables, and whole ones.

A gradient of some rows of a table is scattered to a slot between two elementwise parts, as an
optimizer of tf_keras does it:

    m += (beta - 1) * m  ··►  m[rows] += (1 - beta) * g  ··►  w -= rate * m / (sqrt(v) + epsilon)

So the operation, TfFuse>StagedUpdate, has stages: the whole variables', each of which is a program
as of `program.py`, and the rows'. All of them are under one lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.cones import Cone, Finder, IsHere
from tf_fuse.shard_update.graph_view import ASSIGNS, READS, GraphView, control_inputs, data_inputs
from tf_fuse.shard_update.origins import Site
from tf_fuse.shard_update.outline import Maker, Operation, results_of
from tf_fuse.shard_update.rows import (
    SCATTERS,
    PartialShape,
    RowFinder,
    Rows,
    source_of,
    variable_of,
)

OP = "TfFuse>StagedUpdate"


@dataclass
class _Group:
    """An update: variables that have to change together.

    Attributes:
      variables: by name.
      cones: what is done to whole ones.
      scatters: names of nodes that change rows, in an order in which they can run.
      rows: what their values are made of; none of those that are made outside.
    """

    variables: set[str]
    cones: list[Cone] = field(default_factory=list)
    scatters: list[str] = field(default_factory=list)
    rows: dict[str, Rows] = field(default_factory=dict)

    def nodes(self) -> set[str]:
        found = {name for cone in self.cones for name in cone.nodes} | set(self.scatters)
        return found.union(*(rows.nodes for rows in self.rows.values()))


class Stager:
    """Makes the operations of one function."""

    def __init__(
        self,
        view: GraphView,
        finder: Finder,
        partial: PartialShape,
        is_here: IsHere,
        maker: Maker,
        site: Site,
    ):
        """Takes the function, and what `outline.outline` has found of it."""
        self._view, self._shapes = view, finder.shapes
        self._maker, self._site = maker, site
        self._order = list(view.in_order())
        self._is_here = is_here
        assigns = {n.name for n in self._order if n.op in ASSIGNS}
        self._updated = {variable_of(view, view.nodes[name]) for name in assigns}
        scatters = [node for node in self._order if node.op in SCATTERS]
        self._updated |= {variable_of(view, node) for node in scatters}
        self._rows = RowFinder(view, self._shapes, partial, finder.is_compiled, self._updated)
        #: Names of scatters that are left as they are.
        self.left: list[str] = [node.name for node in scatters]

    def take(self, cones: Sequence[Cone]) -> tuple[list[tuple[Cone, Operation]], list[Cone]]:
        """Makes operations of all updates that change rows.

        Args:
          cones: all of the function.

        Returns:
          The operations, each with all nodes that it stands for; and the cones of other updates.
        """
        made, others = [], list(cones)
        for group in self._groups(cones):
            operation = self._make(group)
            if operation is None:
                continue
            others = [cone for cone in others if cone not in group.cones]
            nodes = group.nodes()
            order = [node.name for node in self._order if node.name in nodes]
            device = self._view.nodes[group.scatters[0]].device
            made.append((Cone(order, sorted(group.variables), 0, device), operation))
            self.left = [name for name in self.left if name not in nodes]
        return made, others

    def _groups(self, cones: Sequence[Cone]) -> list[_Group]:
        view, one_with = self._view, {name: name for name in self._updated}

        def find(name: str) -> str:
            while one_with[name] != name:
                name = one_with[name]
            return name

        scatters, rows = [], {}
        for node in self._order:
            if not self._rows.can_scatter(node):
                continue
            if not self._is_here(node.device, variable_of(view, node)):
                continue
            scatters.append(node)
            if (found := self._rows.rows(node)) is not None:
                rows[node.name] = found
                for variable in found.gathers.values():
                    one_with[find(variable)] = find(variable_of(view, node))
        for cone in cones:
            for variable in cone.variables[1:]:
                one_with[find(variable)] = find(cone.variables[0])
        groups: dict[str, _Group] = {}
        for node in scatters:
            key = find(variable_of(view, node))
            group = groups.setdefault(key, _Group({v for v in one_with if find(v) == key}))
            group.scatters.append(node.name)
            if node.name in rows:
                group.rows[node.name] = rows[node.name]
        for cone in cones:
            if cone.variables and find(cone.variables[0]) in groups:
                groups[find(cone.variables[0])].cones.append(cone)
        return [group for _, group in sorted(groups.items())]

    def _make(self, group: _Group) -> Operation | None:
        nodes = group.nodes()
        devices = {self._view.nodes[name].device for name in group.scatters}
        devices |= {cone.device for cone in group.cones}
        missing = [
            node
            for node in self._order
            if node.op in ASSIGNS | SCATTERS
            and variable_of(self._view, node) in group.variables
            and node.name not in nodes
        ]
        if len(devices) != 1 or missing:
            return None
        levels = self._levels(group)
        writer = _Writer(self._view, self._shapes, min(devices))
        for level in sorted(set(levels.values())):
            for cone in group.cones:
                part = [name for name in cone.nodes if levels[name] == level]
                if part and not self._write_whole(writer, cone, part):
                    return None
            by_rows: dict[str, list[str]] = defaultdict(list)
            for name in group.scatters:
                if levels[name] == level:
                    by_rows[source_of(self._view, self._indices(name))].append(name)
            if not _is_apart(group, by_rows, self._view):
                return None
            for _, names in sorted(by_rows.items()):
                writer.add_rows(names, group.rows)
        return writer.operation()

    def _indices(self, scatter: str) -> str:
        return data_inputs(self._view.nodes[scatter])[1]

    def _write_whole(self, writer: _Writer, cone: Cone, part: list[str]) -> bool:
        view = self._view
        variables = {variable_of(view, view.nodes[n]) for n in part if self._has_variable(n)}
        small = Cone(part, sorted(variables), cone.size, cone.device)
        if results_of(view, small) or not variables:
            return False  # (What is in between two stages is not kept.)
        made = self._maker.make(view, small, self._shapes, self._site)
        if not isinstance(made, Operation):
            return False
        writer.add_whole(made)
        return True

    def _has_variable(self, name: str) -> bool:
        return self._view.nodes[name].op in READS | ASSIGNS

    def _levels(self, group: _Group) -> dict[str, int]:
        """When each node runs: whole variables and rows take turns."""
        view, nodes = self._view, group.nodes()
        kinds = {name: "whole" for cone in group.cones for name in cone.nodes}
        kinds |= {name: "gather" for rows in group.rows.values() for name in rows.nodes}
        kinds |= dict.fromkeys(group.scatters, "scatter")
        levels: dict[str, int] = {}
        for node in self._order:
            if node.name not in nodes:
                continue
            read = [tensor.partition(":")[0] for tensor in data_inputs(node)]
            before = [name for name in [*read, *control_inputs(node)] if name in nodes]
            levels[node.name] = max(
                (levels[name] + (kinds[name] != kinds[node.name]) for name in before), default=0
            )
        # What changes nothing runs when it is needed, so that no value waits for another stage.
        for node in reversed(self._order):
            if kinds.get(node.name) == "whole" and node.op not in ASSIGNS:
                after = {use.node for t in view.outputs(node) for use in view.uses(t)}
                after |= set(view.followers(node.name))
                later = [levels[n] - (kinds[n] != "whole") for n in after if n in levels]
                levels[node.name] = max(levels[node.name], min(later, default=0))
        return levels


def _is_apart(group: _Group, by_rows: Mapping[str, list[str]], view: GraphView) -> bool:
    """Whether scatters to different rows, at one time, read nothing that others of them change."""
    if len(by_rows) < 2:
        return True
    for names in by_rows.values():
        others = {n for other in by_rows.values() if other is not names for n in other}
        changed = {variable_of(view, view.nodes[name]) for name in others}
        mine = {variable_of(view, view.nodes[name]) for name in names}
        for name in names:
            if name in group.rows:
                mine |= set(group.rows[name].gathers.values())
        if mine & changed:
            return False
    return True


class _Writer:
    """Writes an operation."""

    def __init__(self, view: GraphView, shapes: Mapping[str, Shape | None], device: str):
        from tf_fuse.v1 import staged_update_pb2

        self._view, self._shapes, self._device = view, shapes, device
        self._update = staged_update_pb2.StagedUpdate()
        self._variables: dict[str, int] = {}
        self._inputs: dict[str, int] = {}
        self._types: list[int] = []
        self._constants: list[Any] = []
        self._is_exact = True

    def add_whole(self, made: Operation) -> None:
        """Adds what is done to whole variables, as `ProgramMaker` has made it."""
        stage = self._update.stages.add()
        stage.program.ParseFromString(made.node.attr["program"].s)
        renamed = {}
        for constant in made.constants:
            old, new = constant.name, f"s{len(self._update.stages)}/{constant.name}"
            constant.name = new
            renamed[f"{old}:output:0"] = f"{new}:output:0"
            self._constants.append(constant)
        count = made.node.attr["N"].i
        read = [renamed.get(tensor, tensor) for tensor in made.node.input]
        stage.variables.extend(self._variable(tensor) for tensor in read[:count])
        types = made.node.attr["Tin"].list.type
        pairs = zip(read[count:], types, strict=True)
        stage.inputs.extend(self._input(tensor, dtype) for tensor, dtype in pairs)
        self._is_exact = self._is_exact and made.is_exact

    def add_rows(self, scatters: Sequence[str], rows: Mapping[str, Rows]) -> None:
        """Adds scatters to the same rows."""
        view, stage = self._view, self._update.stages.add(is_by_row=True)
        first = data_inputs(view.nodes[scatters[0]])
        stage.indices = self._input(first[1], view.dtype(first[1]))
        program = _RowProgram(self, stage, view)
        for name in scatters:
            if name in rows:
                program.add(rows[name])
        program.finish()
        for name in scatters:
            node = view.nodes[name]
            scatter = stage.scatters.add(op=node.op)
            scatter.variable = self._variable(variable_of(view, node))
            value = data_inputs(node)[2]
            if name in rows:
                scatter.value = program.result(value)
                self._is_exact = False
            else:
                scatter.value = -1 - self._input(value, view.dtype(value))

    def operation(self) -> Operation:
        from tensorflow.core.framework import node_def_pb2

        node = node_def_pb2.NodeDef(op=OP, device=self._device)
        node.input.extend([*self._variables, *self._inputs])
        node.attr["N"].i = len(self._variables)
        node.attr["Tin"].list.type.extend(self._types)
        node.attr["Tin"].list.SetInParent()
        node.attr["update"].s = self._update.SerializeToString(deterministic=True)
        return Operation(node, [], "", constants=self._constants, is_exact=self._is_exact)

    def _variable(self, tensor: str) -> int:
        return self._variables.setdefault(self._view.resource(tensor), len(self._variables))

    def _input(self, tensor: str, dtype: int) -> int:
        if tensor not in self._inputs:
            self._inputs[tensor] = len(self._inputs)
            self._types.append(dtype)
        return self._inputs[tensor]


class _RowProgram:
    """Writes the program of a stage on rows."""

    def __init__(self, writer: _Writer, stage: Any, view: GraphView):
        self._writer, self._stage, self._view = writer, stage, view
        self._gathers: dict[str, str] = {}
        self._same: dict[str, str] = {}
        self._read: list[str] = []
        self._nodes: set[str] = set()
        self._values: dict[str, int] = {}

    def add(self, rows: Rows) -> None:
        self._gathers |= rows.gathers
        self._same |= rows.same
        self._read += [tensor for tensor in rows.inputs if tensor not in self._read]
        self._nodes |= rows.nodes

    def finish(self) -> None:
        """Writes all that was added."""
        if not self._nodes:
            return
        view, stage = self._view, self._stage
        stage.program.size = 1
        for tensor, variable in sorted(self._gathers.items()):
            self._value(tensor, -1 - len(stage.gathered))
            stage.gathered.append(self._writer._variable(variable))
        for tensor in self._read:
            self._value(tensor, self._writer._input(tensor, view.dtype(tensor)))
        for node in view.in_order():
            outputs = view.outputs(node)
            if node.name not in self._nodes or outputs[0] in self._gathers:
                continue
            if outputs[0] in self._same:
                self._values[outputs[0]] = self._values[self._same[outputs[0]]]
                continue
            read = data_inputs(node)[:1] if node.op == "Reshape" else data_inputs(node)
            step = stage.program.steps.add(op=node.op, type=view.dtype(outputs[0]))
            step.inputs.extend(self._values[tensor] for tensor in read)
            self._values[outputs[0]] = len(stage.inputs) + len(stage.program.steps) - 1

    def result(self, tensor: str) -> int:
        """The number of a result."""
        self._stage.program.results.append(self._values[tensor])
        return len(self._stage.program.results) - 1

    def _value(self, tensor: str, source: int) -> None:
        self._values[tensor] = len(self._stage.inputs)
        self._stage.inputs.append(source)
        self._stage.program.input_types.append(self._view.dtype(tensor))
