# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Multiply by the pieces of a variable instead of the concatenated whole.

If a program multiplies by a variable in pieces, TensorFlow concatenates the pieces on the worker,
and cuts the gradient. With w = [w_0; w_1] along the first axis and x = [x_0 x_1],

    x w = x_0 w_0 + x_1 w_1        x transpose(w) = [x transpose(w_0)  x transpose(w_1)]

and along the second axis the other way round. So neither step is needed, and the gradient of each
piece is a product of its own. The first form adds in another order than the whole product, so last
bits differ, and the option `split_matmuls` is off by default. During tracing the graph has
TensorFlow's own products: a program may ask for the gradient of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tf_fuse._tensorflow.graphs import generated_ops, rewrite_after_trace

_READS = frozenset({"ReadVariableOp", "VariableV2"})


@dataclass(frozen=True)
class _Pieces:
    tensors: list[Any]
    axis: int


def install(is_on: Callable[[Any], bool]) -> None:
    """Extend TensorFlow's matrix product, once per process.

    Args:
      is_on: whether products are to be taken piece by piece, given the eager context.
    """

    def see(
        stock: Callable[..., Any], product: Any, transpose_a: Any, transpose_b: Any, grad_b: Any
    ) -> None:
        if transpose_a is False:
            rewrite_after_trace.when_traced(product, lambda op: _split(stock, op))
        elif grad_b and transpose_b is False:
            rewrite_after_trace.when_traced(product, lambda op: _split_gradient(stock, op))

    rewrite_after_trace.install()
    generated_ops.watch_products(is_on, see)


def _split(stock: Callable[..., Any], op: Any) -> None:
    """Take a product by the pieces of its second operand, if that is in pieces."""
    from tensorflow.python.ops import array_ops

    a, b = op.inputs
    if a.shape.rank != 2 or not rewrite_after_trace.has_own_gradient(op):
        return
    pieces = _pieces_of(b)
    if pieces is None:
        return
    transpose_b = op.get_attr("transpose_b")
    if (pieces.axis == 0) == transpose_b:
        parts = [stock(a, one, False, transpose_b) for one in pieces.tensors]
        rewrite_after_trace.replace(op.outputs[0], array_ops.concat(parts, axis=1))
        return
    sizes = [one.shape[pieces.axis] for one in pieces.tensors]
    columns = array_ops.split(a, sizes, axis=1)
    parts = [
        stock(x, one, False, transpose_b) for x, one in zip(columns, pieces.tensors, strict=True)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    rewrite_after_trace.replace(op.outputs[0], total)


def _split_gradient(stock: Callable[..., Any], op: Any) -> None:
    """Make a product for each piece, if the product is only cut into gradients of pieces."""
    from tensorflow.python.ops import array_ops, math_ops

    cuts = _cuts(op.outputs[0])
    if not cuts:
        return
    axis = cuts[0].axis
    if any(cut.axis != axis or cut.sizes != cuts[0].sizes for cut in cuts):
        return
    operands = list(op.inputs)
    split = array_ops.split(operands[axis], list(cuts[0].sizes), axis=1)
    made: dict[int, Any] = {}
    for cut in cuts:
        if cut.number not in made:
            operands[axis] = split[cut.number]
            made[cut.number] = stock(*operands, True, False, grad_b=True)
        part = made[cut.number]
        for dtype in cut.casts:
            part = math_ops.cast(part, dtype)
        rewrite_after_trace.replace(cut.tensor, part)


@dataclass(frozen=True)
class _Cut:
    """A piece of a gradient.

    Attributes:
      tensor: it.
      number: of the piece.
      axis: along which the whole is cut.
      sizes: of all pieces along this axis.
      casts: types that the whole is cast to first, one after the other.
    """

    tensor: Any
    number: int
    axis: int
    sizes: tuple[int, ...]
    casts: tuple[Any, ...]


def _cuts(whole: Any, casts: tuple[Any, ...] = ()) -> list[_Cut]:
    """Return the pieces that a gradient is cut into; none if anything else is done with it."""
    found: list[_Cut] = []
    for consumer in whole.consumers():
        if consumer.type in rewrite_after_trace.ELEMENTWISE and not consumer.control_inputs:
            result = consumer.outputs[0]
            more = _cuts(result, (*casts, result.dtype) if consumer.type == "Cast" else casts)
        else:
            cut = _cut(consumer, casts)
            more = [] if cut is None else [cut]
        if not more:
            return []
        found += more
    return found


def _cut(op: Any, casts: tuple[Any, ...]) -> _Cut | None:
    """Return what a concatenation's gradient is cut into; None for any other operation."""
    from tensorflow.python.framework import tensor_util

    if op.type != "Slice" or op.inputs[1].op.type != "ConcatOffset" or op.control_inputs:
        return None
    begin = op.inputs[1]
    # (TensorFlow computes the axis from that of the concatenation: axis % rank.)
    wanted = [tensor_util.constant_value(one) for one in begin.op.inputs[0].op.inputs]
    if begin.op.inputs[0].op.type != "FloorMod" or any(one is None for one in wanted):
        return None
    axis = int(wanted[0] % wanted[1])
    shapes = [tensor_util.constant_value(one) for one in begin.op.inputs[1:]]
    if any(one is None or len(one) != 2 for one in shapes):
        return None
    number = begin.value_index
    size = tensor_util.constant_value(op.inputs[2])
    if size is None or list(size) != list(shapes[number]):
        return None
    sizes = tuple(int(shape[axis]) for shape in shapes)
    return _Cut(op.outputs[0], number, axis, sizes, casts)


def _pieces_of(tensor: Any) -> _Pieces | None:
    """Return the pieces that a graph's tensor is concatenated from; None if it is not."""
    from tensorflow.python.framework import tensor_util
    from tensorflow.python.ops import math_ops

    between, op = rewrite_after_trace.chain_to(tensor)
    if op is None or op.type != "ConcatV2":
        return None
    *inputs, axis_tensor = op.inputs
    axis = tensor_util.constant_value(axis_tensor)
    if axis not in (0, 1) or len(inputs) < 2 or not all(map(_is_read, inputs)):
        return None
    if any(not one.shape.is_fully_defined() or one.shape.rank != 2 for one in inputs):
        return None
    if any(one.control_inputs for one in (*between, op)):
        return None
    made: Sequence[Any] = inputs
    for one in reversed(between):
        if one.type == "Cast":
            made = [math_ops.cast(piece, one.outputs[0].dtype) for piece in made]
    return _Pieces(list(made), int(axis))


def _is_read(tensor: Any) -> bool:
    """Return whether a tensor is the value of a variable."""
    op = tensor.op
    while op.type == "Identity":
        op = op.inputs[0].op
    return op.type in _READS
