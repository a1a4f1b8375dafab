# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a function to the one that updates a part of the weights, and what was decided."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from tf_fuse.collectives import packed_ranges
from tf_fuse.shard_update.clusters import Clusters, Pack, Shape
from tf_fuse.shard_update.graph_view import GraphView, data_inputs
from tf_fuse.shard_update.redundancy import World, analyse
from tf_fuse.shard_update.rewrite import Rewriter, Slot, is_sharded, waits_for_itself

_REDUCE = "CollectiveReduceV2"


@dataclass(frozen=True)
class Replicas:
    """All replicas, and which of them this one is.

    Attributes:
      count: of all.
      rank: of this one in the group of all.
    """

    count: int
    rank: int


@dataclass
class Plan:
    """What becomes of a function.

    Attributes:
      packs: its all-reduces, in the order of their nodes' names; then those of functions that it
        calls.
      function: the `FunctionDef` to run instead; None if nothing is cut.
      slots: variables that have parts then.
      functions: that it calls, and that are to be there before it runs.
    """

    packs: list[Pack]
    function: Any | None = None
    slots: list[Slot] = field(default_factory=list)
    functions: list[Any] = field(default_factory=list)


def make_plan(
    definition: Any,
    graph: Any,
    function: Callable[[str], Any | None],
    replicas: Replicas,
    mirrored: Collection[str],
    prefix: str,
) -> Plan:
    """Plans a function.

    Args:
      definition: its `FunctionDef`.
      graph: the `FuncGraph` that it was made of, which has the shapes.
      function: the `FunctionDef` of a function that it calls, or None.
      replicas: of the program.
      mirrored: arguments that are variables with the same value on all replicas.
      prefix: of the shared names of parts, no other plan's.

    Returns:
      The plan. It has the function's name and signature.
    """
    op_def = _op_defs(function)
    view = GraphView(definition, op_def)
    shapes = static_shapes(view, graph)
    world = World(replicas.count, function, op_def, _reduces_over(replicas.count))
    found = analyse(view, world, [], mirrored)
    clusters = Clusters(view, shapes, found)
    reduces = [view.nodes[name] for name in sorted(view.nodes) if view.nodes[name].op == _REDUCE]
    plan = Plan([_pack(clusters, view, world, node) for node in reduces])
    rewriter = Rewriter(view, shapes, prefix)
    owns: dict[str, tuple[tuple[int, int], ...]] = {}
    for pack in plan.packs:
        if not is_sharded(pack):
            continue
        if (root := waits_for_itself(view, pack)) is not None:
            pack.reason, pack.detail = "waits_for_itself", root
            continue
        sizes = [family.size for family in pack.families]
        width = _width(view.nodes[pack.node].attr["T"].type)
        ranges = [packed_ranges(sizes, width, replicas.count, r) for r in range(replicas.count)]
        rewriter.shard(pack, replicas.rank, ranges[replicas.rank])
        for index, family in enumerate(pack.families):
            owns.update({slot: tuple(r[index] for r in ranges) for slot in family.slots})
        plan.function = rewriter.function
    plan.slots = [replace(slot, owns=owns[slot.argument]) for slot in rewriter.slots]
    return plan


def _pack(clusters: Clusters, view: GraphView, world: World, node: Any) -> Pack:
    if not world.is_full_group(view, node):
        return Pack(node.name, [], [], "not_all_replicas", node.name)
    return clusters.pack(node)


def _reduces_over(count: int) -> Callable[[GraphView, Any], bool]:
    """Whether a node is a sum over all replicas."""

    def is_full_group(view: GraphView, node: Any) -> bool:
        if node.op != _REDUCE:
            return False
        size = view.producer(data_inputs(node)[1])
        return (
            (node.attr["merge_op"].s, node.attr["final_op"].s) == (b"Add", b"Id")
            and size is not None
            and size.op == "Const"
            and list(size.attr["value"].tensor.int_val) == [count]
        )

    return is_full_group


def static_shapes(view: GraphView, graph: Any) -> dict[str, Shape | None]:
    """The shapes of a function's tensors, as far as TensorFlow inferred them.

    Returns:
      By tensor; for an argument that is a variable, the shape of its value. None: not all known.
    """
    from tensorflow.python.ops import handle_data_util

    shapes: dict[str, Shape | None] = {}
    for argument, tensor in zip(view.arguments, graph.inputs, strict=True):
        shapes[argument] = _static(tensor.shape)
        data = handle_data_util.get_resource_handle_data(tensor)
        if data is not None and data.is_set and data.shape_and_type:
            shapes[argument] = _static(data.shape_and_type[0].shape)
    for operation in graph.get_operations():
        node = view.nodes.get(operation.name)
        if node is not None:
            outputs = view.outputs(node)
            for name, tensor in zip(outputs, operation.outputs, strict=True):
                shapes[name] = _static(tensor.shape)
    return shapes


def _static(shape: Any) -> Shape | None:
    from tensorflow.python.framework import tensor_shape

    shape = tensor_shape.TensorShape(shape)
    return tuple(shape.as_list()) if shape.is_fully_defined() else None


def _width(dtype: int) -> int:
    from tensorflow.python.framework import dtypes

    return int(dtypes.as_dtype(dtype).size)


def _op_defs(function: Callable[[str], Any | None]) -> Callable[[str], Any]:
    from tensorflow.python.framework import op_def_registry

    def op_def(name: str) -> Any:
        called = function(name)
        if called is not None:
            return called.signature
        found = op_def_registry.get(name)
        if found is None:
            raise KeyError(name)
        return found

    return op_def
