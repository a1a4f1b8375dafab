# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Search over the shapes in which a number of devices can be arranged."""

from __future__ import annotations

import dataclasses
import numbers
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tf_fuse._deprecated.former_keyword import former_keyword
from tf_fuse.layout.optimize.allowed_strategies import AUTO, ShardingConstraints
from tf_fuse.layout.optimize.plans.plan import Plan
from tf_fuse.layout.optimize.problem import Problem
from tf_fuse.layout.optimize.search_plan import search
from tf_fuse.layout.optimize.solution import Limits
from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.mesh import Mesh, axes_of

# Names of the axes of meshes; as many as a mesh may have.
AXES: Final = ("x", "y", "z")


@dataclasses.dataclass(frozen=True)
class Tried:
    """One mesh.

    Attributes:
      mesh: the devices.
      plan: the best one on it; None where there is none.
      error: why there is none.
      seconds: that it took to make the problem and to search.
    """

    mesh: Mesh
    plan: Plan | None = None
    error: LayoutError | None = None
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class MeshSearch:
    """The plans of a search over several meshes.

    Attributes:
      best: the cheapest plan; of equal ones that of the mesh that was tried first.
      tried: all meshes, in the order in which they were tried.
    """

    best: Plan
    tried: tuple[Tried, ...]

    def table(self) -> Any:
        """Return all meshes with the costs of their plans, for `rich.print`."""
        from rich.table import Table

        made = Table()
        made.add_column("mesh")
        for name in ("ms", "bytes/device", "searched, s"):
            made.add_column(name, justify="right")
        made.add_column("")
        for one in self.tried:
            took = f"{one.seconds:.2f}"
            if one.plan is None:
                made.add_row(str(one.mesh), "", "", took, str(one.error))
                continue
            mark = "best" if one.plan is self.best else ""
            ms = f"{one.plan.seconds * 1e3:.3f}"
            made.add_row(str(one.mesh), ms, f"{one.plan.memory_bytes:,}", took, mark)
        return made


def shapes(devices: int, max_axes: int = 3) -> tuple[tuple[int, ...], ...]:
    """Return all shapes of meshes of a number of devices, without axes of one device.

    Shapes that differ in the order of sizes alone are all there: links of axes may differ.

    Args:
      devices: their number.
      max_axes: that a mesh may have.

    Returns:
      Those with fewer axes first, then by size; (1,) for one device.

    Raises:
      LayoutError: a number is not whole, or below 1.
    """
    for name, value in (("devices", devices), ("max_axes", max_axes)):
        if not isinstance(value, numbers.Integral):
            raise LayoutError(f"{name} is a whole number, got {value!r}")
        if value < 1:
            raise LayoutError(f"{name} is 1 or more, got {value}")
    if devices == 1:
        return ((1,),)
    found = sorted(_factorizations(devices, max_axes), key=lambda one: (len(one), one))
    return tuple(found)


def _factorizations(devices: int, max_axes: int) -> Iterator[tuple[int, ...]]:
    if devices == 1:
        yield ()
    elif max_axes > 0:
        for first in range(2, devices + 1):
            if devices % first == 0:
                for rest in _factorizations(devices // first, max_axes - 1):
                    yield first, *rest


@former_keyword("pins", "constraints")
def search_meshes(
    devices: int,
    problem_on: Callable[[Mesh], Problem],
    axes: str | Sequence[str] = AXES,
    mode: str = AUTO,
    constraints: ShardingConstraints | None = None,
    limits: Limits | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> MeshSearch:
    """Find the cheapest plan over all meshes of a number of devices.

    Args:
      devices: their number.
      problem_on: gives the problem on a mesh. A LayoutError of it rules the mesh out.
      axes: names; as many as a mesh may have. The first ones are used where it has fewer.
      mode: as of `search`.
      constraints: as of `search`.
      limits: of each search.
      clock: seconds.

    Raises:
      LayoutError: none of the meshes has a plan; it says of each why.
    """
    axes = axes_of(axes)
    tried: list[Tried] = []
    for shape in shapes(devices, len(axes)):
        mesh = Mesh(list(zip(axes, shape, strict=False)))
        begin = clock()
        plan, problem = None, None
        try:
            plan = search(problem_on(mesh), mode, constraints, limits)
        except LayoutError as error:
            problem = error
        tried.append(Tried(mesh, plan, problem, clock() - begin))
    plans = [one.plan for one in tried if one.plan is not None]
    if not plans:
        raise LayoutError([f"mesh {one.mesh}: {one.error}" for one in tried])
    return MeshSearch(min(plans, key=lambda one: one.picoseconds), tuple(tried))
