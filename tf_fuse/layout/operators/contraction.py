# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the rules of matrix products and Einstein sums.

The signatures of OneFlow's matmul follow: (S(m), B) -> S(0), (B, S(n)) -> S(1), (S(k), S(k)) -> P,
(P, B) -> P and (B, P) -> P.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Container, Mapping, Sequence
from typing import Final

from tf_fuse.layout.operators.rule import Rule, Work, Written, expect, make
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.operation import Operation

PRODUCT: Final = "product"
EINSUM: Final = "einsum"
CONVOLUTION: Final = "convolution"
KINDS: Final = (PRODUCT, EINSUM, CONVOLUTION)
_KINDS: Final = {
    "MatMul": PRODUCT, "BatchMatMul": PRODUCT, "BatchMatMulV2": PRODUCT, "Einsum": EINSUM,
    "Conv2D": CONVOLUTION, "Conv2DBackpropInput": CONVOLUTION,
    "Conv2DBackpropFilter": CONVOLUTION,
}  # fmt: skip
_TRANSPOSED: Final = (("transpose_a", "adj_x"), ("transpose_b", "adj_y"))


def kind_of(operation: Operation) -> str:
    """Return one of `KINDS`, or "" for another operation."""
    return _KINDS.get(operation.kind, "")


def transposed_tensors(operation: Operation) -> Mapping[int, bool]:
    """Return which inputs, and outputs behind them, a product or an Einstein sum transposes.

    Returns:
      Their numbers, and whether each is copied for it; else a product reads it so.
    """
    if kind_of(operation) == EINSUM:
        return transposed_by(operation.required("equation"))
    return {
        number: False
        for number, names in enumerate(_TRANSPOSED)
        if kind_of(operation) == PRODUCT and any(operation.attribute(name, False) for name in names)
    }


@functools.cache
def transposed_by(equation: str) -> Mapping[int, bool]:
    """Return which inputs, and output behind them, an Einstein sum of two tensors transposes.

    TensorFlow (einsum_op_impl.h) makes a batch of products of it: first come the dimensions that
    all three tensors have. Then an input has those that it gives the output and those that are
    summed over, one behind the other. Dimensions of one kind are in the order in which the equation
    first names them. Tensors of other orders are copied.

    Returns:
      As `transposed_tensors`.
    """
    text, _, output = equation.replace(" ", "").replace("...", "").partition("->")
    terms = text.split(",")
    if len(terms) != 2 or any(len(set(one)) < len(one) for one in terms):
        return {}
    shared = set(terms[0]) & set(terms[1]) & set(output)

    def in_order(some: str, last: Container[str]) -> bool:
        key = [(one not in shared, one in last, text.index(one)) for one in some]
        return key == sorted(key)

    found = {}
    summed = set(text) - set(output)
    # A product reads the rows of its first factor, and the columns of its second one.
    for i, (term, last, first) in enumerate(
        [(terms[0], summed, output), (terms[1], output, summed)]
    ):
        if not in_order(term, last):
            found[i] = not in_order(term, first)
    if not in_order(output, terms[1]):
        found[2] = True
    return found


def matmul(operation: Operation) -> Rule:
    """Return the rule of `MatMul`, with `transpose_a` and `transpose_b`."""
    expect(operation, [2, 2], [2])
    left = ["k", "m"] if operation.attribute("transpose_a", False) else ["m", "k"]
    right = ["n", "k"] if operation.attribute("transpose_b", False) else ["k", "n"]
    return contraction(operation, [left, right], ["m", "n"])


def batch_matmul(operation: Operation) -> Rule:
    """Return the rule of `BatchMatMulV2`, with `adj_x` and `adj_y`, which broadcasts."""
    expect(operation, [None, None], [None])
    x, y, z = (one.shape for one in (*operation.inputs, *operation.outputs))
    if min(map(len, (x, y, z))) < 2:
        raise LayoutError(
            f"{operation} has shapes {list(x)}, {list(y)} and {list(z)}; each has 2 dimensions or "
            "more"
        )
    check_broadcast(operation, 0, x[:-2], z[:-2])
    check_broadcast(operation, 1, y[:-2], z[:-2])
    left = ["k", "m"] if operation.attribute("adj_x", False) else ["m", "k"]
    right = ["n", "k"] if operation.attribute("adj_y", False) else ["k", "n"]
    before = broadcast(x[:-2], z[:-2]), broadcast(y[:-2], z[:-2])
    names = [f"b{i}" for i in range(len(z) - 2)]
    return contraction(operation, [[*before[0], *left], [*before[1], *right]], [*names, "m", "n"])


def einsum(operation: Operation) -> Rule:
    """Return the rule of `Einsum`, with `equation`; repeated letters are not split."""
    equation = operation.required("equation")
    found = re.fullmatch(r"([A-Za-z.,]*)->([A-Za-z.]*)", equation.replace(" ", ""))
    if not found:
        raise LayoutError(
            f"{operation}: equation {equation!r} is not of the form 'ab,bc->ac': letters for the "
            "dimensions of each input, an arrow, those of the output"
        )
    terms = found[1].split(",")
    expect(operation, [None] * len(terms), [None])
    output = operation.outputs[0].shape
    # The dimensions after dots are broadcast: from the right, as many as there are.
    dots = len(output) - len(found[2].replace("...", "")) if "..." in found[2] else 0
    inputs = [
        _dims(operation, term, tensor.shape, output, dots, found[2].find("..."))
        for term, tensor in zip(terms, operation.inputs, strict=True)
    ]
    out = _letters(found[2], dots)
    extra = sorted(set(out) - {one for dims in inputs for one in dims} - set(_dotted(dots)))
    if extra:
        raise LayoutError(f"{operation}: equation {equation!r} has {extra[0]!r} in no input")
    return contraction(operation, inputs, out)


def contraction(
    operation: Operation, inputs: Sequence[Sequence[Written]], output: Sequence[Written]
) -> Rule:
    """Return a sum of products over the factors that the output has not; linear in each input."""
    used = dict.fromkeys(
        one for dims in [output, *inputs] for one in dims if isinstance(one, str)
    )  # fmt: skip
    twice = {
        one
        for dims in [*inputs, output]
        for one in used
        if list(dims).count(one) > 1
    }  # fmt: skip
    # A product and a sum for each combination of indices, for each input but the first.
    count = 2 * (len(inputs) - 1) or 1
    return make(
        operation,
        inputs,
        [output],
        fixed=twice,
        sums=used.keys() - set(output),
        linear=[(i,) for i in range(len(inputs))],
        work=[Work(count, tuple(used))],
        saved_inputs=range(len(inputs)) if len(inputs) > 1 else (),
    )


def broadcast(shape: Sequence[int], output: Sequence[int], letter: str = "b") -> list[str | None]:
    """Return the factors of a tensor that is broadcast: None where it is repeated.

    Args:
      shape: of the tensor.
      output: what it is broadcast to; aligned at the right.
      letter: the factors are this letter and a number, those of the output's dimensions.
    """
    first = len(output) - len(shape)
    return [
        None if size == 1 and first + i >= 0 and output[first + i] > 1 else f"{letter}{first + i}"
        for i, size in enumerate(shape)
    ]


def check_broadcast(
    operation: Operation, number: int, shape: Sequence[int], output: Sequence[int]
) -> None:
    """Check that an input has no more dimensions than what it is broadcast to.

    Raises:
      LayoutError: it has.
    """
    if len(shape) > len(output):
        whole = operation.inputs[number].shape
        raise LayoutError(
            f"{operation}: input {number} has shape {list(whole)}, which is not broadcast to "
            f"{list(output)}"
        )


def _dotted(count: int) -> list[str]:
    return [f"b{i}" for i in range(count)]


def _letters(term: str, dots: int) -> list[str]:
    """Return the dimensions of a term; dots as `b0`, `b1` and so on."""
    before, _, after = term.partition("...")
    middle = _dotted(dots) if "..." in term else []
    return [*before, *middle, *after]


def _dims(
    operation: Operation,
    term: str,
    shape: Sequence[int],
    output: Sequence[int],
    dots: int,
    at: int,
) -> list[Written]:
    """Return the factors of an input; `dots` of the output's dimensions begin at `at`."""
    own = len(shape) - len(term.replace("...", ""))
    if "..." not in term or not 0 <= own <= dots:
        return list(_letters(term, 0))
    before, _, after = term.partition("...")
    begin = len(before)
    middle = broadcast(shape[begin : begin + own], output[at : at + dots])
    return list(itertools.chain(before, middle, after))
