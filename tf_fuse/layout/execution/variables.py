# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Variables of a user that lie in slices on the devices of a mesh.

The `tf.Variable` stays the object that it is, so that models, optimizers and checkpoints keep it.
Its value is in parts, one variable for each device of this process, and its own buffer is empty: a
function that was traced before and still reads that fails, instead of using an old value. Reading
the variable eagerly puts the parts together, and assigning to it cuts the value. A checkpoint has
the whole value, under the variable's name, as if there were no mesh.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.checkpoint import tensor_callable
from tensorflow.python.eager import record
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.trackable import base as trackable

from tf_fuse.layout.errors import LayoutError
from tf_fuse.layout.execution.communicator import Communicator
from tf_fuse.layout.execution.devices import Devices
from tf_fuse.layout.execution.relayouts import relayout
from tf_fuse.layout.redistribution import plan_relayout
from tf_fuse.layout.tensor_layout import TensorLayout
from tf_fuse.layout.trace_records import tracing_for_a_plan


class Parts:
    """What a variable holds, in slices.

    Attributes:
      name: of the variable.
      layout: of its value.
      variables: of this process's devices, by their numbers.
    """

    def __init__(self, name: str, layout: TensorLayout, communicator: Communicator, value: Any):
        """Cuts a value.

        Args:
          name: of the variable.
          layout: of its value.
          communicator: between the devices.
          value: the whole one; that of the first device's process counts.
        """
        self.name = name
        self.layout = layout
        self._communicator = communicator
        self._gather: Any = None
        self.variables: dict[int, Any] = {}
        value = communicator.of_first(value)
        for device, place in communicator.devices.names.items():
            with tf.init_scope(), tf.device(place):
                self.variables[device] = tf.Variable(
                    _slice(value, layout, device), trainable=False, name=f"{_short(name)}_part"
                )

    @property
    def communicator(self) -> Communicator:
        """Between the devices."""
        return self._communicator

    def whole(self) -> Any:
        """The value, put together; in several processes, all have to ask for it at once."""
        if not tf.executing_eagerly():
            return self._gathered()
        if not self._communicator.devices.distributed:
            return _assembled({d: one.numpy() for d, one in self.variables.items()}, self.layout)
        if self._gather is None:
            self._gather = tf.function(self._gathered)
        return self._gather()

    def assign(self, value: Any) -> Any:
        """Cuts another value; in several processes, each its own slices of it.

        Returns:
          In a graph, the operation.
        """
        done = [
            one.assign(_slice(value, self.layout, device), read_value=False)
            for device, one in self.variables.items()
        ]
        return None if tf.executing_eagerly() else tf.group(done)

    def write(self, device: int, part: Any) -> None:
        """Another part of a device of this process."""
        self.variables[device].assign(part, read_value=False)

    def _gathered(self) -> Any:
        devices = self._communicator.devices
        held = {}
        for device, one in self.variables.items():
            with tf.device(devices.names[device]):
                held[device] = one.read_value()
        target = TensorLayout(self.layout.mesh, self.layout.shape)
        item_bytes = next(iter(self.variables.values())).dtype.size
        plan = plan_relayout(self.layout, target, item_bytes)
        return relayout(self._communicator, plan, held)[devices.first]


class LaidOut:
    """What a `tf.Variable` whose value is in parts does in another way."""

    tf_fuse_parts: Parts

    @property
    def handle(self) -> Any:
        """Of the empty buffer: what would read or write it in place fails."""
        return self.__dict__["_handle"]

    @property
    def _handle(self) -> Any:
        # TensorFlow's eager calls read a variable by this, without asking it: they get the whole.
        if not tf.executing_eagerly() or tracing_for_a_plan():
            return self.__dict__["_handle"]
        whole = tf.convert_to_tensor(self.tf_fuse_parts.whole())
        handle = resource_variable_ops.eager_safe_variable_handle(
            whole, whole.shape, None, _short(self.tf_fuse_parts.name), graph_mode=False
        )
        tf.raw_ops.AssignVariableOp(resource=handle, value=whole)
        self._taped(handle)
        return handle

    def _read_variable_op(self, no_copy: bool = False) -> Any:
        del no_copy
        if tf.executing_eagerly():
            whole = tf.convert_to_tensor(self.tf_fuse_parts.whole())
            self._taped(whole)
            return whole
        if tracing_for_a_plan():
            return super()._read_variable_op()  # type: ignore[misc]
        raise self._in_graph("read")

    def sparse_read(self, indices: Any, name: str | None = None) -> Any:
        """Rows of the value."""
        if tf.executing_eagerly():
            return tf.gather(self._read_variable_op(), indices, name=name)
        if tracing_for_a_plan():
            return super().sparse_read(indices, name)  # type: ignore[misc]
        raise self._in_graph("read")

    def assign(
        self, value: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        """Another value, in slices."""
        if not tf.executing_eagerly():
            if tracing_for_a_plan():
                return super().assign(value, use_locking, name, read_value)  # type: ignore[misc]
            raise self._in_graph("assigned to")
        self.tf_fuse_parts.assign(self._of_own_shape(value, "assign"))
        return self if read_value else None

    def assign_add(
        self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        """The value and something."""
        if tf.executing_eagerly():
            delta = self._of_own_shape(delta, "add")
            return self.assign(self._read_variable_op() + delta, read_value=read_value)
        if tracing_for_a_plan():
            return super().assign_add(delta, use_locking, name, read_value)  # type: ignore[misc]
        raise self._in_graph("assigned to")

    def assign_sub(
        self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        """The value without something."""
        if tf.executing_eagerly():
            delta = self._of_own_shape(delta, "subtract")
            return self.assign(self._read_variable_op() - delta, read_value=read_value)
        if tracing_for_a_plan():
            return super().assign_sub(delta, use_locking, name, read_value)  # type: ignore[misc]
        raise self._in_graph("assigned to")

    def gather_nd(self, indices: Any, name: str | None = None) -> Any:
        """Slices of the value."""
        if tf.executing_eagerly():
            return tf.gather_nd(self._read_variable_op(), indices, name=name)
        if tracing_for_a_plan():
            return super().gather_nd(indices, name)  # type: ignore[misc]
        raise self._in_graph("read")

    def is_initialized(self, name: str | None = None) -> Any:
        """It is."""
        return tf.constant(True, name=name)

    def _serialize_to_tensors(self) -> dict[str, Any]:
        value = tensor_callable.Callable(
            lambda: tf.convert_to_tensor(self.tf_fuse_parts.whole()),
            dtype=self.dtype,  # type: ignore[attr-defined]
            device="/device:CPU:0",
        )
        return {trackable.VARIABLE_VALUE_KEY: value}

    def _restore_from_tensors(self, restored_tensors: Mapping[str, Any]) -> Any:
        # In a function of the checkpoint's own, where several devices have variables.
        value = tf.convert_to_tensor(restored_tensors[trackable.VARIABLE_VALUE_KEY])
        # In a function the shape of what is restored is not known.
        if not value.shape.is_compatible_with(self.shape):  # type: ignore[attr-defined]
            raise ValueError(
                f"variable {self.tf_fuse_parts.name!r} has shape "
                f"{self.shape}, and the checkpoint has {value.shape}; restore one of this model"  # type: ignore[attr-defined]
            )
        return self.tf_fuse_parts.assign(tf.ensure_shape(value, self.shape))  # type: ignore[attr-defined]

    def _of_own_shape(self, value: Any, to_do: str) -> Any:
        """A tensor of the variable's type and shape; nothing is broadcast, as for others."""
        value = tf.convert_to_tensor(value, self.dtype)  # type: ignore[attr-defined]
        if value.shape != self.shape:  # type: ignore[attr-defined]
            raise ValueError(
                f"variable {self.tf_fuse_parts.name!r} has shape "
                f"{self.shape}, got {value.shape}; {to_do} a value of its shape"  # type: ignore[attr-defined]
            )
        return value

    def _taped(self, made: Any) -> None:
        """Tells tapes that what was put together is this variable's, whose handle they watch."""
        resource_variable_ops.variable_accessed(self)
        record.record_operation("ReadVariableOp", [made], [self.handle], lambda dy: [dy])

    def _in_graph(self, how: str) -> LayoutError:
        parts = self.tf_fuse_parts
        return LayoutError(
            f"variable {parts.name!r} lies in slices, {parts.layout}, and is {how} in a function "
            "that has no plan; plan and execute that function on the same mesh too, or release "
            "the variable first"
        )


def _in_place(method: str) -> Any:
    """A method that changes some of the value, done to the whole."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            whole = tf.Variable(self.tf_fuse_parts.whole(), trainable=False)
            getattr(whole, method)(*args, **kwargs)
            return self.assign(whole.read_value())
        if tracing_for_a_plan():
            return getattr(super(LaidOut, self), method)(*args, **kwargs)
        raise self._in_graph("assigned to")

    run.__name__ = method
    return run


for _method in (
    "_strided_slice_assign", "batch_scatter_update", "scatter_add", "scatter_div",
    "scatter_max", "scatter_min", "scatter_mul", "scatter_nd_add", "scatter_nd_max",
    "scatter_nd_min", "scatter_nd_sub", "scatter_nd_update", "scatter_sub", "scatter_update",
):  # fmt: skip
    setattr(LaidOut, _method, _in_place(_method))


def adopt(name: str, variable: Any, layout: TensorLayout, communicator: Communicator) -> Parts:
    """Cuts a variable's value into parts; it is one whose value is there from now on.

    Args:
      name: of the variable.
      variable: a `tf.Variable`.
      layout: of its value.
      communicator: between the devices.

    Returns:
      The parts; those there are, where the variable lies so already.

    Raises:
      LayoutError: the variable lies otherwise already, or is none that can.
    """
    parts = parts_of(variable)
    if parts is not None:
        _check_same(name, parts, layout, communicator.devices)
        return parts
    variable = _inner(variable)
    if not isinstance(variable, resource_variable_ops.ResourceVariable):
        raise LayoutError(
            f"variable {name!r} is a {type(variable).__name__}, which cannot be laid out; make it "
            "a tf.Variable outside of a strategy's scope"
        )
    parts = Parts(name, layout, communicator, variable.read_value())
    kind = type(variable)
    variable.__class__ = type(f"LaidOut{kind.__name__}", (LaidOut, kind), {})
    variable.tf_fuse_parts = parts
    _empty(variable)
    return parts


def _check_same(name: str, parts: Parts, layout: TensorLayout, devices: Devices) -> None:
    own = parts.communicator.devices
    if own.mesh != devices.mesh:
        raise LayoutError(
            f"variable {name!r} lies on mesh {str(own.mesh)!r} already, and this plan is for mesh "
            f"{str(devices.mesh)!r}; plan for the first one, or release the variable first"
        )
    if own != devices:
        raise LayoutError(
            f"variable {name!r} lies on {_named(own)} already, and this plan is to run on "
            f"{_named(devices)}; give the same devices, or release the variable first"
        )
    if parts.layout != layout:
        raise LayoutError(
            f"variable {name!r} lies as {parts.layout} already, and this plan has it as {layout}; "
            "plan with keep_layouts=True, or release the variable first"
        )


def _named(devices: Devices) -> str:
    made_by = ", of a dtensor.Mesh" if devices.mesh_on_dtensor is not None else ""
    return ", ".join(one.rpartition("device:")[2] for one in devices.names.values()) + made_by


def release(variable: Any) -> None:
    """Puts a variable's value together, in the variable itself; nothing for others.

    In several processes, all have to do so at once.
    """
    variable = _inner(variable)
    parts = parts_of(variable)
    if parts is None:
        return
    value = parts.whole()
    variable.__class__ = type(variable).__bases__[1]
    del variable.tf_fuse_parts
    # Not by assign, which wants the shape that is there.
    value = tf.convert_to_tensor(value)
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


def parts_of(variable: Any) -> Parts | None:
    """The parts of a variable, of Keras too; None where it has none."""
    found: Parts | None = getattr(_inner(variable), "tf_fuse_parts", None)
    return found


def _inner(variable: Any) -> Any:
    """The `tf.Variable` of a variable of Keras."""
    if isinstance(variable, tf.Variable):
        return variable
    return getattr(variable, "_value", variable)


def _empty(variable: Any) -> None:
    """Frees a variable's buffer; what reads it in spite of that gets no value of its shape."""
    nothing = tf.zeros([0], variable.dtype)
    tf.raw_ops.AssignVariableOp(resource=variable.__dict__["_handle"], value=nothing)


def _slice(value: Any, layout: TensorLayout, device: int) -> Any:
    at = layout.slice_of(device)
    return value[at] if at else value


def _assembled(held: Mapping[int, np.ndarray], layout: TensorLayout) -> np.ndarray:
    found = np.empty(layout.shape, next(iter(held.values())).dtype)
    for device, one in held.items():
        found[layout.slice_of(device)] = one
    return found


def _short(name: str) -> str:
    return name.rsplit("/", 1)[-1].replace(":", "_")
