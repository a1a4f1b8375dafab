# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write the proto of TfFuse>StagedUpdate, stage by stage; see `staged.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import READS, GraphView, data_inputs, value_inputs
from tf_fuse.fuse_update.analysis.fusion_clusters import FusionCluster
from tf_fuse.fuse_update.analysis.rows import (
    SUM,
    Join,
    Rows,
    indices_of,
    source_of,
    value_of,
    variable_of,
)
from tf_fuse.fuse_update.encode.encoder_interface import FusedOperation

OP = "TfFuse>StagedUpdate"
# Provisional numbers of values that stages keep, until the number of inputs is known.
_KEPT = 1 << 20


class Writer:
    """Writes an operation."""

    def __init__(
        self,
        view: GraphView,
        shapes: Mapping[str, Shape | None],
        device: str,
        make: Callable[..., FusedOperation | str],
    ):
        """Start an empty update.

        Args:
          view: of the function.
          shapes: of its tensors and variables.
          device: of the operation.
          make: encodes a cluster, given a view, the cluster and shapes.
        """
        from tf_fuse.v1 import staged_update_pb2

        self._view, self.shapes, self._device, self.make = view, shapes, device, make
        self._update = staged_update_pb2.StagedUpdate()
        self._variables: dict[str, int] = {}
        self._inputs: dict[str, int] = {}
        self._types: list[int] = []
        self._constants: list[Any] = []
        self._is_exact = True
        # The numbers of values that stages keep for later stages, by tensor.
        self._kept: dict[str, int] = {}

    def add_whole(self, made: FusedOperation) -> None:
        """Add what is done to whole variables, as `ElementwiseEncoder` has made it."""
        self._fill(self._update.stages.add(), made)
        self._is_exact = self._is_exact and made.is_exact

    def _fill(self, stage: Any, made: FusedOperation) -> None:
        """Write the program and the inputs of an operation into a stage."""
        stage.program.ParseFromString(made.node.attr["program"].s)
        renamed = {}
        for constant in made.constants:
            old = f"{constant.name}:output:0"
            self.add_constant(constant)
            renamed[old] = f"{constant.name}:output:0"
        count = made.node.attr["N"].i
        read = [renamed.get(tensor, tensor) for tensor in made.node.input]
        stage.variables.extend(self.variable(tensor) for tensor in read[:count])
        types = made.node.attr["Tin"].list.type
        pairs = zip(read[count:], types, strict=True)
        stage.inputs.extend(self.input(tensor, dtype) for tensor, dtype in pairs)

    def simplified(
        self, nodes: Sequence[str], shapes: Mapping[str, Shape | None], shape: Shape
    ) -> FusedOperation | None:
        """Return the operation for nodes as Grappler leaves them, or None if that is unknown.

        Args:
          nodes: their names, in topological order.
          shapes: of tensors.
          shape: of their results.
        """
        view = self._view
        variables = sorted({variable_of(view, view.nodes[n]) for n in nodes if _reads(view, n)})
        cluster = FusionCluster(
            tuple(nodes),
            tuple(variables),
            math.prod(max(n, -1) for n in shape),
            view.nodes[nodes[-1]].device,
        )
        made = self.make(view, cluster, shapes)
        return made if isinstance(made, FusedOperation) and made.is_exact else None

    def add_constant(self, constant: Any) -> None:
        """Add a constant under a new, unique name."""
        constant.name = f"s{len(self._constants)}/{constant.name}"
        self._constants.append(constant)

    def add_rows(self, scatters: Sequence[str], rows: Mapping[str, Rows]) -> None:
        """Add a stage with scatters to the same rows."""
        view, stage = self._view, self._update.stages.add(is_by_row=True)
        first = view.nodes[scatters[0]]
        stage.indices = self._numbers(indices_of(first))
        table = view.outputs(first)[0] if first.op == SUM else variable_of(view, first)
        program = _RowProgram(self, stage, view, (self.shapes[table] or ())[1:])
        for name in scatters:
            if name in rows:
                program.add(rows[name])
        program.finish()
        for name in scatters:
            node = view.nodes[name]
            scatter = stage.scatters.add(op=node.op)
            if node.op == SUM:
                self._keep(view.outputs(node)[0])
            else:
                scatter.variable = self.variable(variable_of(view, node))
            value = value_of(node)
            if name in rows:
                scatter.value = program.result(value)
                self._is_exact = False
            else:
                scatter.value = -1 - self.input(value, view.dtype(value))

    def add_join(self, join: Join) -> None:
        """Add a stage that joins rows, with the operations that compute its inputs."""
        view = self._view
        node = view.nodes[join.node]
        value, table = value_of(node), self.shapes[data_inputs(node)[0]] or ()
        if join.before is not None:
            before = self._update.stages.add(is_by_row=True)
            before.indices = self._numbers(indices_of(node))
            program = _RowProgram(self, before, view, table[1:])
            program.add(join.before)
            program.finish()
            before.scatters.add(op="Identity", value=program.result(value))
            self._keep(value)
        stage = self._update.stages.add()
        self._add_flags(stage, join, math.prod(table))
        stage.join.rows = table[0]
        stage.join.indices = self._numbers(indices_of(node))
        stage.join.values = self.input(value, view.dtype(value))
        for tensor in view.outputs(node):
            self._keep(tensor)
        self._is_exact = False

    def _add_flags(self, stage: Any, join: Join, size: int) -> None:
        """Add the program that computes a join's flags from whole variables."""
        view, program = self._view, stage.program
        names = [node.name for node in view.in_order() if node.name in join.flags.nodes]
        made = self.simplified(names, self.shapes, (size,))
        if made is not None:
            self._fill(stage, made)
            of = dict(zip(made.results, program.results, strict=True))
            program.results[:] = [of[data_inputs(view.nodes[join.node])[0]]]
            return
        program.size = size
        values: dict[str, int] = {}
        for tensor in join.flags.inputs:
            values[tensor] = len(values)
            program.input_types.append(view.dtype(tensor))
            stage.inputs.append(self.input(tensor, view.dtype(tensor)))
        count = len(values)
        numbers: dict[str, int] = {}
        for node in map(view.nodes.__getitem__, names):
            (output,) = view.outputs(node)
            step = program.steps.add(op=node.op, type=view.dtype(output))
            if node.op in READS:
                variable = self.variable(variable_of(view, node))
                if variable not in stage.variables:
                    stage.variables.append(variable)
                    program.variable_types.append(view.dtype(output))
                step.variable = list(stage.variables).index(variable)
            else:
                read = data_inputs(node)
                step.inputs.extend(values.get(t, numbers.get(t, -1)) for t in read)
            numbers[output] = count + len(program.steps) - 1
        program.results.append(numbers[data_inputs(view.nodes[join.node])[0]])

    def _numbers(self, tensor: str) -> int:
        """Return the number of the input with row numbers."""
        source = source_of(self._view, tensor)
        return self.input(source if source in self._kept else tensor, self._view.dtype(tensor))

    def _keep(self, tensor: str) -> None:
        self._kept[tensor] = _KEPT + len(self._kept)

    def _number_kept(self) -> None:
        """Give kept values their final numbers, after those of the inputs."""
        more = len(self._inputs) - _KEPT

        def final(number: int) -> int:
            return number + more if number >= _KEPT else number

        for stage in self._update.stages:
            stage.inputs[:] = [final(number) for number in stage.inputs]
            stage.indices = final(stage.indices)
            if stage.HasField("join"):
                stage.join.indices = final(stage.join.indices)
                stage.join.values = final(stage.join.values)

    def operation(self) -> FusedOperation:
        """Return the operation with all stages."""
        from tensorflow.core.framework import node_def_pb2

        self._number_kept()
        node = node_def_pb2.NodeDef(op=OP, device=self._device)
        node.input.extend([*self._variables, *self._inputs])
        node.attr["N"].i = len(self._variables)
        node.attr["Tin"].list.type.extend(self._types)
        node.attr["Tin"].list.SetInParent()
        node.attr["update"].s = self._update.SerializeToString(deterministic=True)
        return FusedOperation(node, [], "", constants=self._constants, is_exact=self._is_exact)

    def variable(self, tensor: str) -> int:
        """Return the number of a variable."""
        return self._variables.setdefault(self._view.resource(tensor), len(self._variables))

    def input(self, tensor: str, dtype: int) -> int:
        """Return the number of an input, or of a value that an earlier stage keeps."""
        if tensor in self._kept:
            return self._kept[tensor]
        if tensor not in self._inputs:
            self._inputs[tensor] = len(self._inputs)
            self._types.append(dtype)
        return self._inputs[tensor]


def _reads(view: GraphView, name: str) -> bool:
    return view.nodes[name].op in READS


class _RowProgram:
    """Writes the program of a stage on rows."""

    def __init__(self, writer: Writer, stage: Any, view: GraphView, row: Shape):
        self._writer, self._stage, self._view, self._row = writer, stage, view, row
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
        """Write everything that was added into the stage."""
        if not self._nodes:
            return
        view, stage = self._view, self._stage
        stage.program.size = 1
        nodes = [node for node in view.in_order() if node.name in self._nodes]
        nodes = [node for node in nodes if view.outputs(node)[0] not in self._gathers]
        whole = self._of_whole()
        of_rows = [n for n in nodes if n.name not in whole and view.outputs(n)[0] not in self._same]
        made = self._simplified([node.name for node in of_rows])
        made_whole = self._simplified_whole(whole)
        for tensor, variable in sorted(self._gathers.items()):
            self._value(tensor, -1 - len(stage.gathered))
            stage.gathered.append(self._writer.variable(variable))
        for tensor in self._read:
            self._value(tensor, self._writer.input(tensor, view.dtype(tensor)))
        self._add_constants(made)
        self._add_constants(made_whole)
        if made_whole is not None:
            self._add_simplified(made_whole)
        else:
            for node in nodes:
                if node.name in whole:
                    self._add_step(node)
        for tensor, one in self._same.items():
            self._values[tensor] = self._values[one]
        if made is not None:
            self._add_simplified(made)
        else:
            for node in of_rows:
                self._add_step(node)

    def _add_constants(self, made: FusedOperation | None) -> None:
        """Add the constants of an operation to what is read."""
        for constant in made.constants if made is not None else ():
            old, dtype = f"{constant.name}:output:0", constant.attr["dtype"].type
            self._writer.add_constant(constant)
            new = f"{constant.name}:output:0"
            self._value(new, self._writer.input(new, dtype), dtype)
            assert made is not None
            made.node.input[:] = [new if one == old else one for one in made.node.input]

    def _of_whole(self) -> set[str]:
        """Return the nodes before a gather from an expression of a whole variable."""
        view, found = self._view, set[str]()
        waiting = list(self._same.values())
        while waiting:
            node = view.producer(waiting.pop())
            if node is not None and node.name in self._nodes and node.name not in found:
                found.add(node.name)
                waiting += data_inputs(node)
        return found

    def _simplified(self, nodes: list[str]) -> FusedOperation | None:
        """Return the operation for nodes as Grappler leaves them with an unknown number of rows."""
        view, shapes = self._view, dict(self._writer.shapes)
        row = (-2, *self._row)
        for name in nodes:
            for tensor in [*data_inputs(view.nodes[name]), *view.outputs(view.nodes[name])]:
                known = shapes.get(tensor)
                if known is None or math.prod(known) != 1:
                    shapes[tensor] = row
        return self._writer.simplified(nodes, shapes, row)

    def _simplified_whole(self, nodes: set[str]) -> FusedOperation | None:
        """Return the operation for the nodes before a gather and the reads that they use."""
        view = self._view
        if not nodes:
            return None
        named = {name.partition(":")[0] for name in self._gathers}
        inside = nodes | {name for name in named if view.nodes[name].op in READS}
        order = [node.name for node in view.in_order() if node.name in inside]
        shape = self._writer.shapes[next(iter(self._same.values()))] or ()
        return self._writer.simplified(order, self._writer.shapes, shape)

    def _add_simplified(self, made: FusedOperation) -> None:
        from tf_fuse.v1 import update_pb2

        program = update_pb2.UpdateProgram.FromString(made.node.attr["program"].s)
        count = made.node.attr["N"].i
        gathered = {variable: tensor for tensor, variable in self._gathers.items()}
        numbers = [self._values[tensor] for tensor in made.node.input[count:]]
        for step in program.steps:
            if step.op in READS:
                variable = self._view.resource(made.node.input[step.variable])
                numbers.append(self._values[gathered[variable]])
                continue
            copy = self._stage.program.steps.add()
            copy.CopyFrom(step)
            copy.inputs[:] = [numbers[value] for value in step.inputs]
            numbers.append(self._last())
        pairs = zip(made.results, program.results, strict=True)
        self._values |= {tensor: numbers[value] for tensor, value in pairs}

    def _add_step(self, node: Any) -> None:
        (output,) = self._view.outputs(node)
        read = value_inputs(node)
        step = self._stage.program.steps.add(op=node.op, type=self._view.dtype(output))
        step.inputs.extend(self._values[tensor] for tensor in read)
        self._values[output] = self._last()

    def _last(self) -> int:
        """Return the number of the value of the last step."""
        return len(self._stage.inputs) + len(self._stage.program.steps) - 1

    def result(self, tensor: str) -> int:
        """Return the number of a result."""
        self._stage.program.results.append(self._values[tensor])
        return len(self._stage.program.results) - 1

    def _value(self, tensor: str, source: int, dtype: int | None = None) -> None:
        self._values[tensor] = len(self._stage.inputs)
        self._stage.inputs.append(source)
        self._stage.program.input_types.append(dtype or self._view.dtype(tensor))
