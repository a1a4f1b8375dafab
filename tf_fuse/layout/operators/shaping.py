# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the rules of operations that move elements or leave some out.

Dimensions that they do not change can be split for nothing; others are not split.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tf_fuse.layout.operators.contraction import broadcast, check_broadcast
from tf_fuse.layout.operators.rule import Rule, Work, Written, dimension_of, expect, make
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.operation import Operation


def reshape(operation: Operation) -> Rule:
    """Return the rule of `Reshape`, `ExpandDims` and `Squeeze`: shared factors can be split.

    Of dimensions that become one, the first is that one's slowest part, and so in the other
    direction; where neither divides the other, their common divisor is.
    """
    expect(operation, [None], [None])
    before, after = operation.inputs[0].shape, operation.outputs[0].shape
    if math.prod(before) != math.prod(after):
        raise LayoutError(
            f"{operation} has {math.prod(before)} elements before, {list(before)}, and "
            f"{math.prod(after)} after, {list(after)}; a reshape keeps their number"
        )
    shared = _Shared({}, ([()] * len(before), [()] * len(after)))
    left, right = _parts(before), _parts(after)
    while left:
        (i, a), (o, b) = left.pop(0), right.pop(0)
        common = math.gcd(a, b)
        if common > 1:
            shared.add(common, i, o)
        if common in (a, b):
            left[:0] = [(i, a // common)] * (a > common)
            right[:0] = [(o, b // common)] * (b > common)
        else:
            # The factors after the common divisor differ on each side.
            _drop_group(left, right, a // common, b // common)
    fixed = [*shared.close(0, before), *shared.close(1, after)]
    return make(
        operation,
        [shared.dims[0]],
        [shared.dims[1]],
        sizes=shared.sizes,
        fixed=fixed,
        linear=[(0,)],
        saved_inputs=(),
        aliases=[(0, 0)],
        view=True,
    )


def transpose(operation: Operation) -> Rule:
    """Return the rule of `Transpose`, with `perm`."""
    expect(operation, [None], [None])
    rank = len(operation.inputs[0].shape)
    perm = operation.attribute("perm", tuple(range(rank))[::-1])
    if sorted(perm) != list(range(rank)):
        raise LayoutError(
            f"{operation}: perm {list(perm)} is not an order of the {rank} dimensions of "
            f"{list(operation.inputs[0].shape)}; name each once"
        )
    names = [f"d{i}" for i in range(rank)]
    return _kept(operation, [names], [[names[i] for i in perm]])


def concat(operation: Operation) -> Rule:
    """Return the rule of `ConcatV2`, with `axis`."""
    expect(operation, None, [None])
    rank = len(operation.outputs[0].shape)
    at = dimension_of(operation, operation.required("axis"), rank)
    names = _except(rank, [at])
    return _kept(operation, [names] * len(operation.inputs), [names])


def split(operation: Operation) -> Rule:
    """Return the rule of `Split` and `SplitV`, with `axis`."""
    expect(operation, [None], None)
    rank = len(operation.inputs[0].shape)
    at = dimension_of(operation, operation.required("axis"), rank)
    names = _except(rank, [at])
    return _kept(operation, [names], [names] * len(operation.outputs))


def pack(operation: Operation) -> Rule:
    """Return the rule of `Pack`, with `axis`: a new dimension."""
    expect(operation, None, [None])
    rank = len(operation.outputs[0].shape)
    at = dimension_of(operation, operation.attribute("axis", 0), rank)
    names = _except(rank, [at])
    single = [name for i, name in enumerate(names) if i != at]
    return _kept(operation, [single] * len(operation.inputs), [names])


def unpack(operation: Operation) -> Rule:
    """Return the rule of `Unpack`, with `axis`: a dimension less."""
    expect(operation, [None], None)
    rank = len(operation.inputs[0].shape)
    at = dimension_of(operation, operation.attribute("axis", 0), rank)
    names = _except(rank, [at])
    single = [name for i, name in enumerate(names) if i != at]
    return _kept(operation, [names], [single] * len(operation.outputs))


def cut(operation: Operation) -> Rule:
    """Return the rule of slices and their gradients, with `begin`, `strides` and `shrink`.

    `begin` and `strides` have a number for each dimension of the larger tensor; strides are 1 if
    there are none. `shrink` names dimensions that one index replaces. A
    dimension that is taken whole, in its order, can be split.
    """
    expect(operation, [None], [None])
    first, second = operation.inputs[0].shape, operation.outputs[0].shape
    gradient = operation.kind.endswith("Grad")
    big, small = (second, first) if gradient else (first, second)
    begin = operation.required("begin")
    strides = operation.attribute("strides", (1,) * len(big))
    gone = set(operation.attribute("shrink", ()))
    if not len(begin) == len(strides) == len(big) == len(small) + len(gone):
        raise LayoutError(
            f"{operation}: begin {list(begin)}, strides {list(strides)} and shrink {sorted(gone)} "
            f"do not fit {list(big)} and {list(small)}; begin and strides have a number for each "
            "dimension of the larger one, and the smaller one has all that shrink does not name"
        )
    left = iter(small)
    whole = [
        i not in gone and next(left) == size and (begin[i], strides[i]) == (0, 1)
        for i, size in enumerate(big)
    ]
    names = _except(len(big), [i for i, one in enumerate(whole) if not one])
    kept = [name for i, name in enumerate(names) if i not in gone]
    return _kept(operation, [kept if gradient else names], [names if gradient else kept])


def pad(operation: Operation) -> Rule:
    """Return the rule of padding, with `paddings`: dimensions without padding can be split."""
    expect(operation, None, [None])
    rank = len(operation.inputs[0].shape)
    paddings = operation.required("paddings")
    if len(paddings) != rank or any(len(one) != 2 for one in paddings):
        raise LayoutError(
            f"{operation}: paddings {paddings!r} are a pair for each of {rank} dimensions"
        )
    names = _except(rank, [i for i, one in enumerate(paddings) if any(one)])
    scalars: list[list[Written]] = [[] for _ in operation.inputs[1:]]
    return _kept(operation, [names, *scalars], [names])


def tile(operation: Operation) -> Rule:
    """Return the rule of `Tile`, with `multiples`: only unrepeated dimensions can be split."""
    expect(operation, [None], [None])
    rank = len(operation.inputs[0].shape)
    multiples = operation.required("multiples")
    if len(multiples) != rank:
        raise LayoutError(
            f"{operation}: multiples {list(multiples)} are a number for each of {rank} dimensions"
        )
    names = _except(rank, [i for i, count in enumerate(multiples) if count != 1])
    return _kept(operation, [names], [names])


def broadcast_to(operation: Operation) -> Rule:
    """Return the rule of `BroadcastTo`: dimensions that are repeated can be split, too."""
    expect(operation, [None], [None])
    shape = operation.outputs[0].shape
    check_broadcast(operation, 0, operation.inputs[0].shape, shape)
    names: list[Written] = [f"d{i}" for i in range(len(shape))]
    return _kept(operation, [broadcast(operation.inputs[0].shape, shape, "d")], [names])


def along(operation: Operation) -> Rule:
    """Return the rule of `Cumsum`, `ReverseV2` and `Roll`: all but `axis` can be split."""
    expect(operation, [None], [None])
    rank = len(operation.inputs[0].shape)
    axes = operation.required("axis")
    fixed = {
        dimension_of(operation, one, rank) for one in (axes if isinstance(axes, tuple) else [axes])
    }
    names: list[Written] = [f"d{i}" for i in range(rank)]
    return make(
        operation,
        [names],
        [names],
        fixed=[f"d{i}" for i in fixed],
        linear=[(0,)],
        work=[Work(1, tuple(map(str, names)))] if operation.kind == "Cumsum" else (),
        saved_inputs=(),
    )


def pick(operation: Operation) -> Rule:
    """Return the rule of `ArgMax`, `ArgMin` and `TopKV2`: all but `axis` can be split."""
    expect(operation, [None], None)
    rank = len(operation.inputs[0].shape)
    at = dimension_of(operation, operation.attribute("axis", -1), rank)
    names = _except(rank, [at])
    keeps = operation.kind == "TopKV2"
    output = names if keeps else [name for i, name in enumerate(names) if i != at]
    return make(
        operation,
        [names],
        [output] * len(operation.outputs),
        work=[Work(operation.inputs[0].shape[at], tuple(filter(None, map(_word, names))))],
        backward_work=[],
        constants=() if keeps else [0],
        loose=[1] if keeps else [0],
        saved_inputs=(),
        saved_outputs=[1] if keeps else (),
    )


def _word(one: Written) -> str:
    return one if isinstance(one, str) else ""


def _except(rank: int, changed: Iterable[int]) -> list[Written]:
    without = set(changed)
    return [None if i in without else f"d{i}" for i in range(rank)]


def _kept(
    operation: Operation,
    inputs: Sequence[Sequence[Written]],
    outputs: Sequence[Sequence[Written]],
) -> Rule:
    """Return a rule of what only moves elements: linear in all inputs at once."""
    return make(
        operation,
        inputs,
        outputs,
        linear=[tuple(range(len(inputs)))],
        saved_inputs=(),
    )


def _parts(shape: Sequence[int]) -> list[tuple[int, int]]:
    """Return the dimensions with more than one element, and their sizes."""
    return [(i, size) for i, size in enumerate(shape) if size > 1]


class _Shared(NamedTuple):
    """The factors of a reshape.

    Attributes:
      sizes: of each.
      dims: which each dimension has, before and after.
    """

    sizes: dict[str, int]
    dims: tuple[list[tuple[str, ...]], list[tuple[str, ...]]]

    def add(self, size: int, before: int, after: int) -> None:
        """Add a factor that a dimension of each side has."""
        name = f"r{len(self.sizes)}"
        self.sizes[name] = size
        self.dims[0][before] += (name,)
        self.dims[1][after] += (name,)

    def close(self, side: int, shape: Sequence[int]) -> Iterable[str]:
        """Add the rest of dimensions as factors of their own, and yield their names."""
        for i, size in enumerate(shape):
            rest = size // math.prod(self.sizes[one] for one in self.dims[side][i])
            if self.dims[side][i] and rest > 1:
                name = f"r{len(self.sizes)}"
                self.sizes[name] = rest
                self.dims[side][i] += (name,)
                yield name


def _drop_group(left: list[tuple[int, int]], right: list[tuple[int, int]], a: int, b: int) -> None:
    """Take dimensions away until both sides have taken as much."""
    while a != b:
        parts = left if a < b else right
        _, size = parts.pop(0)
        if parts is left:
            a *= size
        else:
            b *= size
