# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Updates in a branch of a conditional behind the all-reduce, as loss scaling has them.

The gradients are reduced, and looked at; if all of them are finite, a branch applies them. The
branch then gets windows of the gradients, and what tells the group of the replicas, so that it can
gather the new weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tf_fuse.shard_update.cut import SCOPE
from tf_fuse.shard_update.families import Pack
from tf_fuse.shard_update.graph_view import GraphView, control_inputs, data_inputs
from tf_fuse.shard_update.rewrite import Rewriter

_INT32 = 3  # DT_INT32
_KEYS = ("group_size", "group_key", "instance_key")


@dataclass
class Branch:
    """How a pack's update goes on in a branch.

    Attributes:
      node: name of the conditional.
      pack: as the branch sees it.
      taken: name of the function that has the update.
      view: of that, with the arguments that it gets in addition.
      rewriter: of that.
    """

    node: str
    pack: Pack
    taken: str
    view: GraphView
    rewriter: Rewriter


def with_group(definition: Any) -> Any:
    """A copy of a function that also gets what tells the group of an all-reduce."""
    copy = type(definition)()
    copy.CopyFrom(definition)
    for key in _KEYS:
        copy.signature.input_arg.add(name=f"{SCOPE}_{key}", type=_INT32)
    return copy


def reduce_inside(reduce: Any) -> Any:
    """A node like an all-reduce, with the keys that `with_group` adds. It is in no function."""
    copy = type(reduce)()
    copy.CopyFrom(reduce)
    del copy.input[:]
    copy.input.extend(["", *(f"{SCOPE}_{key}" for key in _KEYS)])
    return copy


def forget_shapes(definition: Any, positions: set[int]) -> None:
    """Drops what a function says of the shapes of arguments."""
    for position in positions:
        if position in definition.arg_attr:
            definition.arg_attr[position].attr.pop("_output_shapes", None)


def call_with_group(node: Any, reduce: Any, names: Mapping[str, str]) -> None:
    """Has a conditional call functions of `with_group`.

    Args:
      node: the conditional; changed.
      reduce: the all-reduce in front of it.
      names: of the new functions, by those of the old ones.
    """
    inputs = [*data_inputs(node), *data_inputs(reduce)[1:4]]
    before = [f"^{name}" for name in control_inputs(node)]
    del node.input[:]
    node.input.extend([*inputs, *before])
    node.attr["Tin"].list.type.extend([_INT32] * len(_KEYS))
    for branch in ("then_branch", "else_branch"):
        node.attr[branch].func.name = names[node.attr[branch].func.name]
