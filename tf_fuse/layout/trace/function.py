# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trace a `tf.function`, and record its operations in the program's order.

    traced = trace(step, [tf.TensorSpec([64, 256]), tf.TensorSpec([64], tf.int32)])
    traced.operations, traced.variables, traced.unknown

Calls of other functions are inlined. A variable is one source, and a value written to it is a
tensor that later readers in the program read. The trace leaves out operations that no result or
write depends on, and constants that became attributes. `effects.py` keeps operations with other
effects, such as a check or a print.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from tf_fuse._tensorflow.graphs.functions import function_of
from tf_fuse.layout.operators import without_rule
from tf_fuse.layout.trace.attributes import describe, reduced, spare_outputs
from tf_fuse.layout.trace.constants import folded
from tf_fuse.layout.trace.effects import UNUSED, Argument, Captured, Effects, Holder, written_inputs
from tf_fuse.layout.trace.records import (
    Made,
    Origin,
    Record,
    Sources,
    can_be_planned,
    check_shapes,
    checked,
    concrete_function,
    dims_of,
    for_a_plan,
    in_order,
    is_whole,
    made_of,
    needed_of,
)
from tf_fuse.layout.trace.variable_name import variable_name
from tf_fuse.layout.types.operation import Operation, Tensor

_CALLS: Final = ("PartitionedCall", "StatefulPartitionedCall")
_LOOPS: Final = ("StatelessWhile", "While")


@dataclasses.dataclass(frozen=True)
class TracedFunction:
    """The operations of a function.

    Attributes:
      name: of the function.
      operations: in the order of the program. Those that are fed, variables and constants are
        operations, too, of the kinds "Placeholder", "Variable" and "Const".
      inputs: names of tensors that are fed, in the order of the arguments.
      variables: names of variables, in the order of their first use.
      writes: (variable, tensor that it is in the end), for those that are written.
      results: names of tensors that the function returns.
      effects: operations that run beside the plan, as checks, prints and summaries.
      observed: names of tensors that these read.
      left_out: operations with an effect that cannot run in a plan.
      sources: what it was made of.
    """

    name: str
    operations: tuple[Operation, ...]
    inputs: tuple[str, ...]
    variables: tuple[str, ...]
    writes: tuple[tuple[str, str], ...]
    results: tuple[str, ...]
    effects: tuple[str, ...]
    observed: tuple[str, ...]
    left_out: tuple[str, ...]
    sources: Sources = dataclasses.field(repr=False, compare=False)

    @property
    def unknown(self) -> dict[str, tuple[str, ...]]:
        """Operations without a rule, which are not split: names by kinds, both sorted."""
        return without_rule(self.operations)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by name."""
        return {one.name: one for operation in self.operations for one in operation.outputs}


def trace(
    function: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> TracedFunction:
    """Trace a function.

    Args:
      function: a `tf.function`, its concrete function, or what can be made one: any callable, as a
        Keras model.
      args: for the function: tensors, or `tf.TensorSpec`s, of whole shapes. None are needed where
        it has an input_signature, and none are used of a concrete function.
      kwargs: likewise.

    Returns:
      Its operations.

    Raises:
      LayoutError: a shape is not known, or a tensor has no elements or no known type. All that are
        found are named.
    """
    with for_a_plan():
        concrete = concrete_function(function, args, kwargs)
    graph = concrete.graph
    tracer = _Tracer({id(one.handle): one for one in graph.variables})
    captured = {id(inner): outer for outer, inner in graph.captures}
    values = {one.name: tracer.source(one, captured.get(id(one))) for one in graph.inputs}
    tracer.graph(graph, "", values)
    results = [values[one.name] for one in graph.outputs]
    return tracer.traced(concrete, [one if isinstance(one, str) else None for one in results])


class _Handle(NamedTuple):
    """A variable's handle: its name."""

    variable: str


# A graph's tensor is recorded as a tensor's name, a variable, another resource, or
# nothing of use.
_Value = str | _Handle | Captured | None


class _Tracer:
    """Record what graphs do, in the order of the program."""

    def __init__(self, variables: Mapping[int, Any]):
        self._variables = variables
        self._names: set[str] = set()
        self._records: list[Record] = []
        self._tensors: dict[str, Made] = {}
        self._constants: dict[str, np.ndarray] = {}
        # What a variable holds now.
        self._current: dict[str, str] = {}
        self._handles: dict[int, _Handle] = {}
        # Names in use: of variables, and of constants and operations.
        self._held: dict[str, Any] = {}
        self._captured: dict[str, Any] = {}
        self._origins: dict[str, Origin] = {}
        self._inputs: list[str] = []
        self._effects = Effects()

    def source(self, tensor: Any, captured: Any) -> _Value:
        """Return an input of the function itself: fed, a variable, or a tensor that it captured."""
        if tensor.dtype == tf.resource:
            handle = self._handle(tensor, captured)
            return Captured(captured) if handle is None and captured is not None else handle
        kind = "Placeholder" if captured is None else "Const"
        name = self._record(tensor.op.name, kind, [], [made_of(tensor)], {})[0]
        if captured is None:
            self._inputs.append(name)
        else:
            self._captured[name] = captured
            self._effects.value(name, captured)
        return name

    def graph(self, graph: Any, prefix: str, values: dict[str, _Value]) -> None:
        """Record all operations of a graph whose inputs have values."""
        for operation in in_order(graph):
            if all(one.name in values for one in operation.outputs) and operation.outputs:
                continue
            inputs = [values[one.name] for one in operation.inputs]
            if operation.type in _CALLS:
                outputs = self._call(graph, operation, prefix, inputs)
            else:
                outputs = self._operation(operation, prefix, inputs)
            for tensor, value in zip(operation.outputs, outputs, strict=True):
                values[tensor.name] = value

    def traced(self, concrete: Any, returned: Sequence[str | None]) -> TracedFunction:
        """Return what was recorded, without what is not needed."""
        results = [one for one in returned if one is not None]
        writes = [
            (variable, tensor) for variable, tensor in self._current.items() if variable != tensor
        ]
        needed = {*results, *(tensor for _, tensor in writes), *(one for one, _ in writes)}
        kept = needed_of(self._records, needed)
        # The second time without those that others read, which are in the plan then.
        for _ in range(2):
            beside = self._effects.beside(
                {one.name for one in kept}, lambda name: can_be_planned(self._tensors[name])
            )
            kept = needed_of(self._records, {*needed, *beside.observed})
        needed.update(beside.observed)
        needed.update(name for one in kept for name in one.inputs)
        check_shapes(kept, self._tensors)
        tensors = checked(kept, self._tensors)
        sources = Sources(
            concrete,
            self._origins,
            {**self._constants, **self._captured},
            tuple(self._inputs),
            tuple(returned),
            self._held,
            beside.runs,
        )
        return TracedFunction(
            concrete.graph.name,
            tuple(
                Operation(
                    one.name,
                    one.kind,
                    [tensors[name] for name in one.inputs],
                    [tensors[name] for name in one.outputs],
                    one.attributes,
                )
                for one in kept
            ),
            tuple(one for one in self._inputs if one in needed),
            tuple(one for one in self._current if one in needed),
            tuple(writes),
            tuple(dict.fromkeys(results)),
            beside.names,
            beside.observed,
            beside.left_out,
            sources,
        )

    def _call(
        self, graph: Any, operation: Any, prefix: str, inputs: Sequence[_Value]
    ) -> list[_Value]:
        """Return a call of a function: what that does, in its place."""
        inner = function_of(graph, operation.get_attr("f").name).graph
        values: dict[str, _Value] = {
            one.name: value for one, value in zip(inner.inputs, inputs, strict=True)
        }
        self.graph(inner, f"{prefix}{operation.name}/", values)
        return [values[one.name] for one in inner.outputs]

    def _operation(self, operation: Any, prefix: str, inputs: Sequence[_Value]) -> list[_Value]:
        if operation.type == "NoOp":
            return []
        name = prefix + operation.name
        if operation.type in _LOOPS:
            return self._loop(operation, name, inputs)
        if operation.outputs and operation.outputs[0].dtype == tf.resource:
            if operation.type == "Identity":
                return list(inputs)
            return [self._handle(one, None) for one in operation.outputs]
        if operation.type == "IdentityN":
            return [
                value
                if not isinstance(value, str)
                else self._record(f"{name}:{i}", "Identity", [value], [self._tensors[value]], {})[0]
                for i, value in enumerate(inputs)
            ]
        outputs = [made_of(one) for one in operation.outputs]
        for i in spare_outputs(operation):
            outputs[i] = Made([], outputs[i].dtype)
        handles = list(dict.fromkeys(one for one in inputs if isinstance(one, _Handle)))
        constants = [self._constants.get(one) if isinstance(one, str) else None for one in inputs]
        found = [] if handles else folded(operation, constants)
        if found:
            return [
                self._constant(f"{name}:{i}" if i else name, one) for i, one in enumerate(found)
            ]
        return self._with_inputs(operation, name, inputs, outputs, handles)

    def _loop(self, operation: Any, name: str, inputs: Sequence[_Value]) -> list[_Value]:
        """Map a loop's outputs; a variable's handle comes out as it went in."""
        both = list(zip(operation.outputs, inputs, strict=True))
        handles = list(dict.fromkeys(one for one in inputs if isinstance(one, _Handle)))
        made = [made_of(one) for one, value in both if isinstance(value, str)]
        found = iter(self._with_inputs(operation, name, inputs, made, handles))
        return [next(found) if isinstance(value, str) else value for _, value in both]

    def _constant(self, name: str, value: np.ndarray) -> str:
        made = Made(list(value.shape), tf.as_dtype(value.dtype).name)
        (found,) = self._record(name, "Const", [], [made], {})
        self._constants[found] = value
        self._effects.value(found, value)
        return found

    def _with_inputs(
        self,
        operation: Any,
        name: str,
        inputs: Sequence[_Value],
        outputs: Sequence[Made],
        handles: Sequence[_Handle],
    ) -> list[_Value]:
        tensors = [self._read(operation, one) for one in inputs]
        first = next((self._tensors[one].shape for one in tensors if one), None)
        described = describe(
            operation,
            lambda i: self._constants.get(tensors[i] or ""),
            [first, outputs[0].shape if outputs else None],
        )
        kind, numbers, attributes = described
        read = [one for i in numbers if (one := tensors[i]) is not None]
        if outputs and not is_whole(outputs[0].shape) and is_whole(first):
            shape = reduced(first, described)
            outputs = outputs if shape is None else [outputs[0]._replace(shape=shape)]
        changed = [inputs[number] for number in written_inputs(operation)] if handles else []
        written = [one for one in handles if any(one is each for each in changed)]
        arguments = tuple(map(self._argument, inputs))
        if not outputs and not written:
            self._effects.operation(self._free(name), operation, arguments, ())
            return []
        values = [f"{one.variable} by {name}" for one in written]
        made = [*outputs, *(self._of_variable(one) for one in written)]
        if kind == "Select":
            same = len({str(self._tensors[one].shape) for one in read}) == 1
            kind = "SelectV2" if same else kind
        names = self._record(name, kind, read, made, attributes, values)
        self._origins[self._records[-1].name] = Origin(
            operation,
            tuple(i for i in numbers if tensors[i] is not None),
            {
                i: self._constants[one]
                for i, one in enumerate(tensors)
                if i not in numbers and one in self._constants
            },
            {i: one.variable for i, one in enumerate(inputs) if isinstance(one, _Handle)},
            tuple(one.variable for one in written),
        )
        for handle, value in zip(written, names[len(outputs) :], strict=True):
            self._current[handle.variable] = value
        own = names[: len(outputs)]
        self._effects.operation(self._records[-1].name, operation, arguments, own)
        return list(own)

    def _argument(self, value: _Value) -> Argument:
        if isinstance(value, _Handle):
            return Holder(value.variable, self._current[value.variable])
        return value

    def _read(self, operation: Any, value: _Value) -> str | None:
        if not isinstance(value, _Handle):
            return value if isinstance(value, str) else None
        # An assignment does not depend on what was there.
        unused = operation.type in UNUSED or operation.type == "AssignVariableOp"
        return None if unused else self._current[value.variable]

    def _of_variable(self, handle: _Handle) -> Made:
        return self._tensors[handle.variable]._replace(parameter=False)

    def _handle(self, tensor: Any, captured: Any) -> _Value:
        """Return the variable of a handle; None if it is of something else."""
        if captured is not None and id(captured) in self._handles:
            return self._handles[id(captured)]
        variable = None if captured is None else self._variables.get(id(captured))
        if variable is not None:
            wanted, shape, dtype = variable_name(variable), variable.shape, variable.dtype
        else:
            data = handle_data_util.get_resource_handle_data(tensor)
            if data is None or not data.is_set or len(data.shape_and_type) != 1:
                return None
            wanted = tensor.op.name
            shape = tf.TensorShape(data.shape_and_type[0].shape)
            dtype = tf.as_dtype(data.shape_and_type[0].dtype)
        frozen = variable is not None and not getattr(variable, "trainable", True)
        made = Made(dims_of(shape), dtype.name, True, frozen)
        handle = _Handle(self._record(wanted, "Variable", [], [made], {})[0])
        self._current[handle.variable] = handle.variable
        if variable is not None:
            self._held[handle.variable] = variable
        if captured is not None:
            self._handles[id(captured)] = handle
        return handle

    def _record(
        self,
        name: str,
        kind: str,
        inputs: Iterable[str],
        outputs: Sequence[Made],
        attributes: Mapping[str, Any],
        named: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Record an operation; return the names of its outputs; the last ones are given."""
        name = self._free(name)
        own = len(outputs) - len(named)
        names = [name if i == 0 else f"{name}:{i}" for i in range(own)]
        names += [self._free(one) for one in named]
        self._records.append(Record(name, kind, tuple(inputs), tuple(names), dict(attributes)))
        self._tensors.update(zip(names, outputs, strict=True))
        return tuple(names)

    def _free(self, name: str) -> str:
        """Return the name, followed by a number if it is taken."""
        number, wanted = 0, name
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name
