# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gather rows on the variable's server instead of reading the whole variable first.

`tf.nn.embedding_lookup` does so by itself. But Keras 3's layers convert the variable to a tensor
first: then the whole table travels to the worker in each step, and the worker concatenates its
pieces. If a function gathers from such a tensor of a variable on a parameter server, this module
gathers the rows from the variable. The values and the codes of errors stay the same. During tracing
the graph holds TensorFlow's own gather, so that all gradients are TensorFlow's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tf_fuse._tensorflow.graphs import generated_ops, rewrite_after_trace

# Operations that may use a variable between its read and now: none of them changes it.
_READS = frozenset({"ReadVariableOp", "ResourceGather", "VariableShape"})


def install(is_on: Callable[[Any], bool]) -> None:
    """Extend TensorFlow's gather, once per process.

    Args:
      is_on: whether rows are to be gathered on parameter servers, given the eager context.
    """
    rewrite_after_trace.install()
    generated_ops.watch_gathers(is_on, _gather_later)


def _gather_later(op: Any) -> None:
    """Schedule a gather's rewrite if it reads variables on servers."""
    from tensorflow.python.framework import tensor_util

    if tensor_util.constant_value(op.inputs[2]) != 0 or not rewrite_after_trace.has_own_gradient(
        op
    ):
        return
    between, source = rewrite_after_trace.chain_to(op.inputs[0])
    reads = _reads_of(source)
    if reads and all(map(_is_remote, reads)):
        passed = [op, *between, source, *reads]
        rewrite_after_trace.when_traced(op, lambda op: _gather(op, reads, between, passed))


def _gather(op: Any, reads: list[Any], between: list[Any], passed: list[Any]) -> None:
    """Make all that uses a gather's rows use rows that are gathered from variables."""
    # (A gather from a variable always runs.)
    if generated_ops.is_needed(op):
        _replace(op, reads, between, passed)
    # (Keras also reads a table to learn its shape.)
    for handle in {id(read.inputs[0]): read.inputs[0] for read in reads}.values():
        for user in handle.consumers():
            if user.type == "ReadVariableOp":
                rewrite_after_trace.when_changed(user, generated_ops.leave_out)


def _replace(op: Any, reads: list[Any], between: list[Any], passed: list[Any]) -> None:
    from tensorflow.python.framework import dtypes, ops
    from tensorflow.python.ops import math_ops

    params, ids = op.inputs[:2]
    if ids.dtype not in (dtypes.int32, dtypes.int64):  # Variables have no other row numbers.
        ids = math_ops.cast(ids, dtypes.int32)
    # The rows wait for what the reads waited for: earlier writes, or a check of the program.
    waits = list(dict.fromkeys(one for before in passed for one in before.control_inputs))
    # Grappler makes one sum of a chain of additions, whose terms it sorts by name: the order of the
    # rows among them, and so the last bits of the sum, are unchanged.
    with ops.name_scope(f"{op.name}/"):
        rows = _rows(reads, ids, waits)
        rows.set_shape(ids.shape.concatenate(params.shape[1:]))
        for one in reversed(between):
            if one.type == "Cast":
                rows = math_ops.cast(rows, one.outputs[0].dtype)
    rewrite_after_trace.replace(op.outputs[0], rows)


def _reads_of(op: Any) -> list[Any]:
    """Return the variable reads that a tensor is, or concatenates along its first axis."""
    from tensorflow.python.framework import tensor_util

    if op is None:
        return []
    inputs = [op.outputs[0]] if op.type == "ReadVariableOp" else []
    if op.type == "ConcatV2" and tensor_util.constant_value(op.inputs[-1]) == 0:
        inputs = list(op.inputs[:-1])
    reads = [one.op for one in inputs]
    for read, value in zip(reads, inputs, strict=True):
        if read.type != "ReadVariableOp" or not value.shape.is_fully_defined():
            return []
        if not all(map(rewrite_after_trace.has_own_gradient, (op, read))):
            return []
        if value.shape.rank == 0 or any(one.type not in _READS for one in _users(read)):
            return []
    return reads


def _users(read: Any) -> list[Any]:
    """Return what uses the variable of a read in its graph."""
    return list(read.inputs[0].consumers())


def _is_remote(read: Any) -> bool:
    """Return whether the variable of a read is on a parameter server."""
    from tensorflow.python.framework import device, ops

    handle = read.inputs[0]
    while not isinstance(handle, ops.EagerTensor):
        captures = getattr(handle.graph, "captures", ())
        outside = next((outer for outer, inner in captures if inner.name == handle.name), None)
        if outside is None:
            return False
        handle = outside
    return bool(device.DeviceSpec.from_string(handle.device or "").job == "ps")


def _writes(op: Any, handle: Any) -> bool:
    return op.type not in _READS and any(one is handle for one in op.inputs)


def _rows(reads: list[Any], ids: Any, waits: list[Any]) -> Any:
    """Gather from each variable the rows that it has."""
    from tensorflow.python.framework import dtypes, ops
    from tensorflow.python.ops import array_ops, check_ops, data_flow_ops, math_ops
    from tensorflow.python.ops import gen_resource_variable_ops as resource_ops

    def gather(read: Any, rows: Any) -> Any:
        with ops.device(read.device), ops.control_dependencies(waits):
            found = resource_ops.resource_gather(read.inputs[0], rows, dtype=read.outputs[0].dtype)
        # (Later writers of the variable wait for the read; they did not exist at the gather.)
        generated_ops.write_after(read, found.op, lambda op: _writes(op, read.inputs[0]))
        return found

    if len(reads) == 1:
        return gather(reads[0], ids)
    sizes = [read.outputs[0].shape[0] for read in reads]
    starts = [0, *itertools.accumulate(sizes[:-1])]
    flat = array_ops.reshape(ids, [-1])
    # The variable of each row: the last one that does not start after it. (An invalid row
    # belongs to the last variable, or to none, and is an error there.)
    limits = math_ops.cast(array_ops.constant(starts), flat.dtype)
    owner = (
        math_ops.reduce_sum(math_ops.cast(flat[:, None] >= limits[None, :], dtypes.int32), axis=1)
        - 1
    )
    places = data_flow_ops.dynamic_partition(
        math_ops.range(array_ops.size(flat)), owner, len(reads)
    )
    wanted = data_flow_ops.dynamic_partition(flat, owner, len(reads))
    parts = [
        gather(read, rows - math_ops.cast(start, rows.dtype))
        for read, rows, start in zip(reads, wanted, starts, strict=True)
    ]
    stitched = data_flow_ops.parallel_dynamic_stitch(places, parts)
    shape = array_ops.concat([array_ops.shape(ids), parts[0].shape[1:].as_list()], axis=0)
    rows = array_ops.reshape(stitched, shape)
    # Grappler removes the reshape, and then knows the number of rows no more, on which depends what
    # it does with additions.
    return check_ops.ensure_shape(rows, ids.shape.concatenate(parts[0].shape[1:]))
