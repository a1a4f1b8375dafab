# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Collect what the analysis knows of the arguments of a function and of those that it calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tf_fuse.function_graph.function_lookup import REDUCE
from tf_fuse.function_graph.view import GraphView
from tf_fuse.shard_update.analysis.gradient_reductions import leads_to_update, results_with_update
from tf_fuse.shard_update.analysis.replication import (
    Inside,
    ReplicatedProgram,
    called_functions,
    is_loop,
)


@dataclass(frozen=True)
class Scope:
    """What is known of a function's arguments.

    Attributes:
      name: of the function; "" of the one that is planned.
      replicated: those that are equal on all replicas.
      mirrored: those that are variables whose values are.
      origins: those that are variables, and the arguments of the planned function that they come
        from.
      outside: those that are variables which others than this function use.
      carried: those that the function returns unchanged, for the next iteration.
      updating: results from which callers may update a variable.
    """

    name: str
    replicated: tuple[str, ...]
    mirrored: tuple[str, ...]
    origins: Mapping[str, str]
    outside: frozenset[str]
    carried: frozenset[str] = frozenset()
    updating: frozenset[str] = frozenset()

    @classmethod
    def outermost(cls, definition: Any, mirrored: Collection[str], kept: Collection[str]) -> Scope:
        """Return the scope of the planned function.

        Args:
          definition: its `FunctionDef`.
          mirrored: arguments that are variables with the same value on all replicas.
          kept: arguments that are variables which others use at any time.
        """
        arguments = {argument.name: argument.name for argument in definition.signature.input_arg}
        return cls("", (), tuple(mirrored), arguments, frozenset(kept))

    @property
    def inside(self) -> frozenset[str]:
        """The arguments that are variables which only this function uses."""
        return frozenset(self.origins.keys() - self.outside)


def inner_scope(
    program: ReplicatedProgram, view: GraphView, node: Any, call: Inside, scope: Scope
) -> Scope:
    """Return what is known of the arguments of a function that is called.

    Args:
      program: that the functions are of.
      view: of the caller.
      node: of it, which calls.
      call: of the node.
      scope: of the caller.
    """
    body = GraphView(program.function(call.name), program.op_def)
    outer = dict(zip(body.arguments, map(view.resource, call.arguments), strict=True))
    origins = {a: scope.origins[o] for a, o in outer.items() if o in scope.origins}
    carried: set[str] = set()
    if is_loop(node):
        carried = {
            argument
            for argument, result in zip(body.arguments, body.results, strict=True)
            if body.resource(result) == argument
        }
    leads = [
        leads_to_update(view, program, [tensor], scope.updating) for tensor in view.outputs(node)
    ]
    outside = {
        argument
        for position, argument in enumerate(body.arguments)
        if outer[argument] not in scope.origins
        or outer[argument] in scope.outside
        or list(outer.values()).count(outer[argument]) > 1
        or _is_used_elsewhere(program, view, node, call, position, scope)
    }
    return Scope(
        call.name,
        tuple(call.replicated),
        tuple(call.mirrored),
        origins,
        frozenset(outside),
        frozenset(carried),
        frozenset(results_with_update(body, program, node, leads)),
    )


def reduces(program: ReplicatedProgram, name: str) -> bool:
    """Return whether a function, or one that it calls, has an all-reduce."""
    definition = program.function(name)
    return definition is not None and any(
        node.op == REDUCE or any(reduces(program, called) for called in called_functions(node))
        for node in definition.node_def
    )


def _is_used_elsewhere(
    program: ReplicatedProgram,
    view: GraphView,
    node: Any,
    call: Inside,
    position: int,
    scope: Scope,
) -> bool:
    """Return whether another function than the called one uses a variable that it gets."""
    resource = view.resource(call.arguments[position])
    users = [name for name in view.escapes(resource, but_shape=False) if name != node.name]
    if view.users(resource) or [n for n in users if n or resource not in scope.carried]:
        return True
    if is_loop(node):
        handed_on = view.outputs(node)[position]
        if view.uses(handed_on) or handed_on in view.results:
            return True
    for other in called_functions(node):
        definition = program.function(other)
        if other != call.name and definition is not None:
            body = GraphView(definition, program.op_def)
            argument = body.arguments[position]
            if body.users(argument) or [one for one in body.escapes(argument, False) if one]:
                return True
    return False
