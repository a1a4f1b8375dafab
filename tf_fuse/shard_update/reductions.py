# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Reductions over a tensor that is cut: what they are, and how replicas do them together.

Each replica reduces the elements that are its own. Where the axes leave some of the tensor's
dimensions, it reduces the rows (of the first dimension) in which they lie, with elements around
them that change nothing. A sum of all replicas' results follows, of as many tensors at once as are
ready together. What is no sum is put at the replica's place of a vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tf_fuse.shard_update.builder import Builder, Range, Shape
from tf_fuse.shard_update.graph_view import GraphView, data_inputs
from tf_fuse.shard_update.ops import is_exact_reduction
from tf_fuse.shard_update.order import Order, predecessors

# Types that collectives take: float, double, int32, int64, bfloat16, half.
_TYPES = frozenset({1, 2, 3, 9, 14, 19})
_INTEGERS = frozenset({3, 9})
_FLOAT, _DT_INT64, _BOOL = 1, 9, 10


@dataclass(frozen=True)
class Reduction:
    """A node that reduces a tensor over some or all axes.

    Attributes:
      node: its name.
      op: of it.
      axes: that it reduces, none below 0.
      shape: of its input.
      result: shape of its output.
      dtype: number of the type of both.
      exact: whether it has the same bits when parts are reduced first.
    """

    node: str
    op: str
    axes: tuple[int, ...]
    shape: Shape
    result: Shape
    dtype: int
    exact: bool

    @property
    def is_full(self) -> bool:
        """Whether it reduces all axes."""
        return len(self.axes) == len(self.shape)

    @property
    def keeps_dims(self) -> bool:
        """Whether the axes that it reduces stay, with one element."""
        return len(self.result) == len(self.shape) and bool(self.axes)

    @property
    def is_sum(self) -> bool:
        """Whether the replicas' results, or what they send, are summed."""
        return self.op not in ("Max", "Min", "Prod")

    @property
    def wire_type(self) -> int:
        """Number of the type that replicas exchange."""
        return _FLOAT if self.dtype == _BOOL else self.dtype


@dataclass(frozen=True)
class Place:
    """A replica among all.

    Attributes:
      count: of all replicas.
      rank: of this one.
      groups: of the replicas; each has all elements once.
    """

    count: int
    rank: int
    groups: int = 1


class Reductions:
    """Finds out what reductions reduce."""

    def __init__(self, view: GraphView, shapes: Mapping[str, Shape | None], exact: bool):
        """Takes the function, its tensors' shapes, and whether bits must not change."""
        self._view = view
        self._shapes = shapes
        self._exact = exact

    def of(self, node: Any) -> Reduction | tuple[str, str]:
        """The reduction that a node is; or why it cannot be done by parts, and where."""
        tensor = data_inputs(node)[0]
        (output,) = self._view.outputs(node)
        shape, result = self._shapes.get(tensor), self._shapes.get(output)
        if shape is None or result is None:
            return "unknown_shape", output
        axes = tuple(range(len(shape))) if node.op == "L2Loss" else self._axes(node, len(shape))
        if axes is None:
            return "unknown_shape", data_inputs(node)[1]
        dtype = _BOOL if node.op in ("All", "Any") else node.attr["T"].type
        if dtype not in _TYPES | {_BOOL} or (node.op == "Mean" and dtype in _INTEGERS):
            return "not_elementwise", f"{node.name} ({node.op})"
        exact = is_exact_reduction(node.op, dtype in _INTEGERS)
        if self._exact and not exact:
            return "not_exact", f"{node.name} ({node.op})"
        return Reduction(node.name, node.op, axes, shape, result, dtype, exact)

    def _axes(self, node: Any, rank: int) -> tuple[int, ...] | None:
        from tensorflow.python.framework import tensor_util

        constant = self._view.producer(data_inputs(node)[1])
        if constant is None or constant.op != "Const":
            return None
        values = np.atleast_1d(tensor_util.MakeNdarray(constant.attr["value"].tensor))
        return tuple(sorted({int(value) % rank for value in values} if rank else set()))


def levels(view: GraphView, names: set[str]) -> dict[str, int]:
    """How many of some reductions, one after the other, each of them waits for.

    Those of a level can be done at once: none of them waits for another one.
    """
    depth: dict[str, int] = {}
    found: dict[str, int] = {}
    for node in view.in_order():
        here = max((depth.get(name, 0) for name in predecessors(node)), default=0)
        if node.name in names:
            found[node.name] = here
            here += 1
        depth[node.name] = here
    return found


def touched(view: GraphView, order: Order, names: set[str]) -> set[str]:
    """The nodes that compute from what some nodes make in the same run of the function.

    Through variables as well: what is assigned from it, and read behind that.
    """
    reads = order.reads
    found: set[str] = set()
    waiting = sorted(names)
    while waiting:
        node = view.nodes[waiting.pop()]
        following = [use.node for tensor in view.outputs(node) for use in view.uses(tensor)]
        for variable in view.assigned(node):
            following += order.behind(node.name, reads.get(variable, ()))
        for name in following:
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


def neutral(reduction: Reduction) -> Any:
    """The element that changes nothing, of the type that is reduced."""
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
    """What a replica's own elements add to a reduction.

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
    if dtype == _BOOL:
        dtype = reduction.wire_type
        cast = builder.add(f"{scope}/number", "Cast", [tensor], device, SrcT=_BOOL, DstT=dtype)
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
    node = builder.add(f"{scope}/reduced", op, [tensor, indices], device, T=dtype, Tidx=_DT_INT64)
    node.attr["keep_dims"].b = reduction.keeps_dims and not reduction.is_full
    tensor = f"{node.name}:output:0"
    if not reduction.is_full and 0 not in axes:
        around = (rows[0], reduction.shape[0] - rows[1])
        rank = len(reduction.result)
        tensor = builder.padded(f"{scope}/all_rows", tensor, dtype, around, rank, filler, device)
    return tensor


def placed(
    builder: Builder, scope: str, reduction: Reduction, part: str, place: Place, device: str
) -> str:
    """What a replica sends: a sum, or a vector in which its result is at its place."""
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
    """The result, of the type and shape of the node's output."""
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
        node = builder.add(
            f"{scope}/all", reduction.op, [total, axis], device, T=dtype, Tidx=_DT_INT64
        )
        total = f"{node.name}:output:0"
    if reduction.is_full and reduction.result:
        shape = reduction.result
        total = builder.reshape(f"{scope}/result", total, reduction.dtype, shape, device)
    return total


def _constant_of(reduction: Reduction) -> float:
    """What a sum is divided by, multiplied with, or compared to, if anything."""
    if reduction.op == "Mean":
        return math.prod(reduction.shape) / max(1, math.prod(reduction.result))
    return 0.5 if reduction.op == "L2Loss" else 0
