# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Looks over where replicas meet; a part of `verify.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_fuse.shard_update.cut import SCOPE
from tf_fuse.shard_update.graph_view import GraphView, data_inputs
from tf_fuse.shard_update.verify_bodies import (
    BRANCHES,
    GATHER,
    OURS,
    SCATTER,
    Bodies,
    WrongError,
    waits_for,
)

_REDUCE = "CollectiveReduceV2"


def check_meetings(
    before: Bodies, old: GraphView, after: Bodies, new: GraphView, outside: frozenset[str]
) -> frozenset[str]:
    """All collectives are there, in the order of before, and the new ones are where they belong.

    Args:
      before: all functions as they were.
      old: the function as it was.
      after: all functions.
      new: the function.
      outside: all-reduces that are cut in front of where it is called.

    Returns:
      The all-reduces that are cut.

    Raises:
      WrongError: says what is wrong.
    """
    was = {name for name, node in old.nodes.items() if before.is_met(node)}
    now = {name for name, node in new.nodes.items() if after.is_met(node)}
    if lost := sorted(was - now):
        raise WrongError(f"the collective {lost[0]} is gone")
    cut = frozenset(n for n in was if new.nodes[n].op != old.nodes[n].op == _REDUCE)
    gathers: dict[str, list[str]] = {}
    first: set[str] = set()  # All-reduces that wait for gathers.
    for name in sorted(now - was):
        for one, group in _made(after, new, new.nodes[name]):
            pack = one.name.partition(f"/{SCOPE}")[0]
            if pack in outside - was:
                continue  # (The caller's; looked at there.)
            if pack not in cut or pack == one.name:
                raise WrongError(f"{one.name} ({one.op}) belongs to no all-reduce that is cut")
            if _values(new, group) != _values(old, data_inputs(old.nodes[pack])[1:4]):
                raise WrongError(f"{one.name} is of another group than {pack}")
            if one.op == GATHER and _groups(one) != _groups(new.nodes[pack]):
                raise WrongError(
                    f"{one.name} is in {_groups(one)} groups, and {pack} in "
                    f"{_groups(new.nodes[pack])}"
                )
            if one.op == GATHER and waits_for(new, pack, {name}):
                first.add(pack)
            elif one.op == GATHER:
                gathers.setdefault(pack, []).append(one.name)
                if pack not in waits_for(new, name, {pack}):
                    raise WrongError(f"{name} does not wait for {pack}")
    for name in sorted(was):
        _check_meeting(old.nodes[name], new.nodes[name], gathers.get(name, []), name in first)
        if lost := sorted(waits_for(old, name, was) - waits_for(new, name, was)):
            raise WrongError(f"{name} does not wait for {lost[0]} any more")
    return cut


def _values(view: GraphView, tensors: Sequence[str]) -> list[Any]:
    """Tensors, constants by their values."""
    nodes = [view.producer(tensor) for tensor in tensors]
    return [
        node.attr["value"] if node is not None and node.op == "Const" else tensor
        for node, tensor in zip(nodes, tensors, strict=True)
    ]


def _made(after: Bodies, view: GraphView, node: Any) -> list[tuple[Any, list[str]]]:
    """A collective, or those in a function that is called; with what tells their group here."""
    if node.op in OURS or node.op.startswith("Collective"):
        return [(node, data_inputs(node)[-3:])]
    inputs = data_inputs(node)[node.op in BRANCHES :]
    found = []
    for body in map(after.view, after.called(node)):
        here = dict(zip(body.arguments, inputs, strict=False))
        for one in filter(after.is_met, body.nodes.values()):
            group = [here.get(tensor, "") for tensor in data_inputs(one)[-3:]]
            found.append((one, group))
    return found


def _check_meeting(old: Any, new: Any, gathers: Sequence[str], is_first: bool) -> None:
    """A collective is as it was, or an all-reduce is cut."""
    if (old.op, new.op) == (_REDUCE, SCATTER):
        # (What is gathered in front of it need not be behind it.)
        if len(gathers) != 1 and not (is_first and not gathers):
            raise WrongError(f"{old.name} is cut, and gathered {len(gathers)} times")
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
