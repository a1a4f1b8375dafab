# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Record the operations of a graph, in the order of the program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from tf_fuse._tensorflow.graphs.functions import function_of, graph_of
from tf_fuse.layout.trace.attributes import describe, spare_outputs
from tf_fuse.layout.trace.constants import folded, inferred, shapes_known
from tf_fuse.layout.trace.effects import (
    UNUSED,
    Argument,
    Captured,
    Effects,
    Holder,
    is_plain,
    written_inputs,
)
from tf_fuse.layout.trace.records import (
    Made,
    Origin,
    Record,
    dims_of,
    in_order,
    is_whole,
    list_elements,
    made_of,
)
from tf_fuse.layout.trace.variable_name import variable_name
from tf_fuse.layout.types.control_flow import OUTSIDE
from tf_fuse.layout.types.operation import LIST_OF

_CALLS: Final = ("PartitionedCall", "StatefulPartitionedCall")
LOOPS: Final = ("StatelessWhile", "While")
_OF_LISTS: Final = ("TensorListElementShape", "TensorListLength")
# The input that says how many elements a list has, which is another list by default.
_SIZED_BY: Final = {"EmptyTensorList": 1, "TensorListReserve": 1}


class Handle(NamedTuple):
    """A variable's handle: its name."""

    variable: str


# A graph's tensor is recorded as a tensor's name, a variable, another resource, or
# nothing of use.
Value = str | Handle | Captured | None


class Tracer:
    """Record what graphs do, in the order of the program."""

    def __init__(self, variables: Mapping[int, Any]):
        self.variables = variables
        self.names: set[str] = set()
        self.records: list[Record] = []
        self.tensors: dict[str, Made] = {}
        self.constants: dict[str, np.ndarray] = {}
        # What a variable holds now.
        self.current: dict[str, str] = {}
        self.handles: dict[int, Handle] = {}
        # Names in use: of variables, and of constants and operations.
        self.held: dict[str, Any] = {}
        self.captured: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}
        self.inputs: list[str] = []
        self.effects = Effects()
        # The body that is recorded.
        self.block = OUTSIDE

    def source(self, tensor: Any, captured: Any) -> Value:
        """Return an input of the function itself: fed, a variable, or a tensor that it captured."""
        if tensor.dtype == tf.resource:
            handle = self.handle(tensor, captured)
            return Captured(captured) if handle is None and captured is not None else handle
        kind = "Placeholder" if captured is None else "Const"
        name = self.record(tensor.op.name, kind, [], [made_of(tensor)], {})[0]
        if captured is None:
            self.inputs.append(name)
        else:
            self.captured[name] = captured
            self.effects.value(name, captured)
        return name

    def made(self, tensor: Any, value: Value, shape: Value = None) -> Made:
        """Return what is known of a tensor; a list has as many elements as another one.

        Args:
          tensor: a `tf.Tensor`.
          value: a list that it is made of, or what says how many elements it has.
          shape: that of its elements, where the operation is given it.
        """
        elements = list_elements(tensor)
        given = self.constants.get(shape) if isinstance(shape, str) else None
        if given is not None and given.ndim == 1 and (given >= 0).all():
            kind = tensor.op.get_attr("element_dtype")
            elements = None if kind == tf.variant else Made(given.tolist(), kind.name)
        if elements is None:
            return made_of(tensor)
        known = self.tensors.get(value) if isinstance(value, str) else None
        if (
            known is not None
            and known.dtype == LIST_OF + elements.dtype
            and not is_whole(elements.shape)
            and is_whole(known.shape)
        ):
            # What another list is made into has its elements' shape.
            elements = Made(known.shape[1:], elements.dtype)
        count: Any = self.constants.get(value) if isinstance(value, str) else None
        if known is not None and known.shape and count is None:
            count = known.shape[0]
        count = max(1, int(count)) if count is not None and np.ndim(count) == 0 else 1
        whole = None if elements.shape is None else [count, *elements.shape]
        return Made(whole, LIST_OF + elements.dtype)

    def graph(self, graph: Any, prefix: str, values: dict[str, Value]) -> None:
        """Record all operations of a graph whose inputs have values."""
        for operation in in_order(graph):
            if all(one.name in values for one in operation.outputs) and operation.outputs:
                continue
            inputs = [values[one.name] for one in operation.inputs]
            if operation.type in _CALLS:
                outputs = self.call(graph, operation, prefix, inputs)
            else:
                outputs = self.operation(operation, prefix, inputs)
            for tensor, value in zip(operation.outputs, outputs, strict=True):
                values[tensor.name] = value

    def call(self, graph: Any, operation: Any, prefix: str, inputs: Sequence[Value]) -> list[Value]:
        """Return a call of a function: what that does, in its place."""
        inner = graph_of(function_of(graph, operation.get_attr("f").name))
        values: dict[str, Value] = {
            one.name: value for one, value in zip(inner.inputs, inputs, strict=True)
        }
        self.graph(inner, f"{prefix}{operation.name}/", values)
        return [values[one.name] for one in inner.outputs]

    def operation(self, operation: Any, prefix: str, inputs: Sequence[Value]) -> list[Value]:
        """Record an operation, and return its outputs."""
        if operation.type == "NoOp":
            return []
        name = prefix + operation.name
        if operation.type in LOOPS:
            return self.loop(operation, name, inputs)
        if operation.outputs and operation.outputs[0].dtype == tf.resource:
            if operation.type == "Identity":
                return list(inputs)
            return [self.handle(one, None) for one in operation.outputs]
        if operation.type == "IdentityN":
            return [
                value
                if not isinstance(value, str)
                else self.record(f"{name}:{i}", "Identity", [value], [self.tensors[value]], {})[0]
                for i, value in enumerate(inputs)
            ]
        if operation.type in _OF_LISTS and (known := self.shape_of_list(operation, inputs)):
            return [self.constant(name, known[0])]
        sized = inputs[_SIZED_BY.get(operation.type, 0)] if inputs else None
        shape = inputs[0] if operation.type in _SIZED_BY else None
        outputs = [self.made(one, sized, shape) for one in operation.outputs]
        for i in spare_outputs(operation):
            outputs[i] = Made([], outputs[i].dtype)
        handles = list(dict.fromkeys(one for one in inputs if isinstance(one, Handle)))
        constants = [self.constants.get(one) if isinstance(one, str) else None for one in inputs]
        found = shapes_known(operation, list(map(self.shape_of, inputs)))
        if not found and not handles:
            found = folded(operation, constants)
        if found:
            return [self.constant(f"{name}:{i}" if i else name, one) for i, one in enumerate(found)]
        return self.with_inputs(operation, name, inputs, outputs, handles)

    def shape_of(self, value: Value) -> Sequence[int] | None:
        """Return the shape of a tensor, or of a variable; None if it is not known."""
        name = value.variable if isinstance(value, Handle) else value
        known = self.tensors.get(name) if isinstance(name, str) else None
        if known is None or known.dtype.startswith(LIST_OF) or not is_whole(known.shape):
            return None
        return known.shape

    def loop(self, operation: Any, name: str, inputs: Sequence[Value]) -> list[Value]:
        """Map a loop's outputs; a variable's handle comes out as it went in."""
        both = list(zip(operation.outputs, inputs, strict=True))
        handles = list(dict.fromkeys(one for one in inputs if isinstance(one, Handle)))
        made = [self.made(one, value) for one, value in both if isinstance(value, str)]
        found = iter(self.with_inputs(operation, name, inputs, made, handles))
        return [next(found) if isinstance(value, str) else value for _, value in both]

    def shape_of_list(self, operation: Any, inputs: Sequence[Value]) -> list[np.ndarray]:
        """Return the shape of a list's elements, or their number; nothing if it is not known."""
        (value,) = inputs[:1]
        known = self.tensors.get(value) if isinstance(value, str) else None
        if known is None or not known.dtype.startswith(LIST_OF) or not is_whole(known.shape):
            return []
        dtype = operation.outputs[0].dtype.as_numpy_dtype
        if operation.type == "TensorListElementShape":
            return [np.array(known.shape[1:], dtype)]
        return [np.array(known.shape[0], dtype)] if self.is_of_known_length(value) else []

    def is_of_known_length(self, value: Value) -> bool:
        """Return whether a list has as many elements as its shape says."""
        del value
        return False

    def constant(self, name: str, value: np.ndarray) -> str:
        """Record a value that is known, and return its name."""
        made = Made(list(value.shape), tf.as_dtype(value.dtype).name)
        (found,) = self.record(name, "Const", [], [made], {})
        self.constants[found] = value
        self.effects.value(found, value)
        return found

    def with_inputs(
        self,
        operation: Any,
        name: str,
        inputs: Sequence[Value],
        outputs: Sequence[Made],
        handles: Sequence[Handle],
    ) -> list[Value]:
        """Record an operation by its inputs and what is known of its outputs."""
        tensors = [self.read(operation, one) for one in inputs]
        first = next((self.tensors[one].shape for one in tensors if one), None)
        described = describe(
            operation,
            lambda i: self.constants.get(tensors[i] or ""),
            [first, outputs[0].shape if outputs else None],
        )
        kind, numbers, attributes = described
        read = [one for i in numbers if (one := tensors[i]) is not None]
        if not all(is_whole(one.shape) for one in outputs):
            outputs = self.with_shapes(operation, tensors, outputs)
        changed = [inputs[number] for number in written_inputs(operation)] if handles else []
        written = [one for one in handles if any(one is each for each in changed)]
        arguments = tuple(map(self.argument, inputs))
        if not outputs and not written:
            if self.block == OUTSIDE:
                self.effects.operation(self.free(name), operation, arguments, ())
            return []
        values = [f"{one.variable} by {name}" for one in written]
        made = [*outputs, *(self.of_variable(one) for one in written)]
        if _is_of_unknown_lists(operation, [*(self.tensors[one] for one in read), *made]):
            kind = f"{kind} of unknown elements"
        if kind == "Select":
            same = len({str(self.tensors[one].shape) for one in read}) == 1
            kind = "SelectV2" if same else kind
        names = self.record(name, kind, read, made, attributes, values)
        self.origins[self.records[-1].name] = Origin(
            operation,
            tuple(i for i in numbers if tensors[i] is not None),
            {
                i: self.constants[one]
                for i, one in enumerate(tensors)
                if i not in numbers and one in self.constants
            },
            {i: one.variable for i, one in enumerate(inputs) if isinstance(one, Handle)},
            tuple(one.variable for one in written),
        )
        for handle, value in zip(written, names[len(outputs) :], strict=True):
            self.current[handle.variable] = value
        own = names[: len(outputs)]
        if self.block == OUTSIDE:
            self.effects.operation(self.records[-1].name, operation, arguments, own)
        return list(own)

    def with_shapes(
        self, operation: Any, tensors: Sequence[str | None], outputs: Sequence[Made]
    ) -> Sequence[Made]:
        """Return what is known of outputs with shapes that TensorFlow did not know."""
        shapes = [self.shape_of(one) for one in tensors]
        whole = [one for one in shapes if one is not None]
        if len(whole) < len(shapes) or not is_plain(operation):
            return outputs
        values = [self.constants.get(one or "") for one in tensors]
        try:
            found = inferred(operation, whole, values)
        except ValueError:  # They do not go together, which is an error when the graph runs.
            return outputs
        return [
            one if is_whole(one.shape) else one._replace(shape=dims_of(shape))
            for one, shape in zip(outputs, found, strict=True)
        ]

    def argument(self, value: Value) -> Argument:
        """Return a value as an effect reads it."""
        if isinstance(value, Handle):
            return Holder(value.variable, self.current[value.variable])
        return value

    def read(self, operation: Any, value: Value) -> str | None:
        """Return the tensor that an operation reads; None if it reads none."""
        if not isinstance(value, Handle):
            return value if isinstance(value, str) else None
        # An assignment does not depend on what was there.
        unused = operation.type in UNUSED or operation.type == "AssignVariableOp"
        return None if unused else self.current[value.variable]

    def of_variable(self, handle: Handle) -> Made:
        """Return what is known of a value of a variable."""
        return self.tensors[handle.variable]._replace(parameter=False)

    def handle(self, tensor: Any, captured: Any) -> Value:
        """Return the variable of a handle; None if it is of something else."""
        if captured is not None and id(captured) in self.handles:
            return self.handles[id(captured)]
        variable = None if captured is None else self.variables.get(id(captured))
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
        handle = Handle(self.record(wanted, "Variable", [], [made], {})[0])
        self.current[handle.variable] = handle.variable
        if variable is not None:
            self.held[handle.variable] = variable
        if captured is not None:
            self.handles[id(captured)] = handle
        return handle

    def record(
        self,
        name: str,
        kind: str,
        inputs: Iterable[str],
        outputs: Sequence[Made],
        attributes: Mapping[str, Any],
        named: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """Record an operation; return the names of its outputs; the last ones are given."""
        name = self.free(name)
        own = len(outputs) - len(named)
        names = [name if i == 0 else f"{name}:{i}" for i in range(own)]
        names += [self.free(one) for one in named]
        self.records.append(Record(name, kind, tuple(inputs), tuple(names), dict(attributes)))
        self.tensors.update(zip(names, outputs, strict=True))
        return tuple(names)

    def free(self, name: str) -> str:
        """Return the name, followed by a number if it is taken."""
        number, wanted = 0, name
        while name in self.names:
            number += 1
            name = f"{wanted}_{number}"
        self.names.add(name)
        return name


def _is_of_unknown_lists(operation: Any, tensors: Sequence[Made]) -> bool:
    """Return whether an operation is for lists, and what their elements are is not known."""
    of_lists = operation.type.startswith(("EmptyTensorList", "TensorList"))
    return of_lists and not any(one.dtype.startswith(LIST_OF) for one in tensors)
