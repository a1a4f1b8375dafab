# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check the collectives of a rewritten function: their groups, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_fuse.function_graph.view import GraphView, data_inputs
from tf_fuse.shard_update.plan import SCOPE
from tf_fuse.shard_update.verify.function_lookup import (
    BRANCHES,
    GATHER,
    OURS,
    SCATTER,
    Bodies,
    WrongError,
    waits_for,
)

_REDUCE = "CollectiveReduceV2"


def check_collectives(
    before: Bodies, old: GraphView, after: Bodies, new: GraphView, outside: frozenset[str]
) -> frozenset[str]:
    """All collectives are there, in the order of before, and the new ones are where they belong.

    Args:
      before: all original functions.
      old: the original function.
      after: all rewritten functions.
      new: the rewritten function.
      outside: all-reduces that are sharded in front of where it is called.

    Returns:
      The all-reduces that are sharded.

    Raises:
      WrongError: says what is wrong.
    """
    was = {name for name, node in old.nodes.items() if before.has_collective(node)}
    now = {name for name, node in new.nodes.items() if after.has_collective(node)}
    if lost := sorted(was - now):
        raise WrongError(f"the collective {lost[0]} is gone")
    sharded = frozenset(n for n in was if new.nodes[n].op != old.nodes[n].op == _REDUCE)
    gathers: dict[str, list[str]] = {}
    first: set[str] = set()  # All-reduces that wait for gathers.
    for name in sorted(now - was):
        for one, group in _made(after, new, new.nodes[name]):
            bucket = one.name.partition(f"/{SCOPE}")[0]
            if bucket in outside - was:
                continue  # (The caller's; looked at there.)
            if bucket not in sharded or bucket == one.name:
                raise WrongError(f"{one.name} ({one.op}) belongs to no all-reduce that is sharded")
            if _values(new, group) != _values(old, data_inputs(old.nodes[bucket])[1:4]):
                raise WrongError(f"{one.name} is of another group than {bucket}")
            if one.op == GATHER and _groups(one) != _groups(new.nodes[bucket]):
                raise WrongError(
                    f"{one.name} is in {_groups(one)} groups, and {bucket} in "
                    f"{_groups(new.nodes[bucket])}"
                )
            if one.op == GATHER and waits_for(new, bucket, {name}):
                first.add(bucket)
            elif one.op == GATHER:
                gathers.setdefault(bucket, []).append(one.name)
                if bucket not in waits_for(new, name, {bucket}):
                    raise WrongError(f"{name} does not wait for {bucket}")
    for name in sorted(was):
        _check_collective(old.nodes[name], new.nodes[name], gathers.get(name, []), name in first)
        if lost := sorted(waits_for(old, name, was) - waits_for(new, name, was)):
            raise WrongError(f"{name} does not wait for {lost[0]} any more")
    return sharded


def _values(view: GraphView, tensors: Sequence[str]) -> list[Any]:
    """Tensors, constants by their values."""
    nodes = [view.producer(tensor) for tensor in tensors]
    return [
        node.attr["value"] if node is not None and node.op == "Const" else tensor
        for node, tensor in zip(nodes, tensors, strict=True)
    ]


def _made(after: Bodies, view: GraphView, node: Any) -> list[tuple[Any, list[str]]]:
    """Return a collective, or those in a called function, with the keys of their group here."""
    if node.op in OURS or node.op.startswith("Collective"):
        return [(node, data_inputs(node)[-3:])]
    inputs = data_inputs(node)[node.op in BRANCHES :]
    found = []
    for body in map(after.view, after.called(node)):
        here = dict(zip(body.arguments, inputs, strict=False))
        for one in filter(after.has_collective, body.nodes.values()):
            group = [here.get(tensor, "") for tensor in data_inputs(one)[-3:]]
            found.append((one, group))
    return found


def _check_collective(old: Any, new: Any, gathers: Sequence[str], is_first: bool) -> None:
    """Check that a collective is unchanged, or an all-reduce that is sharded."""
    if (old.op, new.op) == (_REDUCE, SCATTER):
        # (What is gathered before it need not be gathered after it.)
        if len(gathers) != 1 and not (is_first and not gathers):
            raise WrongError(f"{old.name} is sharded, and gathered {len(gathers)} times")
        if data_inputs(new)[-3:] != data_inputs(old)[1:4]:
            raise WrongError(f"{new.name} is of another group than it was")
        return
    calls = not old.op.startswith("Collective") and old.op not in OURS
    is_same = old.op == new.op and len(data_inputs(old)) == len(data_inputs(new))
    if not is_same or (not calls and _attributes(old) != _attributes(new)):
        raise WrongError(f"the collective {old.name} ({old.op}) is not what it was ({new.op})")


def _groups(node: Any) -> int:
    """In how many groups the members of a collective are."""
    return int(node.attr["groups"].i) if "groups" in node.attr else 1


def _attributes(node: Any) -> dict[str, Any]:
    return {key: node.attr[key] for key in node.attr if key != "_output_shapes"}
