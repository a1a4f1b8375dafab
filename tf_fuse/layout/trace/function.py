# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trace a `tf.function`, and record its operations in the program's order.

    traced = trace(step, [tf.TensorSpec([64, 256]), tf.TensorSpec([64], tf.int32)])
    traced.operations, traced.variables, traced.unknown

Calls of other functions are inlined, and so are the bodies of loops and conditionals whose shapes
are known (`bodies.py`). A variable is one source, and a value written to it is a
tensor that later readers in the program read. The trace leaves out operations that no result or
write depends on, and constants that became attributes. `effects.py` keeps operations with other
effects, such as a check or a print.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tf_fuse.layout.operators import without_rule
from tf_fuse.layout.trace.bodies import BodyTracer
from tf_fuse.layout.trace.distinct_rows import DistinctRowsTracer, MixedRowsError
from tf_fuse.layout.trace.records import (
    Record,
    Sources,
    can_be_planned,
    check_shapes,
    checked,
    composites,
    concrete_function,
    for_a_plan,
    needed_of,
)
from tf_fuse.layout.types.control_flow import NO_CONTROL_FLOW, ControlFlow
from tf_fuse.layout.types.operation import Operation, Tensor


@dataclasses.dataclass(frozen=True)
class TracedFunction:
    """The operations of a function.

    Attributes:
      name: of the function.
      operations: in the order of the program. Those that are fed, variables and constants are
        operations, too, of the kinds "Placeholder", "Variable" and "Const".
      inputs: names of tensors that are fed, in the order of the arguments.
      variables: names of variables, in the order of their first use.
      writes: (variable, tensor that it is in the end), for those that are written.
      results: names of tensors that the function returns.
      effects: operations that run beside the plan, as checks, prints and summaries.
      observed: names of tensors that these read.
      left_out: operations with an effect that cannot run in a plan.
      sources: what it was made of.
      control_flow: the loops and conditionals whose bodies are among the operations.
    """

    name: str
    operations: tuple[Operation, ...]
    inputs: tuple[str, ...]
    variables: tuple[str, ...]
    writes: tuple[tuple[str, str], ...]
    results: tuple[str, ...]
    effects: tuple[str, ...]
    observed: tuple[str, ...]
    left_out: tuple[str, ...]
    sources: Sources = dataclasses.field(repr=False, compare=False)
    control_flow: ControlFlow = NO_CONTROL_FLOW

    @property
    def unknown(self) -> dict[str, tuple[str, ...]]:
        """Operations without a rule, which are not split: names by kinds, both sorted."""
        return without_rule(self.operations)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by name."""
        return {one.name: one for operation in self.operations for one in operation.outputs}


def trace(
    function: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    bodies: bool = True,
) -> TracedFunction:
    """Trace a function.

    Args:
      function: a `tf.function`, its concrete function, or what can be made one: any callable, as a
        Keras model.
      args: for the function: tensors, or `tf.TensorSpec`s, of whole shapes. None are needed where
        it has an input_signature, and none are used of a concrete function.
      kwargs: likewise.
      bodies: whether bodies of loops and conditionals are recorded; otherwise each loop is one
        operation.

    Returns:
      Its operations.

    Raises:
      LayoutError: a shape is not known, or a tensor has no elements or no known type. All that are
        found are named.
    """
    with for_a_plan():
        concrete = concrete_function(function, args, kwargs)
    variables = {id(one.handle): one for one in concrete.graph.variables}
    try:
        return _recorded(DistinctRowsTracer(variables, bodies), concrete)
    except MixedRowsError:
        return _recorded(BodyTracer(variables, bodies), concrete)


def _recorded(tracer: BodyTracer, concrete: Any) -> TracedFunction:
    """Return what a tracer records of a function."""
    graph = concrete.graph
    captured = {id(inner): outer for outer, inner in graph.captures}
    values = {one.name: tracer.source(one, captured.get(id(one))) for one in graph.inputs}
    tracer.graph(graph, "", values)
    results = [values[one.name] for one in graph.outputs]
    return _traced(tracer, concrete, [one if isinstance(one, str) else None for one in results])


def _traced(tracer: BodyTracer, concrete: Any, returned: Sequence[str | None]) -> TracedFunction:
    """Return what was recorded, without what is not needed."""
    results = [one for one in returned if one is not None]
    writes = [
        (variable, tensor) for variable, tensor in tracer.current.items() if variable != tensor
    ]
    needed = {*results, *(tensor for _, tensor in writes), *(one for one, _ in writes)}
    kept = _needed(tracer, needed)
    # The second time without those that others read, which are in the plan then.
    for _ in range(2):
        beside = tracer.effects.beside(
            {one.name for one in kept}, lambda name: can_be_planned(tracer.tensors[name])
        )
        kept = _needed(tracer, {*needed, *beside.observed})
    tracer.check_seen([*needed, *beside.observed])
    needed.update(beside.observed)
    needed.update(name for one in kept for name in one.inputs)
    check_shapes(kept, tracer.tensors, composites(concrete))
    tensors = checked(kept, tracer.tensors)
    sources = Sources(
        concrete,
        tracer.origins,
        {**tracer.constants, **tracer.captured},
        tuple(tracer.inputs),
        tuple(returned),
        tracer.held,
        beside.runs,
    )
    return TracedFunction(
        concrete.graph.name,
        tuple(
            Operation(
                one.name,
                one.kind,
                [tensors[name] for name in one.inputs],
                [tensors[name] for name in one.outputs],
                one.attributes,
            )
            for one in kept
        ),
        tuple(one for one in tracer.inputs if one in needed),
        tuple(one for one in tracer.current if one in needed),
        tuple(writes),
        tuple(dict.fromkeys(results)),
        beside.names,
        beside.observed,
        beside.left_out,
        sources,
        tracer.control_flow.only({one.name for one in kept}, set(tensors)),
    )


def _needed(tracer: BodyTracer, wanted: Iterable[str]) -> list[Record]:
    """Return the records that make some tensors, with what decides about and ends their blocks."""
    needed = set(wanted)
    while True:
        kept = needed_of(tracer.records, needed)
        names = {one.name for one in kept}
        made = {name for one in kept for name in one.outputs}
        more = tracer.control_flow.needed(names, made) - needed
        if not more:
            return kept
        needed |= more
