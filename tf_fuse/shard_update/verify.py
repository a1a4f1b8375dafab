# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Looks over a function whose update was cut, before it runs in the place of the original.

It knows nothing of how the rewrite goes about its work, only what must hold whatever that does: the
function is well formed and returns what it did, variables are written by whom they were, nobody
touches a variable whose value is elsewhere, and replicas meet in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tf_fuse.shard_update.graph_view import GraphView, control_inputs, data_inputs
from tf_fuse.shard_update.slot import Slot
from tf_fuse.shard_update.verify_bodies import BRANCHES, Bodies, WrongError
from tf_fuse.shard_update.verify_gather import check_gathers
from tf_fuse.shard_update.verify_meetings import check_meetings
from tf_fuse.shard_update.verify_types import Body, Inferred, check_types

_RESOURCE = 20  # DT_RESOURCE


@dataclass(frozen=True)
class Original:
    """A function before it is cut.

    Attributes:
      definition: its `FunctionDef`.
      graph: the `FuncGraph` that it was made of, which has the shapes of its inputs.
      function: the `FunctionDef` of a function that it calls, or None.
    """

    definition: Any
    graph: Any
    function: Callable[[str], Any | None]


def verify(
    original: Original, twin: Any, slots: Sequence[Slot], functions: Sequence[Any] = ()
) -> str:
    """Compares a function whose update was cut with the original.

    Args:
      original: the function as it was traced.
      twin: the `FunctionDef` that is to be run.
      slots: the variables that have parts.
      functions: `FunctionDef`s that the twin calls, and that are made with it.

    Returns:
      What is wrong with the twin, in words; "" if nothing is.
    """
    made = {function.signature.name: function for function in functions}
    before = Bodies(original.function)
    after = Bodies(lambda name: made.get(name) or original.function(name))
    try:
        for view in after.all_of(twin):
            _check_nodes(view)
        inputs = list(original.graph.inputs)
        whole = Body(original.definition, original.graph, inputs)
        _check_body(before, whole, after, Body(twin, original.graph, inputs), frozenset())
        _check_slots(before, original.definition, after, twin, slots)
        _check_writers(before, original.definition, after, twin, slots)
        check_gathers(after, after.view(twin), slots)
    except WrongError as error:
        return str(error)
    return ""


def _check_nodes(view: GraphView) -> None:
    """Nodes have names of their own, read what there is, and do not wait for themselves."""
    if len(view.nodes) != len(view.function.node_def):
        raise WrongError(f"two nodes of {view.function.signature.name} have one name")
    made = {tensor for node in view.nodes.values() for tensor in view.outputs(node)}
    made.update(view.arguments)
    known = view.nodes.keys() | set(view.arguments)
    for node in view.nodes.values():
        for tensor in data_inputs(node):
            if tensor not in made:
                raise WrongError(f"{node.name} reads {tensor}, which there is not")
        for name in control_inputs(node):
            if name not in known:
                raise WrongError(f"{node.name} waits for {name}, which there is not")
    for tensor in view.results:
        if tensor not in made:
            raise WrongError(f"the function returns {tensor!r}, which there is not")
    for name in view.function.control_ret.values():
        if name not in view.nodes:
            raise WrongError(f"the function waits for {name}, which there is not")
    try:
        for _ in view.in_order():
            pass
    except ValueError as error:
        raise WrongError(str(error)) from None


def _check_body(
    before: Bodies, old: Body, after: Bodies, new: Body, outside: frozenset[str]
) -> None:
    """Compares a function, and those that it calls, with what they were.

    Args:
      before: all functions as they were.
      old: the function as it was.
      after: all functions.
      new: the function.
      outside: all-reduces that are cut in front of where it is called.
    """
    was, now = old.definition, new.definition
    arguments = list(now.signature.input_arg)
    # (A branch may be given more.)
    if arguments[: len(was.signature.input_arg) if outside else None] != list(
        was.signature.input_arg
    ):
        raise WrongError("the function's input_arg is not what it was")
    for part in ("output_arg", "control_output"):
        if list(getattr(was.signature, part)) != list(getattr(now.signature, part)):
            raise WrongError(f"the function's {part} is not what it was")
    if dict(was.control_ret).keys() != dict(now.control_ret).keys():
        raise WrongError("the function's control_ret is not what it was")
    graphs = check_types(before, old, after, new)
    view, other = before.view(was), after.view(now)
    cut = check_meetings(before, view, after, other, outside)
    for name, node in view.nodes.items():
        if name not in other.nodes:
            continue
        calls = after.called(other.nodes[name])
        for one, another in zip(before.called(node), calls, strict=False):
            if one.signature.name != another.signature.name:
                inner = _called(node, other.nodes[name], old, one, another, graphs)
                _check_body(before, inner[0], after, inner[1], outside | cut)


def _called(
    node: Any, other: Any, caller: Body, one: Any, another: Any, graphs: tuple[Inferred, Inferred]
) -> tuple[Body, Body]:
    """A function that a node calls, as it was, and as it is."""
    functions = getattr(caller.graph, "_functions", {})
    graph = getattr(functions.get(one.signature.name), "graph", None)
    count = len(one.signature.input_arg)
    inputs = [None] * count if graph is None else list(graph.inputs)
    first = int(other.op in BRANCHES)
    shapes = [graphs[0].tensor(t).shape.as_proto() for t in data_inputs(node)[first:]]
    given = [graphs[1].tensor(tensor) for tensor in data_inputs(other)[first:]]
    # What is passed otherwise than before has other shapes than were traced.
    now = [
        known if i < len(inputs) and shapes[i] == tensor.shape.as_proto() else tensor
        for i, tensor in enumerate(given)
        for known in [inputs[i] if i < len(inputs) else None]
    ]
    return Body(one, graph, inputs), Body(another, graph, now)


def _check_slots(before: Bodies, old: Any, after: Bodies, new: Any, slots: Sequence[Slot]) -> None:
    """Parts are used in the place of variables, which nobody uses."""
    view = after.view(new)
    for slot in slots:
        for path, node in after.uses(view, slot.argument):
            raise WrongError(f"{path} ({node.op}) uses {slot.argument}, which is in parts")
        wrote = len(before.writers(before.view(old), slot.argument))
        writes = 0
        for body, handle in after.handles(view, slot.shared_name):
            held = [dim.size for dim in handle.attr["shape"].shape.dim]
            if handle.attr["dtype"].type != slot.dtype or held != [slot.end - slot.begin]:
                raise WrongError(
                    f"{handle.name} has the type {handle.attr['dtype'].type} and the shape {held}, "
                    f"not {slot.dtype} and [{slot.end - slot.begin}]"
                )
            writes += len(after.writers(body, f"{handle.name}:resource:0"))
        if writes != wrote:
            raise WrongError(f"{slot.argument} had {wrote} writers, and its part has {writes}")


def _check_writers(
    before: Bodies, old: Any, after: Bodies, new: Any, slots: Sequence[Slot]
) -> None:
    """Other variables have the writers that they had; of several, one at least is left."""
    cut = {slot.argument for slot in slots}
    for argument in old.signature.input_arg:
        if argument.name in cut or argument.type != _RESOURCE:
            continue
        was = before.writers(before.view(old), argument.name)
        now = after.writers(after.view(new), argument.name)
        if not set(now) <= set(was) or bool(was) != bool(now):
            raise WrongError(f"{argument.name} is written by {now}, and was by {was}")
