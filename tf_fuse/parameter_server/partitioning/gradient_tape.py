# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Return whole gradients of partitioned variables, and remember those of the pieces.

`tf.GradientTape.gradient` finds a variable by its handle, and one in pieces has several. This
module asks the tape for the gradients of the pieces, and gives the program their concatenation. An
optimizer that needs pieces takes them from this concatenation, so that Grappler removes it from a
function.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tf_fuse._tensorflow import feature_names, features
from tf_fuse._tensorflow.eager import gradient_tape
from tf_fuse._tensorflow.keras import variable as keras_variable
from tf_fuse._tensorflow.variables import sharded_variable

_PARTS = "_tf_fuse_parts"
_MARK = "_tf_fuse_in_pieces"


def mark(sharded: Any) -> None:
    """Note that programs may take a variable in pieces for a whole one.

    Args:
      sharded: a `ShardedVariable`.
    """
    if not features.works(feature_names.VARIABLES_IN_PIECES):
        return
    setattr(sharded, _MARK, True)
    # (Keras looks this up by name. It is not bound, so that a variable dies with its owner.)
    sharded_variable.set_array(sharded, functools.partial(_array, sharded.variables))
    gradient_tape.extend(_gradient)


def _array(parts: Sequence[Any], dtype: Any = None) -> Any:
    import numpy as np

    return np.concatenate([np.asarray(part, dtype) for part in parts])


def value_of(variable: Any) -> Any:
    """Return the TensorFlow variable of a Keras 3 variable; any other object unchanged."""
    return keras_variable.value_of(variable)


def in_pieces(variable: Any) -> Any:
    """Return the `ShardedVariable` that a variable is or has, where that is marked.

    Args:
      variable: of TensorFlow or Keras, or anything else.

    Returns:
      It; None for what is whole.
    """
    from tensorflow.python.distribute.sharded_variable import ShardedVariable

    value = value_of(variable)
    is_one = isinstance(value, ShardedVariable) and hasattr(value, _MARK)
    return value if is_one else None


def joined(sharded: Any, parts: Sequence[Any]) -> Any:
    """Concatenate gradients of pieces.

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
    # (The target does not depend on this piece: its rows of the whole are zeros.)
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
    """Return the gradients of pieces from that of the whole.

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
    """Return the rows of a gradient by the pieces that they belong to.

    An out-of-range row goes to all pieces: each update fails, as that of the whole variable does,
    and no piece changes.
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


def _gradient(
    stock: Callable[..., Any], tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any
) -> Any:
    """Do what `GradientTape.gradient` does, also for variables in pieces."""
    from tensorflow.python.util import nest

    flat = nest.flatten(sources)
    found = [in_pieces(one) for one in flat]
    if all(one is None for one in found):
        return stock(tape, target, sources, *args, **kwargs)
    asked: list[Any] = []
    for one, sharded in zip(flat, found, strict=True):
        asked += [one] if sharded is None else sharded.variables
    given = iter(stock(tape, target, asked, *args, **kwargs))
    results = [
        next(given) if one is None else joined(one, [next(given) for _ in one.variables])
        for one in found
    ]
    return nest.pack_sequence_as(sources, results)
