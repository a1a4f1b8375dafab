# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What one operation of a graph computes: bytes that it touches, and products of matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tf_fuse.scale.steps.step_graph import Work

#: Operations that cost the executor next to nothing, or whose cost is their transfer's.
NOT_COUNTED = frozenset(
    {"_Arg", "_Retval", "Const", "NoOp", "Identity", "VarHandleOp", "Placeholder"}
    | {"_Send", "_Recv", "_HostSend", "_HostRecv", "_FuseRecv"}
)
_MATRIX_PRODUCTS = frozenset({"MatMul", "BatchMatMul", "BatchMatMulV2", "_FusedMatMul"})
_CONVOLUTIONS = frozenset({"Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"})
# Operations that read or change a variable.
_OF_VARIABLES = ("Resource", "ReadVariableOp", "Assign")
# These pass on a buffer, or its shape alone.
_WITHOUT_BYTES = frozenset({"Reshape", "ExpandDims", "Squeeze", "Shape", "IteratorGetNext"})


def work_of(node: Any, nodes: Mapping[str, Any], received: Mapping[str, Any]) -> Work:
    """Return what an operation computes.

    Args:
      node: the `NodeDef`.
      nodes: by name, those of its partition.
      received: by name of a `_Recv`, the output shape of what it receives and its item size.

    Returns:
      One operation with its bytes and flops; zero for what costs nothing.
    """
    if node.op in NOT_COUNTED:
        return Work()
    ins = [_tensor(one, nodes, received) for one in node.input if not one.startswith("^")]
    outs = _outputs(node) or _product_outputs(node, ins)
    flops = 0.0
    if node.op in _MATRIX_PRODUCTS:
        flops = _product_flops(node, [shape for shape, _ in ins], [shape for shape, _ in outs])
    elif node.op in _CONVOLUTIONS:
        flops = _convolution_flops(ins, outs)
    touched = 0.0
    if node.op not in _WITHOUT_BYTES:
        written = sum(map(_bytes, outs))
        read = sum(map(_bytes, ins))
        if node.op in ("ResourceGather", "GatherV2", "Gather"):
            read = written  # The rows, not the table.
        elif node.op == "ReadVariableOp":
            written = read = 0.0  # Shares the variable's buffer.
        elif node.op.startswith(("Assign", "ResourceScatter")):
            written = 2 * read  # Read and written in place.
        touched = read + written
    if node.op.startswith(_OF_VARIABLES):
        return Work(variable_operations=1, variable_bytes=touched)
    return Work(1, 0, touched, flops)


Tensor = tuple[tuple[int, ...] | None, int]


def _tensor(name: str, nodes: Mapping[str, Any], received: Mapping[str, Any]) -> Tensor:
    base, _, output = name.partition(":")
    if base in received:
        found: Tensor = received[base]
        return found
    node = nodes.get(base)
    if node is None:
        return None, 0
    index = int(output or 0)
    shapes, size = _listed(node)
    if index < len(shapes):  # (A node may have an output for each variable, and a reader for each.)
        return _sized(shapes[index], size)
    if not shapes and node.op in _MATRIX_PRODUCTS:
        outs = _product_outputs(node, [_tensor(one, nodes, received) for one in node.input[:2]])
        return outs[index] if index < len(outs) else (None, 0)
    return None, 0


def tensor_of(name: str, nodes: Mapping[str, Any]) -> Tensor:
    """Return shape and bytes per element of a tensor; None and 0 where the graph lacks them."""
    return _tensor(name, nodes, {})


def _outputs(node: Any) -> list[Tensor]:
    """Return the shapes and item sizes of a node's outputs."""
    shapes, size = _listed(node)
    return [_sized(shape, size) for shape in shapes]


def _listed(node: Any) -> tuple[Sequence[Any], int]:
    """Return the shapes of a node's outputs, and their item size; 0 where it is not known."""
    from tensorflow.python.framework import dtypes

    if node.op == "Const":
        tensor = node.attr["value"].tensor
        return [tensor.tensor_shape], dtypes.as_dtype(tensor.dtype).size or 0
    if "_output_shapes" not in node.attr:
        return [], 0
    size = 4
    for key in ("T", "dtype", "DstT", "out_type"):
        if key in node.attr and node.attr[key].type:
            kind = dtypes.as_dtype(node.attr[key].type)
            has_no_size = kind in (dtypes.resource, dtypes.variant, dtypes.string)
            size = 0 if has_no_size else kind.size
            break
    return node.attr["_output_shapes"].list.shape, size


def _sized(shape: Any, size: int) -> Tensor:
    return (_static(shape), size) if size else (None, 0)


def _static(shape: Any) -> tuple[int, ...] | None:
    if shape.unknown_rank or any(dim.size < 0 for dim in shape.dim):
        return None
    return tuple(dim.size for dim in shape.dim)


def _bytes(tensor: Tensor) -> float:
    shape, size = tensor
    return 0.0 if shape is None else float(math.prod(shape, start=size))


def tensor_bytes(tensor: Tensor) -> float:
    """Return the bytes of a tensor; 0 where its shape is not known."""
    return _bytes(tensor)


def _product_outputs(node: Any, ins: list[Tensor]) -> list[Tensor]:
    """Return the output of a product without shapes, as Grappler's fused ones are."""
    if node.op not in _MATRIX_PRODUCTS or len(ins) < 2:
        return []
    (first, size), (second, _) = ins[:2]
    if not first or not second or len(first) != 2 or len(second) != 2:
        return []
    shape = []
    for given, key, at in ((first, "transpose_a", 0), (second, "transpose_b", 1)):
        swapped = key in node.attr and node.attr[key].b
        shape.append(given[1 - at if swapped else at])
    return [(tuple(shape), size)]


def _product_flops(node: Any, ins: list[Any], outs: list[Any]) -> float:
    if not ins:
        return 0.0
    if not ins[0]:
        return _flops_by_second(node, ins, outs)
    inner = ins[0][-2] if _is_set(node, "transpose_a", "adj_x") and len(ins[0]) > 1 else ins[0][-1]
    if outs and outs[0] is not None:
        return 2.0 * math.prod(outs[0]) * inner
    if len(ins) > 1 and ins[1] is not None and ins[1]:
        columns = (
            ins[1][-2] if _is_set(node, "transpose_b", "adj_y") and len(ins[1]) > 1 else ins[1][-1]
        )
        return 2.0 * math.prod(ins[0]) * columns
    return 0.0


def _flops_by_second(node: Any, ins: list[Any], outs: list[Any]) -> float:
    """Return the flops of a product whose first factor's shape Grappler no longer has."""
    if len(ins) < 2 or not ins[1] or len(ins[1]) < 2 or not outs or outs[0] is None:
        return 0.0
    swapped = _is_set(node, "transpose_b", "adj_y")
    return 2.0 * math.prod(outs[0]) * ins[1][-1 if swapped else -2]


def _is_set(node: Any, *attributes: str) -> bool:
    """Return whether a node has one of some boolean attributes, and it is true."""
    return any(node.attr[key].b for key in attributes if key in node.attr)


def _convolution_flops(ins: list[Tensor], outs: list[Tensor]) -> float:
    """Return twice the products: output elements, times the window, times input channels."""
    shapes = [shape for shape, _ in [*ins, *outs] if shape is not None and len(shape) == 4]
    if len(shapes) < 3:
        return 0.0
    window = min(shapes, key=math.prod)
    images = sorted(math.prod(shape[:3]) for shape in shapes if shape is not window)
    return 2.0 * images[0] * math.prod(window)
