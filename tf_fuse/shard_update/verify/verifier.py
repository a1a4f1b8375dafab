# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compare a rewritten function with the original before it runs.

The verifier knows the two functions, and neither the plan nor the rewrite. It checks that the
function is well formed and returns what it did, that the same nodes write the variables, that no
node uses a variable whose value is in shards, and that replicas run collectives in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import RESOURCE
from tf_fuse._tensorflow.graphs.functions import called_by
from tf_fuse.function_graph.view import GraphView, control_inputs, data_inputs
from tf_fuse.shard_update.verify.collectives import check_collectives
from tf_fuse.shard_update.verify.function_lookup import BRANCHES, Bodies, WrongError
from tf_fuse.shard_update.verify.gathers import check_gathers
from tf_fuse.shard_update.verify.types import Body, Inferred, check_types
from tf_fuse.sharded_variable.shard_spec import ShardSpec


@dataclass(frozen=True)
class Original:
    """A function before it is sharded.

    Attributes:
      definition: its `FunctionDef`.
      graph: the `FuncGraph` that it was made of, which has the shapes of its inputs.
      function: the `FunctionDef` of a function that it calls, or None.
    """

    definition: Any
    graph: Any
    function: Callable[[str], Any | None]


def verify(
    original: Original, rewritten: Any, shards: Sequence[ShardSpec], functions: Sequence[Any] = ()
) -> str:
    """Compare a function whose update was sharded with the original.

    Args:
      original: the function as it was traced.
      rewritten: the `FunctionDef` that is to be run.
      shards: the variables that have shards.
      functions: `FunctionDef`s that the rewritten function calls, and that are made with it.

    Returns:
      What is wrong with the rewritten function, in words; "" if nothing is.
    """
    made = {function.signature.name: function for function in functions}
    before = Bodies(original.function)
    after = Bodies(lambda name: made.get(name) or original.function(name))
    try:
        for view in after.all_of(rewritten):
            _check_nodes(view)
        inputs = list(original.graph.inputs)
        whole = Body(original.definition, original.graph, inputs)
        _check_body(before, whole, after, Body(rewritten, original.graph, inputs), frozenset())
        _check_shards(before, original.definition, after, rewritten, shards)
        _check_writers(before, original.definition, after, rewritten, shards)
        check_gathers(after, after.view(rewritten), shards)
    except WrongError as error:
        return str(error)
    return ""


def _check_nodes(view: GraphView) -> None:
    """Check that nodes have unique names, read existing tensors, and never wait for themselves."""
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
    """Compare a function, and those that it calls, with what they were.

    Args:
      before: all original functions.
      old: the original function.
      after: all rewritten functions.
      new: the rewritten function.
      outside: all-reduces that are sharded in front of where it is called.
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
    sharded = check_collectives(before, view, after, other, outside)
    for name, node in view.nodes.items():
        if name not in other.nodes:
            continue
        calls = after.called(other.nodes[name])
        for one, another in zip(before.called(node), calls, strict=False):
            if one.signature.name != another.signature.name:
                inner = _called(node, other.nodes[name], old, one, another, graphs)
                _check_body(before, inner[0], after, inner[1], outside | sharded)


def _called(
    node: Any, other: Any, caller: Body, one: Any, another: Any, graphs: tuple[Inferred, Inferred]
) -> tuple[Body, Body]:
    """Return a function that a node calls, before and after the rewrite."""
    functions = called_by(caller.graph)
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


def _check_shards(
    before: Bodies, old: Any, after: Bodies, new: Any, shards: Sequence[ShardSpec]
) -> None:
    """Check that nodes use shards in place of variables, which no node uses."""
    view = after.view(new)
    for shard in shards:
        for path, node in after.uses(view, shard.argument):
            raise WrongError(f"{path} ({node.op}) uses {shard.argument}, which is in shards")
        wrote = len(before.writers(before.view(old), shard.argument))
        writes = 0
        for body, handle in after.handles(view, shard.shared_name):
            held = [dim.size for dim in handle.attr["shape"].shape.dim]
            if handle.attr["dtype"].type != shard.dtype or held != [shard.end - shard.begin]:
                raise WrongError(
                    f"{handle.name} has the type {handle.attr['dtype'].type} and the shape {held}, "
                    f"not {shard.dtype} and [{shard.end - shard.begin}]"
                )
            writes += len(after.writers(body, f"{handle.name}:resource:0"))
        if writes != wrote:
            raise WrongError(f"{shard.argument} had {wrote} writers, and its shard has {writes}")


def _check_writers(
    before: Bodies, old: Any, after: Bodies, new: Any, shards: Sequence[ShardSpec]
) -> None:
    """Other variables have the writers that they had; of several, one at least is left."""
    sharded = {shard.argument for shard in shards}
    for argument in old.signature.input_arg:
        if argument.name in sharded or argument.type != RESOURCE:
            continue
        was = before.writers(before.view(old), argument.name)
        now = after.writers(after.view(new), argument.name)
        if not set(now) <= set(was) or bool(was) != bool(now):
            raise WrongError(f"{argument.name} is written by {now}, and was by {was}")
