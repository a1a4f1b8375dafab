# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trace the training step of a model in this process, and list its variables."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from tf_fuse import explain
from tf_fuse.scale.steps import partition, placement
from tf_fuse.scale.steps.step_graph import StepGraph


@dataclasses.dataclass(frozen=True)
class TracedStep:
    """A step before it is placed.

    Attributes:
      name: of the model.
      graph: its `GraphDef`; variables are nodes `_Arg`.
      handles: names of the nodes of variables, in the order in which the program made them; None
        for one that the step does not use.
      sizes: bytes of these variables.
      function: runs the step in this process; None where only the graph is known.
    """

    name: str
    graph: Any
    handles: tuple[str | None, ...]
    sizes: tuple[int, ...]
    function: Callable[[], Any] | None = None

    def on(self, servers: int) -> tuple[StepGraph, StepGraph]:
        """Return the step with its variables on so many servers in turn: stock, and fused."""
        places = {handle: number % servers for number, handle in enumerate(self.handles) if handle}
        rewrite = placement.place(self.graph, places)
        stock, fused = (partition.step_graph(rewrite, servers, fuse) for fuse in (False, True))
        return stock, fused


@contextlib.contextmanager
def recorded_variables() -> Iterator[list[Any]]:
    """Yield a list that gets each variable that is made meanwhile."""
    from tensorflow.python.ops import variable_scope

    made: list[Any] = []

    def creator(next_creator: Any, **kwargs: Any) -> Any:
        variable = next_creator(**kwargs)
        made.append(variable)
        return variable

    with variable_scope.variable_creator_scope(creator):
        yield made


def trace(name: str, function: Any, args: Any, variables: list[Any]) -> TracedStep:
    """Trace a function.

    Args:
      name: of the model.
      function: the step, a `tf.function` or a Python function.
      args: what it is called with, or specifications of it.
      variables: all variables of the program, in the order in which it made them.

    Returns:
      The step; nothing is run.
    """
    import tensorflow as tf

    step = function if hasattr(function, "get_concrete_function") else tf.function(function)
    concrete = step.get_concrete_function(*args)
    graph_def = explain.placed_graph(concrete)
    handle_names = {
        id(external): internal.op.name for external, internal in concrete.graph.captures
    }
    for node in graph_def.node:
        if node.op == "_Arg":
            node.device = ""
    callable_args = not any(isinstance(one, tf.TypeSpec) for one in tf.nest.flatten(args))
    return TracedStep(
        name,
        graph_def,
        tuple(handle_names.get(id(variable.handle)) for variable in variables),
        tuple((variable.shape.num_elements() or 0) * variable.dtype.size for variable in variables),
        (lambda: step(*args)) if callable_args else None,
    )
