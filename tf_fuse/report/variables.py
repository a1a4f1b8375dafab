# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the variables that the tensors of a job belong to.

Tasks know operations alone. The process that traced a function knows its variables: an operation
that reads or updates one has the variable's handle as an input.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tf_fuse.report.model import Function, Tensor

# What only hands on the value of a variable.
_HANDS_ON = frozenset({"Cast", "Identity", "ReadVariableOp"})


def with_variables(functions: Sequence[Function], graphs: Mapping[str, Any]) -> list[Function]:
    """Return functions with their names, and tensors with their variables.

    Args:
      functions: that tasks reported.
      graphs: the `FuncGraph`s that this process has traced, by name.
    """
    # By operation: the graphs that have it.
    having: defaultdict[str, set[str]] = defaultdict(set)
    variables: dict[str, dict[str, str]] = {}
    for name, graph in graphs.items():
        for operation in graph.get_operations():
            having[operation.name].add(name)
    found = []
    for function in functions:
        counts: defaultdict[str, int] = defaultdict(int)
        for tensor in _tensors(function):
            for operation in (tensor.producer, tensor.consumer):
                for name in having.get(operation, ()):
                    counts[name] += 1
        if not counts:
            found.append(function)
            continue
        # A function that was traced again has the same operations: take the last one.
        name = max(counts, key=lambda one: (counts[one], list(graphs).index(one)))
        if name not in variables:
            variables[name] = variables_by_operation(graphs[name])
        found.append(_named(function, graphs[name].name, variables[name]))
    return found


def variables_by_operation(graph: Any) -> dict[str, str]:
    """Return the name of the variable that each operation of a graph reads or updates."""
    by_handle: dict[int, str] = {}
    for variable in _variables(graph):
        by_handle[id(variable.__dict__.get("_handle"))] = variable.name.partition(":")[0]
    placeholders = {
        internal.op.name: by_handle[id(external)]
        for external, internal in graph.captures
        if id(external) in by_handle
    }
    found: dict[str, str] = {}
    for operation in graph.get_operations():
        names = [
            placeholders[tensor.op.name]
            for tensor in operation.inputs
            if tensor.op.name in placeholders
        ]
        if operation.type in _HANDS_ON and operation.inputs:
            names = names or [found.get(operation.inputs[0].op.name, "")]
        if len(set(names)) == 1 and names[0]:
            found[operation.name] = names[0]
    return found


def _variables(graph: Any) -> Iterator[Any]:
    try:
        yield from graph.variables
    except AssertionError:  # A variable of it is gone.
        return


def _tensors(function: Function) -> Iterator[Tensor]:
    for group in function.groups:
        yield from group.tensors
    for left in function.left:
        yield left.tensor


def _named(function: Function, name: str, variables: Mapping[str, str]) -> Function:
    def named(tensor: Tensor) -> Tensor:
        own = variables.get(tensor.producer) or variables.get(tensor.consumer) or ""
        return dataclasses.replace(tensor, variable=own) if own else tensor

    def all_named(tensors: Iterable[Tensor]) -> tuple[Tensor, ...]:
        return tuple(map(named, tensors))

    return dataclasses.replace(
        function,
        name=name,
        groups=tuple(
            dataclasses.replace(group, tensors=all_named(group.tensors))
            for group in function.groups
        ),
        left=tuple(dataclasses.replace(left, tensor=named(left.tensor)) for left in function.left),
    )
