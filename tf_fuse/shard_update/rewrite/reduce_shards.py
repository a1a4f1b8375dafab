# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Emit a reduction over a sharded tensor: each replica reduces its own elements, then all combine.

Where the axes leave some of the tensor's dimensions, a replica reduces the rows (of the first
dimension) that contain its elements, padded with the neutral element. An all-reduce sums the
results, of as many tensors at once as are ready together. For an operation that is not a sum, each
replica puts its result at its own place of a vector first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tf_fuse._tensorflow.dtype_numbers import BOOL, INT32, INT64
from tf_fuse.function_graph.builder import Builder, Range
from tf_fuse.shard_update.plan import Reduction

_INTEGERS = frozenset({INT32, INT64})


@dataclass(frozen=True)
class ReplicaPlace:
    """A replica among all.

    Attributes:
      count: of all replicas.
      rank: of this one.
      groups: of the replicas; each has all elements once.
    """

    count: int
    rank: int
    groups: int = 1


def neutral(reduction: Reduction) -> Any:
    """Return the element that changes nothing, of the type that is reduced."""
    from tensorflow.python.framework import dtypes

    numpy_type = dtypes.as_dtype(reduction.dtype).as_numpy_dtype
    if reduction.op in ("Max", "Min"):
        if reduction.dtype in _INTEGERS:
            limits = np.iinfo(numpy_type)
            value: Any = limits.min if reduction.op == "Max" else limits.max
        else:
            value = -math.inf if reduction.op == "Max" else math.inf
    else:
        value = {"Prod": 1, "All": True}.get(reduction.op, 0)
    return np.asarray(value, numpy_type)


def own_part(
    builder: Builder, scope: str, reduction: Reduction, tensor: str, own: Range, device: str
) -> str:
    """Return what a replica's own elements add to a reduction.

    Args:
      builder: of the function.
      scope: of the names of new nodes.
      reduction: to do.
      tensor: the elements, a vector.
      own: which they are.
      device: where to do it.
    """
    dtype = reduction.dtype
    if reduction.op in ("L2Loss", "EuclideanNorm"):
        tensor = f"{builder.add(f'{scope}/square', 'Square', [tensor], device, T=dtype).name}:y:0"
    if reduction.op == "All":
        tensor = f"{builder.add(f'{scope}/not', 'LogicalNot', [tensor], device).name}:y:0"
    if dtype == BOOL:
        dtype = reduction.wire_type
        cast = builder.add(f"{scope}/number", "Cast", [tensor], device, SrcT=BOOL, DstT=dtype)
        tensor = f"{cast.name}:y:0"
    axes: tuple[int, ...] = (0,)
    filler = neutral(reduction) if not reduction.is_sum else 0
    rows = (0, 0)
    if not reduction.is_full:
        axes = reduction.axes
        shape = reduction.shape
        row = max(1, math.prod(shape[1:]))
        rows = (own[0] // row, -(-own[1] // row)) if own[1] > own[0] else (0, 0)
        around = (own[0] - rows[0] * row, rows[1] * row - own[1]) if own[1] > own[0] else (0, 0)
        tensor = builder.padded(f"{scope}/rows", tensor, dtype, around, 1, filler, device)
        wanted = [rows[1] - rows[0], *shape[1:]]
        tensor = builder.reshape(f"{scope}/shaped", tensor, dtype, wanted, device)
    op = "Sum" if reduction.is_sum else reduction.op
    indices = builder.constant(f"{scope}/axes", list(axes), device)
    node = builder.add(f"{scope}/reduced", op, [tensor, indices], device, T=dtype, Tidx=INT64)
    node.attr["keep_dims"].b = reduction.keeps_dims and not reduction.is_full
    tensor = f"{node.name}:output:0"
    if not reduction.is_full and 0 not in axes:
        around = (rows[0], reduction.shape[0] - rows[1])
        rank = len(reduction.result)
        tensor = builder.padded(f"{scope}/all_rows", tensor, dtype, around, rank, filler, device)
    return tensor


def placed(
    builder: Builder, scope: str, reduction: Reduction, part: str, place: ReplicaPlace, device: str
) -> str:
    """Return what a replica sends: a sum, or a vector in which its result is at its place."""
    if reduction.is_sum:
        return part
    dtype = reduction.wire_type
    result = () if reduction.is_full else reduction.result
    row = builder.reshape(f"{scope}/row", part, dtype, [1, *result], device)
    around = (place.rank, place.count - 1 - place.rank)
    # Adding it changes nothing, not even the sign of a zero.
    zero = 0 if dtype in _INTEGERS else -0.0
    return builder.padded(f"{scope}/placed", row, dtype, around, len(result) + 1, zero, device)


def finished(builder: Builder, scope: str, reduction: Reduction, total: str, device: str) -> str:
    """Return the result, of the type and shape of the node's output."""
    dtype = reduction.wire_type

    def binary(op: str) -> str:
        number = builder.constant(f"{scope}/number_of", _constant_of(reduction), device, dtype)
        return f"{builder.add(f'{scope}/{op}', op, [total, number], device, T=dtype).name}:z:0"

    if reduction.op == "Mean":
        total = binary("RealDiv")
    elif reduction.op == "L2Loss":
        total = binary("Mul")
    elif reduction.op == "EuclideanNorm":
        total = f"{builder.add(f'{scope}/root', 'Sqrt', [total], device, T=dtype).name}:y:0"
    elif reduction.op == "All":
        total = binary("Equal")
    elif reduction.op == "Any":
        total = binary("NotEqual")
    elif not reduction.is_sum:
        axis = builder.constant(f"{scope}/axis", [0], device)
        node = builder.add(f"{scope}/all", reduction.op, [total, axis], device, T=dtype, Tidx=INT64)
        total = f"{node.name}:output:0"
    if reduction.is_full and reduction.result:
        shape = reduction.result
        total = builder.reshape(f"{scope}/result", total, reduction.dtype, shape, device)
    return total


def _constant_of(reduction: Reduction) -> float:
    """Return what a sum is divided by, multiplied with, or compared to, if anything."""
    if reduction.op == "Mean":
        return math.prod(reduction.shape) / max(1, math.prod(reduction.result))
    return 0.5 if reduction.op == "L2Loss" else 0
