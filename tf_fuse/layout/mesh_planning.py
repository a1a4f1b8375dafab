# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The cheapest layouts of a function over all meshes of a number of devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_fuse.layout.cost import Rates
from tf_fuse.layout.mesh import Mesh
from tf_fuse.layout.optimize.meshes import AXES, MeshSearch, search_meshes
from tf_fuse.layout.optimize.modes import AUTO
from tf_fuse.layout.optimize.problem import Problem
from tf_fuse.layout.optimize.solver import Limits
from tf_fuse.layout.planning import FunctionPlan, FunctionProblem, assumed_rates, function_problem


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
        """All meshes with milliseconds, bytes and how long it took, for `rich.print`."""
        return self.search.table()


def plan_meshes(
    function: Any,
    devices: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    axes: Sequence[str] = AXES,
    rates_on: Callable[[Mesh], Rates] = assumed_rates,
    mode: str = AUTO,
    limits: Limits | None = None,
    **options: Any,
) -> MeshPlans:
    """Finds the cheapest layouts over the meshes of a number of devices.

    Args:
      function: as of `plan`; it is traced once.
      devices: their number.
      args: as of `plan`.
      kwargs: as of `plan`.
      axes: names; as many as a mesh may have. The first ones are used where it has fewer.
      rates_on: gives the rates of a mesh, as those that were measured on it.
      mode: "auto" or "data".
      limits: of each search.
      **options: of `function_problem`, but for rates and links.

    Raises:
      LayoutError: none of the meshes has a plan; it says of each why. Or as of `plan`.
    """
    from tf_fuse.layout.trace import concrete_function

    traced = concrete_function(function, args, kwargs)
    problems: dict[Mesh, FunctionProblem] = {}

    def problem_on(mesh: Mesh) -> Problem:
        problems[mesh] = function_problem(traced, mesh, rates=rates_on(mesh), **options)
        return problems[mesh].graph.problem

    found = search_meshes(devices, problem_on, axes, mode, None, limits)
    (mesh,) = (one.mesh for one in found.tried if one.plan is found.best)
    problem = problems[mesh]
    return MeshPlans(problem.with_plan(found.best), found)
