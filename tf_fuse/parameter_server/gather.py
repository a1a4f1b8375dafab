# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gathers rows where the variable is, in place of reading all of it first.

`tf.nn.embedding_lookup` does so by itself, but not what converts a variable to a tensor before, as
Keras 3's layers do: then the whole table travels to the worker in each step, and its pieces are put
together there. Where a graph is built that gathers from such a tensor, and the variable is on a
parameter server, the rows are gathered from the variable. The values are the same, and so are the
rows of gradients and the codes of errors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

_ELEMENTWISE = frozenset({"Cast", "Identity"})
# What may have used a variable between its read and now: none of them changes it.
_READS = frozenset({"ReadVariableOp", "ResourceGather", "VariableShape"})


def install(is_on: Callable[[Any], bool]) -> None:
    """Extends TensorFlow's gather, once per process.

    Args:
      is_on: whether rows are to be gathered on parameter servers, given the eager context.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import gen_array_ops
    from tensorflow.python.types import core

    stock = gen_array_ops.gather_v2
    if getattr(stock, "_tf_fuse_gathers", False):
        return

    def gather_v2(
        params: Any, indices: Any, axis: Any, batch_dims: int = 0, name: Any = None
    ) -> Any:
        if not context.executing_eagerly() and batch_dims == 0 and is_on(context.context()):
            if isinstance(params, core.Tensor) and not hasattr(params, "op"):
                params = ops.convert_to_tensor(params)  # A variable of Keras 3.
            found = _gather(params, indices, axis, name)
            if found is not None:
                return found
        return stock(params, indices, axis, batch_dims=batch_dims, name=name)

    gather_v2.__doc__ = stock.__doc__
    gather_v2._tf_fuse_gathers = True  # type: ignore[attr-defined]
    gen_array_ops.gather_v2 = gather_v2


def _gather(params: Any, indices: Any, axis: Any, name: Any) -> Any:
    """The rows; None if they are not those of variables on parameter servers."""
    from tensorflow.python.framework import ops, tensor_util
    from tensorflow.python.ops import array_ops, math_ops

    if tensor_util.constant_value(axis) != 0:
        return None
    between = []
    op = getattr(params, "op", None)
    while op is not None and op.type in _ELEMENTWISE:
        between.append(op)
        op = op.inputs[0].op
    reads = _reads_of(op)
    if not reads or not all(map(_is_remote, reads)):
        return None
    ids = ops.convert_to_tensor(indices)
    rows = _rows(reads, ids, name)
    rows.set_shape(ids.shape.concatenate(params.shape[1:]))
    for one in reversed(between):
        if one.type == "Cast":
            rows = math_ops.cast(rows, one.outputs[0].dtype)
        else:
            rows = array_ops.identity(rows)
    return rows


def _reads_of(op: Any) -> list[Any]:
    """The reads of variables that a tensor is, or is put together from along its first axis."""
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
        if value.shape.rank == 0 or any(one.type not in _READS for one in _users(read)):
            return []
    return reads


def _users(read: Any) -> list[Any]:
    """What uses the variable of a read in its graph."""
    return list(read.inputs[0].consumers())


def _is_remote(read: Any) -> bool:
    """Whether the variable of a read is on a parameter server."""
    from tensorflow.python.framework import device, ops

    handle = read.inputs[0]
    while not isinstance(handle, ops.EagerTensor):
        captures = getattr(handle.graph, "captures", ())
        outside = next((outer for outer, inner in captures if inner.name == handle.name), None)
        if outside is None:
            return False
        handle = outside
    return bool(device.DeviceSpec.from_string(handle.device or "").job == "ps")


def _rows(reads: list[Any], ids: Any, name: Any) -> Any:
    """Gathers from each variable what it has."""
    from tensorflow.python.framework import dtypes
    from tensorflow.python.ops import array_ops, data_flow_ops, math_ops
    from tensorflow.python.ops import gen_resource_variable_ops as resource_ops

    def gather(read: Any, rows: Any, name: Any = None) -> Any:
        return resource_ops.resource_gather(
            read.inputs[0], rows, dtype=read.outputs[0].dtype, name=name
        )

    if len(reads) == 1:
        return gather(reads[0], ids, name)
    sizes = [read.outputs[0].shape[0] for read in reads]
    starts = [0, *itertools.accumulate(sizes[:-1])]
    flat = array_ops.reshape(ids, [-1])
    # Of which variable each row is: the last one that does not start behind it. (A row that there
    # is not belongs to the last variable, or to none, and is an error there.)
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
    return array_ops.reshape(stitched, shape, name=name)
