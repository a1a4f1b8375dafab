# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trace the training step of a model in this process, and list its variables."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_fuse import explain
from tf_fuse._tensorflow import feature_names, features
from tf_fuse._tensorflow.keras.optimizer import recorded_references
from tf_fuse._tensorflow.variables.resource_variable import named_devices
from tf_fuse.scale.steps import partition, placement
from tf_fuse.scale.steps.even_parts import in_even_parts
from tf_fuse.scale.steps.step_graph import StepGraph

#: Stock; fused receives alone; lookups and updates of a server in one operation, too; and all that
#: with variables in equal parts on all servers, as `shard_weight_update` puts dense ones.
MODES = ("stock", "receives", "fused", "sharded")


@dataclasses.dataclass(frozen=True)
class TracedStep:
    """A step before it is placed.

    Attributes:
      name: of the model.
      graph: its `GraphDef`; variables are nodes `_Arg`.
      handles: names of the nodes of variables, in the order in which the program made them; None
        for one that the step does not use.
      sizes: bytes of these variables.
      beside: the number of the variable beside which each lies: its own, or that of the weight
        whose slot it is.
      function: runs the step in this process; None where only the graph is known.
    """

    name: str
    graph: Any
    handles: tuple[str | None, ...]
    sizes: tuple[int, ...]
    beside: tuple[int, ...]
    function: Callable[[], Any] | None = None

    def on(self, servers: int, one_host: bool = False) -> tuple[StepGraph, StepGraph]:
        """Return the step with its variables on servers in turn: stock, and fused.

        Args:
          servers: how many.
          one_host: whether all tasks are on one host, which `fuse_grouping` takes into account.
        """
        rewrite = self._rewrite(servers, one_host)
        stock, fused = (
            partition.step_graph(rewrite, servers, fuse, one_host) for fuse in (False, True)
        )
        return stock, fused

    def variants(
        self, servers: int, one_host: bool = False, modes: Sequence[str] = MODES
    ) -> dict[str, StepGraph]:
        """Return the step in several modes; see `on`.

        Args:
          servers: how many.
          one_host: whether all tasks are on one host.
          modes: of `MODES`.
        """
        stock, fused = self.on(servers, one_host)
        found = {"stock": stock, "fused": fused}
        if "receives" in modes:
            rewrite = self._rewrite(servers, one_host, fuse_operations=False)
            found["receives"] = partition.step_graph(rewrite, servers, True, one_host)
        if "sharded" in modes:
            found["sharded"] = in_even_parts(fused)
        return {mode: found[mode] for mode in modes}

    def _rewrite(self, servers: int, one_host: bool, fuse_operations: bool = True) -> Any:
        numbers = self.places(servers)
        places = {handle: at for handle, at in zip(self.handles, numbers, strict=True) if handle}
        return placement.place(self.graph, places, numbers, one_host, fuse_operations)

    def places(self, servers: int) -> list[int]:
        """Return the server of each variable: weights in turn, slots beside them."""
        turns: dict[int, int] = {}
        for number, root in enumerate(self.beside):
            if number == root:
                turns[number] = len(turns) % servers
        return [turns[root] for root in self.beside]


class Recorded(list[Any]):
    """Variables in the order in which they were made.

    Attributes:
      references: of slots, pairs of a slot and its weight.
    """

    def __init__(self) -> None:
        """Start empty."""
        super().__init__()
        self.references: list[tuple[Any, Any]] = []


@contextlib.contextmanager
def recorded_variables() -> Iterator[Recorded]:
    """Yield a list that gets each variable that is made meanwhile."""
    from tensorflow.python.ops import variable_scope

    made = Recorded()

    def creator(next_creator: Any, **kwargs: Any) -> Any:
        variable = next_creator(**kwargs)
        made.append(variable)
        return variable

    with contextlib.ExitStack() as stack:
        if features.works(feature_names.PREDICTIONS):
            made.references = stack.enter_context(recorded_references())
        stack.enter_context(variable_scope.variable_creator_scope(creator))
        yield made


def trace(
    name: str, function: Any, args: Any, variables: Recorded, unknown: int = 64
) -> TracedStep:
    """Trace a function.

    Args:
      name: of the model.
      function: the step, a `tf.function` or a Python function.
      args: what it is called with, or specifications of it.
      variables: all variables of the program, in the order in which it made them.
      unknown: what to take for a size that the graph does not have, such as the number of
        different rows of a batch.

    Returns:
      The step; nothing is run.
    """
    import tensorflow as tf

    python_function = getattr(function, "python_function", function)
    # Each names a server of its own.
    servers = [placement.server_device(number) for number in range(len(variables))]
    with named_devices(variables, servers):
        concrete = tf.function(python_function).get_concrete_function(*args)
    alone = tf.function(python_function)
    graph_def = explain.placed_graph(concrete)
    handle_names = {
        id(external): internal.op.name for external, internal in concrete.graph.captures
    }
    for node in graph_def.node:
        if node.op == "_Arg":
            node.device = ""
    _give_sizes(graph_def, unknown)
    names = [handle_names.get(id(variable.handle)) for variable in variables]
    callable_args = not any(isinstance(one, tf.TypeSpec) for one in tf.nest.flatten(args))
    return TracedStep(
        name,
        graph_def,
        tuple(names),
        tuple((variable.shape.num_elements() or 0) * variable.dtype.size for variable in variables),
        _beside(graph_def, names, variables),
        (lambda: alone(*args)) if callable_args else None,
    )


def _beside(graph: Any, names: list[str | None], variables: Recorded) -> tuple[int, ...]:
    """Return the number of the variable beside which each lies.

    One operation that changes several variables needs them on one server; and Keras says which
    weight a slot belongs to.
    """
    roots = list(range(len(names)))

    def root(number: int) -> int:
        while roots[number] != number:
            number = roots[number]
        return number

    def join(numbers: list[int]) -> None:
        first = min(map(root, numbers))
        for number in numbers:
            roots[root(number)] = first

    by_name = {name: number for number, name in enumerate(names) if name}
    for node in graph.node:
        if node.op.startswith("Resource"):
            inputs = [one for one in node.input if one in by_name]
            if len(inputs) > 1:
                join([by_name[one] for one in inputs])
    by_handle = {id(variable.handle): number for number, variable in enumerate(variables)}
    for slot, weight in variables.references:
        inside = (one if hasattr(one, "handle") else one.value for one in (slot, weight))
        pair = [by_handle.get(id(one.handle)) for one in inside]
        if None not in pair:
            join([number for number in pair if number is not None])
    return tuple(map(root, range(len(names))))


def _give_sizes(graph: Any, size: int) -> None:
    """Replace unknown sizes of dimensions in a graph."""
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for node in nodes:
            if "_output_shapes" in node.attr:
                for shape in node.attr["_output_shapes"].list.shape:
                    for dim in shape.dim:
                        if dim.size < 0:
                            dim.size = size
