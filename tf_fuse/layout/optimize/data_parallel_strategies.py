# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Choose the strategies of data parallelism: split the batch and nothing else.

Fed tensors are split along their batch dimension over all axes of the mesh; variables stay whole.
An operation takes the strategy that moves the fewest bytes of its inputs, among those that split
nothing, or what its inputs split. Gradients stay partial up to the first operation that needs them
whole, so a training step has the reductions of data parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from tf_fuse.layout.cost.model import Rates
from tf_fuse.layout.operators import rule_of
from tf_fuse.layout.operators.random_numbers import DRAWS
from tf_fuse.layout.optimize.local_relayouts import is_local
from tf_fuse.layout.relayout.pairwise_seconds import relayout_seconds
from tf_fuse.layout.strategies.insert_forks import SUFFIX
from tf_fuse.layout.strategies.strategy import GRADIENT, PARTIAL, REPLICATE, SPLIT, Choice, Strategy
from tf_fuse.layout.types.control_flow import OUTSIDE, ControlFlow
from tf_fuse.layout.types.errors import raise_if
from tf_fuse.layout.types.mesh import Mesh
from tf_fuse.layout.types.operation import Operation, Tensor
from tf_fuse.layout.types.tensor_layout import TensorLayout

# The kind of fed tensors' operations.
FED: Final = "Placeholder"
# How often the layouts of what loops carry are looked for.
_TRIALS: Final = 8
# Operations whose first input, a list, does not lie as their first output.
_OF_ELEMENTS: Final = ("TensorListGetItem", "TensorListLength", "TensorListStack")


def data_strategies(
    operations: Sequence[Operation],
    candidates: Sequence[Sequence[Strategy]],
    batch: Mapping[str, int | None],
    rates: Rates,
    control_flow: ControlFlow,
) -> list[int]:
    """Return the number of the strategy of each operation.

    Args:
      operations: of a graph, in an order in which each comes after those that make its inputs.
      candidates: the strategies of each.
      batch: by name of a tensor that is fed, its batch dimension, or None if it has none; by
        default dimension 0.
      rates: of the mesh.
      control_flow: the loops and conditionals that some operations are in.

    Raises:
      LayoutError: `batch` names what is not fed, or a dimension that is not there.
    """
    fed = {
        tensor.name: tensor
        for one in operations
        if one.kind == FED
        for tensor in one.outputs
        if not tensor.parameter
    }
    _check(batch, fed)
    choose = _Choice(operations, candidates, batch, rates, control_flow, fed)
    # Devices communicate in bodies only where the layouts do not meet without that. Lists may not
    # meet even then: all devices run loops and conditionals whole.
    for choose.apart in (True, False):
        found = choose.settled()
        if found is not None:
            return found
    choose.whole = True
    return choose.all()


class _Choice:
    """The choice for all operations, by what is known of the loops.

    Attributes:
      apart: whether no device communicates in loops and conditionals.
      whole: whether nothing in loops and conditionals, and no list of tensors, is split.
    """

    def __init__(
        self,
        operations: Sequence[Operation],
        candidates: Sequence[Sequence[Strategy]],
        batch: Mapping[str, int | None],
        rates: Rates,
        control_flow: ControlFlow,
        fed: Mapping[str, Tensor],
    ):
        self.apart = True
        self.whole = False
        self._operations = operations
        self._candidates = candidates
        self._batch = batch
        self._rates = rates
        self._flow = control_flow
        self._fed = fed
        self._made: dict[str, TensorLayout] = {}
        # The layouts of tensors that loops carry, and of lists that they begin with.
        self._wanted: dict[str, TensorLayout] = {}
        self._makers = {tensor.name: one for one in operations for tensor in one.outputs}

    def settled(self) -> list[int] | None:
        """Return a choice in which all layouts of what loops carry meet; None if none is found."""
        self._wanted = {}
        found = self.all()
        # A loop carries what its body makes: the layout of that is known when the body was gone
        # through.
        for _ in range(_TRIALS):
            fits = self.fits(found)
            if not self.learned() and fits:
                return found
            found = self.all()
        return found if self.fits(found) else None

    def all(self) -> list[int]:
        """Return the number of the strategy of each operation."""
        self._made = {}
        # Layers repeat.
        known: dict[tuple[object, ...], int] = {}
        found = []
        for one, mine in zip(self._operations, self._candidates, strict=True):
            wanted = self._wanted.get(one.outputs[0].name) if one.outputs else None
            fitting = [s for s, each in enumerate(mine) if each.outputs[:1] == (wanted,)]
            if self.whole and self._is_of_regions(one):
                at = 0
            elif fitting:
                at = fitting[0]
            elif one.kind in DRAWS:
                at = _drawing(one, mine, self._fed, self._batch, self._rates.mesh)
            elif one.inputs:
                inputs = tuple(self._made[tensor.name] for tensor in one.inputs)
                # Equal operations have equal candidates, except those for results.
                inside = self._flow.reads_in_body(one)
                key = one.nameless, len(mine), one.name.endswith(SUFFIX), inputs, inside
                if key not in known:
                    known[key] = _reading(one, mine, inputs, self._rates, inside)
                at = known[key]
            else:
                at = _feeding(one, mine, self._fed, self._batch, self._rates.mesh)
            found.append(at)
            outputs = zip(one.outputs, mine[at].outputs, strict=True)
            self._made.update((tensor.name, layout) for tensor, layout in outputs)
        return found

    def learned(self) -> bool:
        """Take the layouts that bodies make for what loops carry; return whether one is new."""
        before = dict(self._wanted)
        for region in self._flow.regions:
            for entered, last in region.carried:
                self._want(entered, self._made[last])
        return before != self._wanted

    def fits(self, found: Sequence[int]) -> bool:
        """Return whether layouts meet in bodies; want layouts of lists as readers do."""
        fits = True
        for one, mine, at in zip(self._operations, self._candidates, found, strict=True):
            for tensor, layout in zip(one.inputs, mine[at].inputs, strict=True):
                made = self._made[tensor.name]
                if tensor.is_list and made != layout:
                    self._want(tensor.name, layout)
                    fits = False
                elif self._is_local(one) and not is_local(made, layout):
                    fits = False
        return fits and all(
            self._carries(self._made[last], self._made[entered], self._makers[entered])
            for region in self._flow.regions
            for entered, last in region.carried
        )

    def _want(self, name: str, layout: TensorLayout) -> None:
        """Want a layout of a tensor; of a list, where it begins, which all that follows copies.

        What one reader splits, no other one, which may know less, wants whole.
        """
        maker = self._makers[name]
        while maker.inputs and maker.inputs[0].is_list and maker.kind not in _OF_ELEMENTS:
            name = maker.inputs[0].name
            maker = self._makers[name]
        before = self._wanted.get(name)
        if before is None or not (any(before.splits) or before.partial):
            self._wanted[name] = layout

    def _carries(self, last: TensorLayout, entered: TensorLayout, begin: Operation) -> bool:
        """Return whether what a body makes can come back to the layout in which it is read."""
        if begin.outputs[0].is_list:
            return last == entered
        return not self.apart or is_local(last, entered)

    def _is_local(self, one: Operation) -> bool:
        """Return whether an operation may read only what its device has."""
        return self.apart and self._flow.reads_in_body(one)

    def _is_of_regions(self, one: Operation) -> bool:
        """Return whether an operation is in a region, begins or ends one, or has lists."""
        lists = any(tensor.is_list for tensor in (*one.inputs, *one.outputs))
        begins = one.name in self._flow.begins or one.name in self._flow.by_end
        return lists or begins or self._flow.block(one.name) != OUTSIDE


def _check(batch: Mapping[str, int | None], fed: Mapping[str, Tensor]) -> None:
    raise_if(
        [
            f"batch: no tensor {name!r} is fed; there are: {', '.join(sorted(fed)) or 'none'}"
            for name in sorted(set(batch) - set(fed))
        ]
        + [
            f"batch: tensor {name!r} has {len(fed[name].shape)} dimensions, and {at} is not one of "
            "them"
            for name, at in sorted(batch.items())
            if name in fed and at is not None and not 0 <= at < len(fed[name].shape)
        ]
    )


def _feeding(
    one: Operation,
    mine: Sequence[Strategy],
    fed: Mapping[str, Tensor],
    batch: Mapping[str, int | None],
    mesh: Mesh,
) -> int:
    name = one.outputs[0].name
    at = batch.get(name, 0) if name in fed else None
    return 0 if at is None else _split(one, mine, at, mesh)


def _drawing(
    one: Operation,
    mine: Sequence[Strategy],
    fed: Mapping[str, Tensor],
    batch: Mapping[str, int | None],
    mesh: Mesh,
) -> int:
    """Split random numbers with as many rows as a batch."""
    places = {name: batch.get(name, 0) for name in fed}
    sizes = {
        fed[name].shape[at] for name, at in places.items() if at is not None and fed[name].shape
    }
    shape = one.outputs[0].shape
    return _split(one, mine, 0, mesh) if shape and shape[0] in sizes else 0


def _split(one: Operation, mine: Sequence[Strategy], at: int, mesh: Mesh) -> int:
    """Return the strategy that splits a dimension of the output over all axes, or nothing."""
    axes = tuple(axis for axis, size in mesh.dims if size > 1)
    wanted = tuple(axes if i == at else () for i in range(len(one.outputs[0].shape)))
    for s, strategy in enumerate(mine):
        if strategy.outputs[0].splits == wanted:
            return s
    return 0


def _reading(
    one: Operation,
    mine: Sequence[Strategy],
    inputs: Sequence[TensorLayout],
    rates: Rates,
    inside: bool,
) -> int:
    allowed = _choices(one, inputs)
    sizes = rates.mesh.dims

    def cost(s: int) -> tuple[bool, float, int, int]:
        strategy = mine[s]
        pairs = list(zip(inputs, strategy.inputs, strict=True))
        # In a body, what devices do apart comes first: a loop would repeat what they send.
        sends = inside and (
            bool(strategy.forward) or not all(is_local(made, read) for made, read in pairs)
        )
        moved = sum(
            _seconds(tensor, made, read, rates)
            for tensor, (made, read) in zip(one.inputs, pairs, strict=True)
        )
        inner = sum(rates.collective(each) for each in strategy.forward)
        held = sum(
            layout.bytes_per_device(tensor.item_bytes)
            for tensor, layout in zip(one.outputs, strategy.outputs, strict=True)
        )
        return sends, moved + inner, held, s

    fitting = [
        s
        for s, strategy in enumerate(mine)
        if any(
            all(
                choice == (wanted if size > 1 else Choice())
                for choice, (_, size) in zip(strategy.choices, sizes, strict=True)
            )
            for wanted in allowed
        )
    ]
    return min(fitting or [0], key=cost)


def _choices(one: Operation, inputs: Sequence[TensorLayout]) -> list[Choice]:
    """Return what all axes may do: nothing, split what an input splits, or keep partial terms."""
    rule = rule_of(one)
    found = [Choice(REPLICATE)]
    for layout, dims in zip(inputs, rule.inputs, strict=True):
        for axes, factors in zip(layout.splits, dims, strict=True):
            found += [Choice(SPLIT, factor) for factor in factors[:1] if axes]
    # For several readers, what is partial is reduced once.
    if not one.name.endswith(SUFFIX):
        found += [
            Choice(PARTIAL, inputs=numbers)
            for numbers in rule.linear
            if any(inputs[i].partial for i in numbers)
        ]
    assert all(choice.kind != GRADIENT for choice in found)
    return list(dict.fromkeys(found))


def _seconds(tensor: Tensor, source: TensorLayout, target: TensorLayout, rates: Rates) -> float:
    if source == target:
        return 0.0
    if tensor.is_list:
        return math.inf
    links = rates.links
    return float(relayout_seconds([source], [target], tensor.item_bytes, links)[0, 0])
