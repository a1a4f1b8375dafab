# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How MindSpore and DTensor get from one layout to another, to compare with.

Neither has partial tensors as layouts: an operation whose result is partial is followed by an
all-reduce there, so that is what both begin with here, over all partial axes as one group.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from tf_fuse.layout.relayout import steps as kinds
from tf_fuse.layout.relayout.factor_dimensions import nested
from tf_fuse.layout.relayout.factor_meshes import refine, refined
from tf_fuse.layout.relayout.redistribution import state_of
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.tensor_layout import TensorLayout

_NONE = -1


@dataclasses.dataclass(frozen=True)
class BaselineStep:
    """One step of a baseline.

    Attributes:
      kind: as of `RelayoutStep`.
      axes: numbers of the mesh's axes whose devices form the groups.
      received_bytes: by all devices together.
      messages: of a device, one after the other.
    """

    kind: str
    axes: tuple[int, ...]
    received_bytes: int
    messages: int


@dataclasses.dataclass(frozen=True)
class Baseline:
    """What a system does for one relayout.

    Attributes:
      steps: in their order.
      right: whether the tensor has its values behind them. DTensor forgets a dimension that goes
        from one axis to another while a third axis moves between two other dimensions.
    """

    steps: tuple[BaselineStep, ...]
    right: bool = True

    @property
    def received_bytes(self) -> int:
        """What all devices together receive."""
        return sum(step.received_bytes for step in self.steps)

    @property
    def messages(self) -> int:
        """Messages of a device, one after the other."""
        return sum(step.messages for step in self.steps)


class _Run:
    """Steps, and how much each device holds between them."""

    def __init__(self, layout: TensorLayout, item_bytes: int):
        self.sizes = layout.mesh.shape
        self.held = layout.bytes_per_device(item_bytes) * layout.mesh.size
        self.steps: list[BaselineStep] = []

    def add(self, kind: str, axes: Sequence[int]) -> None:
        """Add a step; see the table in `steps.py`."""
        members = math.prod(self.sizes[axis] for axis in axes)
        received, messages = 0, 0
        if kind == kinds.SLICE:
            self.held //= members
        elif kind == kinds.ALL_GATHER:
            received, messages = self.held * (members - 1), members - 1
            self.held *= members
        elif kind == kinds.ALL_TO_ALL:
            received, messages = self.held // members * (members - 1), members - 1
        elif kind == kinds.ALL_REDUCE:
            received = 2 * (self.held // members) * (members - 1)
            messages = 2 * (members - 1)
        self.steps.append(BaselineStep(kind, tuple(axes), received, messages))

    def end(self) -> Baseline:
        return Baseline(tuple(self.steps))


def dtensor_default(
    source: TensorLayout, target: TensorLayout, item_bytes: int = 4, padded: bool = False
) -> Baseline:
    """Return what `dtensor.relayout` does between two layouts.

    It exchanges by an all-to-all if one axis moves from a dimension to another and no other
    dimension begins or ends to be split. Otherwise it slices what can be sliced at once, gathers
    every dimension that has to change, all at once, and slices again. A test compares this with
    what TensorFlow 2.21 inserts.

    Args:
      source: how the tensor lies.
      target: how it is to lie, on the same mesh.
      item_bytes: of one element.
      padded: whether a gather is an all-reduce of tensors padded with zeros: on CPU by
        default, but not where LOWER_DTENSOR_GATHER_TO_COLLECTIVE_GATHER_V2=1 is set.

    Raises:
      LayoutError: DTensor has no such layouts: the meshes differ, a dimension is split over several
        axes, or the target is partial over an axis over which the source is not.
    """
    raise_if(_unlike_dtensor(source, target))
    run = _reduced(source, target, item_bytes)
    now = [axes[0] if axes else _NONE for axes in state_of(source).splits]
    goal = [axes[0] if axes else _NONE for axes in state_of(target).splits]
    different = [i for i in range(len(goal)) if now[i] != goal[i]]
    begin_or_end = [i for i in different if _NONE in (now[i], goal[i])]
    if len(begin_or_end) == 2 and _moves(now, goal, *begin_or_end):
        run.add(kinds.ALL_TO_ALL, [max(now[i] for i in begin_or_end)])
        return Baseline(tuple(run.steps), right=different == begin_or_end)
    at_first = list(now)
    for i in different:
        if at_first[i] == _NONE and goal[i] not in at_first:
            run.add(kinds.SLICE, [goal[i]])
            now[i] = goal[i]
    different = [i for i in different if now[i] != goal[i]]
    gathered = [now[i] for i in different if now[i] != _NONE]
    if gathered:
        if padded:
            run.held *= math.prod(run.sizes[axis] for axis in gathered)
        run.add(kinds.ALL_REDUCE if padded else kinds.ALL_GATHER, gathered)
    for i in different:
        if goal[i] != _NONE:
            run.add(kinds.SLICE, [goal[i]])
    return run.end()


def mindspore_greedy(source: TensorLayout, target: TensorLayout, item_bytes: int = 4) -> Baseline:
    """Return what MindSpore's `RedistributionOperatorInfer` does between two layouts.

    In turn, as long as there is something to do: split what can be split, exchange by an all-to-all
    where the wanted axis splits another dimension, gather what nobody wants; and where nothing of
    it applies gather the first dimension that is not as it should be.

    Args:
      source: how the tensor lies.
      target: how it is to lie; on another mesh both are unified first.
      item_bytes: of one element.

    Raises:
      LayoutError: MindSpore has no such layouts: they cannot be unified, or the target is partial
        over an axis over which the source is not.
    """
    if source.mesh != target.mesh:
        common = refine(source.mesh, target.mesh)
        source = refined(source, common.mesh, common.first)
        target = refined(target, common.mesh, common.second)
    raise_if(_new_partial(source, target))
    run = _reduced(source, target, item_bytes)
    now, goal = _expanded(source, target)
    open_ = dict(enumerate(now))
    while open_:
        before = len(run.steps)
        while open_:
            so_far = len(run.steps)
            _split(run, open_, goal)
            while open_:
                exchanged = len(run.steps)
                _permute(run, open_, goal)
                if len(run.steps) == exchanged:
                    break
            if len(run.steps) == so_far:
                break
        _concat(run, open_, goal)
        if open_ and len(run.steps) == before:
            first = min(open_)
            run.add(kinds.ALL_GATHER, [open_[first]])
            open_[first] = _NONE
    return run.end()


def _split(run: _Run, open_: dict[int, int], goal: Sequence[int]) -> None:
    for i in sorted(open_):
        if open_[i] == goal[i]:
            del open_[i]
        elif open_[i] == _NONE and goal[i] not in open_.values():
            run.add(kinds.SLICE, [goal[i]])
            del open_[i]


def _permute(run: _Run, open_: dict[int, int], goal: Sequence[int]) -> None:
    for i in sorted(open_):
        if open_[i] == goal[i]:
            del open_[i]
        elif open_[i] == _NONE and goal[i] in open_.values():
            holder = next(j for j in sorted(open_) if open_[j] == goal[i])
            run.add(kinds.ALL_TO_ALL, [goal[i]])
            open_[holder] = _NONE
            del open_[i]


def _concat(run: _Run, open_: dict[int, int], goal: Sequence[int]) -> None:
    for i in sorted(open_):
        if open_[i] != _NONE and open_[i] not in goal:
            run.add(kinds.ALL_GATHER, [open_[i]])
            open_[i] = _NONE
            if goal[i] == _NONE:
                del open_[i]


def _expanded(source: TensorLayout, target: TensorLayout) -> tuple[list[int], list[int]]:
    """Tensor maps in which no dimension has several axes: dimensions are cut into factors.

    Raises:
      LayoutError: the slices of the two layouts do not nest.
    """
    now: list[int] = []
    goal: list[int] = []
    for i, (old, new) in enumerate(zip(source.splits, target.splits, strict=True)):
        counts = nested(old, new, source.mesh.size_of)
        if counts is None:
            raise LayoutError(
                f"MindSpore's inference needs slices that nest: dimension {i} is split over "
                f"{', '.join(old)} before and {', '.join(new)} behind, on mesh {source.mesh}"
            )
        count = max(len(counts), 1)
        now += [*map(source.mesh.index, old), *[_NONE] * (count - len(old))]
        goal += [*map(source.mesh.index, new), *[_NONE] * (count - len(new))]
    return now, goal


def _reduced(source: TensorLayout, target: TensorLayout, item_bytes: int) -> _Run:
    run = _Run(source, item_bytes)
    sums = [source.mesh.index(axis) for axis in source.partial if axis not in target.partial]
    if sums:
        run.add(kinds.ALL_REDUCE, sums)
    return run


def _moves(now: Sequence[int], goal: Sequence[int], i: int, j: int) -> bool:
    """Whether one axis moves from one of two dimensions to the other, and nothing else changes."""
    return (now[i], now[j]) == (goal[j], goal[i]) and _NONE in (now[i], now[j])


def _unlike_dtensor(source: TensorLayout, target: TensorLayout) -> list[str]:
    problems = _new_partial(source, target) if source.mesh == target.mesh else [
        f"DTensor keeps the mesh, but it is {str(source.mesh)!r} before and "
        f"{str(target.mesh)!r} behind"
    ]  # fmt: skip
    for layout in (source, target):
        for i, axes in enumerate(layout.splits):
            if len(axes) > 1:
                problems.append(
                    f"DTensor splits a dimension over one axis, but dimension {i} of {layout} is "
                    f"split over {', '.join(axes)}"
                )
    return problems


def _new_partial(source: TensorLayout, target: TensorLayout) -> list[str]:
    missing = [axis for axis in target.partial if axis not in source.partial]
    return [f"nothing makes a tensor partial again, over {', '.join(missing)}"] if missing else []
