# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which weights can be in parts between steps too, and be gathered right before their first use.

The second placement of section 4.2 of Xu et al. (2020). A weight whose update is cut is then held
as slots are; the reads in front of the update get what an all-gather makes of the parts when the
step begins, and the assignments are of parts. So all that uses the variable in the step has to be
known: reads in front of the update, reads that the update makes of its own, and its assignments.

What only casts a weight to a narrower type gets the same bits whether it is cast before it travels
or behind; so then the narrow type may travel, if that is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from tf_fuse.shard_update.builder import Builder, Range
from tf_fuse.shard_update.families import Family, Pack
from tf_fuse.shard_update.graph_view import ASSIGNS, READS, GraphView, control_inputs
from tf_fuse.shard_update.ops import RESOURCE_APPLY
from tf_fuse.shard_update.order import Order
from tf_fuse.shard_update.redundancy import called_functions
from tf_fuse.shard_update.waiting import cut_families, is_sharded

# Why a weight is gathered at the end of the step.
GATHER_REASONS = {
    "assigned_elsewhere": "something else than the update assigns the weight",
    "cycle": "parts of the function would wait for one another",
    "escapes": "an operation other than reads and assignments gets the weight",
    "in_branch": "the update is in a branch of a conditional",
    "in_groups": "the replicas are in groups that each keep everything",
    "not_read": "nothing reads the weight in front of its update",
    "read_after_update": "the weight is read whole behind its update",
    "read_in_function": "a function that is called, a branch or a loop gets the weight",
    "returned": "the function returns the weight",
    "used_outside": "others than the function that updates the weight use it in the step",
}

# A gather has as many, or more. What a collective costs by itself (0.5 ms, as `profit.py` has it)
# is an eighth of what 4 MiB take on a link of 10 Gbit/s, and less on slower ones.
_BATCH_ELEMENTS = 1 << 20
_FLOAT = 1  # DT_FLOAT
_NARROW = frozenset({14, 19})  # DT_BFLOAT16, DT_HALF
_ALIASES = frozenset({"Identity", "IdentityN"})


def settle_gathers(
    view: GraphView,
    packs: Iterable[Pack],
    inside: Collection[str],
    carried: Collection[str],
    narrow: bool,
    groups: int = 1,
) -> None:
    """Decides for each weight whose update is cut where it is gathered, and in which type.

    Args:
      view: of the function.
      packs: of it.
      inside: its arguments that are variables which only it uses.
      carried: arguments that it returns as they are, for its next iteration.
      narrow: whether a narrower type may travel.
      groups: into which the replicas are divided.
    """
    packs = list(filter(is_sharded, packs))
    if not packs:
        return
    order = Order(view)
    for pack in packs:
        for family in cut_families([pack]):
            if groups > 1:
                family.gather.stay("in_groups", pack.node)
            elif family.branches:
                family.gather.stay("in_branch", min(family.branches)[0])
            elif family.weights:
                _settle(view, order, pack, family, inside, carried)
                if narrow and family.gather.is_first:
                    _settle_type(view, pack, family)


def stay_all(packs: Iterable[Pack]) -> bool:
    """Leaves all weights at the end of the step, for a cycle; returns whether any was not there."""
    first = [(pack, f) for pack in packs for f in cut_families([pack]) if f.gather.is_first]
    for pack, family in first:
        family.gather.stay("cycle", pack.node)
    return bool(first)


def _settle(
    view: GraphView,
    order: Order,
    pack: Pack,
    family: Family,
    inside: Collection[str],
    carried: Collection[str],
) -> None:
    gather, (weight,) = family.gather, family.weights
    users = _users(view, weight)
    reads = [node.name for node in users if _is_in_front(order, family, node)]
    obstacles = (_obstacle(view, family, reads, node) for node in users)
    if weight not in inside:
        gather.stay("used_outside", weight)
    elif None in users and weight not in carried:
        gather.stay("returned", weight)
    elif (found := next(filter(None, obstacles), None)) is not None:
        gather.stay(*found)
    elif not reads:
        gather.stay("not_read", weight)
    elif order.behind(family.chain[0], [pack.node]):
        # The first assignment is to wait for the all-reduce.
        gather.stay("cycle", family.chain[0])
    else:
        gather.reads = reads


def _is_in_front(order: Order, family: Family, node: Any) -> bool:
    """Whether a node reads a weight as it is before the update."""
    return (
        node is not None
        and node.op in READS
        and node.name not in family.versions
        and not any(order.behind(sink, [node.name]) for sink in family.chain)
    )


def _obstacle(
    view: GraphView, family: Family, reads: Collection[str], node: Any
) -> tuple[str, str] | None:
    """Why a node that gets a weight keeps it from being in parts, and where; None if it does not.

    Args:
      view: of the function.
      family: with the weight.
      reads: nodes that read it in front of the update.
      node: None if the weight is returned.
    """
    if node is None or node.name in family.versions or node.name in family.chain:
        return None
    if node.op in READS:
        (value,) = view.outputs(node)
        if node.name in reads:
            return ("returned", value) if value in view.results else None
        is_used = view.uses(value) or value in view.results
        return ("read_after_update", node.name) if is_used else None
    if called_functions(node):
        return "read_in_function", node.name
    if node.op in ASSIGNS | RESOURCE_APPLY:
        return "assigned_elsewhere", node.name
    return "escapes", f"{node.name} ({node.op})"


def _users(view: GraphView, resource: str) -> list[Any]:
    """All nodes that get a variable, by name; behind them None if the function returns it."""
    found, returned = set(), False
    waiting = [resource]
    while waiting:
        tensor = waiting.pop()
        returned |= tensor in view.results
        for use in view.uses(tensor):
            node = view.nodes[use.node]
            if node.op in _ALIASES:
                waiting.append(view.outputs(node)[use.index])
            else:
                found.add(node.name)
    return [*(view.nodes[name] for name in sorted(found)), *([None] if returned else [])]


# --- Types ---------------------------------------------------------------------------------------


def _settle_type(view: GraphView, pack: Pack, family: Family) -> None:
    """Has the type travel that all that read the weight cast it to."""
    gather = family.gather
    if pack.reduce.attr["T"].type != _FLOAT:
        return
    types = set()
    for name in _readers(view, family)[1]:
        node = view.nodes[name]
        types.add(node.attr["DstT"].type if _is_narrow(node) else _FLOAT)
        if _FLOAT in types or len(types) > 1:
            gather.wide = f"{name} ({node.op})"
            return
    if types:
        (gather.dtype,) = types


def _is_narrow(node: Any) -> bool:
    # (One that truncates does not round as the one that is done before it travels.)
    return (
        node.op == "Cast"
        and node.attr["SrcT"].type == _FLOAT
        and node.attr["DstT"].type in _NARROW
        # (Looking for a key that is not there would add it.)
        and not ("Truncate" in node.attr and node.attr["Truncate"].b)
    )


def _readers(view: GraphView, family: Family) -> tuple[list[str], list[str]]:
    """The nodes that get what is gathered of a weight: those that hand it on, and all others."""
    handing, others = set(), set()
    waiting = [f"{read}:value:0" for read in family.gather.reads or ()]
    while waiting:
        for use in view.uses(waiting.pop()):
            node = view.nodes[use.node]
            if _takes_part(view, family, use.node):
                continue
            if node.op == "Identity" and not set(view.outputs(node)) & set(view.results):
                handing.add(use.node)
                waiting += view.outputs(node)
            else:
                others.add(use.node)
    return sorted(handing), sorted(others)


def _takes_part(view: GraphView, family: Family, node: str) -> bool:
    """Whether what a node reads of the family's weight is the part, and not what is gathered."""
    is_sink = node in family.sinks and view.nodes[node].op in ASSIGNS
    return node in family.nodes or is_sink


def batches(pack: Pack) -> list[tuple[int, list[int]]]:
    """What of a pack is gathered at once before its first use, in order.

    The last gradients of a pack are of the weights that a step reads first. So these come first,
    and who reads them need not wait for the others.

    Returns:
      Of each batch the number of the type that travels (0: the pack's), and the families' indices.
    """
    found: list[tuple[int, list[int]]] = []
    open_batches: dict[int, int] = {}  # By type, elements of the batch that may grow.
    for index, family in reversed(list(enumerate(pack.families))):
        if family.reason is None and family.gather.is_first:
            dtype = family.gather.dtype
            if open_batches.get(dtype, _BATCH_ELEMENTS) >= _BATCH_ELEMENTS:
                found.append((dtype, []))
                open_batches[dtype] = 0
            batch = [indices for one, indices in found if one == dtype][-1]
            batch.insert(0, index)
            open_batches[dtype] += family.size
    return found


# --- What is done --------------------------------------------------------------------------------


def hand_out(builder: Builder, family: Family, tensor: str) -> None:
    """Has all that read a weight in front of its update get what was gathered.

    Args:
      builder: of the function.
      family: with the weight; what its own nodes read is the part already.
      tensor: that was gathered.
    """
    gather = family.gather
    handing, others = _readers(builder.view, family)
    for read in gather.reads or ():
        node = builder.nodes[read]
        # It waits for what it waited for, and who waits for it does so.
        before, device, dtype = control_inputs(node), node.device, node.attr["dtype"].type
        builder.replace(f"{read}:value:0", f"{read}:output:0")
        node.Clear()
        node.name, node.op, node.device = read, "Identity", device
        node.input.extend([tensor, *(f"^{name}" for name in before)])
        node.attr["T"].type = gather.dtype or dtype
    if gather.dtype:
        for name in handing:
            builder.nodes[name].attr["T"].type = gather.dtype
        for name in others:
            # A cast to the type that it has.
            builder.nodes[name].attr["SrcT"].type = gather.dtype


def free_group(builder: Builder, gather: Any) -> None:
    """Has a collective wait for nothing that tells its group.

    The constants of an all-reduce wait for what the program has it wait for.
    """
    first = 2 * gather.attr["N"].i
    for position, tensor in enumerate(gather.input[first:], first):
        node = builder.view.producer(tensor)
        if node is not None and node.op == "Const" and control_inputs(node):
            name = f"{gather.name}/group_{position - first}"
            copy = builder.add(name, "Const", [], node.device)
            for key, value in node.attr.items():
                copy.attr[key].CopyFrom(value)
            gather.input[position] = f"{name}:output:0"


def bounds_of(everyone: Sequence[Sequence[Range]], index: int, size: int) -> list[int]:
    """Where the replicas' elements of a tensor begin, and where the last one's end."""
    return [*(ranges[index][0] for ranges in everyone), size]
