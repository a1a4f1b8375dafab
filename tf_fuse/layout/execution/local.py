# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One operation on one device: what a kernel knows, and TensorFlow's operation made again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops

from tf_fuse.layout.errors import LayoutError
from tf_fuse.layout.execution.program import Instruction
from tf_fuse.layout.mesh import Mesh
from tf_fuse.layout.strategy import SPLIT
from tf_fuse.layout.trace_records import Origin

# Attributes that a graph adds for itself.
_OF_GRAPHS: Final = ("_class", "_output_shapes", "_XlaMustCompile")
# Stateful to TensorFlow so that they run, but the same wherever they do.
_CHECKS: Final = ("Assert", "CheckNumerics", "CheckNumericsV2", "Print", "PrintV2")
_numbers = itertools.count()


class Local:
    """What a kernel knows of its device.

    Attributes:
      instruction: that it runs.
      operation: of the instruction.
      origin: what the operation was in TensorFlow's graph; None of what stands for itself.
      device: its number in the mesh.
    """

    def __init__(self, instruction: Instruction, origin: Origin | None, mesh: Mesh, device: int):
        """Keeps them."""
        self.instruction = instruction
        self.operation = instruction.operation
        self.origin = origin
        self.device = device
        self._mesh = mesh
        self._at = dict(zip(mesh.axes, mesh.coordinates(device), strict=True))

    def axes(self, factor: str) -> tuple[str, ...]:
        """The axes that split a factor."""
        return tuple(
            axis
            for axis, choice in zip(self._mesh.axes, self.instruction.strategy.choices, strict=True)
            if choice.kind == SPLIT and choice.factor == factor and self._mesh.size_of(axis) > 1
        )

    def first(self, factor: str, length: int) -> int:
        """The first index of this device's slice of a factor, of some length."""
        number = 0
        for axis in self.axes(factor):
            number = number * self._mesh.size_of(axis) + self._at[axis]
        return number * length

    def shape(self, output: int = 0) -> tuple[int, ...]:
        """Of what this device makes."""
        return self.instruction.strategy.outputs[output].slice_shape

    def attribute(self, name: str, default: Any = None) -> Any:
        """Of the operation, as rules have it."""
        return self.operation.attribute(name, default)

    def node_attribute(self, name: str) -> Any:
        """Of TensorFlow's operation."""
        assert self.origin is not None
        return self.origin.operation.get_attr(name)

    def constant(self, number: int) -> np.ndarray:
        """The value of an input of TensorFlow's operation.

        Args:
          number: of the input; from the end if it is negative.

        Raises:
          LayoutError: it is not known before the function runs.
        """
        assert self.origin is not None
        number %= len(self.origin.operation.inputs)
        value = self.origin.constants.get(number)
        if value is None:
            raise LayoutError(
                f"{self.operation}: its input {number} is not known before the function runs, so a "
                "device cannot tell what to do with its slice; make it a constant"
            )
        return np.asarray(value)

    def again(self, inputs: Sequence[Any], constants: Mapping[int, Any] | None = None) -> list[Any]:
        """Makes TensorFlow's operation again, for what this device holds.

        Args:
          inputs: of the instruction.
          constants: inputs of TensorFlow's operation that are others here, by their numbers.

        Returns:
          Its outputs, and then the values of variables that it wrote.
        """
        origin = self.origin
        assert origin is not None
        given = dict(zip(origin.numbers, inputs, strict=True))
        handles: dict[str, Any] = {}
        flat = []
        for number, one in enumerate(origin.operation.inputs):
            if number in origin.handles:
                variable = origin.handles[number]
                if variable not in handles:
                    handles[variable] = _holder(given[number])
                flat.append(handles[variable])
            elif constants is not None and number in constants:
                flat.append(tf.constant(constants[number], one.dtype))
            elif number in given:
                flat.append(given[number])
            else:
                flat.append(tf.constant(self.constant(number), one.dtype))
        made = _create(origin.operation, flat)
        # Loops return the handles that they are given.
        outputs = [one for one in made.outputs if one.dtype != tf.resource]
        if not handles:
            return outputs
        return [*outputs, *_taken_out(made, [handles[one] for one in origin.written], handles)]


def own_state(operation: Any) -> Any:
    """The operation, or one of a function that it calls, that has a state which is no variable.

    Returns:
      A `tf.Operation`, or None.
    """
    called = list(_functions(operation))
    if not called:
        stateful = operation.op_def is None or operation.op_def.is_stateful
        fine = operation.type in _CHECKS or any(
            one.dtype == tf.resource for one in operation.inputs
        )
        return operation if stateful and not fine else None
    inner = (one for function in called for one in function.graph.get_operations())
    found = (own_state(one) for one in inner if one.type != "Placeholder")
    return next((one for one in found if one is not None), None)


def _functions(operation: Any) -> Iterator[Any]:
    """The functions that an operation calls, as loops do."""
    for attribute in operation.node_def.attr.values():
        for one in (attribute.func, *attribute.list.func):
            if one.name:
                yield operation.graph._get_function(one.name)


def _create(operation: Any, inputs: Sequence[Any]) -> Any:
    graph = ops.get_default_graph()
    for function in _functions(operation):
        graph._add_function_recursive(function)
    attributes = {
        name: value for name, value in operation.node_def.attr.items() if name not in _OF_GRAPHS
    }
    types = [one.dtype for one in operation.outputs]
    made = graph._create_op_internal(
        operation.type, list(inputs), types, attrs=attributes, name=operation.name.split("/")[-1]
    )
    return made


def _holder(value: Any) -> Any:
    """The handle of a variable that lives while an operation updates it."""
    handle = tf.raw_ops.VarHandleOp(
        dtype=value.dtype, shape=value.shape, shared_name=f"tf_fuse_layout_{next(_numbers)}"
    )
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    return handle


def _taken_out(made: Any, written: Sequence[Any], handles: Mapping[str, Any]) -> list[Any]:
    """What holders hold behind an operation; they are gone then."""
    with tf.control_dependencies([made]):
        types = {id(one): one for one in handles.values()}
        found = [
            tf.raw_ops.ReadVariableOp(resource=one, dtype=one.op.get_attr("dtype"))
            for one in written
        ]
    with tf.control_dependencies(found or [made]):
        gone = [tf.raw_ops.DestroyResourceOp(resource=one) for one in types.values()]
    with tf.control_dependencies(gone):
        return [tf.identity(one) for one in found]
