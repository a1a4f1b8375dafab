# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gradients of variables in pieces, as a program sees them: whole, with the pieces' beside them.

`tf.GradientTape.gradient` knows a variable by its handle, and one in pieces has several. Here it is
asked for the gradients of the pieces; the program gets them put together, and whoever needs them by
pieces again takes them from there: in a function nothing then puts them together in the end.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Sequence
from typing import Any

_PARTS = "_tf_fuse_parts"
_MARK = "_tf_fuse_in_pieces"
_KERAS = "keras.src.backend.tensorflow.core"


def mark(sharded: Any) -> None:
    """Notes that programs may take a variable in pieces for a whole one.

    Args:
      sharded: a `ShardedVariable`.
    """
    setattr(sharded, _MARK, True)
    # (Keras asks by name, for NumPy and for its files. Not bound: a variable dies with its owner.)
    sharded.__array__ = functools.partial(_array, sharded.variables)
    _install()


def _array(parts: Sequence[Any], dtype: Any = None) -> Any:
    import numpy as np

    return np.concatenate([np.asarray(part, dtype) for part in parts])


def value_of(variable: Any) -> Any:
    """TensorFlow's variable of one of Keras 3; others, and all else, as they are."""
    module = sys.modules.get(_KERAS)
    if module is None or not isinstance(variable, module.Variable):
        return variable
    return variable._value  # (`value` casts, where Keras's scopes say so.)


def in_pieces(variable: Any) -> Any:
    """The `ShardedVariable` that a variable is or has, where that is marked.

    Args:
      variable: of TensorFlow or Keras, or anything else.

    Returns:
      It; None for what is whole.
    """
    from tensorflow.python.distribute import sharded_variable

    value = value_of(variable)
    is_one = isinstance(value, sharded_variable.ShardedVariable) and hasattr(value, _MARK)
    return value if is_one else None


def joined(sharded: Any, parts: Sequence[Any]) -> Any:
    """Puts gradients of pieces together.

    Args:
      sharded: the variable.
      parts: of its pieces, in order: tensors, `IndexedSlices`, or None.

    Returns:
      The gradient of the whole, from which `cut` gives the parts again; None if all are.
    """
    from tensorflow.python.framework import indexed_slices, ops
    from tensorflow.python.ops import array_ops

    if all(part is None for part in parts):
        return None
    # (A piece that the target does not depend on: of the whole, these rows are zeros.)
    parts = [
        array_ops.zeros(piece.shape, piece.dtype) if part is None else part
        for piece, part in zip(sharded.variables, parts, strict=True)
    ]
    if all(isinstance(part, indexed_slices.IndexedSlices) for part in parts):
        whole = _joined_rows(sharded, parts)
    else:
        whole = array_ops.concat([ops.convert_to_tensor(part) for part in parts], axis=0)
    setattr(whole, _PARTS, (weakref.ref(sharded), parts))
    return whole


def cut(sharded: Any, gradient: Any) -> list[Any]:
    """The gradients of pieces from that of the whole.

    Args:
      sharded: the variable.
      gradient: of `joined`, or computed from such; None for none.

    Returns:
      One for each piece.
    """
    from tensorflow.python.framework import indexed_slices, ops
    from tensorflow.python.ops import array_ops

    if gradient is None:
        return [None] * len(sharded.variables)
    owner, parts = getattr(gradient, _PARTS, (None, ()))
    if owner is not None and owner() is sharded:
        return list(parts)
    if isinstance(gradient, indexed_slices.IndexedSlices):
        return _cut_rows(sharded, gradient)
    rows = [int(piece.shape[0]) for piece in sharded.variables]
    return list(array_ops.split(ops.convert_to_tensor(gradient), rows))


def _starts(sharded: Any) -> list[int]:
    starts = [0]
    for piece in sharded.variables:
        starts.append(starts[-1] + int(piece.shape[0]))
    return starts


def _joined_rows(sharded: Any, parts: Sequence[Any]) -> Any:
    from tensorflow.python.framework import indexed_slices
    from tensorflow.python.ops import array_ops, math_ops

    starts = _starts(sharded)
    numbers = [
        part.indices + math_ops.cast(start, part.indices.dtype)
        for part, start in zip(parts, starts[:-1], strict=True)
    ]
    return indexed_slices.IndexedSlices(
        values=array_ops.concat([part.values for part in parts], axis=0),
        indices=array_ops.concat(numbers, axis=0),
        dense_shape=array_ops.constant(sharded.shape.as_list()),
    )


def _cut_rows(sharded: Any, gradient: Any) -> list[Any]:
    """Rows by the pieces they are of.

    One that there is not goes to all of them: each update fails, as that of the whole does, and
    none changes anything.
    """
    from tensorflow.python.framework import indexed_slices, ops
    from tensorflow.python.ops import array_ops, math_ops

    numbers = ops.convert_to_tensor(gradient.indices)
    values = ops.convert_to_tensor(gradient.values)
    starts = [math_ops.cast(start, numbers.dtype) for start in _starts(sharded)]
    is_nowhere = (numbers < starts[0]) | (numbers >= starts[-1])
    parts = []
    for start, end, piece in zip(starts[:-1], starts[1:], sharded.variables, strict=True):
        is_here = is_nowhere | ((numbers >= start) & (numbers < end))
        parts.append(
            indexed_slices.IndexedSlices(
                values=array_ops.boolean_mask(values, is_here),
                indices=array_ops.boolean_mask(numbers, is_here) - start,
                dense_shape=array_ops.constant(piece.shape.as_list()),
            )
        )
    return parts


def _install() -> None:
    """Extends the tape, once per process."""
    import tensorflow as tf
    from tensorflow.python.eager import backprop
    from tensorflow.python.util import nest

    cls = backprop.GradientTape
    if hasattr(cls, "_tf_fuse_wholes"):
        return
    stock = cls.gradient

    # (As all of TensorFlow's own code, it is not rewritten where a program's function is.)
    @tf.autograph.experimental.do_not_convert
    def gradient(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        flat = nest.flatten(sources)
        found = [in_pieces(one) for one in flat]
        if all(one is None for one in found):
            return stock(self, target, sources, *args, **kwargs)
        asked: list[Any] = []
        for one, sharded in zip(flat, found, strict=True):
            asked += [one] if sharded is None else sharded.variables
        given = iter(stock(self, target, asked, *args, **kwargs))
        results = [
            next(given) if one is None else joined(one, [next(given) for _ in one.variables])
            for one in found
        ]
        return nest.pack_sequence_as(sources, results)

    gradient.__doc__ = stock.__doc__
    cls.gradient = gradient
    cls._tf_fuse_wholes = True
