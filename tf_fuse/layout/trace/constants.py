# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Evaluate the parts of a graph that are known before it runs, such as shapes."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf

from tf_fuse._tensorflow.graphs.functions import create_operation
from tf_fuse.layout.trace.layout_marks import is_marked

# Operations of shapes and indices; `tf.get_static_value` knows fewer.
_OF_INDICES: Final[Collection[str]] = (
    "Add", "AddV2", "BroadcastGradientArgs", "Cast", "ConcatV2", "DynamicStitch", "ExpandDims",
    "FloorDiv", "FloorMod", "GatherV2", "Identity", "InvertPermutation", "ListDiff", "Max",
    "Maximum", "Min", "Minimum", "Mul", "Neg", "NotEqual", "Pack", "Prod", "Range", "Reshape",
    "Slice", "Squeeze", "StridedSlice", "Sub", "Where", "ZerosLike",
)  # fmt: skip
# Operations whose outputs are the shapes of their inputs, or the numbers of their elements.
_SIZES: Final = ("Shape", "ShapeN", "Size", "VariableShape")
# Arguments with another name in `tf.raw_ops` than in graphs.
_RENAMED: Final = {
    "dim": "axis", "input": "condition", "reduction_indices": "axis", "squeeze_dims": "axis",
}  # fmt: skip
_ELEMENTS: Final = 1024


def shapes_known(operation: Any, shapes: Sequence[Sequence[int] | None]) -> list[np.ndarray]:
    """Return the outputs of an operation that are sizes of its inputs; none where unknown.

    Args:
      operation: a `tf.Operation`.
      shapes: of its inputs, or None.
    """
    known = [np.array(one) for one in shapes if one is not None]
    if operation.type not in _SIZES or len(known) != len(operation.outputs):
        return []
    dtype = operation.outputs[0].dtype.as_numpy_dtype
    sizes = map(np.prod, known) if operation.type == "Size" else known
    return [np.asarray(one, dtype) for one in sizes]


def inferred(
    operation: Any, shapes: Sequence[Sequence[int]], values: Sequence[np.ndarray | None]
) -> list[tf.TensorShape]:
    """Return the shapes of an operation's outputs, by what is known of its inputs.

    Args:
      operation: a `tf.Operation`.
      shapes: of its inputs.
      values: of its inputs, or None.
    """
    attributes = {
        name: value for name, value in operation.node_def.attr.items() if not name.startswith("_")
    }
    types = [one.dtype for one in operation.outputs]
    with tf.Graph().as_default() as graph:
        inputs = [
            tf.constant(value, one.dtype)
            if _is_index(value)
            else tf.compat.v1.placeholder(one.dtype.base_dtype, shape)
            for one, shape, value in zip(operation.inputs, shapes, values, strict=True)
        ]
        made = create_operation(graph, operation.type, inputs, types, attributes, "made")
        return [one.shape for one in made.outputs]


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
    if is_marked(operation):
        return []
    if kind in _OF_INDICES and operation.inputs and all(map(_is_index, inputs)):
        with tf.init_scope(), tf.device("CPU:0"):
            return _run(operation, inputs)
    if len(operation.outputs) > 1:
        return []
    value = tf.get_static_value(operation.outputs[0])
    return [] if value is None else [np.asarray(value)]


def origin_of(tensor: Any) -> Any:
    """Return the tensor that identities pass on."""
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor


def whole_number(tensor: Any) -> int | None:
    """Return a whole number that is a constant in a graph."""
    value = tf.get_static_value(tensor)
    known = value is not None and np.ndim(value) == 0 and value.dtype.kind in "iu"
    return int(value) if known else None


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
    run = getattr(tf.raw_ops, operation.type)
    taken = inspect.signature(run).parameters
    named = {name if name in taken else _RENAMED[name]: value for name, value in given.items()}
    found = run(**named)
    return [one.numpy() for one in (found if isinstance(found, (list, tuple)) else [found])]
