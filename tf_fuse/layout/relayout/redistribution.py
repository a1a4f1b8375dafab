# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plan the cheapest relayout from one layout of a tensor to another.

MindSpore infers such sequences greedily, and DTensor gathers what it cannot exchange directly
(`benchmarks/layout_baselines.py` has both). Here all layouts of the tensor on the mesh are nodes of
a graph, all steps are its edges, and the answer is a shortest path.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from tf_fuse.layout.relayout import axis_permutations
from tf_fuse.layout.relayout import link_rates as link_module
from tf_fuse.layout.relayout import shortest_path as search
from tf_fuse.layout.relayout.factor_dimensions import factored
from tf_fuse.layout.relayout.factor_meshes import Refinement, refine, refined
from tf_fuse.layout.relayout.link_rates import GroupLinks, Hosts, Links, slowest
from tf_fuse.layout.relayout.steps import ALL_STEPS, MANY_AXES_STEPS, RelayoutState, StepSet
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.mesh import Mesh
from tf_fuse.layout.types.tensor_layout import TensorLayout

# A layout is checked when it is made; many plans pass through the same ones.
_KEPT_LAYOUTS = 4096
_AXES_WITH_ALL_STEPS = 3


@dataclasses.dataclass(frozen=True)
class RelayoutStep:
    """One step of a plan.

    Attributes:
      kind: "slice", "mask", "pad", "all_gather", "all_to_all", "reduce_scatter", "all_reduce" or
        "permute".
      axes: whose devices form the groups; those that begin to split the same dimension in the order
        in which they do.
      sources: for each of the axes the dimension that it split; empty if none did.
      targets: for each of the axes the dimension that it splits then; empty if none does.
      before: the layout before it.
      after: the layout after it.
      received_bytes: by all devices together.
      messages: of a device, one after the other.
      seconds: by the links; 0.0 where none were given.
      operations: of a device, beside sending.
      touched_bytes: that all devices together read and write in these.
    """

    kind: str
    axes: tuple[str, ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    before: TensorLayout
    after: TensorLayout
    received_bytes: int
    messages: int
    seconds: float
    operations: int
    touched_bytes: int

    def __str__(self) -> str:
        both = [", ".join(map(str, dict.fromkeys(one))) for one in (self.sources, self.targets)]
        where = " to ".join(one for one in both if one)
        return f"{self.kind} over {'+'.join(self.axes)}" + (f", dimension {where}" if where else "")


@dataclasses.dataclass(frozen=True)
class RelayoutPlan:
    """How to get from one layout to another.

    Attributes:
      source: where it begins, on `mesh`.
      target: where it ends, on `mesh`.
      mesh: of the two layouts; a common refinement of theirs where they had different ones.
      item_bytes: of one element.
      steps: in their order; empty where nothing is to be done.
      shape: of the layouts of the steps: that of the tensor, but that dimensions which several axes
        split are cut into factors. What a device holds is only reshaped.
    """

    source: TensorLayout
    target: TensorLayout
    mesh: Mesh
    item_bytes: int
    steps: tuple[RelayoutStep, ...]
    shape: tuple[int, ...]

    @property
    def received_bytes(self) -> int:
        """Bytes that all devices together receive."""
        return sum(step.received_bytes for step in self.steps)

    @property
    def received_bytes_per_device(self) -> float:
        """Bytes that each device receives."""
        return self.received_bytes / self.mesh.size

    @property
    def messages(self) -> int:
        """Messages of a device, one after the other."""
        return sum(step.messages for step in self.steps)

    @property
    def operations(self) -> int:
        """Operations of a device, beside sending."""
        return sum(step.operations for step in self.steps)

    @property
    def touched_bytes_per_device(self) -> float:
        """Bytes that each device reads and writes in these operations."""
        return sum(step.touched_bytes for step in self.steps) / self.mesh.size

    @property
    def seconds(self) -> float:
        """Time by the links; 0.0 where none were given."""
        return sum(step.seconds for step in self.steps)

    def table(self) -> Any:
        """Return the plan as a table, with units, for `rich.print`."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table()
        for name in ("step", "holds then"):
            table.add_column(name)
        for name in ("bytes/device", "messages", "ms"):
            table.add_column(name, justify="right")
        for step in self.steps:
            table.add_row(
                str(step),
                str(list(step.after.slice_shape)),
                f"{step.received_bytes / self.mesh.size:,.0f}",
                str(step.messages),
                f"{step.seconds * 1e3:.3f}",
            )
        table.add_row(
            "sum",
            "",
            f"{self.received_bytes_per_device:,.0f}",
            str(self.messages),
            f"{self.seconds * 1e3:.3f}",
        )
        return Group(Text(f"{self.source}\n-> {self.target}"), table)

    def __str__(self) -> str:
        steps = "; ".join(map(str, self.steps)) or "nothing to do"
        shape = f" (as {list(self.shape)})" if self.shape != self.source.shape else ""
        total = f"{self.received_bytes} bytes in all"
        return f"{self.source} -> {self.target}{shape}: {steps}; {total}"


def plan_relayout(
    source: TensorLayout,
    target: TensorLayout,
    item_bytes: int = 4,
    links: Links | None = None,
    allowed: StepSet | None = None,
) -> RelayoutPlan:
    """Find the cheapest steps from one layout to another.

    The plan is a shortest path among all sequences of the allowed steps, by time where links are
    given; then, and otherwise, by bytes, then messages, then the number of steps.

    Args:
      source: how the tensor lies.
      target: how it is to lie: the same shape and devices, on the same mesh or another one.
      item_bytes: of one element.
      links: what connects the devices along each axis, by name, of both meshes if they differ; or
        `Hosts`, where the devices are.
      allowed: the steps to choose from. None for `ALL_STEPS` on meshes of up to three axes, and
        `MANY_AXES_STEPS` on others, where a search among all would take seconds to minutes.

    Returns:
      The plan. Where the meshes have different sizes, it is on their common refinement.

    Raises:
      LayoutError: shapes or numbers of devices differ, the meshes have no common refinement, a link
        is missing, or no sequence of allowed steps leads there.
    """
    if source.shape != target.shape:
        raise LayoutError(
            f"the shape is {source.shape} before and {target.shape} after; a relayout keeps it, "
            "so reshape first"
        )
    if item_bytes < 1:
        raise LayoutError(f"item_bytes is 1 or more, got {item_bytes}")
    source, target, of_groups = _unified(source, target, links)
    allowed = allowed or default_steps(source.mesh)
    first, last = factored(source, target) if allowed.strided else (source, target)
    mesh = source.mesh
    goal = state_of(last)
    partial = tuple(range(len(mesh.axes))) if allowed.any_partial else goal.partial
    router = search.router(mesh.shape, first.shape, allowed, partial, item_bytes, of_groups)
    path = router.path(state_of(first), goal)
    if path is None:
        raise LayoutError(
            f"no sequence of allowed steps leads from {source} to {target}: {allowed}"
        )
    steps = tuple(_steps(first, path))
    return RelayoutPlan(source, target, mesh, item_bytes, steps, first.shape)


def block_of(
    step: RelayoutStep,
    member: Sequence[int],
    dimensions: Sequence[int],
    cut: TensorLayout,
    shape: Sequence[int],
) -> tuple[slice, ...]:
    """Return the block of an array that belongs to a member of the group.

    Args:
      step: an all-to-all.
      member: its coordinates in the axes of the step.
      dimensions: for each axis of the step, which dimension it cuts.
      cut: the layout in which it does.
      shape: of the array before it is cut.
    """
    block = [slice(0, size) for size in shape]
    at = dict(zip(step.axes, member, strict=True))
    for i in set(dimensions):
        number = 0
        for axis in cut.splits[i]:
            if axis in at:
                number = number * cut.mesh.size_of(axis) + at[axis]
        length = cut.slice_shape[i]
        block[i] = slice(number * length, (number + 1) * length)
    return tuple(block)


def sources_of(step: RelayoutStep) -> list[int]:
    """Return, for each device, the one that it receives from in a permutation."""
    sizes = step.before.mesh.shape
    splits = state_of(step.before).splits, state_of(step.after).splits
    return axis_permutations.sources(axis_permutations.between(*splits, len(sizes)), sizes)


def default_steps(mesh: Mesh) -> StepSet:
    """Return the steps to choose from on a mesh where none are given."""
    return ALL_STEPS if len(mesh.axes) <= _AXES_WITH_ALL_STEPS else MANY_AXES_STEPS


def state_of(layout: TensorLayout) -> RelayoutState:
    """Return a layout by numbers of axes."""
    index = layout.mesh.index
    splits = tuple(tuple(map(index, axes)) for axes in layout.splits)
    return RelayoutState(splits, tuple(map(index, layout.partial)))


@functools.lru_cache(maxsize=_KEPT_LAYOUTS)
def layout_of(state: RelayoutState, mesh: Mesh, shape: tuple[int, ...]) -> TensorLayout:
    """Return the layout of a state."""
    splits = [[mesh.axes[axis] for axis in axes] for axes in state.splits]
    return TensorLayout(mesh, shape, splits, [mesh.axes[axis] for axis in state.partial])


def _steps(source: TensorLayout, path: Iterable[search.PricedStep]) -> Iterable[RelayoutStep]:
    before = source
    for step, cost, state in path:
        after = layout_of(state, source.mesh, source.shape)
        axes = tuple(source.mesh.axes[axis] for axis in step.axes)
        yield RelayoutStep(
            step.kind, axes, step.sources, step.targets, before, after,
            cost.received, cost.messages, cost.seconds, cost.operations, cost.touched,
        )  # fmt: skip
        before = after


def _unified(
    source: TensorLayout, target: TensorLayout, links: Links | None
) -> tuple[TensorLayout, TensorLayout, GroupLinks | None]:
    """Return both layouts on one mesh, and the links of its groups."""
    if source.mesh == target.mesh:
        return source, target, None if links is None else link_module.of_mesh(source.mesh, links)
    common = refine(source.mesh, target.mesh)
    both = (
        refined(source, common.mesh, common.first),
        refined(target, common.mesh, common.second),
    )
    return *both, None if links is None else _refined_links(common, source.mesh, target.mesh, links)


def _refined_links(common: Refinement, first: Mesh, second: Mesh, links: Links) -> GroupLinks:
    """Return the links of a refinement; an axis has that of the shorter original axis."""
    if isinstance(links, Hosts):
        return GroupLinks(common.mesh, links)
    links = dict(links)
    axes = dict(first.dims) | dict(second.dims)
    missing = Mesh(axes) if axes else first
    link_module.of_mesh(missing, links)
    parents: dict[str, list[tuple[int, str]]] = {axis: [] for axis in common.mesh.axes}
    for mesh, factors in ((first, common.first), (second, common.second)):
        for axis, parts in factors.items():
            for part in parts:
                parents[part].append((mesh.size_of(axis), axis))
    found = tuple(
        slowest(links[axis] for size, axis in parents[part] if size == min(parents[part])[0])
        for part in common.mesh.axes
    )
    return GroupLinks(common.mesh, found)
