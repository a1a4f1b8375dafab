# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""List known operations: those that compute elementwise, reduce, or update variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import RESOURCE

# Each element of the output depends only on the elements of the inputs at the same index.
ELEMENTWISE = frozenset(
    {
        "Abs", "Add", "AddN", "AddV2", "BitwiseAnd", "BitwiseOr", "Cast", "Ceil", "ClipByValue",
        "Cos", "Div", "DivNoNan", "Equal", "Erf", "Exp", "Expm1", "Floor", "FloorDiv", "FloorMod",
        "Greater", "GreaterEqual", "Identity", "Inv", "IsFinite", "IsInf", "IsNan", "Less",
        "LessEqual", "Log", "Log1p", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum", "Minimum",
        "Mod", "Mul", "MulNoNan", "Neg", "NotEqual", "OnesLike", "Pow", "RealDiv", "Reciprocal",
        "Relu", "Rint", "Round", "Rsqrt", "Select", "SelectV2", "Sigmoid", "Sign", "Sin",
        "Softplus", "Sqrt", "Square", "SquaredDifference", "StopGradient", "Sub", "Tanh",
        "TruncateDiv", "Xdivy", "Xlog1py", "Xlogy", "ZerosLike",
    }
)  # fmt: skip
# Those of them whose inputs have the output's shape, or are scalars.
_NOT_BROADCAST = frozenset({"AddN", "ClipByValue", "Select"})
# The output has the elements of the first input, in another shape.
SAME_ELEMENTS = frozenset({"EnsureShape", "ExpandDims", "Reshape", "Squeeze"})

# Reduce the first input over the axes of the second; L2Loss over all.
REDUCTIONS = frozenset(
    {"All", "Any", "EuclideanNorm", "L2Loss", "Max", "Mean", "Min", "Prod", "Sum"}
)
# Reducing the results of parts, in any order, gives the bits of reducing the whole.
_EXACT_REDUCTIONS = frozenset({"All", "Any", "Max", "Min"})

# Update a variable and its slots from a gradient; the other inputs are scalars.
RESOURCE_APPLY = frozenset(
    f"ResourceApply{name}"
    for name in (
        "AdaMax", "Adadelta", "Adagrad", "AdagradDA", "AdagradV2", "Adam", "AdamWithAmsgrad",
        "AddSign", "CenteredRMSProp", "Ftrl", "FtrlV2", "GradientDescent", "KerasMomentum",
        "Momentum", "PowerSign", "ProximalAdagrad", "ProximalGradientDescent", "RMSProp",
    )
)  # fmt: skip
_GRADIENT_INPUTS = ("grad", "delta")


@dataclass(frozen=True)
class ApplyInputs:
    """The inputs of an operation that updates a variable, by index.

    Attributes:
      variables: the weight first, then its slots.
      gradient: of the weight.
      scalars: the others.
    """

    variables: tuple[int, ...]
    gradient: int
    scalars: tuple[int, ...]


def apply_inputs(definition: Any) -> ApplyInputs:
    """Return the roles of the inputs of an operation in RESOURCE_APPLY.

    Args:
      definition: its `OpDef`.
    """
    names = [argument.name for argument in definition.input_arg]
    variables = [i for i, a in enumerate(definition.input_arg) if a.type == RESOURCE]
    (gradient,) = (i for i, name in enumerate(names) if name in _GRADIENT_INPUTS)
    others = set(range(len(names))) - {*variables, gradient}
    return ApplyInputs(tuple(variables), gradient, tuple(sorted(others)))


def type_of(node: Any) -> int:
    """Return the number of the type of the variable that a node reads, assigns or updates."""
    return int(node.attr["T" if node.op in RESOURCE_APPLY else "dtype"].type)


def can_broadcast(op: str) -> bool:
    """Return whether an elementwise operation takes inputs of other shapes than the output's."""
    return op not in _NOT_BROADCAST


def is_exact_reduction(op: str, is_integer: bool) -> bool:
    """Return whether reducing parts first gives the same bits."""
    return op in _EXACT_REDUCTIONS or (op in ("Sum", "Prod") and is_integer)
