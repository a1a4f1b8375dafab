# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Matrix products with the pieces of a variable, in place of the whole variable put together.

Where a program multiplies by a variable that is in pieces, TensorFlow concatenates the pieces on
the worker, and cuts the gradient. With w = [w_0; w_1] along the first axis and x = [x_0 x_1],

    x w = x_0 w_0 + x_1 w_1        x transpose(w) = [x transpose(w_0)  x transpose(w_1)]

and along the second one the other way round. So neither is needed, and the gradient of each piece
is a product of its own. The sums of the first form are added in another order than those of the
whole product, so their last bits differ: the option `split_matmuls` has to be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

# What lies between a variable and its use and can be done piece by piece.
_ELEMENTWISE = frozenset({"Cast", "Identity"})
_READS = frozenset({"ReadVariableOp", "VariableV2"})


@dataclass(frozen=True)
class _Pieces:
    tensors: list[Any]
    axis: int


def install(is_on: Callable[[Any], bool]) -> None:
    """Extends TensorFlow's matrix product, once per process.

    Args:
      is_on: whether products are to be taken piece by piece, given the eager context.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.ops import gen_math_ops

    stock = gen_math_ops.mat_mul
    if getattr(stock, "_tf_fuse_splits", False):
        return

    def mat_mul(
        a: Any, b: Any, transpose_a: Any = False, transpose_b: Any = False, *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        if context.executing_eagerly() or transpose_a is not False or args:
            return stock(a, b, transpose_a, transpose_b, *args, **kwargs)
        if not is_on(context.context()):
            return stock(a, b, transpose_a, transpose_b, **kwargs)
        pieces = _pieces_of(b)
        if pieces is None or getattr(getattr(a, "shape", None), "rank", None) != 2:
            return stock(a, b, transpose_a, transpose_b, **kwargs)
        return _product(stock, a, pieces, bool(transpose_b), **kwargs)

    mat_mul.__doc__ = stock.__doc__
    mat_mul._tf_fuse_splits = True  # type: ignore[attr-defined]
    gen_math_ops.mat_mul = mat_mul


def _product(
    stock: Callable[..., Any], a: Any, pieces: _Pieces, transpose_b: bool, **kwargs: Any
) -> Any:
    """Of a matrix and another one that is in pieces."""
    from tensorflow.python.ops import array_ops

    name = kwargs.pop("name", None)
    if (pieces.axis == 0) == transpose_b:
        parts = [stock(a, one, False, transpose_b, **kwargs) for one in pieces.tensors]
        return array_ops.concat(parts, axis=1, name=name)
    sizes = [one.shape[pieces.axis] for one in pieces.tensors]
    columns = array_ops.split(a, sizes, axis=1)
    parts = [
        stock(x, one, False, transpose_b, **kwargs)
        for x, one in zip(columns, pieces.tensors, strict=True)
    ]
    total = parts[0]
    for part in parts[1:-1]:
        total = total + part
    from tensorflow.python.ops import math_ops

    return math_ops.add(total, parts[-1], name=name)


def _pieces_of(tensor: Any) -> _Pieces | None:
    """The pieces of a variable that a tensor of a graph is put together from; None if it is not."""
    from tensorflow.python.framework import tensor_util
    from tensorflow.python.ops import array_ops, math_ops

    between = []
    op = getattr(tensor, "op", None)
    while op is not None and op.type in _ELEMENTWISE:
        between.append(op)
        op = op.inputs[0].op
    if op is None or op.type != "ConcatV2":
        return None
    *inputs, axis_tensor = op.inputs
    axis = tensor_util.constant_value(axis_tensor)
    if axis not in (0, 1) or len(inputs) < 2 or not all(map(_is_read, inputs)):
        return None
    if any(not one.shape.is_fully_defined() or one.shape.rank != 2 for one in inputs):
        return None
    made: Sequence[Any] = inputs
    for one in reversed(between):
        if one.type == "Cast":
            made = [math_ops.cast(piece, one.outputs[0].dtype) for piece in made]
        else:
            made = [array_ops.identity(piece) for piece in made]
    return _Pieces(list(made), int(axis))


def _is_read(tensor: Any) -> bool:
    """Whether a tensor is the value of a variable."""
    op = tensor.op
    while op.type == "Identity":
        op = op.inputs[0].op
    return op.type in _READS
