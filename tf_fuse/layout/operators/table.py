# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Map each kind of operation to its rule."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from tf_fuse.layout.operators import (
    contraction,
    convolution,
    elementwise,
    gather,
    lists,
    normalization,
    random_numbers,
    reduction,
    shaping,
)
from tf_fuse.layout.operators.rule import Rule, unknown
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.operation import Operation

_KEPT: Final = 4096
# Kinds that the table in words joins.
_PREFIXES: Final = (
    "ResourceApply", "ResourceScatter", "ResourceSparseApply", "StatelessRandomUniform",
    "TensorList",
)  # fmt: skip
RuleFunction = Callable[[Operation], Rule]


class Entry(NamedTuple):
    """A row of the table: operations with the same words about them.

    Attributes:
      rules: the rule of each kind.
      splits: what can be split.
      costs: what that costs; "" if nothing.
    """

    rules: Mapping[str, RuleFunction]
    splits: str
    costs: str


# Rules differ in which sets of inputs they are linear in, and in what their gradients need.
# Floating-point operations of an element are by the times of TensorFlow's kernels on a CPU core;
# a sigmoid's are 8 (`tf_fuse.layout.profile.measure_rates`).
_BOTH: Final = elementwise.elementwise([(0, 1)], saved_inputs=())
_FIRST: Final = elementwise.elementwise([(0,)], saved_inputs=())
_PRODUCT: Final = elementwise.elementwise([(0,), (1,)])
_PLAIN: Final = elementwise.elementwise()
_COSTLY: Final = elementwise.elementwise(flops=8)
_OUTPUT: Final = elementwise.elementwise(saved_inputs=(), saved_outputs=(0,))
_COSTLY_OUTPUT: Final = elementwise.elementwise(flops=8, saved_inputs=(), saved_outputs=(0,))
_LOGARITHM: Final = elementwise.elementwise(flops=16)
# Not vectorized.
_SCALAR: Final = elementwise.elementwise(flops=64)
# Partial sums would be rounded one by one.
_CAST: Final = elementwise.elementwise(saved_inputs=())
_LOGICAL: Final = elementwise.elementwise(constants=range(8), saved_inputs=())
_STOP: Final = elementwise.elementwise(constants=[0], saved_inputs=())
_ALIAS: Final = elementwise.elementwise([(0,)], 0, saved_inputs=(), copies=True)
_SELECT: Final = elementwise.elementwise([(1, 2)], constants=[0], saved_inputs=(0,))
_MERGE: Final = elementwise.elementwise([(0, 1)], 0, saved_inputs=(), view=True)
_SLOPE_FIRST: Final = elementwise.elementwise([(0,)])
_SLOPE_LAST: Final = elementwise.elementwise([(1,)])


def _all(rule: RuleFunction, names: str) -> dict[str, RuleFunction]:
    return dict.fromkeys(names.split(), rule)


ENTRIES: Final[tuple[Entry, ...]] = (
    Entry(
        _all(contraction.matmul, "MatMul")
        | _all(contraction.batch_matmul, "BatchMatMulV2")
        | _all(contraction.einsum, "Einsum"),
        "every letter of the equation; either input may be partial",
        "over a letter that the output has not, the output is partial",
    ),
    Entry(
        _all(_BOTH, "Add AddV2 Sub")
        | _all(elementwise.add_n, "AddN")
        | _all(elementwise.bias_add, "BiasAdd")
        | _all(_FIRST, "Neg Real Imag Conj")
        | _all(_ALIAS, "Identity Snapshot ReadVariableOp PreventGradient Enter Exit")
        | _all(_SELECT, "SelectV2")
        | _all(_MERGE, "Merge"),
        "every dimension; all terms may be partial at once",
        "",
    ),
    Entry(
        _all(_PRODUCT, "Mul MulNoNan")
        | _all(elementwise.quotient, "RealDiv Div DivNoNan")
        | _all(_SLOPE_FIRST, "ReluGrad Relu6Grad LeakyReluGrad EluGrad SeluGrad SoftplusGrad "
                             "SoftsignGrad")
        | _all(_SLOPE_LAST, "TanhGrad SigmoidGrad SqrtGrad RsqrtGrad InvGrad ReciprocalGrad"),
        "every dimension; a factor (not a divisor) may be partial",
        "",
    ),
    Entry(
        _all(_PLAIN, "Abs Maximum Minimum SquaredDifference Square FloorDiv FloorMod")
        | _all(_CAST, "Cast CheckNumerics")
        | _all(_COSTLY, "Erf Erfc Sin Cos")
        | _all(_LOGARITHM, "Log Log1p Xdivy Xlogy")
        | _all(_SCALAR, "Pow Softplus")
        | _all(_OUTPUT, "Relu Relu6 LeakyRelu Reciprocal Inv Sqrt Rsqrt")
        | _all(_COSTLY_OUTPUT, "Exp Expm1 Tanh Sigmoid Elu Selu")
        | _all(_LOGICAL, "Equal NotEqual Less LessEqual Greater GreaterEqual LogicalAnd LogicalOr "
                         "LogicalNot Sign Floor Ceil Round Rint IsFinite IsNan IsInf ZerosLike "
                         "OnesLike LoopCond")
        | _all(_STOP, "StopGradient"),
        "every dimension",
        "",
    ),
    Entry(
        _all(reduction.reduction("sum", True), "Sum Mean")
        | _all(reduction.bias_add_grad, "BiasAddGrad")
        | _all(reduction.reduction("sum"), "L2Loss"),
        "every dimension; the input of a sum or mean may be partial",
        "over a dimension that is gone, the output is partial",
    ),
    Entry(
        _all(reduction.reduction("max"), "Max")
        | _all(reduction.reduction("min"), "Min")
        | _all(reduction.reduction("prod"), "Prod")
        | _all(reduction.reduction("max"), "Any")
        | _all(reduction.reduction("min"), "All"),
        "every dimension",
        "over a dimension that is gone, an all-reduce of the output",
    ),
    Entry(
        _all(normalization.softmax, "Softmax LogSoftmax"),
        "every dimension",
        "over the normalized one, two all-reduces of a number for each row; backward one",
    ),
    Entry(
        _all(normalization.cross_entropy, "SoftmaxCrossEntropyWithLogits")
        | _all(normalization.sparse_cross_entropy, "SparseSoftmaxCrossEntropyWithLogits"),
        "batch and classes",
        "over classes, all-reduces of one and three (sparse: two) numbers for each row",
    ),
    Entry(
        _all(normalization.batch_norm, "FusedBatchNormV3")
        | _all(normalization.batch_norm_grad, "FusedBatchNormGradV3"),
        "every dimension",
        "over all but channels, two all-reduces of a number for each channel; backward one of two",
    ),
    Entry(
        _all(gather.gather, "GatherV2 Gather ResourceGather"),
        "every dimension of table and row numbers; the table may be partial",
        "over the vocabulary, the output is partial, and the table stays where it is",
    ),
    Entry(
        _all(gather.segment_sum, "UnsortedSegmentSum"),
        "every dimension; the rows may be partial",
        "over the rows, the output is partial",
    ),
    Entry(
        _all(convolution.convolution, "Conv2D")
        | _all(convolution.input_gradient, "Conv2DBackpropInput")
        | _all(convolution.filter_gradient, "Conv2DBackpropFilter")
        | _all(convolution.depthwise, "DepthwiseConv2dNative")
        | _all(convolution.depthwise_input_gradient, "DepthwiseConv2dNativeBackpropInput")
        | _all(convolution.depthwise_filter_gradient, "DepthwiseConv2dNativeBackpropFilter"),
        "batch, input and output channels (in groups: the batch), height and width; either input "
        "may be partial",
        "over what the output has not, the output is partial; over height and width, neighbours "
        "exchange rows",
    ),
    Entry(
        _all(convolution.pooling(True), "AvgPool")
        | _all(convolution.pooling(False), "MaxPool")
        | _all(convolution.pooling(True, True), "AvgPoolGrad")
        | _all(convolution.pooling(False, True), "MaxPoolGrad"),
        "batch, channels, height and width",
        "over height and width, as of convolutions",
    ),
    Entry(
        _all(gather.one_hot, "OneHot")
        | _all(random_numbers.draw(16), "StatelessRandomUniformV2 StatelessRandomUniformIntV2 "
                                      "StatelessRandomUniformFullIntV2 RandomUniform "
                                      "RandomUniformInt")
        | _all(random_numbers.draw(32), "StatelessRandomNormalV2 StatelessTruncatedNormalV2 "
                                        "RandomStandardNormal TruncatedNormal")
        | _all(random_numbers.seed, "StatelessRandomGetKeyCounter"),
        "every dimension of the output",
        "random numbers, over others than the first: a device draws whole rows",
    ),
    Entry(
        _all(shaping.reshape, "Reshape ExpandDims Squeeze"),
        "dimensions that stay; of those that become one, or of one that becomes several, the first",
        "",
    ),
    Entry(
        _all(shaping.transpose, "Transpose") | _all(shaping.broadcast_to, "BroadcastTo"),
        "every dimension of the output; the input may be partial",
        "",
    ),
    Entry(
        _all(shaping.concat, "ConcatV2")
        | _all(shaping.split, "Split SplitV")
        | _all(shaping.pack, "Pack")
        | _all(shaping.unpack, "Unpack")
        | _all(shaping.cut, "Slice StridedSlice StridedSliceGrad")
        | _all(shaping.pad, "Pad PadV2 MirrorPad")
        | _all(shaping.tile, "Tile")
        | _all(shaping.along, "Cumsum ReverseV2 Roll"),
        "dimensions along which nothing is put together, taken apart, left out, added or moved; "
        "all inputs may be partial at once",
        "",
    ),
    Entry(
        _all(lists.empty, "EmptyTensorList TensorListReserve")
        | _all(lists.from_tensor, "TensorListFromTensor")
        | _all(lists.stack, "TensorListStack")
        | _all(lists.get_item, "TensorListGetItem")
        | _all(lists.set_item, "TensorListSetItem")
        | _all(lists.push_back, "TensorListPushBack")
        | _all(lists.pop_back, "TensorListPopBack")
        | _all(lists.length, "TensorListLength"),
        "dimensions of elements; elements may be partial",
        "",
    ),
    Entry(
        _all(shaping.pick, "ArgMax ArgMin TopKV2"),
        "dimensions along which nothing is looked for",
        "",
    ),
    Entry(
        _all(elementwise.update(1, 0), "AssignVariableOp")
        | _all(elementwise.update(1, 1), "AssignAddVariableOp AssignSubVariableOp")
        | _all(elementwise.update(1, 2), "ResourceApplyGradientDescent")
        | _all(elementwise.update(2, 4),
               "ResourceApplyMomentum ResourceApplyKerasMomentum ResourceApplyAdagrad "
               "ResourceApplyAdagradV2")
        | _all(elementwise.update(3, 12), "ResourceApplyAdam ResourceApplyRMSProp "
                                          "ResourceApplyAdadelta ResourceApplyFtrl "
                                          "ResourceApplyFtrlV2"),
        "every dimension, of the variable, its slots and the gradient alike",
        "a partial gradient has to be reduced before",
    ),
    Entry(
        _all(gather.sparse_update(1, 2, 1, 1),
             "ResourceScatterAdd ResourceScatterSub ResourceScatterMul ResourceScatterDiv "
             "ResourceScatterMin ResourceScatterMax ResourceScatterUpdate")
        | _all(gather.sparse_update(2, -2, -1, 4),
               "ResourceSparseApplyAdagrad ResourceSparseApplyAdagradV2 "
               "ResourceSparseApplyProximalAdagrad")
        | _all(gather.sparse_update(2, 3, 4, 4),
               "ResourceSparseApplyMomentum ResourceSparseApplyKerasMomentum")
        | _all(gather.sparse_update(3, -2, -1, 12),
               "ResourceSparseApplyAdadelta ResourceSparseApplyRMSProp")
        | _all(gather.sparse_update(4, -2, -1, 12), "ResourceSparseApplyCenteredRMSProp")
        | _all(gather.sparse_update(3, 3, 4, 12),
               "ResourceSparseApplyFtrl ResourceSparseApplyFtrlV2")
        | _all(gather.sparse_update(1, -2, -1, 4),
               "ResourceSparseApplyProximalGradientDescent"),
        "every dimension of the variable and its slots; of the updates those after the rows",
        "over the vocabulary, each device takes the updates of its rows",
    ),
    Entry(
        _all(elementwise.source, "Variable VarHandleOp Placeholder Const"),
        "every dimension",
        "",
    ),
)  # fmt: skip

TABLE: Final[Mapping[str, RuleFunction]] = {
    kind: rule for entry in ENTRIES for kind, rule in sorted(entry.rules.items())
}


def rule_of(operation: Operation) -> Rule:
    """Return the rule of an operation.

    Raises:
      LayoutError: shapes or attributes do not fit the kind.
    """
    # Layers repeat, and rules depend on no names; errors do.
    with contextlib.suppress(LayoutError, TypeError):
        return _rule(operation.nameless)
    try:
        return TABLE.get(operation.kind, unknown)(operation)
    except TypeError as error:
        given = ", ".join(f"{key}={value!r}" for key, value in operation.attributes) or "none"
        raise LayoutError(
            f"{operation}: an attribute is of the wrong kind: {error}; they are: {given}"
        ) from error


@functools.lru_cache(maxsize=_KEPT)
def _rule(operation: Operation) -> Rule:
    return TABLE.get(operation.kind, unknown)(operation)


def without_rule(operations: Iterable[Operation]) -> dict[str, tuple[str, ...]]:
    """Return the operations that have no rule, and so are not split.

    Returns:
      Their names, sorted, by their kinds, sorted.
    """
    found: dict[str, list[str]] = {}
    for one in operations:
        if one.kind not in TABLE:
            found.setdefault(one.kind, []).append(one.name)
    return {kind: tuple(sorted(found[kind])) for kind in sorted(found)}


def _joined(kinds: Iterable[str]) -> list[str]:
    """Return kinds; those with a common prefix of the list as one, as a shell's braces do it."""
    found: dict[str, list[str]] = {}
    for kind in kinds:
        prefix = next((one for one in _PREFIXES if kind.startswith(one)), kind)
        found.setdefault(prefix, []).append(kind.removeprefix(prefix))
    return [
        f"{prefix}{{{','.join(ends)}}}" if len(ends) > 1 else prefix + ends[0]
        for prefix, ends in found.items()
    ]


def markdown() -> str:
    """Return the table of operators, as docs/layout.md has it."""
    lines = ["| operations | what can be split | cost, if any |", "|---|---|---|"]
    for entry in ENTRIES:
        kinds = ", ".join(f"`{kind}`" for kind in _joined(entry.rules))
        lines.append(f"| {kinds} | {entry.splits} | {entry.costs} |")
    return "\n".join(lines) + "\n"
