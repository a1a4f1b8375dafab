# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the updates of a function's gradients have to do with one another."""

from __future__ import annotations

from collections.abc import Iterable

from tf_fuse.shard_update.families import Family, Pack
from tf_fuse.shard_update.graph_view import GraphView, data_inputs
from tf_fuse.shard_update.order import Order, before
from tf_fuse.shard_update.reductions import touched


def is_sharded(pack: Pack) -> bool:
    """Whether anything of a pack can be cut."""
    return pack.reason is None and any(family.reason is None for family in pack.families)


def cut_families(packs: Iterable[Pack]) -> list[Family]:
    """The families that are cut."""
    return [f for pack in packs if pack.reason is None for f in pack.families if f.reason is None]


def settle(view: GraphView, packs: list[Pack]) -> None:
    """Leaves alone families that others are in the way of, and says which are exact."""
    _leave_shared(view, packs)
    order = Order(view)
    for pack in packs:
        while (late := _first_late(view, order, pack)) is not None:
            late[0].leave("waits_for_weight", late[1])
    _mark_exact(view, packs)


def early_gradients(view: GraphView, pack: Pack) -> set[int]:
    """The gradients that are left alone, but that an update that is cut waits for.

    They cannot come with the new weights.
    """
    if all(family.reason is None for family in pack.families):
        return set()
    order = Order(view)
    cut = cut_families([pack])
    needed = set().union(*(_needed(view, order, pack, family) for family in cut))
    return {
        index
        for index, family in enumerate(pack.families)
        if family.reason is not None and any(use.node in needed for use in view.uses(family.root))
    }


def slot_sinks(view: GraphView, family: Family) -> list[str]:
    """The assignments of a family that are of slots, in the order of their names."""
    slots = set(family.slots)
    return [s for s in family.sinks if slots.intersection(view.assigned(view.nodes[s]))]


def _needed(view: GraphView, order: Order, pack: Pack, family: Family) -> set[str]:
    """The nodes that must have run before a family's new weight can be gathered.

    Of those in front of the all-reduce, which wait for nothing behind it, not all.
    """
    first = order.position(pack.node) if pack.node in view.nodes else 0
    replaced = set(family.versions) | set(family.chain)
    start = (family.nodes | set(slot_sinks(view, family))) - replaced
    for sink in family.chain:
        start.update(t.lstrip("^").partition(":")[0] for t in view.nodes[sink].input)
    return before(
        view,
        start - replaced,
        lambda name: name not in replaced and order.position(name) > first,
    )


def _first_late(view: GraphView, order: Order, pack: Pack) -> tuple[Family, str] | None:
    """A family whose update waits for the gather of new weights, and what it waits for."""
    cut = cut_families([pack])
    weights = {family.chain[-1] for family in cut if family.chain}
    for family in cut:
        if late := sorted(_needed(view, order, pack, family) & weights):
            return family, late[0]
    return None


def _leave_shared(view: GraphView, packs: list[Pack]) -> None:
    """Leaves alone families that have something in common with another one."""
    while True:
        cut = cut_families(packs)
        by_node: dict[str, Family] = {}
        by_tensor = {tensor: family for family in cut for tensor in family.members}
        shared: tuple[Family, str] | None = None
        for family in cut:
            for name in sorted(family.nodes | set(family.sinks)):
                other = by_node.setdefault(name, family)
                if other is not family:
                    shared = shared or (family, name)
                for tensor in data_inputs(view.nodes[name]):
                    if (other := by_tensor.get(tensor, family)) is not family:
                        shared = shared or (other, tensor)
        for family in cut:
            for variable in family.slots:
                for other in cut:
                    if other is not family and variable in other.slots + other.weights:
                        shared = shared or (other, variable)
        if shared is None:
            return
        shared[0].leave("shared", shared[1])


def _mark_exact(view: GraphView, packs: list[Pack]) -> None:
    inexact = {
        name
        for family in cut_families(packs)
        for name, reduction in family.reductions.items()
        if not reduction.exact
    }
    if not inexact:
        return
    order = Order(view)
    found = {name for name in touched(view, order, inexact) if view.assigned(view.nodes[name])}
    for pack in packs:
        for family in pack.families:
            users = {use.node for use in view.uses(family.root)}
            family.exact = not found & (users | touched(view, order, users))
