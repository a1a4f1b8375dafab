# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Evaluate the parts of a graph that are known before it runs, such as shapes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf

from tf_fuse.layout.trace.layout_marks import is_marked

# Operations of shapes and indices; `tf.get_static_value` knows fewer.
_OF_INDICES: Final[Collection[str]] = (
    "Add", "AddV2", "BroadcastGradientArgs", "Cast", "ConcatV2", "DynamicStitch", "ExpandDims",
    "FloorDiv", "FloorMod", "GatherV2", "InvertPermutation", "ListDiff", "Max", "Maximum", "Min",
    "Minimum", "Mul", "Neg", "NotEqual", "Pack", "Prod", "Range", "Reshape", "Slice", "Squeeze",
    "StridedSlice", "Sub", "ZerosLike",
)  # fmt: skip
# Arguments with another name in `tf.raw_ops` than in graphs.
_RENAMED: Final = ("dim", "reduction_indices", "squeeze_dims")
_ELEMENTS: Final = 1024


def folded(operation: Any, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    """Return the values of an operation's outputs, if they are known before the graph runs.

    Args:
      operation: a `tf.Operation`.
      inputs: the value of each of its inputs, or None.

    Returns:
      The values; none where they are not known.
    """
    kind = operation.type
    # A `Fill` may be large, and costs nothing in the graph. Fed tensors are not constants.
    if kind == "Fill" or kind.startswith("Placeholder") or not operation.outputs:
        return []
    if kind in _OF_INDICES and operation.inputs and all(map(_is_index, inputs)):
        with tf.init_scope(), tf.device("CPU:0"):
            return _run(operation, inputs)
    if len(operation.outputs) > 1 or is_marked(operation):
        return []
    value = tf.get_static_value(operation.outputs[0])
    return [] if value is None else [np.asarray(value)]


def _is_index(value: np.ndarray | None) -> bool:
    return value is not None and value.dtype.kind in "iub" and value.size <= _ELEMENTS


def _run(operation: Any, inputs: Sequence[np.ndarray | None]) -> list[np.ndarray]:
    definition = operation.op_def
    left = list(inputs)
    given: dict[str, Any] = {}
    inferred = set()
    for one in definition.input_arg:
        inferred |= {one.type_attr, one.number_attr}
        count = operation.get_attr(one.number_attr) if one.number_attr else None
        given[one.name] = left.pop(0) if count is None else [left.pop(0) for _ in range(count)]
    given |= {
        one.name: operation.get_attr(one.name)
        for one in definition.attr
        if one.name not in inferred
    }
    named = {"axis" if name in _RENAMED else name: value for name, value in given.items()}
    found = getattr(tf.raw_ops, operation.type)(**named)
    return [one.numpy() for one in (found if isinstance(found, (list, tuple)) else [found])]
