# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Translate TensorFlow's operations into the attributes that operators' rules take.

An input that says how an operation works, such as the axes of a sum, becomes an attribute if its
value is known before the graph runs. If it is not known, the operation gets another kind without a
rule, so that all devices do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from tf_fuse.layout.operators.random_numbers import FULL, STATELESS
from tf_fuse.layout.trace.layout_marks import mark_of

_T = TypeVar("_T")
# A function that returns the value of an operation's input by its number, or None.
ValueOf = Callable[[int], Any]
# After the kind of an operation with such an input whose value is not known.
COMPUTED: Final = " with computed "

# Kinds that are the same operation under another name.
_SAME: Final[Mapping[str, str]] = {
    "BatchMatMul": "BatchMatMulV2",
    "BatchMatMulV3": "BatchMatMulV2",
    "EnsureShape": "Identity",
    "Fill": "BroadcastTo",
    "PlaceholderWithDefault": "Identity",
}


def _all(names: str, value: _T) -> dict[str, _T]:
    return {name: value for name in names.split()}


REDUCTIONS: Final = "Sum Mean Max Min Prod Any All"
_KEPT: Final[Mapping[str, tuple[str, ...]]] = {
    **_all("MatMul", ("transpose_a", "transpose_b")),
    **_all("BatchMatMul BatchMatMulV2 BatchMatMulV3", ("adj_x", "adj_y")),
    **_all("Einsum", ("equation",)),
    **_all("BiasAdd BiasAddGrad", ("data_format",)),
    **_all(REDUCTIONS, ("keep_dims",)),
    **_all("FusedBatchNormV3 FusedBatchNormGradV3", ("data_format", "is_training")),
    **_all(
        "Conv2D Conv2DBackpropInput Conv2DBackpropFilter DepthwiseConv2dNative "
        "DepthwiseConv2dNativeBackpropInput DepthwiseConv2dNativeBackpropFilter",
        ("data_format", "dilations", "strides"),
    ),
    **_all("AvgPool AvgPoolGrad MaxPool MaxPoolGrad", ("data_format", "ksize", "strides")),
    **_all("GatherV2 ResourceGather", ("batch_dims",)),
    **_all("OneHot Pack Unpack", ("axis",)),
}
# By kind, the attribute that an input becomes, by the input's number, from the end if it is
# negative; "" for an input that only repeats what shapes say.
_INPUTS: Final[Mapping[str, Mapping[int, str]]] = {
    **_all(REDUCTIONS, {1: "axes"}),
    **_all("ArgMax ArgMin Cumsum GatherV2 ReverseV2", {-1: "axis"}),
    **_all("BroadcastTo ExpandDims OneHot Reshape TopKV2", {1: ""}),
    **_all("MirrorPad Pad PadV2", {1: "paddings"}),
    **_all("AvgPoolGrad Conv2DBackpropInput DepthwiseConv2dNativeBackpropInput Fill", {0: ""}),
    **_all("Conv2DBackpropFilter DepthwiseConv2dNativeBackpropFilter", {1: ""}),
    "ConcatV2": {-1: "axis"},
    "Roll": {1: "", 2: "axis"},
    "Slice": {1: "begin", 2: ""},
    "Split": {0: "axis"},
    "SplitV": {1: "", 2: "axis"},
    "StridedSlice": {1: "begin", 2: "", 3: "strides"},
    "StridedSliceGrad": {0: "", 1: "begin", 2: "", 3: "strides"},
    "Tile": {1: "multiples"},
    **_all("EmptyTensorList TensorListReserve", {0: ""}),
    **_all("TensorListFromTensor TensorListPopBack TensorListStack", {1: ""}),
    "TensorListGetItem": {2: ""},
    "Transpose": {1: "perm"},
    "UnsortedSegmentSum": {2: ""},
    **_all(" ".join(STATELESS), {0: ""}),
    **_all(" ".join([*STATELESS.values(), FULL]), {0: "", 3: "alg"}),
}


class Described(NamedTuple):
    """An operation, as rules take it.

    Attributes:
      kind: of rules.
      inputs: numbers of those that are tensors.
      attributes: of the rules.
    """

    kind: str
    inputs: tuple[int, ...]
    attributes: dict[str, Any]


def describe(operation: Any, value_of: ValueOf, shapes: Sequence[Any]) -> Described:
    """Return an operation as the rules take it.

    Args:
      operation: a `tf.Operation`.
      value_of: values of its inputs, where they are known.
      shapes: of its first tensor that is not an attribute, and of its first output; None if
        unknown.
    """
    kind = operation.type
    count = len(operation.inputs)
    numbers = {at % count: name for at, name in _INPUTS.get(kind, {}).items()}
    attributes: dict[str, Any] = {name: _attribute(operation, name) for name in _KEPT.get(kind, ())}
    attributes |= mark_of(operation) | _paddings(operation)
    for at, name in numbers.items():
        if not name:
            continue
        value = value_of(at)
        if value is None:
            return Described(f"{kind}{COMPUTED}{name}", tuple(range(count)), {})
        attributes[name] = np.asarray(value).tolist()
    inputs = tuple(i for i in range(count) if i not in numbers)
    if _without_running(operation):
        inputs = inputs[:3]
    if kind in ("StridedSlice", "StridedSliceGrad"):
        cut = _cut(operation, attributes, value_of, shapes)
        if cut is None:
            return Described(f"{kind}{COMPUTED}indices", inputs, {})
        attributes = cut
    return Described(_SAME.get(kind, kind), inputs, attributes)


def _without_running(operation: Any) -> bool:
    """Return whether an operation is a batch norm that ignores its running statistics."""
    return (
        operation.type == "FusedBatchNormV3"
        and operation.get_attr("is_training")
        and operation.get_attr("exponential_avg_factor") == 1.0
    )


def spare_outputs(operation: Any) -> range:
    """Return outputs that only TensorFlow's GPU gradient reads, and that are empty on CPUs."""
    first = {"FusedBatchNormGradV3": 3, "FusedBatchNormV3": 5}.get(operation.type)
    return range(first if first is not None else len(operation.outputs), len(operation.outputs))


def _paddings(operation: Any) -> dict[str, Any]:
    """Return the explicit paddings of a convolution or pooling, if it has any."""
    name = "explicit_paddings"
    value = operation.get_attr(name) if name in operation.node_def.attr else ()
    return {name: list(value)} if value else {}


def _attribute(operation: Any, name: str) -> Any:
    value = operation.get_attr(name)
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if isinstance(value, (list, tuple)) else value


def _cut(
    operation: Any, attributes: Mapping[str, Any], value_of: ValueOf, shapes: Sequence[Any]
) -> dict[str, Any] | None:
    """Return a slice's begin in each dimension, its strides, and the dropped dimensions.

    Returns:
      None if it is not known, as for slices with a new dimension or of an unknown size.
    """
    gradient = operation.type == "StridedSliceGrad"
    big = shapes[1] if gradient else shapes[0]
    begin, end, strides = map(value_of, range(1, 4))
    masks = {
        name: operation.get_attr(f"{name}_mask")
        for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    }
    if big is None or None in big or end is None or masks["new_axis"]:
        return None
    count = len(begin)
    dots = next((i for i in range(count) if masks["ellipsis"] >> i & 1), count)
    missing = len(big) - (count - (dots < count))
    found: dict[str, list[int]] = {"begin": [], "strides": [], "shrink": []}
    for i in range(count):
        if i == dots:
            found["begin"] += [0] * missing
            found["strides"] += [1] * missing
            continue
        at = len(found["begin"])
        if masks["shrink_axis"] >> i & 1:
            found["shrink"].append(at)
        start = _clamped(int(begin[i]), big[at])
        if masks["begin"] >> i & 1:
            start = 0 if strides[i] > 0 else big[at] - 1
        found["begin"].append(start)
        found["strides"].append(int(strides[i]))
    rest = len(big) - len(found["begin"])
    return {
        "begin": found["begin"] + [0] * rest,
        "strides": found["strides"] + [1] * rest,
        "shrink": found["shrink"],
    }


def _clamped(begin: int, size: int) -> int:
    """Return the index at which a slice with elements begins: outside, it is the nearest one."""
    from_front = begin + size if begin < 0 else begin
    return max(0, min(from_front, size - 1))
