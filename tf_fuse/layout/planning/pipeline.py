# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plan a `tf.function`: trace it, build the search problem, search, and name the layouts found.

    plan = layout.plan(step, mesh, [tf.TensorSpec([64, 256]), tf.TensorSpec([64], tf.int32)])
    layout.show(plan)
    plan.variables["dense/kernel"]  # A TensorLayout.

A variable has one layout. A value that is written to it in another one is relayouted to it, and the
plan charges that; so data parallelism can update its weights in slices.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tf_fuse._deprecated.former_keyword import former_keyword
from tf_fuse.layout.cost.model import Rates
from tf_fuse.layout.optimize import search_plan
from tf_fuse.layout.optimize.allowed_strategies import AUTO, PROPAGATE, ShardingConstraints
from tf_fuse.layout.optimize.errors import MemoryLimitError, SearchLimitError
from tf_fuse.layout.optimize.graph_problem import GraphProblem, problem_of
from tf_fuse.layout.optimize.plans.plan import Plan
from tf_fuse.layout.optimize.problem import DATA
from tf_fuse.layout.optimize.solution import Limits
from tf_fuse.layout.planning import one_device
from tf_fuse.layout.planning.batch_dimensions import batch_dimensions, uneven_batches
from tf_fuse.layout.planning.existing_layouts import existing_layout_constraints, existing_layouts
from tf_fuse.layout.planning.given_layouts import Layouts, layout_constraints
from tf_fuse.layout.planning.rates import rates_for
from tf_fuse.layout.planning.sharding_constraints import (
    Dimensions,
    annotations_of,
    propagated,
    rule_constraints,
)
from tf_fuse.layout.planning.write_backs import with_write_backs
from tf_fuse.layout.relayout.link_rates import Links
from tf_fuse.layout.relayout.steps import StepSet
from tf_fuse.layout.strategies.insert_forks import SUFFIX, with_forks
from tf_fuse.layout.strategies.strategy import EVERYTHING, Allowed
from tf_fuse.layout.types.dimension_rules import LayoutRules
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.mesh import Mesh, check_mesh, check_names
from tf_fuse.layout.types.tensor_layout import TensorLayout

if TYPE_CHECKING:
    from tf_fuse.layout.trace.function import TracedFunction


@dataclasses.dataclass(frozen=True, eq=False)
class FunctionPlan:
    """The layouts of a function's tensors.

    Attributes:
      function: what was traced.
      graph: the problem that was solved.
      plan: the strategy of each operation, with times in seconds and bytes of a device.
      rates: of the devices.
      steps: of relayouts; None for those of `plan_relayout`.
      batch: the batch dimension of each tensor that is fed; None of those without.
    """

    function: TracedFunction
    graph: GraphProblem
    plan: Plan
    rates: Rates
    steps: StepSet | None = None
    batch: Mapping[str, int | None] = dataclasses.field(default_factory=dict)

    @cached_property
    def layouts(self) -> dict[str, TensorLayout]:
        """The layout in which each tensor is made, by its name."""
        made = self.graph.layouts(self.plan)
        return {name: made[name] for name in self.function.tensors}

    @cached_property
    def variables(self) -> dict[str, TensorLayout]:
        """The layout of each variable, by its name; the same before and after the function."""
        return {name: self.layouts[name] for name in self.function.variables}

    @cached_property
    def inputs(self) -> dict[str, TensorLayout]:
        """The layout of each tensor that is fed, by its name."""
        return {name: self.layouts[name] for name in self.function.inputs}

    @property
    def unknown(self) -> dict[str, tuple[str, ...]]:
        """Operations without a rule, which all devices do alike: names by kinds."""
        return self.function.unknown

    @property
    def seconds(self) -> float:
        """Of a call, by the cost model."""
        return self.plan.seconds + self.rates.seconds_per_call

    @cached_property
    def one_device_seconds(self) -> float:
        """Of a call on one device while the others do nothing, by the cost model."""
        return one_device.one_device_seconds(self)

    @property
    def memory_bytes(self) -> int:
        """Of a device, at the worst time point."""
        return self.plan.memory_bytes

    def table(self, most: int | None = None) -> Any:
        """Return the plan for `rich.print`: operations with milliseconds and bytes, and layouts.

        Args:
          most: operations that are shown, the most expensive ones; all by default.
        """
        from tf_fuse.layout.planning.show_plans import table

        return table(self, most)

    def why(self, operations: Sequence[str] = (), limits: Limits | None = None) -> Any:
        """Return the plan beside the second best one and data parallelism, for `rich.print`.

        Args:
          operations: whose best other strategy is shown too.
          limits: of each search.
        """
        return self.plan.why(operations, limits)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan into a file, as a `tf_fuse.v1.LayoutPlan`."""
        self.plan.save(path)

    def __str__(self) -> str:
        return f"{self.function.name}: {self.plan}"


@dataclasses.dataclass(frozen=True, eq=False)
class FunctionProblem:
    """The search problem of a function, for several plans.

    Attributes:
      function: what was traced.
      graph: operations with their strategies, and the search's problem.
      batch: the batch dimension of each tensor that is fed; None of those without.
      rates: of the devices.
      steps: of relayouts; None for those of `plan_relayout`.
      whole: makes the problem in which all devices run loops and conditionals whole; None if the
        function has none.
    """

    function: TracedFunction
    graph: GraphProblem
    batch: Mapping[str, int | None]
    rates: Rates
    steps: StepSet | None = None
    whole: Callable[[], FunctionProblem] | None = None

    @former_keyword("pins", "constraints")
    def search(
        self,
        mode: str = AUTO,
        rules: LayoutRules | str | None = None,
        dimensions: Dimensions | None = None,
        constraints: ShardingConstraints | None = None,
        limits: Limits | None = None,
        renamed: Sequence[str] = (),
        keep_layouts: bool = False,
        layouts: Layouts | None = None,
    ) -> FunctionPlan:
        """Search as `plan` does; loops and conditionals run whole where layouts would need it."""
        given = mode, rules, dimensions, constraints, limits, renamed, keep_layouts, layouts
        try:
            return self._search(*given)
        except (MemoryLimitError, SearchLimitError):
            raise
        except LayoutError:
            if self.whole is None:
                raise
            with contextlib.suppress(LayoutError):
                return self.whole().search(*given)
            raise

    def _search(
        self, mode: str, rules: LayoutRules | str | None, dimensions: Dimensions | None,
        constraints: ShardingConstraints | None, limits: Limits | None, renamed: Sequence[str],
        keep_layouts: bool, layouts: Layouts | None,
    ) -> FunctionPlan:  # fmt: skip
        mesh = self.graph.problem.mesh
        assert mesh is not None
        check_names("renamed", renamed)
        names = annotations_of(dimensions or {})
        given = rule_constraints(self.graph, rules, names, mesh, renamed)
        laid_out = layout_constraints(self.graph, self.function, layouts, mesh)
        both = (
            (set(given) & set(constraints or {}), "a constraint, and a layout by the rules"),
            (set(laid_out) & set(constraints or {}), "a constraint, and a layout by layouts"),
            (set(laid_out) & set(given), "a layout by layouts, and one by the rules"),
        )
        problems = [
            f"operation {name!r} has {what}; drop one of them"
            for names_, what in both
            for name in sorted(names_)
        ]
        if renamed and mode != PROPAGATE:
            problems.append("renamed is for mode 'propagate', in which names go through the graph")
        if mode == PROPAGATE and rules is None and not constraints and not laid_out:
            problems.append(
                "mode 'propagate' needs some layouts: give rules and dimensions, layouts, or "
                "constraints, or take mode 'auto'"
            )
        elif mode == PROPAGATE and rules is not None:
            given = propagated(self.graph, rules, names, mesh, renamed) | given
        if mode == DATA:
            problems += uneven_batches(self.function, self.batch, mesh)
        raise_if(problems)
        asked = {**given, **laid_out, **(constraints or {})}
        if keep_layouts:
            kept = existing_layouts(self.function.sources.variables)
            asked |= existing_layout_constraints(self.graph, kept, mesh, asked)
        found = self.with_plan(search_plan.search(self.graph.problem, mode, asked, limits))
        if mode == AUTO:
            one_device.warn_without_gain(found)
        return found

    def load(self, path: str | os.PathLike[str]) -> FunctionPlan:
        """Read a plan that was saved; costs and memory are those of this problem.

        Raises:
          LayoutError: the file holds no plan, or one for other operations, shapes or another mesh,
            or it does not fit into memory_limit_bytes.
        """
        try:
            return self.with_plan(Plan.load(path, self.graph.problem))
        except LayoutError:
            if self.whole is not None:
                with contextlib.suppress(LayoutError):
                    return self.whole().load(path)
            raise

    def with_plan(self, found: Plan) -> FunctionPlan:
        """Return a plan of the problem as one of the function."""
        return FunctionPlan(self.function, self.graph, found, self.rates, self.steps, self.batch)


@former_keyword("pins", "constraints")
def plan(
    function: Any,
    mesh: Mesh,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: str = AUTO,
    rules: LayoutRules | str | None = None,
    dimensions: Dimensions | None = None,
    renamed: Sequence[str] = (),
    constraints: ShardingConstraints | None = None,
    batch: Mapping[str, int | None] | None = None,
    memory_limit_bytes: int | None = None,
    rates: Rates | None = None,
    links: Links | None = None,
    training: bool = False,
    slots: int = 0,
    allowed: Allowed = EVERYTHING,
    steps: StepSet | None = None,
    limits: Limits | None = None,
    keep_layouts: bool = False,
    layouts: Layouts | None = None,
) -> FunctionPlan:
    """Find the cheapest layouts of a function's tensors and variables.

    Strategies and relayouts are those of `tf_fuse.layout.strategies.strategy` and `plan_relayout`,
    the costs those of `tf_fuse.layout.cost.model`, and the search is `tf_fuse.layout.optimize`.
    Nothing runs.

    Args:
      function: a `tf.function`, a concrete function, or a callable, as a Keras model: a forward
        pass, or a whole training step with gradients and assignments.
      mesh: the devices.
      args: for the function, as `tf.TensorSpec`s or tensors; not needed of one with an
        input_signature, and not used of a concrete function.
      kwargs: likewise.
      mode: "auto": all strategies. "data": those that split nothing but the batch. "propagate":
        some layouts are given, by rules or constraints, and the rest follows: names of dimensions
        go through the function, and what they reach lies as the rules say; the rest is what is
        cheapest then.
      rules: which named dimension is split over which axis, as "batch:rows;hidden:cols".
      dimensions: a name for each dimension, or None, of some tensors and variables: by its name, or
        a `tf.Variable`'s `ref()`; and by a Keras layer, by names of its variables. They are laid
        out as the rules say; dimensions without a rule are not split.
      renamed: names of tensors whose names in `dimensions` are for their readers only, as where a
        sequence meets itself; for mode "propagate".
      constraints: by name of an operation, its strategy, or several to choose from.
      batch: by name of a tensor that is fed, its batch dimension, or None if it has none; by
        default dimension 0 of those with dimensions.
      memory_limit_bytes: of a device.
      rates: of the devices; `assumed_rates` if there are none, which nobody measured.
      links: of the axes, or `Hosts`, in place of those that are assumed; only without rates.
      training: whether a forward pass also pays for the gradients of trained variables, which the
        function does not compute. A training step computes its gradients itself.
      slots: how many copies of each variable an optimizer outside of the function holds.
      allowed: which strategies there may be.
      steps: of relayouts; as of `plan_relayout` if None.
      limits: what the search may take.
      keep_layouts: whether variables that lie in shards already, by another plan that is executed,
        keep their existing layouts, so that both plans can run.
      layouts: of some inputs and variables, by what `dimensions` has them by, or by a regular
        expression for whole names: a spec as in JAX, as ("x", None), placements as in PyTorch, as
        (Shard(0), Replicate()), or a `TensorLayout`. A `LayoutMap` of Keras will do.

    Returns:
      The plan: layouts, times in seconds, bytes of a device, and what the alternatives cost. A
      warning says if mode "auto" finds none that is faster than one device alone, in measured
      rates.

    Raises:
      MemoryLimitError: no plan fits; the error says how much is missing.
      NoChoiceError: no plan can be, whatever the limit.
      SearchLimitError: none was found within the limits.
      LayoutError: a shape is not known; a name of a tensor, dimension, axis, operation or strategy
        is unknown; a size is not a multiple of the devices that are to split it; mode "propagate"
        without rules or constraints; two names of dimensions meet in it, with the paths of both; or
        a variable that keeps its layout is on another mesh or asked for otherwise.
    """
    problem = function_problem(
        function, mesh, args, kwargs, batch=batch, memory_limit_bytes=memory_limit_bytes,
        rates=rates, links=links, training=training, slots=slots, allowed=allowed, steps=steps,
    )  # fmt: skip
    return problem.search(
        mode, rules, dimensions, constraints, limits, renamed, keep_layouts, layouts
    )


def function_problem(
    function: Any,
    mesh: Mesh,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    batch: Mapping[str, int | None] | None = None,
    memory_limit_bytes: int | None = None,
    rates: Rates | None = None,
    links: Links | None = None,
    training: bool = False,
    slots: int = 0,
    allowed: Allowed = EVERYTHING,
    steps: StepSet | None = None,
) -> FunctionProblem:
    """Trace a function and compute what its plans cost; arguments are those of `plan`.

    Raises:
      LayoutError: as of `plan`, of what is not the search's.
    """
    from tf_fuse.layout.trace.function import trace
    from tf_fuse.layout.trace.layout_marks import layouts_of_marks
    from tf_fuse.layout.trace.records import concrete_function, for_a_plan

    check_mesh(mesh)
    rates = rates_for(mesh, rates, links)
    with for_a_plan():
        concrete = concrete_function(function, args, kwargs)
    traced = trace(concrete)
    if traced.left_out:
        warnings.warn(
            f"{traced.name!r} has effects that its plan leaves out, since they call Python or use "
            f"what the function makes itself: {', '.join(traced.left_out)}; do them outside of it",
            stacklevel=2,
        )

    def problem(traced: TracedFunction, whole: Any) -> FunctionProblem:
        batches = batch_dimensions(traced, batch or {})
        operations = with_forks(traced.operations)
        graph = problem_of(
            operations, rates, training, memory_limit_bytes, slots, batches, allowed, steps,
            [*traced.results, *traced.observed],
            layouts_of_marks(traced.operations, traced.sources.origins, mesh),
            traced.control_flow.of(operations, SUFFIX),
        )  # fmt: skip
        graph = with_write_backs(graph, traced, rates, steps)
        return FunctionProblem(traced, graph, batches, rates, steps, whole)

    if not traced.control_flow.regions:
        return problem(traced, None)
    return problem(traced, lambda: problem(trace(concrete, bodies=False), None))
