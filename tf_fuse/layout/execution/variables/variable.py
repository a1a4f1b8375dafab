# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Turn a `tf.Variable` into one that reads and assigns its local shards.

The `tf.Variable` stays the same object, so that models, optimizers and checkpoints keep it. Its
value lies in local shards, one variable for each device of this process, and its own handle is
closed: code that uses the handle, such as a function traced before, gets an error from TensorFlow.
Reading the variable eagerly assembles the shards, and assigning to it cuts the value. A checkpoint
has the whole value, under the variable's name, as if there were no mesh.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.checkpoint import tensor_callable
from tensorflow.python.eager import record
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.saved_model import save_context
from tensorflow.python.trackable import base as trackable

from tf_fuse import _native
from tf_fuse._tensorflow.keras import variable as keras_variable
from tf_fuse._tensorflow.variables import resource_variable
from tf_fuse.layout.execution.communication.communicator import Communicator
from tf_fuse.layout.execution.devices import Devices
from tf_fuse.layout.execution.variables.local_shards import VariableShards, short_name
from tf_fuse.layout.execution.variables.made_in_parts import VariableInParts
from tf_fuse.layout.execution.variables.read_write_lock import LOCK
from tf_fuse.layout.trace.records import tracing_for_a_plan
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.tensor_layout import TensorLayout

# The type that a closed handle points to, which errors of TensorFlow's kernels quote.
_TYPE_NAME: Final = (
    "tensorflow::Var, unless tf_fuse.layout has its value in slices; then plan and execute the "
    "function that uses it too, or release the variable first"
)
_RELEASED: Final = (
    "tensorflow::Var, unless tf_fuse.layout has released the variable; then execute the plan "
    "again, and trace the functions that call it again"
)


class LaidOut:
    """The methods that a `tf.Variable` in local shards overrides."""

    tf_fuse_shards: VariableShards

    @property
    def handle(self) -> Any:
        """The closed one: what reads or writes by it fails."""
        return resource_variable.own_handle(self)

    @property
    def _handle(self) -> Any:
        # TensorFlow's eager calls read a variable by this attribute: they get the whole value.
        if not tf.executing_eagerly() or tracing_for_a_plan():
            return resource_variable.own_handle(self)
        whole = tf.convert_to_tensor(self.tf_fuse_shards.whole())
        handle = resource_variable_ops.eager_safe_variable_handle(
            whole, whole.shape, None, short_name(self.tf_fuse_shards.name), graph_mode=False
        )
        tf.raw_ops.AssignVariableOp(resource=handle, value=whole)
        self._taped(handle)
        return handle

    def _read_variable_op(self, no_copy: bool = False) -> Any:
        del no_copy
        if tf.executing_eagerly():
            whole = tf.convert_to_tensor(self.tf_fuse_shards.whole())
            self._taped(whole)
            return whole
        if _runs_otherwise():
            return super()._read_variable_op()  # type: ignore[misc]
        raise self._in_graph("read")

    def sparse_read(self, indices: Any, name: str | None = None) -> Any:
        """Return rows of the value."""
        if tf.executing_eagerly():
            return tf.gather(self._read_variable_op(), indices, name=name)
        if _runs_otherwise():
            return super().sparse_read(indices, name)  # type: ignore[misc]
        raise self._in_graph("read")

    def assign(
        self, value: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        """Assign another value, in slices."""
        if not tf.executing_eagerly():
            if _runs_otherwise():
                return super().assign(value, use_locking, name, read_value)  # type: ignore[misc]
            raise self._in_graph("assigned to")
        self.tf_fuse_shards.assign(self._of_own_shape(value, "assign"))
        return self if read_value else None

    def assign_add(
        self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        """Return the value and something."""
        if tf.executing_eagerly():
            delta = self._of_own_shape(delta, "add")
            with LOCK.alone():
                return self.assign(self._read_variable_op() + delta, read_value=read_value)
        if _runs_otherwise():
            return super().assign_add(delta, use_locking, name, read_value)  # type: ignore[misc]
        raise self._in_graph("assigned to")

    def assign_sub(
        self, delta: Any, use_locking: Any = None, name: Any = None, read_value: bool = True
    ) -> Any:
        """Return the value without something."""
        if tf.executing_eagerly():
            delta = self._of_own_shape(delta, "subtract")
            with LOCK.alone():
                return self.assign(self._read_variable_op() - delta, read_value=read_value)
        if _runs_otherwise():
            return super().assign_sub(delta, use_locking, name, read_value)  # type: ignore[misc]
        raise self._in_graph("assigned to")

    def gather_nd(self, indices: Any, name: str | None = None) -> Any:
        """Return slices of the value."""
        if tf.executing_eagerly():
            return tf.gather_nd(self._read_variable_op(), indices, name=name)
        if _runs_otherwise():
            return super().gather_nd(indices, name)  # type: ignore[misc]
        raise self._in_graph("read")

    def is_initialized(self, name: str | None = None) -> Any:
        """Return True."""
        return tf.constant(True, name=name)

    def _serialize_to_tensors(self) -> dict[str, Any]:
        value = tensor_callable.Callable(
            lambda: tf.convert_to_tensor(self.tf_fuse_shards.whole()),
            dtype=self.dtype,  # type: ignore[attr-defined]
            device="/device:CPU:0",
        )
        return {trackable.VARIABLE_VALUE_KEY: value}

    def _restore_from_tensors(self, restored_tensors: Mapping[str, Any]) -> Any:
        # In a function of the checkpoint's own, where several devices have variables.
        value = tf.convert_to_tensor(restored_tensors[trackable.VARIABLE_VALUE_KEY])
        # In a function the shape of the restored value is not known.
        if not value.shape.is_compatible_with(self.shape):  # type: ignore[attr-defined]
            raise ValueError(
                f"variable {self.tf_fuse_shards.name!r} has shape "
                f"{self.shape}, and the checkpoint has {value.shape}; restore one of this model"  # type: ignore[attr-defined]
            )
        return self.tf_fuse_shards.assign(tf.ensure_shape(value, self.shape))  # type: ignore[attr-defined]

    def _of_own_shape(self, value: Any, to_do: str) -> Any:
        """Return a tensor of the variable's type and shape; nothing is broadcast, as for others."""
        value = tf.convert_to_tensor(value, self.dtype)  # type: ignore[attr-defined]
        if value.shape != self.shape:  # type: ignore[attr-defined]
            raise ValueError(
                f"variable {self.tf_fuse_shards.name!r} has shape "
                f"{self.shape}, got {value.shape}; {to_do} a value of its shape"  # type: ignore[attr-defined]
            )
        return value

    def _taped(self, made: Any) -> None:
        """Report the assembled value to tapes as a read of this variable."""
        resource_variable_ops.variable_accessed(self)
        record.record_operation("ReadVariableOp", [made], [self.handle], lambda dy: [dy])

    def _in_graph(self, how: str) -> LayoutError:
        shards = self.tf_fuse_shards
        return LayoutError(
            f"variable {shards.name!r} lies in slices, {shards.layout}, and is {how} in a function "
            "that has no plan; plan and execute that function on the same mesh too, or release "
            "the variable first"
        )


def _runs_otherwise() -> bool:
    """Return whether the traced code runs by a plan or is exported with whole values."""
    return tracing_for_a_plan() or save_context.in_save_context()


def _in_place(method: str) -> Any:
    """Return a method that changes some of the value, done to the whole."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            with LOCK.alone():
                whole = tf.Variable(self.tf_fuse_shards.whole(), trainable=False)
                getattr(whole, method)(*args, **kwargs)
                return self.assign(whole.read_value())
        if _runs_otherwise():
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


def adopt(
    name: str, variable: Any, layout: TensorLayout, communicator: Communicator
) -> VariableShards:
    """Cut a variable's value into shards, which the variable reads from now on.

    Args:
      name: of the variable.
      variable: a `tf.Variable`.
      layout: of its value.
      communicator: between the devices.

    Returns:
      The shards; the existing ones, if the variable lies so already.

    Raises:
      LayoutError: the variable lies in another layout already, or cannot lie in shards.
    """
    shards = local_shards_of(variable)
    if shards is not None:
        _check_same(name, shards, layout, communicator.devices)
        return shards
    variable = _inner(variable)
    if not isinstance(variable, resource_variable_ops.BaseResourceVariable):
        raise LayoutError(
            f"variable {name!r} is a {type(variable).__name__}, which cannot be laid out; make it "
            "a tf.Variable outside of a strategy's scope"
        )
    value = _first_value(variable, communicator)
    empty = isinstance(variable, VariableInParts) and not variable.is_initialized()
    shards = VariableShards(name, layout, communicator, value)
    try:
        if empty or shards.in_parts:
            variable.hold_nothing()
        _be_laid_out(name, variable, shards)
        _close(name, variable)
    except BaseException:
        # A variable whose buffer other handles reach was not closed, and cannot be opened.
        with contextlib.suppress(tf.errors.FailedPreconditionError):
            _open(variable, tf.zeros([0], variable.dtype) if shards.in_parts else value)
        _be_itself(variable)
        raise
    return shards


def _first_value(variable: Any, communicator: Communicator) -> Any:
    """Return what shards are cut from: a value, or the variable in parts if it has none.

    What counts is whether the first process has one, as its value counts for other variables.
    """
    if isinstance(variable, VariableInParts):
        has_value = bool(variable.is_initialized())
        if not communicator.all_processes(int(has_value))[0]:
            return variable
        if not has_value:
            return tf.zeros(variable.shape, variable.dtype)
    return variable.read_value()


def _be_laid_out(name: str, variable: Any, shards: VariableShards) -> None:
    kind = type(variable)
    try:
        variable.tf_fuse_shards = shards
        resource_variable.set_class(variable, type(f"LaidOut{kind.__name__}", (LaidOut, kind), {}))
    except Exception as error:
        raise LayoutError(
            f"variable {name!r} is a {kind.__name__}, which cannot be laid out, since it cannot "
            f"become one of a subclass ({type(error).__name__}: {error}); make it a tf.Variable"
        ) from error


def _be_itself(variable: Any) -> None:
    if isinstance(variable, LaidOut):
        resource_variable.set_class(variable, type(variable).__bases__[1])
    vars(variable).pop("tf_fuse_shards", None)


def _check_same(name: str, shards: VariableShards, layout: TensorLayout, devices: Devices) -> None:
    own = shards.communicator.devices
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
    if shards.layout != layout:
        raise LayoutError(
            f"variable {name!r} lies as {shards.layout} already, and this plan has it as {layout}; "
            "plan with keep_layouts=True, or release the variable first"
        )


def _named(devices: Devices) -> str:
    made_by = ", of a dtensor.Mesh" if devices.mesh_on_dtensor is not None else ""
    return ", ".join(one.rpartition("device:")[2] for one in devices.names.values()) + made_by


def release(variable: Any) -> None:
    """Assemble a variable's value in the variable itself; do nothing for others.

    In several processes, all must call this at once.
    """
    variable = _inner(variable)
    shards = local_shards_of(variable)
    if shards is None:
        return
    with LOCK.alone():
        # Until the variable has the value, the shards keep it, so that a failure loses nothing.
        _open(variable, tf.convert_to_tensor(shards.whole()))
        _be_itself(variable)
        _end(shards)


def undo(variable: Any) -> None:
    """Release a variable that no call has used: one in parts has no value again.

    Its value, put together, might not fit into a process.
    """
    variable = _inner(variable)
    shards = local_shards_of(variable)
    if shards is None or not shards.in_parts:
        return release(variable)
    with LOCK.alone():
        _open(variable, tf.zeros([0], variable.dtype))
        _be_itself(variable)
        _end(shards)


def _end(shards: VariableShards) -> None:
    """Free the shards' buffers, and make it an error to use them: a function may hold a plan."""
    for shard in shards.variables.values():
        # One whose buffer other handles reach is only freed when they are.
        with contextlib.suppress(tf.errors.FailedPreconditionError):
            _native.load().tf_fuse_close_variable(shard.handle, type_name=_RELEASED)


def local_shards_of(variable: Any) -> VariableShards | None:
    """Return the local shards of a variable, also of Keras; None if it has none."""
    found: VariableShards | None = getattr(_inner(variable), "tf_fuse_shards", None)
    return found


def _inner(variable: Any) -> Any:
    """Return the `tf.Variable` of a variable of Keras."""
    if isinstance(variable, tf.Variable):
        return variable
    return keras_variable.inner(variable)


def _close(name: str, variable: Any) -> None:
    """Free a variable's buffer, and make each use of its handle an error.

    Raises:
      LayoutError: the handle is not the only way to the buffer.
    """
    try:
        _native.load().tf_fuse_close_variable(variable.handle, type_name=_TYPE_NAME)
    except tf.errors.FailedPreconditionError as error:
        raise LayoutError(f"variable {name!r} cannot be laid out: {error.message}") from error


def _open(variable: Any, value: Any) -> None:
    _native.load().tf_fuse_open_variable(variable.handle, value)
