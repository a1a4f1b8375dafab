# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find tensors whose shapes the program set, so that TensorFlow does not know them when it runs.

`tensor.set_shape` changes what Python knows of a function, not the function. Grappler infers shapes
anew: of what a `tf.py_function`, a boolean mask or a split by computed sizes returns it knows less,
and then changes other operations than it would where it knows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import RESOURCE, VARIANT
from tf_fuse.function_graph.view import GraphView

# The output has the shape that the values of these inputs say.
_BY_VALUES: Mapping[str, tuple[int, ...]] = {
    "BroadcastTo": (1,), "Fill": (0,), "MirrorPad": (1,), "Pad": (1,), "PadV2": (1,),
    "Reshape": (1,), "Slice": (1, 2), "SplitV": (1,), "StridedSlice": (1, 2, 3), "Tile": (1,),
}  # fmt: skip
# Of sizes that are known when they run.
_AT_RUN_TIME = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})
_ROWS = frozenset({"Gather", "GatherNd", "GatherV2"})


def set_shapes(view: GraphView, graph: Any) -> frozenset[str]:
    """Return the tensors whose shapes Python knows and TensorFlow does not infer.

    Args:
      view: of the function.
      graph: the `FuncGraph` that it was traced to.
    """
    unknown: dict[str, Any] = {}
    for operation in graph.get_operations():
        node = view.nodes.get(operation.name)
        if node is None or not _may_differ(operation, unknown):
            continue
        names = view.outputs(node)
        for name, output, shape in zip(
            names, operation.outputs, _inferred(operation, unknown), strict=False
        ):
            if output.shape.is_fully_defined() and not shape.is_fully_defined():
                unknown[output.name] = shape
                unknown[name] = shape
    return frozenset(unknown)


def _may_differ(operation: Any, unknown: Mapping[str, Any]) -> bool:
    """Return whether less may be inferred of an operation's outputs than Python knows."""
    types = {tensor.dtype.as_datatype_enum for tensor in [*operation.inputs, *operation.outputs]}
    if types & {RESOURCE, VARIANT} or not operation.inputs or _calls(operation):
        return False
    if not any(output.shape.is_fully_defined() for output in operation.outputs):
        return False
    values = [operation.inputs[i] for i in _BY_VALUES.get(operation.type, ())]
    return (
        operation.type in _AT_RUN_TIME
        or any(one.op.type != "Const" for one in values)
        or any(one.name in unknown for one in operation.inputs)
        or (operation.type in _ROWS and not operation.inputs[1].shape.is_fully_defined())
    )


def _calls(operation: Any) -> bool:
    return any(
        value.HasField("func") or value.list.func for value in operation.node_def.attr.values()
    )


def _inferred(operation: Any, unknown: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the shapes that TensorFlow infers of the outputs of an operation."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        inputs = []
        for tensor in operation.inputs:
            value = _value_of(tensor)
            if value is None:
                shape = unknown.get(tensor.name, tensor.shape)
                inputs.append(tf.compat.v1.placeholder(tensor.dtype, shape))
            else:
                inputs.append(tf.constant(value, tensor.dtype))
        attributes = {key: value for key, value in operation.node_def.attr.items() if key[0] != "_"}
        types = [output.dtype for output in operation.outputs]
        made = graph.create_op(operation.type, inputs, types, attrs=attributes)
        yield from [output.shape for output in made.outputs]


def _value_of(tensor: Any) -> Any | None:
    """Return the value of a tensor that depends on constants and known shapes alone, or None."""
    from tensorflow.python.framework import tensor_util

    if tensor.op.type == "ShapeN":
        shape = tensor.op.inputs[tensor.value_index].shape
        return shape.as_list() if shape.is_fully_defined() else None
    return tensor_util.try_evaluate_constant(tensor)
