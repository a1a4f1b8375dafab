# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a `tf.function` to the cheapest layouts of its tensors and variables.

    plan = layout.plan(step, mesh, [tf.TensorSpec([64, 256]), tf.TensorSpec([64], tf.int32)])
    rich.print(plan.table())
    plan.variables["dense/kernel"]  # A TensorLayout.

The function is traced, its operations become the problem of a search, and what the search finds is
told by names of tensors again. A variable has one layout: what is written to it in another one is
relayouted to it, which is charged; so the weights of data parallelism can be updated in slices.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from tf_fuse.layout.cost import Rates
from tf_fuse.layout.errors import LayoutError, raise_if
from tf_fuse.layout.forks import with_forks
from tf_fuse.layout.kept import layouts_of, pins_of_kept
from tf_fuse.layout.links import Link
from tf_fuse.layout.mesh import Mesh
from tf_fuse.layout.optimize import modes
from tf_fuse.layout.optimize.graph import GraphProblem, problem_of
from tf_fuse.layout.optimize.modes import Pins
from tf_fuse.layout.optimize.plan import Plan
from tf_fuse.layout.optimize.problem import DATA, Edge, Problem, listed
from tf_fuse.layout.optimize.solver import Limits
from tf_fuse.layout.pins import Dimensions, annotations_of, pins_of, propagated
from tf_fuse.layout.relayout_seconds import relayout_seconds
from tf_fuse.layout.rules import LayoutRules
from tf_fuse.layout.steps import StepSet
from tf_fuse.layout.strategy import EVERYTHING, Allowed
from tf_fuse.layout.tensor_layout import TensorLayout

if TYPE_CHECKING:
    from tf_fuse.layout.trace import TracedFunction

# Of a machine that nobody measured: 1 Tflop/s, 100 GB/s of memory, 10 us and 10 GB/s of network.
_LINK: Final = Link(1e-5, 1e-10)
_SECONDS_PER_FLOP: Final = 1e-12
_SECONDS_PER_BYTE: Final = 1e-11
_SECONDS_PER_OPERATION: Final = 1e-6


def assumed_rates(mesh: Mesh, links: Mapping[str, Link] | None = None) -> Rates:
    """Rates where none were measured: orders of magnitude of a server, by no measurement.

    Args:
      mesh: the devices.
      links: of its axes; 10 microseconds for each message and 10 GB/s where there are none.

    Returns:
      With 1e-12 seconds for each floating-point operation, 1e-11 for each byte of memory that is
      read or written, and 1e-6 for each operation.

    Raises:
      LayoutError: there is a link for what is no axis.
    """
    by_axis = {axis: _LINK for axis in mesh.axes} | dict(links or {})
    return Rates(mesh, by_axis, _SECONDS_PER_FLOP, _SECONDS_PER_BYTE, _SECONDS_PER_OPERATION)


@dataclasses.dataclass(frozen=True, eq=False)
class FunctionPlan:
    """The layouts of a function's tensors.

    Attributes:
      function: what was traced.
      graph: the problem that was solved.
      plan: the strategy of each operation, with times in seconds and bytes of a device.
      rates: of the devices.
      steps: of relayouts; None for those of `plan_relayout`.
    """

    function: TracedFunction
    graph: GraphProblem
    plan: Plan
    rates: Rates
    steps: StepSet | None = None

    @cached_property
    def layouts(self) -> dict[str, TensorLayout]:
        """The layout in which each tensor is made, by its name."""
        made = self.graph.layouts(self.plan)
        return {name: made[name] for name in self.function.tensors}

    @cached_property
    def variables(self) -> dict[str, TensorLayout]:
        """The layout of each variable, by its name; the same before and behind the function."""
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
        return self.plan.seconds

    @property
    def memory_bytes(self) -> int:
        """Of a device, at the worst time point."""
        return self.plan.memory_bytes

    def table(self, most: int | None = None) -> Any:
        """The plan for `rich.print`: operations with milliseconds and bytes, and layouts.

        Args:
          most: operations that are shown, the most expensive ones; all by default.
        """
        from tf_fuse.layout.plan_tables import table

        return table(self, most)

    def why(self, operations: Sequence[str] = (), limits: Limits | None = None) -> Any:
        """The plan beside the second best one and data parallelism, for `rich.print`.

        Args:
          operations: whose best other strategy is shown too.
          limits: of each search.
        """
        return self.plan.why(operations, limits)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan into a file, as a `tf_fuse.v1.LayoutPlan`."""
        self.plan.save(path)

    def __str__(self) -> str:
        return f"{self.function.name}: {self.plan}"


@dataclasses.dataclass(frozen=True, eq=False)
class FunctionProblem:
    """What there is to choose for a function; several plans can be made of it.

    Attributes:
      function: what was traced.
      graph: operations with their strategies, and the search's problem.
      batch: the batch dimension of each tensor that is fed; None of those without.
      rates: of the devices.
      steps: of relayouts; None for those of `plan_relayout`.
    """

    function: TracedFunction
    graph: GraphProblem
    batch: Mapping[str, int | None]
    rates: Rates
    steps: StepSet | None = None

    def search(
        self,
        mode: str = modes.AUTO,
        rules: LayoutRules | str | None = None,
        dimensions: Dimensions | None = None,
        pins: Pins | None = None,
        limits: Limits | None = None,
        renamed: Sequence[str] = (),
        keep_layouts: bool = False,
    ) -> FunctionPlan:
        """Searches; arguments, results and errors are those of `plan`."""
        mesh = self.graph.problem.mesh
        assert mesh is not None
        names = annotations_of(dimensions or {})
        given = pins_of(self.graph, rules, names, mesh, renamed)
        problems = [
            f"operation {name!r} has a pin, and a layout by the rules; drop one of them"
            for name in sorted(set(given) & set(pins or {}))
        ]
        if renamed and mode != modes.PROPAGATE:
            problems.append("renamed is for mode 'propagate', in which names go through the graph")
        if mode == modes.PROPAGATE and rules is None and not pins:
            problems.append(
                "mode 'propagate' needs some layouts: give rules and dimensions, or pins, or take "
                "mode 'auto'"
            )
        elif mode == modes.PROPAGATE and rules is not None:
            given = propagated(self.graph, rules, names, mesh, renamed) | given
        if mode == DATA:
            problems += self._uneven(mesh)
        raise_if(problems)
        asked = {**given, **(pins or {})}
        if keep_layouts:
            kept = layouts_of(self.function.sources.variables)
            asked |= pins_of_kept(self.graph, kept, mesh, asked)
        found = modes.search(self.graph.problem, mode, asked, limits)
        return self.with_plan(found)

    def load(self, path: str | os.PathLike[str]) -> FunctionPlan:
        """Reads a plan that was saved; costs and memory are those of this problem.

        Raises:
          LayoutError: the file holds no plan, or one for other operations, shapes or another mesh,
            or it does not fit into memory_limit_bytes.
        """
        return self.with_plan(Plan.load(path, self.graph.problem))

    def with_plan(self, found: Plan) -> FunctionPlan:
        """A plan of the problem as one of the function."""
        return FunctionPlan(self.function, self.graph, found, self.rates, self.steps)

    def _uneven(self, mesh: Mesh) -> list[str]:
        tensors = self.function.tensors
        return [
            f"input {name!r} has a batch of {tensors[name].shape[at]}, which is no multiple of the "
            f"{mesh.size} devices of mesh {str(mesh)!r}, so mode 'data' cannot split it; pad it to "
            f"{-(-tensors[name].shape[at] // mesh.size) * mesh.size}, or set batch to "
            f"{{{name!r}: None}}"
            for name, at in self.batch.items()
            if at is not None and tensors[name].shape[at] % mesh.size
        ]


def plan(
    function: Any,
    mesh: Mesh,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    mode: str = modes.AUTO,
    rules: LayoutRules | str | None = None,
    dimensions: Dimensions | None = None,
    renamed: Sequence[str] = (),
    pins: Pins | None = None,
    batch: Mapping[str, int | None] | None = None,
    memory_limit_bytes: int | None = None,
    rates: Rates | None = None,
    links: Mapping[str, Link] | None = None,
    training: bool = False,
    slots: int = 0,
    allowed: Allowed = EVERYTHING,
    steps: StepSet | None = None,
    limits: Limits | None = None,
    keep_layouts: bool = False,
) -> FunctionPlan:
    """Finds the cheapest layouts of a function's tensors and variables.

    Strategies and relayouts are those of `tf_fuse.layout.strategy` and `plan_relayout`, the costs
    those of `tf_fuse.layout.cost`, and the search is `tf_fuse.layout.optimize`. Nothing is run.

    Args:
      function: a `tf.function`, a concrete function, or a callable, as a Keras model: a forward
        pass, or a whole training step with gradients and assignments.
      mesh: the devices.
      args: for the function, as `tf.TensorSpec`s or tensors; not needed of one with an
        input_signature, and not used of a concrete function.
      kwargs: likewise.
      mode: "auto": all strategies. "data": those that split nothing but the batch. "propagate":
        some layouts are given, by rules or pins, and the rest follows: names of dimensions go
        through the function, and what they reach lies as the rules say; the rest is what is
        cheapest then.
      rules: which named dimension is split over which axis, as "batch:rows;hidden:cols".
      dimensions: a name for each dimension, or None, of some tensors and variables: by its name, or
        a `tf.Variable`'s `ref()`; and by a Keras layer, by names of its variables. They are laid
        out as the rules say; dimensions without a rule are not split.
      renamed: names of tensors whose names in `dimensions` are for their readers only, as where a
        sequence meets itself; for mode "propagate".
      pins: by name of an operation, its strategy, or several to choose from.
      batch: by name of a tensor that is fed, its batch dimension, or None if it has none; by
        default dimension 0 of those with dimensions.
      memory_limit_bytes: of a device.
      rates: of the devices; `assumed_rates` if there are none, which nobody measured.
      links: of the axes, in place of those that are assumed; only without rates.
      training: whether the gradient of each operation counts, though it is none of the function's:
        for a forward pass. A training step has its gradients as operations.
      slots: copies of each variable that an optimizer holds beside, where it is none of the
        function's.
      allowed: which strategies there may be.
      steps: of relayouts; as of `plan_relayout` if None.
      limits: what the search may take.
      keep_layouts: whether variables that lie in parts already, by another plan that is executed,
        keep the layouts that they have, so that both plans can run.

    Returns:
      The plan: layouts, times in seconds, bytes of a device, and what the alternatives cost.

    Raises:
      MemoryLimitError: no plan fits; the error tells how much is missing.
      NoChoiceError: no plan can be, whatever the limit.
      SearchTimeoutError: none was found in time.
      LayoutError: a shape is not known; a name of a tensor, dimension, axis, operation or strategy
        is unknown; a size is no multiple of the devices that are to split it; mode "propagate"
        without rules or pins; two names of dimensions meet in it, with the paths of both; or a
        variable that keeps its layout is on another mesh or asked for otherwise.
    """
    problem = function_problem(
        function, mesh, args, kwargs, batch=batch, memory_limit_bytes=memory_limit_bytes,
        rates=rates, links=links, training=training, slots=slots, allowed=allowed, steps=steps,
    )  # fmt: skip
    return problem.search(mode, rules, dimensions, pins, limits, renamed, keep_layouts)


def function_problem(
    function: Any,
    mesh: Mesh,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    batch: Mapping[str, int | None] | None = None,
    memory_limit_bytes: int | None = None,
    rates: Rates | None = None,
    links: Mapping[str, Link] | None = None,
    training: bool = False,
    slots: int = 0,
    allowed: Allowed = EVERYTHING,
    steps: StepSet | None = None,
) -> FunctionProblem:
    """Traces a function and computes what its plans cost; arguments are those of `plan`.

    Raises:
      LayoutError: as of `plan`, of what is not the search's.
    """
    from tf_fuse.layout.trace import trace

    if not isinstance(mesh, Mesh):
        raise LayoutError(f"a plan is for a layout.Mesh, got {mesh!r}; give layout.Mesh({mesh!r})")
    rates = _rates(mesh, rates, links)
    traced = trace(function, args, kwargs)
    batches = _batches(traced, batch or {})
    graph = problem_of(
        with_forks(traced.operations), rates, training, memory_limit_bytes, slots,
        batches, allowed, steps, traced.results,
    )  # fmt: skip
    graph = _with_writes(graph, traced, rates, steps)
    return FunctionProblem(traced, graph, batches, rates, steps)


def _rates(mesh: Mesh, rates: Rates | None, links: Mapping[str, Link] | None) -> Rates:
    if rates is None:
        return assumed_rates(mesh, links)
    if links is not None:
        raise LayoutError("rates have links already; give rates or links, not both")
    if rates.mesh != mesh:
        raise LayoutError(
            f"the plan is for mesh {str(mesh)!r}, and the rates are for {str(rates.mesh)!r}; take "
            "both for the same one"
        )
    return rates


def _batches(traced: TracedFunction, batch: Mapping[str, int | None]) -> dict[str, int | None]:
    """The batch dimension of each tensor that is fed."""
    shapes = {name: traced.tensors[name].shape for name in traced.inputs}
    raise_if(
        [
            f"batch: {name!r} is no input of {traced.name!r}; there are: {listed(sorted(shapes))}"
            for name in sorted(set(batch) - set(shapes))
        ]
        + [
            f"batch: input {name!r} has {len(shapes[name])} dimensions, and {at} is none of them"
            for name, at in sorted(batch.items())
            if name in shapes and at is not None and not 0 <= at < len(shapes[name])
        ]
    )
    return {name: batch.get(name, 0 if shape else None) for name, shape in shapes.items()}


def _with_writes(
    graph: GraphProblem, traced: TracedFunction, rates: Rates, steps: StepSet | None
) -> GraphProblem:
    """The problem with edges that bring what is written back to the variables' layouts."""
    makers = {
        tensor.name: (number, o)
        for number, one in enumerate(graph.operations)
        for o, tensor in enumerate(one.outputs)
    }
    edges = []
    for variable, tensor in traced.writes:
        (source, o), (target, _) = makers[tensor], makers[variable]
        item_bytes = graph.operations[target].outputs[0].item_bytes
        made = [one.outputs[o] for one in graph.strategies[source]]
        kept = [one.outputs[0] for one in graph.strategies[target]]
        seconds = relayout_seconds(made, kept, item_bytes, dict(rates.links), steps)
        ends = graph.operations[source].name, graph.operations[target].name
        edges.append(Edge(ends[0], ends[1], seconds, f"{tensor} kept"))
    whole = graph.problem
    problem = Problem(whole.nodes, [*whole.edges, *edges], whole.memory_limit_bytes, whole.mesh)
    return dataclasses.replace(graph, problem=problem)
