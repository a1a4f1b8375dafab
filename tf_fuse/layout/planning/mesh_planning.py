# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plan the cheapest layouts of a function over all meshes of a number of devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_fuse.layout.cost.model import Rates
from tf_fuse.layout.optimize.allowed_strategies import AUTO
from tf_fuse.layout.optimize.mesh_search import AXES, MeshSearch, search_meshes
from tf_fuse.layout.optimize.problem import Problem
from tf_fuse.layout.optimize.solution import Limits
from tf_fuse.layout.planning.pipeline import (
    FunctionPlan,
    FunctionProblem,
    function_problem,
)
from tf_fuse.layout.relayout.link_rates import Hosts
from tf_fuse.layout.types.mesh import Mesh


@dataclasses.dataclass(frozen=True, eq=False)
class MeshPlans:
    """The plans of a function on several meshes.

    Attributes:
      best: the cheapest one; of equal ones that on the mesh that was tried first.
      search: all meshes, with their plans or why there is none.
    """

    best: FunctionPlan
    search: MeshSearch

    def table(self) -> Any:
        """Return all meshes with milliseconds, bytes and how long it took, for `rich.print`."""
        return self.search.table()


def plan_meshes(
    function: Any,
    devices: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    axes: str | Sequence[str] = AXES,
    rates_on: Callable[[Mesh], Rates] | None = None,
    links: Hosts | None = None,
    mode: str = AUTO,
    limits: Limits | None = None,
    **options: Any,
) -> MeshPlans:
    """Find the cheapest layouts over the meshes of a number of devices.

    Args:
      function: as of `plan`; it is traced once.
      devices: their number.
      args: as of `plan`.
      kwargs: as of `plan`.
      axes: names; as many as a mesh may have. The first ones are used where it has fewer.
      rates_on: gives the rates of a mesh, as those that were measured on it.
      links: where the devices are, as of `plan`; only without rates.
      mode: "auto" or "data".
      limits: of each search.
      **options: of `function_problem`, but for rates and links.

    Raises:
      LayoutError: none of the meshes has a plan; it says of each why. Or as of `plan`.
    """
    from tf_fuse.layout.trace.records import concrete_function

    traced = concrete_function(function, args, kwargs)
    problems: dict[Mesh, FunctionProblem] = {}

    def problem_on(mesh: Mesh) -> Problem:
        rates = rates_on(mesh) if rates_on else None
        problems[mesh] = function_problem(traced, mesh, rates=rates, links=links, **options)
        return problems[mesh].graph.problem

    found = search_meshes(devices, problem_on, axes, mode, None, limits)
    (mesh,) = (one.mesh for one in found.tried if one.plan is found.best)
    problem = problems[mesh]
    return MeshPlans(problem.with_plan(found.best), found)
