# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the plan that a search returns."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from tf_fuse.layout.optimize.plans import alternatives, show
from tf_fuse.layout.optimize.plans.alternatives import Alternative
from tf_fuse.layout.optimize.plans.plan_figures import PlanRecord
from tf_fuse.layout.optimize.problem import Problem
from tf_fuse.layout.optimize.solution import Limits


@dataclasses.dataclass(frozen=True, eq=False)
class Plan(PlanRecord):
    """A strategy for each operation of a problem; `PlanRecord` has its attributes."""

    def second_best(self, limits: Limits | None = None) -> Alternative | None:
        """Return the cheapest plan that fits and is not this one; None if there is none."""
        return alternatives.second_best(self, limits)

    def alternative(self, operation: str, limits: Limits | None = None) -> Alternative | None:
        """Return the cheapest plan that fits in which an operation has another strategy.

        Returns:
          The plan's cost and the strategy; None if there is none.

        Raises:
          LayoutError: there is no such operation.
        """
        return alternatives.alternative(self, operation, limits)

    def table(self, most: int | None = None) -> Any:
        """Return the plan as a table, with units, for `rich.print`.

        Args:
          most: operations that are shown, the most expensive ones; all by default.
        """
        return show.table(self, most)

    def why(self, operations: Sequence[str] = (), limits: Limits | None = None) -> Any:
        """Return the plan beside its alternatives, for `rich.print`: this one searches.

        Args:
          operations: whose best other strategy is shown too.
          limits: of each search.
        """
        return show.why(self, operations, limits)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan into a file, as a `tf_fuse.v1.LayoutPlan`."""
        from tf_fuse.layout.optimize.plans import saved_plan

        saved_plan.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], problem: Problem) -> Plan:
        """Read a plan for a problem; costs and memory are the problem's.

        Raises:
          LayoutError: the file holds no plan, or one for other operations, shapes, tensors, or for
            another mesh; or it does not fit into the problem's memory limit.
        """
        from tf_fuse.layout.optimize.plans import saved_plan

        return saved_plan.load(path, problem, cls)
