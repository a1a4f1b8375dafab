# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""List the strategies of an operation: the layouts in which it can run, and what each needs.

A strategy makes one choice for each axis of the mesh, and is a product of these, as OneFlow's n-D
signatures are. Left out are:

* along an axis of one device, all choices but the one to split nothing;
* another order than the mesh's for axes that split the same factor, which costs the same;
* splits into uneven slices, into slices that are not contiguous, and into such small ones that
  more than the next device's rows are needed;
* of strategies with the same layouts of all tensors and gradients, all but the first one of those
  with the fewest floating-point operations, and then the fewest bytes that are received;
* and what `Allowed` forbids.

The order is that of the choices: nothing is split, then each factor in the rule's order, then the
sets of inputs that may be partial, then the gradient; the last axis changes first.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tf_fuse.layout.operators import rule_of
from tf_fuse.layout.operators.contraction import kind_of, transposed_tensors
from tf_fuse.layout.operators.rule import Dims, Rule, Work
from tf_fuse.layout.strategies.inner_halos import InnerHalo, inner_halos
from tf_fuse.layout.types.mesh import Mesh
from tf_fuse.layout.types.operation import Operation, Tensor
from tf_fuse.layout.types.tensor_layout import TensorLayout

REPLICATE: Final = "replicate"
SPLIT: Final = "split"
PARTIAL: Final = "partial"
GRADIENT: Final = "partial gradient"
# Layers of a model repeat, and so do their operations.
_KEPT = 1024


@dataclasses.dataclass(frozen=True)
class Choice:
    """The choice of an operation along one axis of the mesh.

    Attributes:
      kind: "replicate": all devices do the same. "split": each has a slice of a factor. "partial":
        each has terms of the sums that some of the inputs are, and makes terms of the outputs.
        "partial gradient": all have the same, and each has terms of the gradient.
      factor: that is split.
      inputs: that are partial.
    """

    kind: str = REPLICATE
    factor: str = ""
    inputs: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.kind == SPLIT:
            return f"split {self.factor}"
        if self.kind == PARTIAL:
            return f"partial input{'s' * (len(self.inputs) > 1)} {', '.join(map(str, self.inputs))}"
        return self.kind


@dataclasses.dataclass(frozen=True)
class Allowed:
    """Which strategies there may be.

    Attributes:
      stacked: whether several axes may split one dimension; DTensor cannot.
      partial: whether inputs, or the gradients of outputs, may be partial.
    """

    stacked: bool = True
    partial: bool = True


EVERYTHING: Final = Allowed()


@dataclasses.dataclass(frozen=True)
class InnerAllReduce:
    """An all-reduce within an operation.

    Attributes:
      reduction: "sum", "max", "min" or "prod".
      axes: whose devices form the groups.
      held_bytes: of what each device has of it.
      received_bytes: by all devices together.
      messages: of a device, one after the other.
    """

    reduction: str
    axes: tuple[str, ...]
    held_bytes: int
    received_bytes: int
    messages: int

    def __str__(self) -> str:
        axes = "+".join(self.axes)
        return f"all_reduce ({self.reduction}) of {self.held_bytes} bytes over {axes}"


@dataclasses.dataclass(frozen=True)
class Strategy:
    """One way to run an operation on a mesh.

    Gradients are as the operation's own gradient takes and makes them: where an output is partial
    its gradient has to be whole, and where an input is the same on devices that do different things
    its gradient is partial. None stands for no gradient. Numbers are those of one device.

    Attributes:
      choices: for each axis of the mesh.
      inputs: layout of each input.
      outputs: layout of each output.
      input_gradients: layout in which each input's gradient is made.
      output_gradients: layout in which each output's gradient is needed.
      forward: collectives within it.
      backward: collectives within its gradient.
      flops: floating-point operations.
      backward_flops: of its gradient.
      input_bytes: of its inputs.
      parameter_bytes: of those inputs that are parameters.
      output_bytes: of its outputs that are not in the place of inputs.
      known: whether it is by a rule; otherwise all devices do the same.
      operations: of TensorFlow that a device runs for it; 0 if it only passes its input on.
      view: whether its output is its input, so that it reads and writes nothing.
      contraction: one of `contraction.KINDS`, or "" of others.
      transposed_bytes: of what a product or an Einstein sum transposes.
    """

    choices: tuple[Choice, ...]
    inputs: tuple[TensorLayout, ...]
    outputs: tuple[TensorLayout, ...]
    input_gradients: tuple[TensorLayout | None, ...]
    output_gradients: tuple[TensorLayout | None, ...]
    forward: tuple[InnerAllReduce | InnerHalo, ...]
    backward: tuple[InnerAllReduce | InnerHalo, ...]
    flops: int
    backward_flops: int
    input_bytes: int
    parameter_bytes: int
    output_bytes: int
    known: bool = True
    operations: int = 1
    view: bool = False
    contraction: str = ""
    transposed_bytes: int = 0

    def __str__(self) -> str:
        return ", ".join(map(str, self.choices))


def strategies(
    operation: Operation, mesh: Mesh, allowed: Allowed = EVERYTHING
) -> tuple[Strategy, ...]:
    """Return all strategies of an operation; the first one splits nothing.

    Args:
      operation: to be run.
      mesh: the devices.
      allowed: which strategies there may be.

    Returns:
      They, in an order that is always the same. Names are of no account, so that operations that
      differ in these alone have the same ones.

    Raises:
      LayoutError: shapes or attributes of the operation do not fit its kind.
    """
    rule_of(operation)  # Errors name the operation.
    return _strategies(operation.nameless, mesh, allowed)


@functools.lru_cache(maxsize=_KEPT)
def _strategies(operation: Operation, mesh: Mesh, allowed: Allowed) -> tuple[Strategy, ...]:
    rule = rule_of(operation)
    sizes = dict(rule.sizes)
    found: dict[tuple[object, ...], Strategy] = {}
    for choices in _combinations(rule, mesh, allowed):
        made = _Assignment(operation, rule, mesh, choices, sizes).strategy(allowed)
        if made is None:
            continue
        key = made.inputs, made.outputs, made.input_gradients, made.output_gradients
        known = found.get(key)
        if known is None or _work(made) < _work(known):
            found[key] = made
    return tuple(found.values())


def _work(strategy: Strategy) -> tuple[int, int]:
    received = sum(one.received_bytes for one in (*strategy.forward, *strategy.backward))
    return strategy.flops + strategy.backward_flops, received


def _combinations(
    rule: Rule, mesh: Mesh, allowed: Allowed, axis: int = 0
) -> Iterator[tuple[Choice, ...]]:
    """Return all combinations of choices for the axes from one on."""
    if axis == len(mesh.axes):
        yield ()
        return
    options = [Choice()]
    if mesh.shape[axis] > 1:
        sizes = dict(rule.sizes)
        options += [
            Choice(SPLIT, factor)
            for factor in rule.splittable
            if sizes[factor] % mesh.shape[axis] == 0
        ]
        options += [Choice(PARTIAL, "", inputs) for inputs in rule.linear if allowed.partial]
        options += [Choice(GRADIENT)] * (rule.copies and allowed.partial)
    rest = list(_combinations(rule, mesh, allowed, axis + 1))
    for option in options:
        for others in rest:
            yield option, *others


class _Assignment:
    """Choices for all axes, being made a strategy."""

    def __init__(
        self,
        operation: Operation,
        rule: Rule,
        mesh: Mesh,
        choices: tuple[Choice, ...],
        sizes: Mapping[str, int],
    ):
        self._operation = operation
        self._rule = rule
        self._mesh = mesh
        self._choices = choices
        self._axes: dict[str, tuple[str, ...]] = {}
        for axis, choice in zip(mesh.axes, choices, strict=True):
            if choice.kind == SPLIT:
                self._axes[choice.factor] = (*self._axes.get(choice.factor, ()), axis)
        self._counts = {
            factor: math.prod(map(mesh.size_of, axes)) for factor, axes in self._axes.items()
        }
        self._local = {
            factor: size // self._counts.get(factor, 1) for factor, size in sizes.items()
        }
        self._even = all(sizes[one] % count == 0 for one, count in self._counts.items())

    def strategy(self, allowed: Allowed) -> Strategy | None:
        """Return the strategy; None if it is not legal."""
        rule, operation = self._rule, self._operation
        count, dims = len(operation.inputs), [*rule.inputs, *rule.outputs]
        tensors = [*operation.inputs, *operation.outputs]
        shapes = [one.shape for one in tensors]
        if not self._even or not all(map(self._legal, dims, shapes, [allowed] * len(dims))):
            return None
        splits = [tuple(map(self._split, one)) for one in dims]
        partial = [self._partial(i, i - count if i >= count else None) for i in range(len(dims))]
        layouts = [
            _layout(self._mesh, tensor.shape, split, sums)
            for tensor, split, sums in zip(tensors, splits, partial, strict=True)
        ]
        gradients: list[TensorLayout | None] = []
        for i, (tensor, split) in enumerate(zip(tensors, splits, strict=True)):
            skipped = i in rule.constants if i < count else i - count in rule.loose
            sums = self._gradient_partial(i) if i < count else self._axes_of(GRADIENT)
            gradients.append(
                _layout(self._mesh, tensor.shape, split, sums)
                if tensor.has_gradient and not skipped
                else None
            )
        held = [
            layout.bytes_per_device(tensor.item_bytes)
            for layout, tensor in zip(layouts, tensors, strict=True)
        ]
        transposed = transposed_tensors(operation)
        extra = sum(n for factor, n in rule.extra if factor in self._axes)
        forward = self._collectives(False)
        backward = self._collectives(True) if any(gradients[:count]) else []
        no_sums = any(sums and one.is_logical for sums, one in zip(partial, tensors, strict=True))
        if forward is None or backward is None or no_sums:
            return None
        return Strategy(
            self._choices,
            tuple(layouts[:count]),
            tuple(layouts[count:]),
            tuple(gradients[:count]),
            tuple(gradients[count:]),
            tuple(forward),
            tuple(backward),
            self._sum(rule.work),
            self._sum(rule.backward_work) if any(gradients[:count]) else 0,
            sum(held[:count]),
            _parameters(operation.inputs, held),
            sum(size for i, size in enumerate(held[count:]) if i not in dict(rule.aliases)),
            rule.known,
            0 if rule.copies else 1 + extra + sum(transposed.values()),
            rule.view,
            kind_of(operation),
            sum(held[number] for number in transposed),
        )

    def _legal(self, dims: Dims, shape: Sequence[int], allowed: Allowed) -> bool:
        """Return whether what each device holds of a tensor is one slice of it, all of one size."""
        for factors, size in zip(dims, shape, strict=True):
            if size % math.prod(self._counts.get(factor, 1) for factor in factors):
                return False
            whole = False
            used = 0
            for factor in factors:
                axes = self._axes.get(factor, ())
                used += len(axes)
                if axes and whole:
                    return False
                whole = whole or self._local[factor] > 1
            if used > 1 and not allowed.stacked:
                return False
        return True

    def _split(self, factors: Sequence[str]) -> tuple[str, ...]:
        return tuple(axis for factor in factors for axis in self._axes.get(factor, ()))

    def _partial(self, tensor: int, output: int | None) -> tuple[str, ...]:
        """Return the axes along which a tensor is partial."""
        found = []
        for axis, choice in zip(self._mesh.axes, self._choices, strict=True):
            if choice.kind == PARTIAL:
                given = output is not None or tensor in choice.inputs
            else:
                given = output is not None and self._is_sum(choice, self._rule.outputs[output])
            if given:
                found.append(axis)
        return tuple(found)

    def _axes_of(self, kind: str) -> tuple[str, ...]:
        both = zip(self._mesh.axes, self._choices, strict=True)
        return tuple(axis for axis, choice in both if choice.kind == kind)

    def _is_sum(self, choice: Choice, dims: Dims) -> bool:
        return choice.kind == SPLIT and choice.factor in self._rule.sums and not _has(dims, choice)

    def _gradient_partial(self, tensor: int) -> tuple[str, ...]:
        """Return the axes along which the gradient of an input is partial.

        Where devices do different things with the same tensor, the gradient is the sum of theirs.
        """
        dims = self._rule.inputs[tensor]
        found = []
        for axis, choice in zip(self._mesh.axes, self._choices, strict=True):
            same = choice.kind == REPLICATE or (choice.factor, tensor) in self._rule.shared
            own = _has(dims, choice) or tensor in choice.inputs
            if not same and not own:
                found.append(axis)
        return tuple(found)

    def _collectives(self, backward: bool) -> list[InnerAllReduce | InnerHalo] | None:
        """Return what devices exchange within the operation; None if neighbours do not suffice."""
        item_bytes = self._operation.inputs[0].item_bytes if self._operation.inputs else 0
        found: list[InnerAllReduce | InnerHalo] = []
        for inner in self._rule.inner:
            axes = self._axes.get(inner.factor)
            if inner.backward != backward or not axes:
                continue
            held = self._sum([inner.elements]) * item_bytes
            members = self._counts[inner.factor]
            # As `steps.Space.received` has it; a device's share is not always a whole number.
            received = 2 * held * self._mesh.size // members * (members - 1)
            found.append(InnerAllReduce(inner.reduction, axes, held, received, 2 * (members - 1)))
        for halo in self._rule.halos:
            if halo.backward == backward:
                pixel = self._sum([halo.rest]) * item_bytes
                some = inner_halos(halo, self._axes, self._counts, pixel, self._mesh.size)
                if some is None:
                    return None
                found += some
        return found

    def _sum(self, works: Sequence[Work]) -> int:
        return sum(
            one.times * math.prod(self._local[factor] for factor in one.factors) for one in works
        )


def _has(dims: Dims, choice: Choice) -> bool:
    return any(choice.factor in factors for factors in dims)


def _parameters(tensors: Sequence[Tensor], held: Sequence[int]) -> int:
    return sum(size for one, size in zip(tensors, held, strict=False) if one.parameter)


@functools.lru_cache(maxsize=16 * _KEPT)
def _layout(
    mesh: Mesh,
    shape: tuple[int, ...],
    splits: tuple[tuple[str, ...], ...],
    partial: tuple[str, ...],
) -> TensorLayout:
    return TensorLayout(mesh, shape, splits, partial)
