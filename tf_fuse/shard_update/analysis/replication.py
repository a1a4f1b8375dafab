# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the tensors of a function that are equal on all replicas that run it.

Section 3.1 of "Automatic Cross-Replica Sharding of Weight Update in Data-Parallel Training"
(Xu et al., 2020). Constants, the results of all-reduces over all replicas, and reads of variables
that are equal on all replicas are replicated; so is what a deterministic operation without state
makes of replicated tensors. Everything else is not, as far as is known here.

A variable stays equal if all that a function assigns to it is replicated. The analysis assumes that
for all variables, and drops those that an assignment contradicts, until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from tf_fuse.function_graph.operations import RESOURCE_APPLY
from tf_fuse.function_graph.view import ASSIGNS, READS, GraphView, data_inputs

_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
_CONDITIONALS = frozenset({"If", "StatelessIf"})
_CASES = frozenset({"Case", "StatelessCase"})
_LOOPS = frozenset({"While", "StatelessWhile"})

# Stateful in their registration, but the same inputs give the same outputs.
_PURE_THOUGH_STATEFUL = frozenset({"VariableShape", "VarIsInitializedOp"})
# Without state in their registration, but their values depend on who runs them, or when.
_IMPURE = frozenset({"Placeholder", "PlaceholderWithDefault", "PyFuncStateless", "_Arg"})


@dataclass
class Replication:
    """What is equal on all replicas.

    Attributes:
      tensors: names of such tensors.
      variables: resources whose values stay equal while the function runs, and after it.
    """

    tensors: set[str] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class ReplicatedProgram:
    """What the analysis has to know of the program.

    Attributes:
      replicas: how many there are.
      function: the `FunctionDef` of a name, or None.
      op_def: the `OpDef` of an op or function.
      is_full_group: whether a node is an all-reduce over all replicas.
    """

    replicas: int
    function: Callable[[str], Any | None]
    op_def: Callable[[str], Any]
    is_full_group: Callable[[GraphView, Any], bool]


def analyse_replication(
    view: GraphView, program: ReplicatedProgram, replicated: Iterable[str], mirrored: Iterable[str]
) -> Replication:
    """Find the replicated tensors of a function.

    Args:
      view: of the function.
      program: what else there is.
      replicated: arguments that are equal on all replicas.
      mirrored: arguments that are resources of variables whose values are.

    Returns:
      A fixed point: nothing in it contradicts the rest.
    """
    found = Replication(variables=set(mirrored))
    while True:
        found.tensors = set(replicated)
        lost: set[str] = set()
        for node in view.in_order():
            lost |= _visit(view, program, node, found)
        if not lost:
            return found
        found.variables -= lost


def _visit(view: GraphView, program: ReplicatedProgram, node: Any, found: Replication) -> set[str]:
    """Add a node's replicated outputs; return variables that are not equal any more."""
    inputs = data_inputs(node)
    if node.op in READS:
        if view.variable_of(node) in found.variables:
            found.tensors.update(view.outputs(node))
        return set()
    if node.op in ASSIGNS | RESOURCE_APPLY:
        return _visit_assignment(view, node, found)
    resources = [view.resource(tensor) for tensor in inputs]
    touched = {resource for resource in resources if resource in found.variables}
    if node.op in _CALLS:
        return _visit_call(view, program, node, found, called_functions(node))
    if node.op in _CONDITIONALS | _CASES:
        return _visit_conditional(view, program, node, found, called_functions(node))
    if node.op in _LOOPS:
        return _visit_loop(view, program, node, found)
    if program.is_full_group(view, node):
        found.tensors.update(view.outputs(node))
        return set()
    if _is_pure(program, node):
        if all(tensor in found.tensors or tensor in touched for tensor in inputs):
            found.tensors.update(view.outputs(node))
        elif node.op == "IdentityN":
            outputs = view.outputs(node)
            found.tensors.update(
                o for o, i in zip(outputs, inputs, strict=True) if i in found.tensors
            )
        if node.op in {"Identity", "IdentityN"} | _PURE_THOUGH_STATEFUL:
            return set()
    # Whoever else gets a variable may change it.
    return touched


def _visit_assignment(view: GraphView, node: Any, found: Replication) -> set[str]:
    """Return variables that a node changes to what is not replicated."""
    variables = view.assigned(node)
    values = [
        tensor
        for tensor in data_inputs(node)
        # (A tensor that is a variable's resource has no value of its own.)
        if view.resource(tensor) not in variables
    ]
    same = all(tensor in found.tensors for tensor in values)
    # What updates a variable reads its slots, and the other way round.
    if same and all(variable in found.variables for variable in variables):
        return set()
    return set(variables) & found.variables


def _is_pure(program: ReplicatedProgram, node: Any) -> bool:
    if node.op in _IMPURE:
        return False
    if node.op in _PURE_THOUGH_STATEFUL:
        return True
    try:
        definition = program.op_def(node.op)
    except KeyError:
        return False
    return not definition.is_stateful and not definition.is_distributed_communication


def _called(
    view: GraphView,
    program: ReplicatedProgram,
    name: str,
    arguments: list[str],
    found: Replication,
    equal: Collection[int] | None = None,
) -> tuple[list[bool], set[str]] | None:
    """Analyse a function that is called.

    Returns:
      For each result whether it is replicated, and the caller's variables that do not stay equal;
      None if the function is not known.
    """
    body = program.function(name)
    if body is None or len(body.signature.input_arg) != len(arguments):
        return None
    inner = GraphView(body, program.op_def)
    outer_of = dict(zip(inner.arguments, arguments, strict=True))
    replicated = [
        argument
        for index, argument in enumerate(inner.arguments)
        if (outer_of[argument] in found.tensors if equal is None else index in equal)
    ]
    mirrored = [a for a in inner.arguments if view.resource(outer_of[a]) in found.variables]
    result = analyse_replication(inner, program, replicated, mirrored)
    lost = {view.resource(outer_of[a]) for a in mirrored if a not in result.variables}
    return [tensor in result.tensors for tensor in inner.results], lost


def _variables_among(view: GraphView, tensors: Iterable[str], found: Replication) -> set[str]:
    return {view.resource(tensor) for tensor in tensors} & found.variables


def _visit_call(
    view: GraphView, program: ReplicatedProgram, node: Any, found: Replication, names: list[str]
) -> set[str]:
    inputs = data_inputs(node)
    called = _called(view, program, names[0], inputs, found)
    if called is None:
        return _variables_among(view, inputs, found)
    results, lost = called
    for tensor, is_replicated in zip(view.outputs(node), results, strict=True):
        if is_replicated:
            found.tensors.add(tensor)
    return lost


def _visit_conditional(
    view: GraphView, program: ReplicatedProgram, node: Any, found: Replication, names: list[str]
) -> set[str]:
    """Add results that all branches replicate, where all replicas take the same one."""
    predicate, *arguments = data_inputs(node)
    called = [_called(view, program, name, arguments, found) for name in names]
    known = [branch for branch in called if branch is not None]
    if len(known) < len(called):
        return _variables_among(view, arguments, found)
    lost = set().union(*(branch[1] for branch in known))
    if predicate not in found.tensors:
        # Some replicas run one branch, some the other: what either assigns is not equal.
        for name in names:
            if not is_run_by_all(program, name):
                lost |= _assigned(view, program, name, arguments, found)
        return lost
    outputs = view.outputs(node)
    for index, tensor in enumerate(outputs):
        if all(branch[0][index] for branch in known):
            found.tensors.add(tensor)
    return lost


def _visit_loop(
    view: GraphView, program: ReplicatedProgram, node: Any, found: Replication
) -> set[str]:
    equal, lost = _loop(view, program, node, found)
    outputs = view.outputs(node)
    found.tensors.update(outputs[i] for i in equal)
    return lost


def _loop(
    view: GraphView, program: ReplicatedProgram, node: Any, found: Replication
) -> tuple[set[int], set[str]]:
    """Loop variables that stay replicated from iteration to iteration, to a fixed point.

    Returns:
      Their indices, and the caller's variables that do not stay equal.
    """
    arguments = data_inputs(node)
    condition, body = called_functions(node)
    equal = {i for i, tensor in enumerate(arguments) if tensor in found.tensors}
    lost: set[str] = set()
    while True:
        inner = Replication(found.tensors, found.variables - lost)
        tested = _called(view, program, condition, arguments, inner, equal)
        run = _called(view, program, body, arguments, inner, equal)
        if tested is None or run is None:
            return set(), _variables_among(view, arguments, found)
        now_lost = lost | tested[1] | run[1]
        if not tested[0][0] and not is_run_by_all(program, body):
            # Replicas differ in how often they go round.
            return set(), now_lost | _assigned(view, program, body, arguments, found)
        still = {i for i in equal if run[0][i]}
        if still == equal and now_lost == lost:
            return equal, lost
        equal, lost = still, now_lost


@dataclass(frozen=True)
class Inside:
    """What is known in a function that a node calls.

    Attributes:
      name: of the function.
      arguments: the caller's tensors that it gets.
      replicated: its arguments that are replicated.
      mirrored: its arguments that are variables with equal values.
    """

    name: str
    arguments: list[str]
    replicated: list[str]
    mirrored: list[str]


def has_condition(node: Any) -> bool:
    """Return whether the first input of a node chooses the function, and is not an argument."""
    return node.op in _CONDITIONALS | _CASES


def is_loop(node: Any) -> bool:
    """Return whether a node runs a function again and again on what it returns."""
    return node.op in _LOOPS


def inside(
    view: GraphView, program: ReplicatedProgram, node: Any, found: Replication
) -> list[Inside]:
    """Return what is known in the functions that a node calls.

    Args:
      view: of the caller.
      program: what else there is.
      node: of it.
      found: a result of `analyse_replication`.

    Returns:
      Of each function that is known; nothing for a node that calls none.
    """
    if not called_functions(node):
        return []
    arguments = data_inputs(node)
    if node.op in _CONDITIONALS | _CASES:
        arguments = arguments[1:]
    equal = {i for i, tensor in enumerate(arguments) if tensor in found.tensors}
    if node.op in _LOOPS:
        equal, _ = _loop(view, program, node, found)
    known = []
    for name in called_functions(node):
        body = program.function(name)
        if body is not None and len(body.signature.input_arg) == len(arguments):
            names = [argument.name for argument in body.signature.input_arg]
            replicated = [names[i] for i in sorted(equal)]
            mirrored = [
                inner
                for inner, outer in zip(names, arguments, strict=True)
                if view.resource(outer) in found.variables
            ]
            known.append(Inside(name, arguments, replicated, mirrored))
    return known


def is_run_by_all(program: ReplicatedProgram, name: str) -> bool:
    """Return whether all replicas run a function, or none: it has an all-reduce of all of them.

    If some ran it and others did not, they would wait for ever.
    """
    body = program.function(name)
    if body is None:
        return False
    view = GraphView(body, program.op_def)
    return any(
        program.is_full_group(view, node)
        or (node.op in _CALLS and is_run_by_all(program, called_functions(node)[0]))
        for node in view.nodes.values()
    )


def only_reads(view: GraphView, program: ReplicatedProgram, node: Any, resource: str) -> bool:
    """Return whether a node that gets a variable is a call that reads it, and no more."""
    names = called_functions(node)
    if not names:
        return False
    inputs = data_inputs(node)
    if node.op in _CONDITIONALS | _CASES:
        inputs = inputs[1:]
    for name in names:
        body = program.function(name)
        if body is None or len(body.signature.input_arg) != len(inputs):
            return False
        inner = GraphView(body, program.op_def)
        for argument, outer in zip(inner.arguments, inputs, strict=True):
            if view.resource(outer) != resource:
                continue
            if any(argument in inner.assigned(one) for one in inner.nodes.values()):
                return False
            for escape in inner.escapes(argument):
                if escape == "":
                    # A loop hands on what it got.
                    if node.op not in _LOOPS:
                        return False
                elif not only_reads(inner, program, inner.nodes[escape], argument):
                    return False
    return True


def called_functions(node: Any) -> list[str]:
    """Return the functions that a node calls; none for other nodes."""
    if node.op in _CALLS:
        return [node.attr["f"].func.name]
    if node.op in _CONDITIONALS:
        return [node.attr[name].func.name for name in ("then_branch", "else_branch")]
    if node.op in _CASES:
        return [function.name for function in node.attr["branches"].list.func]
    if node.op in _LOOPS:
        return [node.attr[name].func.name for name in ("cond", "body")]
    return []


def _assigned(
    view: GraphView, program: ReplicatedProgram, name: str, arguments: list[str], found: Replication
) -> set[str]:
    """Return the caller's variables that a function may change."""
    body = program.function(name)
    if body is None:
        return _variables_among(view, arguments, found)
    inner = GraphView(body, program.op_def)
    changed = set()
    for argument, outer in zip(inner.arguments, arguments, strict=True):
        resource = view.resource(outer)
        if resource not in found.variables:
            continue
        assigns = any(argument in inner.assigned(node) for node in inner.nodes.values())
        if assigns or inner.escapes(argument):
            changed.add(resource)
    return changed
