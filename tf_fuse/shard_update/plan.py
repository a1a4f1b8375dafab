# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a function to the one that updates a part of the weights, and what was decided."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tf_fuse.collectives import packed_ranges
from tf_fuse.shard_update.builder import Range
from tf_fuse.shard_update.clusters import Clusters, Pack, Shape
from tf_fuse.shard_update.graph_view import GraphView, data_inputs, without_bundles
from tf_fuse.shard_update.reductions import Place, levels
from tf_fuse.shard_update.redundancy import World, analyse
from tf_fuse.shard_update.rewrite import Rewriter, Slot, window
from tf_fuse.shard_update.waiting import cut_families, is_sharded, settle

_REDUCE = "CollectiveReduceV2"


@dataclass(frozen=True)
class Replicas:
    """All replicas, and which of them the function is of.

    Attributes:
      count: of all.
      ranks: those in the group of all that the function is of, by device.
    """

    count: int
    ranks: Mapping[str, int]

    def has(self, node: Any) -> bool:
        """Whether it is known of which replica a node is."""
        return len(self.ranks) == 1 or node.device in self.ranks

    def rank(self, node: Any) -> int:
        """Of which replica a node of the function is."""
        if len(self.ranks) == 1:
            return next(iter(self.ranks.values()))
        return self.ranks[node.device]


@dataclass
class Plan:
    """What becomes of a function.

    Attributes:
      packs: its all-reduces, in the order of their nodes' names.
      function: the `FunctionDef` to run instead; None if nothing is cut.
      slots: variables that have parts then.
      shapes: of the function's tensors, as far as they are known.
    """

    packs: list[Pack]
    function: Any | None = None
    slots: list[Slot] = field(default_factory=list)
    shapes: dict[str, Shape | None] = field(default_factory=dict)


def make_plan(
    definition: Any,
    graph: Any,
    function: Callable[[str], Any | None],
    replicas: Replicas,
    mirrored: Collection[str],
    prefix: str,
    exact: bool = False,
) -> Plan:
    """Plans a function.

    Args:
      definition: its `FunctionDef`.
      graph: the `FuncGraph` that it was made of, which has the shapes.
      function: the `FunctionDef` of a function that it calls, or None.
      replicas: of the program.
      mirrored: arguments that are variables with the same value on all replicas.
      prefix: of the shared names of parts, no other plan's.
      exact: whether to leave alone what would not have the bits of a whole update.

    Returns:
      The plan. It has the function's name and signature.
    """
    op_def = op_defs(function)
    view = GraphView(without_bundles(definition), op_def)
    shapes = static_shapes(view, graph)
    world = World(replicas.count, function, op_def, _reduces_over(replicas.count))
    found = analyse(view, world, [], mirrored)
    clusters = Clusters(view, world, shapes, found, exact)
    reduces = [view.nodes[name] for name in sorted(view.nodes) if view.nodes[name].op == _REDUCE]
    packs = [_pack(clusters, view, world, replicas, node) for node in reduces]
    plan = Plan(packs, shapes=dict(shapes))
    settle(view, plan.packs)
    while any(map(is_sharded, plan.packs)):
        rewriter = _rewrite(view, shapes, replicas, prefix, plan.packs)
        if _has_cycle(rewriter.function, op_def):
            # (Each pack alone has none; two may wait for each other.)
            last = [pack for pack in plan.packs if is_sharded(pack)][-1]
            last.reason, last.detail = "cycle", last.node
            continue
        plan.function, plan.slots = rewriter.function, _slots(rewriter, view, replicas, plan.packs)
        plan.shapes.update(_cut_shapes(view, shapes, replicas, plan.packs))
        break
    return plan


def _rewrite(
    view: GraphView,
    shapes: dict[str, Shape | None],
    replicas: Replicas,
    prefix: str,
    packs: list[Pack],
) -> Rewriter:
    """Carries out what was decided."""
    rewriter = Rewriter(view, shapes, prefix)
    reductions = {name for family in cut_families(packs) for name in family.reductions}
    depths = levels(view, reductions)
    for pack in filter(is_sharded, packs):
        rank = replicas.rank(view.nodes[pack.node])
        place = Place(replicas.count, rank)
        rewriter.shard(pack, place, _ranges(view, replicas, pack, rank), depths)
    return rewriter


def _slots(
    rewriter: Rewriter, view: GraphView, replicas: Replicas, packs: list[Pack]
) -> list[Slot]:
    """The slots that have parts, with what each replica has of them."""
    owns: dict[str, tuple[Range, ...]] = {}
    ranks: dict[str, int] = {}
    for pack in filter(is_sharded, packs):
        ranges = [_ranges(view, replicas, pack, rank) for rank in range(replicas.count)]
        for index, family in enumerate(pack.families):
            owns.update({slot: tuple(one[index] for one in ranges) for slot in family.slots})
            ranks.update(dict.fromkeys(family.slots, replicas.rank(view.nodes[pack.node])))
    return [
        replace(slot, owns=owns[slot.argument], rank=ranks[slot.argument])
        for slot in rewriter.slots
    ]


def _size(shape: Shape | None) -> int | None:
    return None if shape is None else math.prod(shape)


def _cut_shapes(
    view: GraphView, known: dict[str, Shape | None], replicas: Replicas, packs: list[Pack]
) -> dict[str, Shape | None]:
    """The shapes of the tensors of which this replica computes a window."""
    shapes: dict[str, Shape | None] = {}
    for pack in filter(is_sharded, packs):
        rank = replicas.rank(view.nodes[pack.node])
        ranges = _ranges(view, replicas, pack, rank)
        for own, family in zip(ranges, pack.families, strict=True):
            if family.reason is None:
                begin, end = window(own, family.size)
                whole = [t for t in family.members if _size(known[t]) == family.size]
                shapes.update(dict.fromkeys(whole, (end - begin,)))
    return shapes


def _ranges(view: GraphView, replicas: Replicas, pack: Pack, rank: int) -> list[Range]:
    """The elements of each part of a pack that are a replica's."""
    sizes = [family.size for family in pack.families]
    width = _width(view.nodes[pack.node].attr["T"].type)
    return packed_ranges(sizes, width, replicas.count, rank)


def _has_cycle(function: Any, op_def: Callable[[str], Any]) -> bool:
    try:
        for _ in GraphView(function, op_def).in_order():
            pass
    except ValueError:
        return True
    return False


def _pack(clusters: Clusters, view: GraphView, world: World, replicas: Replicas, node: Any) -> Pack:
    if not world.is_full_group(view, node) or not replicas.has(node):
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


def op_defs(function: Callable[[str], Any | None]) -> Callable[[str], Any]:
    """The `OpDef` of an op, or of one of some functions, by name; for `GraphView`."""
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
