# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the figures of a plan: strategies, costs and memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cached_property

from tf_fuse._deprecated.former_keyword import warn_of
from tf_fuse.layout.optimize.methods.tables import PER_SECOND, Tables
from tf_fuse.layout.optimize.problem import Node, Problem
from tf_fuse.layout.optimize.round_problem import tables_of
from tf_fuse.layout.types.errors import LayoutError


@dataclasses.dataclass(frozen=True)
class OperationPlan:
    """The strategy, costs and memory of one operation in a plan.

    Attributes:
      name: of the operation.
      strategy: that was chosen.
      compute_seconds: of the operation itself.
      communication_seconds: of its collectives.
      relayout_seconds: of relayouts of the tensors that it makes, to all who take them.
      memory_bytes: held during the whole step.
      transient_bytes: held while it is live.
      constrained: whether the strategy was given.
    """

    name: str
    strategy: str
    compute_seconds: float
    communication_seconds: float
    relayout_seconds: float
    memory_bytes: int
    transient_bytes: int
    constrained: bool

    @property
    def pinned(self) -> bool:
        """The former name of `constrained`."""
        warn_of("pinned", "constrained", stacklevel=3)
        return self.constrained


@dataclasses.dataclass(frozen=True, eq=False)
class PlanRecord:
    """A strategy for each operation of a problem.

    Attributes:
      problem: what was solved.
      choice: numbers of the strategies, in the problem's order.
      mode: "data", "auto" or "propagate".
      method: of `solution.Solution`.
      bound_picoseconds: no plan that fits costs less, as far as the mode and the constraints allow.
      constrained: operations whose strategies were given, sorted.
      search_seconds: that the search took; 0.0 of a plan that was loaded.
      computed: eliminations that were computed.
      reused: eliminations that equalled one before, as those of repeated layers.
      notes: why a faster method did not do.
    """

    problem: Problem
    choice: tuple[int, ...]
    mode: str
    method: str
    bound_picoseconds: int
    constrained: tuple[str, ...] = ()
    search_seconds: float = 0.0
    computed: int = 0
    reused: int = 0
    notes: tuple[str, ...] = ()

    @property
    def pinned(self) -> tuple[str, ...]:
        """The former name of `constrained`."""
        warn_of("pinned", "constrained", stacklevel=3)
        return self.constrained

    @cached_property
    def tables(self) -> Tables:
        """The whole problem in whole numbers."""
        return tables_of(self.problem)

    @cached_property
    def strategies(self) -> dict[str, str]:
        """The strategy of each operation, by name; these can be constraints of another search."""
        return {
            node.name: node.names[s]
            for node, s in zip(self.problem.nodes, self.choice, strict=True)
        }

    @cached_property
    def picoseconds(self) -> int:
        """The whole cost, exactly as it was compared."""
        return self.tables.cost_of(self.choice)

    @property
    def seconds(self) -> float:
        """The whole cost."""
        return self.picoseconds / PER_SECOND

    @property
    def gap_seconds(self) -> float:
        """How much cheaper the best plan may be at most; 0.0 if this one is."""
        return (self.picoseconds - self.bound_picoseconds) / PER_SECOND

    @property
    def optimal(self) -> bool:
        """Whether no plan that fits is cheaper."""
        return self.bound_picoseconds >= self.picoseconds

    @property
    def compute_seconds(self) -> float:
        """Of all operations."""
        return sum(one.compute_seconds for one in self.operations)

    @property
    def communication_seconds(self) -> float:
        """Of the collectives within operations."""
        return sum(one.communication_seconds for one in self.operations)

    @property
    def relayout_seconds(self) -> float:
        """Between operations."""
        return sum(one.relayout_seconds for one in self.operations)

    @cached_property
    def memory_bytes(self) -> int:
        """Of a device, at the worst time point."""
        return self.tables.peak_of(self.choice)

    @cached_property
    def relayouts(self) -> tuple[float, ...]:
        """Seconds of the relayout of each edge of the problem, in its order."""
        index = self.problem.indices
        return tuple(
            float(edge.seconds[self.choice[index[edge.source]], self.choice[index[edge.target]]])
            for edge in self.problem.edges
        )

    @cached_property
    def operations(self) -> tuple[OperationPlan, ...]:
        """The strategy and figures of each operation, in the problem's order."""
        leaving: dict[str, float] = {}
        for edge, seconds in zip(self.problem.edges, self.relayouts, strict=True):
            leaving[edge.source] = leaving.get(edge.source, 0.0) + seconds
        return tuple(
            self._operation(node, s, leaving.get(node.name, 0.0))
            for node, s in zip(self.problem.nodes, self.choice, strict=True)
        )

    def _operation(self, node: Node, strategy: int, relayout: float) -> OperationPlan:
        one = node.candidates[strategy]
        return OperationPlan(
            node.name, one.name, one.compute_seconds, one.communication_seconds, relayout,
            one.memory_bytes, one.transient_bytes, node.name in self.constrained,
        )  # fmt: skip

    def __str__(self) -> str:
        gap = "" if self.optimal else f", at most {self.gap_seconds * 1e3:.6g} ms from the best"
        return (
            f"{len(self.choice)} operations, {self.seconds * 1e3:.6g} ms, "
            f"{self.memory_bytes:,} bytes per device ({self.method}{gap})"
        )


def choice_of(problem: Problem, strategies: Mapping[str, str]) -> tuple[int, ...]:
    """Return the strategies' numbers of all operations from their names.

    Raises:
      LayoutError: an operation is missing, or a name is unknown. All that are found are named.
    """
    missing = [node.name for node in problem.nodes if node.name not in strategies]
    if missing:
        raise LayoutError(f"operations {', '.join(map(repr, missing))} have no strategy")
    allowed = problem.allowed(strategies)
    return tuple(allowed[i][0] for i in range(len(problem.nodes)))
