# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rebuild TensorFlow's operation on one device, for the slices that it holds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

from tf_fuse._tensorflow.graphs.functions import add_function, create_operation, graph_of
from tf_fuse.layout.execution.device_program import Instruction
from tf_fuse.layout.strategies.strategy import SPLIT
from tf_fuse.layout.trace.effects import functions_of
from tf_fuse.layout.trace.records import Origin
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.mesh import Mesh

# Attributes that a graph adds for itself.
_OF_GRAPHS: Final = ("_class", "_output_shapes", "_XlaMustCompile")
# Knuth's multiplier, by which numbers of calls and trips do not meet soon.
_NEXT: Final = 6364136223846793005
# Stateful to TensorFlow, but with the same results on every device.
_CHECKS: Final = ("Assert", "CheckNumerics", "CheckNumericsV2", "Empty", "Print", "PrintV2")


@dataclasses.dataclass(frozen=True)
class Seed:
    """What seeds the draws of operations with a state, in one call.

    Attributes:
      base: of operations without a seed of their own; the same in all processes.
      call: the number of the call, a scalar int64; in a loop also of the trip.
    """

    base: int
    call: Any

    def in_trip(self, number: Any) -> Seed:
        """Return what seeds the draws in one trip of a loop, by its number from 0."""
        return dataclasses.replace(self, call=self.call * _NEXT + number + 1)


class LocalOperation:
    """One operation on one device, with the device's place in the mesh.

    Attributes:
      instruction: that it runs.
      operation: of the instruction.
      origin: what the operation was in TensorFlow's graph; None of what stands for itself.
      device: its number in the mesh.
      seed: what seeds random numbers in this call; None if the program draws none.
    """

    def __init__(
        self,
        instruction: Instruction,
        origin: Origin | None,
        mesh: Mesh,
        device: int,
        seed: Seed | None = None,
    ):
        """Keep them."""
        self.instruction = instruction
        self.operation = instruction.operation
        self.origin = origin
        self.device = device
        self.seed = seed
        self._mesh = mesh
        self._at = dict(zip(mesh.axes, mesh.coordinates(device), strict=True))

    def axes(self, factor: str) -> tuple[str, ...]:
        """Return the axes that split a factor."""
        return tuple(
            axis
            for axis, choice in zip(self._mesh.axes, self.instruction.strategy.choices, strict=True)
            if choice.kind == SPLIT and choice.factor == factor and self._mesh.size_of(axis) > 1
        )

    def first(self, factor: str, length: int) -> int:
        """Return the first index of this device's slice of a factor, of some length."""
        number = 0
        for axis in self.axes(factor):
            number = number * self._mesh.size_of(axis) + self._at[axis]
        return number * length

    def parts(self, factor: str) -> int:
        """Return into how many parts the mesh's axes split a factor."""
        return math.prod(map(self._mesh.size_of, self.axes(factor)))

    def shape(self, output: int = 0) -> tuple[int, ...]:
        """Return the shape of the device's slice of an output."""
        return self.instruction.strategy.outputs[output].slice_shape

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the operation, as rules name it."""
        return self.operation.attribute(name, default)

    def node_attribute(self, name: str) -> Any:
        """Return an attribute of TensorFlow's operation."""
        assert self.origin is not None
        return self.origin.operation.get_attr(name)

    def constant(self, number: int) -> np.ndarray:
        """Return the value of an input of TensorFlow's operation.

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
                "device does not know what to do with its slice; make it a constant"
            )
        return np.asarray(value)

    def again(
        self,
        inputs: Sequence[Any],
        constants: Mapping[int, Any] | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Make TensorFlow's operation again, for what this device holds.

        Args:
          inputs: of the instruction.
          constants: inputs of TensorFlow's operation that are others here, by their numbers.
          attributes: of TensorFlow's operation that are others here, as `AttrValue`s.

        Returns:
          Its outputs, and then the values of variables that it wrote, but for those in place.
        """
        origin = self.origin
        assert origin is not None
        given = dict(zip(origin.numbers, inputs, strict=True))
        handles: dict[str, Any] = {}
        held = []
        flat = []
        for number, one in enumerate(origin.operation.inputs):
            if number in origin.handles:
                variable = origin.handles[number]
                if variable not in handles:
                    handles[variable] = holder(given[number])
                    if not isinstance(given[number], tf.Variable):
                        held.append(variable)
                flat.append(handles[variable])
            elif constants is not None and number in constants:
                flat.append(tf.constant(constants[number], one.dtype))
            elif number in given:
                flat.append(given[number])
            else:
                flat.append(tf.constant(self.constant(number), one.dtype))
        made = create(origin.operation, flat, attributes)
        # Loops return the handles that they are given.
        outputs = [one for one in made.outputs if one.dtype != tf.resource]
        if not handles:
            return outputs
        return [*outputs, *_taken_out(made, [handles[v] for v in origin.written if v in held])]


def own_state(operation: Any) -> Any:
    """Return the operation, or one of a called function, with a state that is not a variable.

    Returns:
      A `tf.Operation`, or None.
    """
    called = list(functions_of(operation))
    if not called:
        stateful = operation.op_def is None or operation.op_def.is_stateful
        fine = operation.type in _CHECKS or any(
            one.dtype == tf.resource for one in operation.inputs
        )
        return operation if stateful and not fine else None
    inner = (one for function in called for one in graph_of(function).get_operations())
    found = (own_state(one) for one in inner if one.type != "Placeholder")
    return next((one for one in found if one is not None), None)


def create(operation: Any, inputs: Sequence[Any], others: Mapping[str, Any] | None = None) -> Any:
    """Rebuild TensorFlow's operation with other inputs, and perhaps other attributes."""
    graph = ops.get_default_graph()
    for function in functions_of(operation):
        add_function(graph, function)
    attributes = {
        name: value for name, value in operation.node_def.attr.items() if name not in _OF_GRAPHS
    }
    attributes |= others or {}
    types = [one.dtype for one in operation.outputs]
    # Outside of a scope, no name begins with these.
    name = operation.name.split("/")[-1].lstrip("_-\\") or operation.type
    return create_operation(graph, operation.type, list(inputs), types, attributes, name)


def holder(value: Any) -> Any:
    """Return the handle of a temporary variable for an operation's update, new in each call.

    A variable that is updated in place has its own.
    """
    if isinstance(value, tf.Variable):
        return value.handle
    handle = tf.raw_ops.VarHandleOp(
        dtype=value.dtype, shape=value.shape, shared_name=context.anonymous_name()
    )
    tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    return handle


def _taken_out(made: Any, written: Sequence[Any]) -> list[Any]:
    """Return the values of holders after an operation."""
    with tf.control_dependencies([made]):
        return [
            tf.raw_ops.ReadVariableOp(resource=one, dtype=one.op.get_attr("dtype"))
            for one in written
        ]
