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

from tf_fuse._tensorflow.variables.resource_variable import own_handle
from tf_fuse.report.records.model import Function, Tensor

# What only hands on the value of a variable.
_HANDS_ON = frozenset({"Cast", "Identity", "ReadVariableOp"})


def with_variables(functions: Sequence[Function], graphs: Mapping[str, Any]) -> list[Function]:
    """Return functions with their names, and tensors with their variables.

    Args:
      functions: that tasks reported.
      graphs: the `FuncGraph`s that this process has traced, by name, oldest first.
    """
    having: defaultdict[str, set[str]] = defaultdict(set)
    for name, graph in graphs.items():
        for operation in graph.get_operations():
            having[operation.name].add(name)
    age = {name: number for number, name in enumerate(graphs)}
    variables: dict[str, dict[str, str]] = {}
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
        name = max(counts, key=lambda one: (counts[one], age[one]))
        if name not in variables:
            variables[name] = variables_by_operation(graphs[name], _definitions(name))
        found.append(_named(function, graphs[name].name, variables[name]))
    return found


def variables_by_operation(graph: Any, definitions: Iterable[Any]) -> dict[str, str]:
    """Return the name of the variable that each operation of a function reads or updates.

    Args:
      graph: the `FuncGraph`, as it was traced.
      definitions: `FunctionDef`s of the function, of forms in which it is called, too. Their
        arguments begin with the graph's, or they are left out.
    """
    by_handle = {id(own_handle(one)): one.name.partition(":")[0] for one in _variables(graph)}
    captured = {
        id(internal): by_handle[id(external)]
        for external, internal in graph.captures
        if id(external) in by_handle
    }
    names = [captured.get(id(tensor), "") for tensor in graph.inputs]
    found: dict[str, str] = {}
    for definition in definitions:
        arguments = [one.name for one in definition.signature.input_arg]
        handles = {one: name for one, name in zip(arguments, names, strict=False) if name}
        values: dict[str, str] = {}
        # (Operations are in any order, and a value is handed on once or twice.)
        for _ in range(3):
            for node in definition.node_def:
                sources = [one.partition(":")[0] for one in node.input if one[:1] != "^"]
                own = {handles[one] for one in sources if one in handles}
                if not own and node.op in _HANDS_ON:
                    own = {values[one] for one in sources if one in values}
                if len(own) == 1:
                    values[node.name] = own.pop()
        found |= values
    return found


def _definitions(name: str) -> list[Any]:
    """Return the definition of a function, and those of forms that tf_fuse made of it."""
    from tensorflow.python.eager import context as context_module

    context = context_module.context()
    names = [
        one.decode() if isinstance(one, bytes) else one for one in context.list_function_names()
    ]
    made = sorted(one for one in names if one.startswith(f"{name}__tf_fuse"))
    return [context.get_function_def(one) for one in (name, *made) if context.has_function(one)]


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

    return dataclasses.replace(
        function,
        name=name,
        groups=tuple(
            dataclasses.replace(group, tensors=tuple(map(named, group.tensors)))
            for group in function.groups
        ),
        left=tuple(dataclasses.replace(left, tensor=named(left.tensor)) for left in function.left),
    )
