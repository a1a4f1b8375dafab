# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the steps of a relayout, and what each of them moves.

With V bytes on a device before the step and p devices in each group, a device receives:

| step | from, to | bytes | messages |
|---|---|---|---|
| slice | B, S(i) | 0 | 0 |
| mask | B, P: the first device of a group keeps its values, the others hold zeros | 0 | 0 |
| pad | S(i), P: each device puts zeros around its slice | 0 | 0 |
| all_gather | S(i), B | (p - 1) V | p - 1 |
| all_to_all | S(i), S(j) | (p - 1) / p V | p - 1 |
| reduce_scatter | P, S(i) | (p - 1) / p V | p - 1 |
| all_reduce | P, B | 2 (p - 1) / p V | 2 (p - 1) |
| permute | axes of one size change places | V, or 0 where nothing changes | 1 |

These are the costs of the OneFlow paper (Yuan et al., 2021, table 2), per device, and the rounds of
a ring; the paper has no permutation. Besides, a device runs operations that cut what it sends and
put together what it received:

| step | operations | bytes that they read and write |
|---|---|---|
| slice | 1 | 2 V / p |
| mask | 1, zeros | V |
| pad | 2, zeros and a concatenation | (2 p + 1) V |
| all_gather | 1, a concatenation | 2 p V |
| all_to_all | p + 1, slices and a concatenation | 4 V |
| reduce_scatter | 2 p - 2, a split and a chain of sums | 2 V + 3 (p - 1) / p V |
| all_reduce | 2 p - 3, a chain of sums | 3 (p - 1) / p V |
| permute | 1, without work | 0 |

In a chain of sums, each of p - 1 sums reads two tensors and writes one, and an operation that moves
nothing stands between two of them (`execution/communication/sums.py`).

A device keeps slices that are contiguous, so only the last of the axes that split a
dimension can be gathered, moved or padded, and a new one becomes the last. An all-to-all over
several axes moves each from some dimension to another; no dimension gives one and takes one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple

from tf_fuse.layout.relayout import axis_permutations
from tf_fuse.layout.types.errors import raise_if
from tf_fuse.layout.types.mesh import problem_of_names

SLICE: Final = "slice"
MASK: Final = "mask"
PAD: Final = "pad"
ALL_GATHER: Final = "all_gather"
ALL_TO_ALL: Final = "all_to_all"
REDUCE_SCATTER: Final = "reduce_scatter"
ALL_REDUCE: Final = "all_reduce"
PERMUTE: Final = "permute"
# Kinds that may take several axes as one group.
# Each device receives from others directly, not by a ring.
EXCHANGES: Final = (ALL_TO_ALL, PERMUTE)
_JOINT: Final = (ALL_TO_ALL, ALL_REDUCE, PERMUTE)
KINDS: Final = (SLICE, MASK, PAD, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER, ALL_REDUCE, PERMUTE)


@dataclasses.dataclass(frozen=True)
class StepSet:
    """Which steps a relayout may have.

    Attributes:
      joint: kinds that may take several axes at once, as one group; a permutation always does.
        Others gain nothing by it: one axis after the other moves the same bytes, with fewer
        messages.
      mixed: whether an all-to-all over several axes may take them from and to several dimensions,
        and change their order.
      stacked: whether a dimension may be split over several axes on the way.
      pad: whether there is the step `pad`.
      any_partial: whether a tensor may be partial on the way over axes over which neither end is.
        To pad, slice and reduce is cheaper for some pairs, down to half of the bytes; but -0.0
        becomes 0.0 where zeros are added, and the type must be one of numbers.
      strided: whether a dimension that several axes split, at the beginning or the end, is cut into
        factors, so that on the way what a device holds may be strided (`factor_dimensions.py`).
    """

    joint: frozenset[str] = frozenset(_JOINT)
    mixed: bool = True
    stacked: bool = True
    pad: bool = True
    any_partial: bool = False
    strided: bool = True

    def __post_init__(self) -> None:
        """Check the kinds.

        Raises:
          LayoutError: `joint` is text, or holds a name that is not a kind of step.
        """
        text = problem_of_names("joint", self.joint)
        raise_if([text] if text else [
            f"joint: {kind!r} cannot take several axes at once; these can: {', '.join(_JOINT)}"
            for kind in sorted(set(self.joint) - set(_JOINT))
        ])  # fmt: skip
        object.__setattr__(self, "joint", frozenset(self.joint))

    def __str__(self) -> str:
        words = [f"over several axes: {', '.join(sorted(self.joint)) or 'none'}"]
        words += [f"{'' if getattr(self, name) else 'not '}{name}"
                  for name in ("mixed", "stacked", "pad", "any_partial", "strided")]  # fmt: skip
        return "; ".join(words)


ALL_STEPS = StepSet()
"""All steps."""
ONE_AXIS = StepSet(joint=frozenset(), strided=False)
"""Steps along one axis each."""
MANY_AXES_STEPS = StepSet(mixed=False, strided=False)
"""Fewer steps: with all, the search on a mesh of many axes takes from seconds to minutes."""


def chain_of_sums(members: int) -> tuple[int, int]:
    """Return what adds up a tensor of each member, one after the other.

    Returns:
      Operations, and tensors that they read and write.
    """
    return max(0, 2 * members - 3), 3 * (members - 1)


class RelayoutState(NamedTuple):
    """A layout, by numbers of axes.

    Attributes:
      splits: of each dimension the axes that split it, the one with the largest slices first.
      partial: axes that are P, ascending.
    """

    splits: tuple[tuple[int, ...], ...]
    partial: tuple[int, ...] = ()


class Step(NamedTuple):
    """One step.

    Attributes:
      kind: one of `KINDS`.
      axes: numbers of the mesh's axes whose devices form the groups; those that begin to split the
        same dimension in the order in which they do.
      sources: for each of the axes the dimension that it split; empty if none did.
      targets: for each of the axes the dimension that it splits then; empty if none does.
      moved_devices: of a permutation, how many devices receive another one's slice.
    """

    kind: str
    axes: tuple[int, ...]
    sources: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    moved_devices: int = 0


class Space:
    """All layouts of one tensor on one mesh, and the steps between them."""

    def __init__(
        self,
        sizes: Sequence[int],
        shape: Sequence[int],
        allowed: StepSet,
        partial: Collection[int],
    ):
        """Keep the mesh, the shape and the allowed steps.

        Args:
          sizes: of the mesh's axes.
          shape: of the whole tensor.
          allowed: the steps.
          partial: axes over which a tensor may become partial.
        """
        self._partial = frozenset(partial)
        self.sizes = tuple(sizes)
        self.shape = tuple(shape)
        self.allowed = allowed
        self._edges: dict[RelayoutState, list[tuple[Step, RelayoutState]]] = {}
        # Asked for again and again: products of sizes.
        self._members: dict[tuple[int, ...], int] = {}
        self._devices, self._whole = math.prod(self.sizes), math.prod(self.shape)

    def members(self, axes: Sequence[int]) -> int:
        """Return the number of devices in a group over some axes."""
        key = tuple(axes)
        found = self._members.get(key)
        if found is None:
            found = self._members[key] = math.prod(self.sizes[axis] for axis in key)
        return found

    def elements(self, state: RelayoutState) -> int:
        """Return the number of elements that each device holds."""
        return self._whole // self.members([a for axes in state.splits for a in axes])

    def received(self, state: RelayoutState, step: Step) -> tuple[int, int]:
        """Return (elements received by all devices, messages of a device) of a step.

        Returns:
          Elements that all devices together receive (a whole number, which for one device it need
          not be), and messages of a device, one after the other.
        """
        members = self.members(step.axes)
        if step.kind == PERMUTE:
            return self.elements(state) * step.moved_devices, 1
        held = self.elements(state) * self._devices
        if step.kind == ALL_GATHER:
            return held * (members - 1), members - 1
        if step.kind in (ALL_TO_ALL, REDUCE_SCATTER):
            return held // members * (members - 1), members - 1
        if step.kind == ALL_REDUCE:
            return 2 * (held // members) * (members - 1), 2 * (members - 1)
        return 0, 0

    def awaited(self, state: RelayoutState, step: Step) -> int:
        """Return the elements of `received` if all devices received what the busiest one does.

        A step ends with that device. In a permutation some devices receive nothing.
        """
        if step.kind == PERMUTE:
            return self.elements(state) * self._devices
        return self.received(state, step)[0]

    def handling(self, state: RelayoutState, step: Step) -> tuple[int, int]:
        """Return what a device does for a step from a state, beside sending.

        Returns:
          Operations, and elements that all devices together read and write in them.
        """
        members = self.members(step.axes)
        held = self.elements(state) * self._devices
        sums, tensors = chain_of_sums(members)
        added = tensors * (held // members)
        return {
            SLICE: (1, 2 * (held // members)),
            MASK: (1, held),
            PAD: (2, (2 * members + 1) * held),
            ALL_GATHER: (1, 2 * members * held),
            ALL_TO_ALL: (members + 1, 4 * held),
            REDUCE_SCATTER: (1 + sums, 2 * held + added),
            ALL_REDUCE: (sums, added),
            PERMUTE: (1, 0),
        }[step.kind]

    def edges(self, state: RelayoutState) -> list[tuple[Step, RelayoutState]]:
        """Yield all steps from a state with the states that they lead to, in a fixed order."""
        found = self._edges.get(state)
        if found is None:
            found = self._edges[state] = [
                *self._local(state),
                *self._gathers(state),
                *self._exchanges(state),
                *self._reductions(state),
                *self._permutations(state),
            ]
        return found

    def _fits(self, state: RelayoutState, dimension: int, axes: Sequence[int]) -> bool:
        """Return whether a dimension can be split further, over some axes."""
        already = state.splits[dimension]
        if not self.allowed.stacked and len(already) + len(axes) > 1:
            return False
        return self.shape[dimension] % self.members([*already, *axes]) == 0

    def _local(self, state: RelayoutState) -> Iterator[tuple[Step, RelayoutState]]:
        used = {*state.partial, *(axis for axes in state.splits for axis in axes)}
        for axis in range(len(self.sizes)):
            if axis in used:
                continue
            for i, axes in enumerate(state.splits):
                if self._fits(state, i, [axis]):
                    yield Step(SLICE, (axis,), (), (i,)), _with(state, {i: (*axes, axis)})
            if axis in self._partial:
                yield Step(MASK, (axis,)), _with(state, {}, {*state.partial, axis})
        if not self.allowed.pad:
            return
        for i, axes in enumerate(state.splits):
            if axes and axes[-1] in self._partial:
                after = _with(state, {i: axes[:-1]}, {*state.partial, axes[-1]})
                yield Step(PAD, axes[-1:], (i,)), after

    def _gathers(self, state: RelayoutState) -> Iterator[tuple[Step, RelayoutState]]:
        for i, axes in enumerate(state.splits):
            if axes:
                yield Step(ALL_GATHER, axes[-1:], (i,)), _with(state, {i: axes[:-1]})

    def _exchanges(self, state: RelayoutState) -> Iterator[tuple[Step, RelayoutState]]:
        most = len(self.sizes) if ALL_TO_ALL in self.allowed.joint else 1
        for counts in itertools.product(*(range(len(axes) + 1) for axes in state.splits)):
            if not 1 <= sum(counts) <= most:
                continue
            if not self.allowed.mixed and max(counts) < sum(counts):
                continue
            free = [i for i, count in enumerate(counts) if not count]
            sources = {
                axis: i
                for i, count in enumerate(counts)
                for axis in state.splits[i][len(state.splits[i]) - count :]
            }
            for targets in itertools.product(free, repeat=len(sources)):
                if not self.allowed.mixed and len(set(targets)) > 1:
                    continue
                yield from self._exchange(state, sources, dict(zip(sources, targets, strict=True)))

    def _exchange(
        self, state: RelayoutState, sources: dict[int, int], targets: dict[int, int]
    ) -> Iterator[tuple[Step, RelayoutState]]:
        """Yield the all-to-alls in which axes change dimensions, in any order there."""
        gained: dict[int, list[int]] = {}
        for axis, target in targets.items():
            gained.setdefault(target, []).append(axis)
        if not all(self._fits(state, i, axes) for i, axes in gained.items()):
            return
        kept = {
            i: tuple(axis for axis in state.splits[i] if axis not in sources)
            for i in set(sources.values())
        }
        choices = [
            list(itertools.permutations(axes)) if self.allowed.mixed else [tuple(axes)]
            for axes in gained.values()
        ]
        for orders in itertools.product(*choices):
            taken = {i: state.splits[i] + order for i, order in zip(gained, orders, strict=True)}
            axes = tuple(axis for order in orders for axis in order)
            step = Step(
                ALL_TO_ALL,
                axes,
                tuple(sources[axis] for axis in axes),
                tuple(targets[axis] for axis in axes),
            )
            yield step, _with(state, kept | taken)

    def _reductions(self, state: RelayoutState) -> Iterator[tuple[Step, RelayoutState]]:
        for axis in state.partial:
            rest = set(state.partial) - {axis}
            for i, axes in enumerate(state.splits):
                if self._fits(state, i, [axis]):
                    after = _with(state, {i: (*axes, axis)}, rest)
                    yield Step(REDUCE_SCATTER, (axis,), (), (i,)), after
        most = len(state.partial) if ALL_REDUCE in self.allowed.joint else 1
        for count in range(1, most + 1):
            for axes in itertools.combinations(state.partial, count):
                yield Step(ALL_REDUCE, axes), _with(state, {}, set(state.partial) - set(axes))

    def _permutations(self, state: RelayoutState) -> Iterator[tuple[Step, RelayoutState]]:
        """Yield the exchanges of axes, of those that split the tensor with any but partial ones."""
        if PERMUTE not in self.allowed.joint:
            return
        seen = {state.splits}
        for one in axis_permutations.of_sizes(self.sizes):
            splits = tuple(tuple(one[axis] for axis in axes) for axes in state.splits)
            if splits in seen or any(one[axis] != axis for axis in state.partial):
                continue
            seen.add(splits)
            least = axis_permutations.between(state.splits, splits, len(self.sizes))
            axes = tuple(axis for axis, other in enumerate(least) if axis != other)
            moved = axis_permutations.moved_devices(least, self.sizes)
            yield Step(PERMUTE, axes, moved_devices=moved), state._replace(splits=splits)


def _with(
    state: RelayoutState, splits: dict[int, tuple[int, ...]], partial: set[int] | None = None
) -> RelayoutState:
    return RelayoutState(
        tuple(splits.get(i, axes) for i, axes in enumerate(state.splits)),
        state.partial if partial is None else tuple(sorted(partial)),
    )
