# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define what a rule states about an operation: its factors, and what splitting each one costs.

A rule names the index ranges that an operation runs over, its *factors*, as the letters of an
einsum, and says for each dimension of each tensor which factor it is. An axis of the mesh can split
a factor: then it splits all dimensions that are this factor, tensors without it are the same along
the axis (B), and an output that is a sum over it is partial (P). GSPMD (Xu et al., 2021) and Shardy
have their operators' rules in this form, and OneFlow's signatures follow from it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tf_fuse.layout.operators.halo import Windows
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.operation import Operation

# The factors of each dimension of a tensor, the slowest first; none where it is never split.
Dims = tuple[tuple[str, ...], ...]
# How a dimension is written in rules: a factor, several, or None.
Written = str | tuple[str, ...] | None


class Work(NamedTuple):
    """A number that shrinks as factors are split: floating-point operations, or bytes.

    Attributes:
      times: for each combination of indices.
      factors: whose indices these are.
    """

    times: int
    factors: tuple[str, ...] = ()


class Inner(NamedTuple):
    """An all-reduce within an operation, over the axes that split a factor.

    Attributes:
      factor: that is split.
      reduction: "sum", "max", "min" or "prod".
      elements: what each device holds of it.
      backward: whether it is one of the gradient's.
    """

    factor: str
    reduction: str
    elements: Work
    backward: bool = False


class Halo(NamedTuple):
    """What neighbours send each other of an image, where axes split its height or width.

    Attributes:
      factors: height and width.
      windows: over the image, along each.
      need: what a device needs along each, as of `tf_fuse.layout.operators.halo`.
      rest: elements of a pixel of all images.
      backward: whether it is one of the gradient's.
    """

    factors: tuple[str, str]
    windows: tuple[Windows, Windows]
    need: str
    rest: Work
    backward: bool = False


@dataclasses.dataclass(frozen=True)
class Rule:
    """The rule of one operation.

    Attributes:
      sizes: of each factor, in the order in which they are tried.
      inputs: the factors of each input.
      outputs: the factors of each output.
      fixed: factors that no axis splits.
      sums: factors that outputs without them are sums over.
      same: factors that outputs without them do not depend on.
      linear: sets of inputs in which the operation is linear: all of a set may be partial at once,
        and so are the outputs then.
      inner: all-reduces within the operation.
      halos: what neighbours send each other within the operation, in the order of the inputs.
      work: floating-point operations of the forward pass.
      backward_work: those of the gradient.
      shared: (factor, input): the gradient of an input without the factor is the same on all
        devices along an axis that splits it. Otherwise it is partial.
      constants: inputs that have no gradient.
      loose: outputs whose gradient is not asked for.
      saved_inputs: those that the gradient needs.
      saved_outputs: those that the gradient needs.
      aliases: (output, input) that are in the same place in memory.
      copies: whether output and input are the same, so that gradients which are partial can pass:
        readers' gradients are added up before they are reduced.
      known: whether there is a rule, and not only the fallback.
      view: whether the output is the input, at most with another shape: no byte is moved.
      extra: (factor, operations): how many operations more a device runs where an axis splits the
        factor.
    """

    sizes: tuple[tuple[str, int], ...]
    inputs: tuple[Dims, ...]
    outputs: tuple[Dims, ...]
    fixed: frozenset[str] = frozenset()
    sums: frozenset[str] = frozenset()
    same: frozenset[str] = frozenset()
    linear: tuple[tuple[int, ...], ...] = ()
    inner: tuple[Inner, ...] = ()
    halos: tuple[Halo, ...] = ()
    work: tuple[Work, ...] = ()
    backward_work: tuple[Work, ...] = ()
    shared: frozenset[tuple[str, int]] = frozenset()
    constants: frozenset[int] = frozenset()
    loose: frozenset[int] = frozenset()
    saved_inputs: tuple[int, ...] = ()
    saved_outputs: tuple[int, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    copies: bool = False
    known: bool = True
    view: bool = False
    extra: tuple[tuple[str, int], ...] = ()

    @property
    def splittable(self) -> tuple[str, ...]:
        """Factor that an axis may split."""
        return tuple(name for name, _ in self.sizes if name not in self.fixed)


def make(
    operation: Operation,
    inputs: Sequence[Sequence[Written]],
    outputs: Sequence[Sequence[Written]],
    *,
    sizes: Mapping[str, int] | None = None,
    uneven: Iterable[str] = (),
    backward_work: Iterable[Work] | None = None,
    saved_inputs: Iterable[int] | None = None,
    **others: Any,
) -> Rule:
    """Build the rule of an operation, with sizes of factors after its shapes.

    Args:
      operation: it is for.
      inputs: for each input the factor of each dimension; None where it is never split.
      outputs: for each output the same.
      sizes: of factors that are not a dimension alone.
      uneven: second factors of dimensions that are not a product: each has as many slices as its
        first factor, and any size.
      backward_work: as much as forward for each input with a gradient, if None.
      saved_inputs: all, if None.
      **others: fields of the rule.

    Raises:
      LayoutError: the shapes do not fit the rule: numbers of tensors or dimensions differ, or a
        factor has two sizes.
    """
    ins = tuple(tuple(map(_tuple, one)) for one in inputs)
    outs = tuple(tuple(map(_tuple, one)) for one in outputs)
    given = {key: value for key, value in others.items() if key != "known"}
    for name in ("fixed", "sums", "same", "shared", "constants", "loose"):
        given[name] = frozenset(given.get(name, ()))
    for name in ("linear", "inner", "halos", "work", "saved_outputs", "aliases", "extra"):
        given[name] = tuple(given.get(name, ()))
    work = given["work"]
    if backward_work is None:
        count = sum(
            tensor.has_gradient and i not in given["constants"]
            for i, tensor in enumerate(operation.inputs)
        )
        backward_work = [Work(one.times * count, one.factors) for one in work]
    rule = Rule(
        _sizes(operation, ins, outs, dict(sizes or {}), frozenset(uneven)),
        ins,
        outs,
        backward_work=tuple(backward_work),
        saved_inputs=tuple(range(len(ins)) if saved_inputs is None else saved_inputs),
        **given,
    )
    _check_complete(operation, rule)
    return rule


def unknown(operation: Operation) -> Rule:
    """Return the rule of operations without a rule: nothing is split."""
    elements = sum(math.prod(one.shape) for one in operation.outputs)
    return Rule(
        (),
        tuple(((),) * len(one.shape) for one in operation.inputs),
        tuple(((),) * len(one.shape) for one in operation.outputs),
        work=(Work(elements),),
        backward_work=(Work(elements),),
        saved_inputs=tuple(range(len(operation.inputs))),
        saved_outputs=tuple(range(len(operation.outputs))),
        known=False,
    )


def expect(
    operation: Operation,
    inputs: Sequence[int | None] | None = None,
    outputs: Sequence[int | None] | None = None,
) -> None:
    """Check numbers of tensors and of their dimensions.

    Args:
      operation: to be checked.
      inputs: number of dimensions of each; None for any. None: of any number of inputs.
      outputs: the same.

    Raises:
      LayoutError: they are others.
    """
    problems = []
    for what, tensors, ranks in (
        ("input", operation.inputs, inputs),
        ("output", operation.outputs, outputs),
    ):
        if ranks is None:
            continue
        if len(ranks) != len(tensors):
            problems.append(f"{operation} has {len(tensors)} {what}s, expected {len(ranks)}")
            continue
        problems += [
            f"{operation}: {what} {i} has shape {list(tensor.shape)}, expected {rank} dimensions"
            for i, (tensor, rank) in enumerate(zip(tensors, ranks, strict=True))
            if rank is not None and len(tensor.shape) != rank
        ]
    raise_if(problems)


def dimension_of(operation: Operation, number: Any, rank: int) -> int:
    """Return a dimension's number from 0, of one that may be counted from the end.

    Raises:
      LayoutError: there is no such dimension.
    """
    if not isinstance(number, int) or not -rank <= number < rank:
        raise LayoutError(
            f"{operation}: dimension {number!r} of a tensor with {rank} dimensions; they are 0 to "
            f"{rank - 1}, or -1 to {-rank} from the end"
        )
    return number % rank


def channel_of(operation: Operation, rank: int) -> int:
    """Return the dimension of channels, by `data_format`: the last one, or the second one.

    Raises:
      LayoutError: there are not two dimensions.
    """
    if rank < 2:
        raise LayoutError(f"{operation} has a tensor of {rank} dimensions; it is for 2 or more")
    return 1 if str(operation.attribute("data_format", "NHWC")).startswith("NC") else rank - 1


def _tuple(one: Written) -> tuple[str, ...]:
    return () if one is None else (one,) if isinstance(one, str) else tuple(one)


def _sizes(
    operation: Operation,
    inputs: tuple[Dims, ...],
    outputs: tuple[Dims, ...],
    given: dict[str, int],
    uneven: frozenset[str],
) -> tuple[tuple[str, int], ...]:
    """Return the sizes of the factors, in the order in which they occur."""
    expect(operation, list(map(len, inputs)), list(map(len, outputs)))
    found: dict[str, dict[int, str]] = {}
    problems = []
    for what, tensors, all_dims in (
        ("input", operation.inputs, inputs),
        ("output", operation.outputs, outputs),
    ):
        for t, (tensor, dims) in enumerate(zip(tensors, all_dims, strict=True)):
            for i, (size, factors) in enumerate(zip(tensor.shape, dims, strict=True)):
                for factor in factors:
                    value = size if len(factors) == 1 else given[factor]
                    where = f"dimension {i} of {what} {t}"
                    found.setdefault(factor, {}).setdefault(value, where)
                product = math.prod(given[one] for one in factors) if len(factors) > 1 else size
                if product != size and uneven.isdisjoint(factors):
                    words = " x ".join(f"{one!r} ({given[one]})" for one in factors)
                    problems.append(
                        f"{operation}: dimension {i} of {what} {t} has {size} elements, but it is "
                        f"{words}; make it {product}"
                    )
    problems += [
        f"{operation}: {' and '.join(f'{where} has {n}' for n, where in sorted(sizes.items()))} "
        f"elements, but they are the same range {factor!r}; make them equal"
        for factor, sizes in sorted(found.items())
        if len(sizes) > 1
    ]
    raise_if(problems)
    return tuple((factor, next(iter(sizes))) for factor, sizes in found.items())


def _check_complete(operation: Operation, rule: Rule) -> None:
    """Check that the rule covers, for every factor, the outputs without it."""
    reduced = {one.factor for one in rule.inner if not one.backward}
    for factor in rule.splittable:
        for dims in rule.outputs:
            has = any(factor in factors for factors in dims)
            assert has or factor in rule.sums | rule.same | reduced, (operation, factor)
