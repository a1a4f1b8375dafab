# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The operations of a traced `tf.function`.

    traced = trace(step, [tf.TensorSpec([64, 256]), tf.TensorSpec([64], tf.int32)])
    traced.operations, traced.variables, traced.unknown

Calls of other functions are replaced by what they do. A variable is one source, and what is
written to it is a tensor that readers behind it in the program read. What nothing depends on that
the function returns or writes is left out, and so are constants that became attributes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from tf_fuse.layout.errors import LayoutError
from tf_fuse.layout.operation import Operation, Tensor
from tf_fuse.layout.operators import without_rule
from tf_fuse.layout.pins import variable_name
from tf_fuse.layout.trace_attributes import describe, reduced, spare_outputs
from tf_fuse.layout.trace_constants import folded
from tf_fuse.layout.trace_records import (
    Made,
    Origin,
    Record,
    Sources,
    check_shapes,
    checked,
    dims_of,
    for_a_plan,
    in_order,
    is_whole,
    made_of,
)

_CALLS: Final = ("PartitionedCall", "StatefulPartitionedCall")
# Those of operations with variables that do not write them, although they are stateful.
_READERS: Final = ("ResourceGather", "ResourceGatherNd")
_LOOPS: Final = ("StatelessWhile", "While")
_UNUSED: Final = ("DestroyResourceOp", "VarIsInitializedOp", "VariableShape")


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
      left_out: operations that make no tensors, as prints; nothing depends on them.
      sources: what it was made of.
    """

    name: str
    operations: tuple[Operation, ...]
    inputs: tuple[str, ...]
    variables: tuple[str, ...]
    writes: tuple[tuple[str, str], ...]
    results: tuple[str, ...]
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
    """Traces a function.

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


def concrete_function(
    function: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> Any:
    """The concrete function of what `trace` takes.

    Raises:
      LayoutError: it is no function, or cannot be traced with these arguments.
    """
    if hasattr(function, "graph") and hasattr(function, "captured_inputs"):
        return function
    if not callable(function):
        raise LayoutError(
            f"a function is planned, got {function!r}; give a tf.function, or a callable"
        )
    if not hasattr(function, "get_concrete_function"):
        function = tf.function(function)
    try:
        return function.get_concrete_function(*args, **(kwargs or {}))
    except (TypeError, ValueError) as error:
        raise LayoutError(
            f"{getattr(function, '__name__', function)!r} cannot be traced: {error}; give its "
            "arguments as tf.TensorSpec in args, or an input_signature to its tf.function"
        ) from error


class _Handle(NamedTuple):
    """A variable's handle: its name."""

    variable: str


# What stands for a tensor of a graph: a tensor's name, a variable, or nothing of use.
_Value = str | _Handle | None


class _Tracer:
    """Records what graphs do, in the order of the program."""

    def __init__(self, variables: Mapping[int, Any]):
        self._variables = variables
        self._names: set[str] = set()
        self._records: list[Record] = []
        self._tensors: dict[str, Made] = {}
        self._constants: dict[str, np.ndarray] = {}
        # What a variable holds now.
        self._current: dict[str, str] = {}
        self._handles: dict[int, _Handle] = {}
        # Of variables' names, and of constants' and operations'.
        self._held: dict[str, Any] = {}
        self._captured: dict[str, Any] = {}
        self._origins: dict[str, Origin] = {}
        self._inputs: list[str] = []
        self._left_out: list[str] = []

    def source(self, tensor: Any, captured: Any) -> _Value:
        """An input of the function itself: fed, a variable, or a tensor that it captured."""
        if tensor.dtype == tf.resource:
            return self._handle(tensor, captured)
        kind = "Placeholder" if captured is None else "Const"
        name = self._record(tensor.op.name, kind, [], [made_of(tensor)], {})[0]
        if captured is None:
            self._inputs.append(name)
        else:
            self._captured[name] = captured
        return name

    def graph(self, graph: Any, prefix: str, values: dict[str, _Value]) -> None:
        """Records all operations of a graph whose inputs have values."""
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
        """What was recorded, without what is not needed."""
        results = [one for one in returned if one is not None]
        writes = [
            (variable, tensor) for variable, tensor in self._current.items() if variable != tensor
        ]
        needed = {*results, *(tensor for _, tensor in writes), *(one for one, _ in writes)}
        kept = []
        for one in reversed(self._records):
            if not needed.isdisjoint(one.outputs):
                needed.update(one.inputs)
                kept.append(one)
        kept.reverse()
        check_shapes(kept, self._tensors)
        tensors = checked(kept, self._tensors)
        sources = Sources(
            concrete,
            self._origins,
            {**self._constants, **self._captured},
            tuple(self._inputs),
            tuple(returned),
            self._held,
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
            tuple(self._left_out),
            sources,
        )

    def _call(
        self, graph: Any, operation: Any, prefix: str, inputs: Sequence[_Value]
    ) -> list[_Value]:
        """A call of a function: what that does, in its place."""
        inner = graph._get_function(operation.get_attr("f").name).graph
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
        """A loop returns what it is given, changed; of variables their handles as they are."""
        both = list(zip(operation.outputs, inputs, strict=True))
        handles = list(dict.fromkeys(one for one in inputs if isinstance(one, _Handle)))
        made = [made_of(one) for one, value in both if isinstance(value, str)]
        found = iter(self._with_inputs(operation, name, inputs, made, handles))
        return [next(found) if isinstance(value, str) else value for _, value in both]

    def _constant(self, name: str, value: np.ndarray) -> str:
        made = Made(list(value.shape), tf.as_dtype(value.dtype).name)
        (found,) = self._record(name, "Const", [], [made], {})
        self._constants[found] = value
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
        written = self._written(operation, handles)
        if not outputs and not written:
            self._left_out.append(f"{operation.type} {name!r}")
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
        return list(names[: len(outputs)])

    def _read(self, operation: Any, value: _Value) -> str | None:
        if not isinstance(value, _Handle):
            return value
        # An assignment does not depend on what was there.
        unused = operation.type in _UNUSED or operation.type == "AssignVariableOp"
        return None if unused else self._current[value.variable]

    def _written(self, operation: Any, handles: Sequence[_Handle]) -> Sequence[_Handle]:
        """The variables that an operation may write."""
        if operation.type in ("ReadVariableOp", *_READERS, *_UNUSED):
            return ()
        return handles if operation.op_def is None or operation.op_def.is_stateful else ()

    def _of_variable(self, handle: _Handle) -> Made:
        return self._tensors[handle.variable]._replace(parameter=False)

    def _handle(self, tensor: Any, captured: Any) -> _Value:
        """The variable of a handle; None if it is of something else."""
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
        made = Made(dims_of(shape), dtype.name, True)
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
        """Records an operation; returns the names of its outputs, of which the last are given."""
        name = self._free(name)
        own = len(outputs) - len(named)
        names = [name if i == 0 else f"{name}:{i}" for i in range(own)]
        names += [self._free(one) for one in named]
        self._records.append(Record(name, kind, tuple(inputs), tuple(names), dict(attributes)))
        self._tensors.update(zip(names, outputs, strict=True))
        return tuple(names)

    def _free(self, name: str) -> str:
        """The name, or with a number behind it where it is taken."""
        number, wanted = 0, name
        while name in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name)
        return name
