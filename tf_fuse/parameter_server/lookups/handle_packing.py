# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Send one handle per server and step instead of one per variable.

A `tf.function` on parameter servers captures the resource handle of every variable. TensorFlow
passes all of them again in each step: the coordinator to the worker, and the worker to each server.
With 300 variables that costs more than the fused receives of the same step. But captures never
change. So each server packs its handles once (TfFuse>PackHandles), and a rewritten function takes
the packs and unpacks them where the variables live:

    f(x, v0, v1, ..., v299)    ->    f_packed(x, pack_of_ps0, pack_of_ps1)

The body is the same, node for node, and so are the values. A call with other handles than the
packed ones runs the original function.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import VARIANT
from tf_fuse._tensorflow.eager import error_messages as tensorflow_errors
from tf_fuse._tensorflow.eager.function_calls import Call, calling_task, extend, lacks_our_ops
from tf_fuse._tensorflow.variables import resource_variable
from tf_fuse.parameter_server.lookups import mark_compressed

_log = logging.getLogger("tf_fuse")

# Below this many handles per call there is nothing to gain.
MIN_HANDLES = 8
_SUFFIX = b"__tf_fuse_packed"
_UNPACK_OP = "TfFuse>UnpackHandles"


@dataclass
class _Packed:
    """A packed function, and what stands for its packed arguments."""

    name: bytes
    handles: list[tuple[int, Any]]  # Argument's position and the tensor that was packed.
    kept: list[int]  # Positions of the arguments that are passed on.
    packs: list[Any]
    # No longer called. It lives as long as the function: another thread may be about to call it.
    is_retired: bool = False

    def arguments(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Return the packed function's arguments, or None if a handle has changed."""
        for position, handle in self.handles:
            if inputs[position] is not handle:
                return None
        return [inputs[position] for position in self.kept] + self.packs


class HandlePacker:
    """Keep the packed functions of one eager context.

    Thread-safe without a lock: the garbage collector may run anywhere, and removes functions on the
    thread that it runs on. Every access to a dict below is one atomic operation.
    """

    def __init__(self) -> None:
        """Start without packed functions."""
        # None: not worth packing, or found impossible.
        self._functions: dict[bytes, _Packed | None] = {}
        # Function that is being packed to the thread that does it. Making packs takes RPCs; other
        # threads call the function itself meanwhile.
        self._in_work: dict[bytes, int] = {}
        # Tasks that cannot run a packed function.
        self._plain_tasks: set[str] = set()

    def call(
        self,
        context: Any,
        call: Call,
        name: bytes,
        inputs: Sequence[Any],
        num_outputs: int,
    ) -> Any:
        """Call a function's packed version if it has one, and the function itself otherwise.

        Args:
          context: the eager context.
          call: stock `Context.call_function`.
          name: of the function.
          inputs: its arguments, captures included.
          num_outputs: number of its results.

        Returns:
          The result of `call`.
        """
        if self._plain_tasks and calling_task(context) in self._plain_tasks:
            return call(context, name, inputs, num_outputs)
        packed = self._packed(context, name, inputs)
        if packed is None or packed.is_retired:
            return call(context, name, inputs, num_outputs)
        arguments = packed.arguments(inputs)
        if arguments is None:
            packed.is_retired = True
            return call(context, name, inputs, num_outputs)
        from tensorflow.python.framework import errors

        try:
            return call(context, packed.name, arguments, num_outputs)
        except errors.OpError as error:
            if not lacks_our_ops(error):
                # TensorFlow looks for the function by its name to say where the operation was made.
                text = error.message.replace(packed.name.decode(), name.decode())
                tensorflow_errors.set_message(error, text)
                raise
            task = calling_task(context)
            if task not in self._plain_tasks:
                _log.warning(
                    "%s is passed handles one by one from now on: %s",
                    task or "the coordinator's own task",
                    error.message,
                )
            self._plain_tasks.add(task)
            return call(context, name, inputs, num_outputs)

    def forget(self, context: Any, name: bytes) -> None:
        """Drop the packed version of a deleted function."""
        packed = self._functions.pop(name, None)
        if packed is not None and context.has_function(packed.name):
            context.remove_function(packed.name)

    def _packed(self, context: Any, name: bytes, inputs: Sequence[Any]) -> _Packed | None:
        try:
            return self._functions[name]
        except KeyError:
            pass
        thread = threading.get_ident()
        if self._in_work.setdefault(name, thread) != thread:
            return None
        try:
            if name not in self._functions:
                self._functions.setdefault(name, _pack(context, name, inputs))
            return self._functions[name]
        finally:
            self._in_work.pop(name, None)


def _pack(context: Any, name: bytes, inputs: Sequence[Any]) -> _Packed | None:
    """Make the packed version of a function, or return None if that gains nothing."""
    from tensorflow.python.framework import dtypes, errors

    by_device: dict[str, list[int]] = defaultdict(list)
    for position, tensor in enumerate(inputs):
        if (
            getattr(tensor, "dtype", None) == dtypes.resource
            and _is_remote(context, tensor)
            and _value_of(tensor) is not None
        ):
            by_device[tensor.device].append(position)
    if sum(len(positions) for positions in by_device.values()) < MIN_HANDLES:
        return None
    groups = sorted(by_device.items())
    try:
        packs = [_pack_on(device, [inputs[p] for p in positions]) for device, positions in groups]
    except errors.NotFoundError as error:
        _log.warning(
            "a server does not have the plugin; handles are passed one by one: %s",
            error.message,
        )
        return None
    values = {p: value for _, ps in groups for p in ps if (value := _value_of(inputs[p]))}
    definition = packed_definition(context.get_function_def(name), groups, values)
    context.add_function_def(definition)
    positions = sorted(position for _, group in groups for position in group)
    packed = set(positions)
    return _Packed(
        name=definition.signature.name.encode(),
        handles=[(position, inputs[position]) for position in positions],
        kept=[position for position in range(len(inputs)) if position not in packed],
        packs=packs,
    )


def _is_remote(context: Any, tensor: Any) -> bool:
    from tensorflow.python.framework import device

    device_name = getattr(tensor, "device", None)
    if not device_name:
        return False
    there = device.DeviceSpec.from_string(device_name)
    here = device.DeviceSpec.from_string(context.host_address_space())
    return there.device_type == "CPU" and (there.job, there.task) != (here.job, here.task)


def _value_of(handle: Any) -> tuple[int, Any] | None:
    """Return (DataType number, TensorShapeProto) of a handle; None if not one known value.

    TensorFlow's graph optimizations look at it, so the packed function needs it too: without it the
    graph would be optimized otherwise, and its values could differ in the last bit.
    """
    data = resource_variable.handle_data(handle)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    return data.shape_and_type[0].dtype, data.shape_and_type[0].shape


def _pack_on(device: str, handles: Sequence[Any]) -> Any:
    """Pack handles on the task that has them; return a remote scalar variant."""
    from tensorflow.python.framework import ops

    from tf_fuse import _native

    with ops.init_scope(), ops.device(device):
        return _native.load().tf_fuse_pack_handles(list(handles))


def packed_definition(
    definition: Any,
    groups: Iterable[tuple[str, Sequence[int]]],
    values: Mapping[int, tuple[int, Any]],
) -> Any:
    """Build the packed function's FunctionDef.

    Args:
      definition: the function's FunctionDef; not changed.
      groups: device and positions of the arguments that are packed there, in order.
      values: position to the DataType number and TensorShapeProto of what a packed handle is of.

    Returns:
      A FunctionDef that takes the other arguments, then one variant per group.
    """
    made = type(definition)()
    made.CopyFrom(definition)
    signature = made.signature
    signature.name = definition.signature.name + _SUFFIX.decode()
    del signature.input_arg[:]
    made.arg_attr.clear()
    made.resource_arg_unique_id.clear()

    renamed: dict[str, tuple[str, str]] = {}  # Argument to its node and its output.
    packed: set[int] = set()
    arguments = definition.signature.input_arg
    for number, (_, positions) in enumerate(groups):
        packed.update(positions)
        for output, position in enumerate(positions):
            node = f"tf_fuse_unpack_{number}"
            renamed[arguments[position].name] = (node, f"{node}:handles:{output}")
    for position, argument in enumerate(arguments):
        if position in packed:
            continue
        if position in definition.arg_attr:
            made.arg_attr[len(signature.input_arg)].CopyFrom(definition.arg_attr[position])
        signature.input_arg.add().CopyFrom(argument)

    for node_def in made.node_def:
        _rename_inputs(node_def, renamed)
    for result, source in made.ret.items():
        if source in renamed:
            made.ret[result] = renamed[source][1]
    for number, (device, positions) in enumerate(groups):
        argument = signature.input_arg.add()
        argument.name = f"tf_fuse_pack_{number}"
        argument.type = VARIANT
        node_def = made.node_def.add()
        node_def.name = f"tf_fuse_unpack_{number}"
        node_def.op = _UNPACK_OP
        node_def.device = device
        node_def.input.append(argument.name)
        node_def.attr["N"].i = len(positions)
        marks = [_mark_of(definition, position) for position in positions]
        if any(marks):
            node_def.attr[mark_compressed.ATTRIBUTE].list.s.extend(marks)
        for position in positions:
            dtype, shape = values[position]
            node_def.attr["dtypes"].list.type.append(dtype)
            node_def.attr["shapes"].list.shape.add().CopyFrom(shape)
    return made


def _mark_of(definition: Any, position: int) -> bytes:
    """Return what an argument's variable is marked with; empty if it is not."""
    if position not in definition.arg_attr:
        return b""
    attributes = definition.arg_attr[position].attr
    mark: bytes = (
        attributes[mark_compressed.ATTRIBUTE].s if mark_compressed.ATTRIBUTE in attributes else b""
    )
    return mark


def _rename_inputs(node_def: Any, renamed: dict[str, tuple[str, str]]) -> None:
    for i, source in enumerate(node_def.input):
        if source in renamed:
            node_def.input[i] = renamed[source][1]
        elif source.startswith("^") and source[1:] in renamed:
            node_def.input[i] = "^" + renamed[source[1:]][0]
    # Nodes that were colocated with an argument are colocated with its unpacking.
    if "_class" in node_def.attr:
        groups = node_def.attr["_class"].list.s
        for i, group in enumerate(groups):
            name = group.removeprefix(b"loc:@").decode()
            if name in renamed:
                groups[i] = b"loc:@" + renamed[name][0].encode()


def install(is_on: Callable[[Any], bool]) -> None:
    """Extend TensorFlow's eager context, once per process.

    Args:
      is_on: whether handles are to be packed, given the context.
    """

    def call(stock: Call, context: Any, name: bytes, inputs: Any, num_outputs: int) -> Any:
        if len(inputs) < MIN_HANDLES or not is_on(context):
            return stock(context, name, inputs, num_outputs)
        return _packer_of(context).call(context, stock, name, inputs, num_outputs)

    def forget(context: Any, name: bytes) -> None:
        packer = getattr(context, "_tf_fuse_packer", None)
        if packer is not None:
            packer.forget(context, name)

    extend("handle packing", call, forget)


def _packer_of(context: Any) -> HandlePacker:
    packer = getattr(context, "_tf_fuse_packer", None)
    if packer is None:
        packer = context._tf_fuse_packer = HandlePacker()
    return packer
