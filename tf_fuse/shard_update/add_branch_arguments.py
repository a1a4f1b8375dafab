# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Add arguments to a branch of a conditional that updates weights after the all-reduce.

Loss scaling makes such branches: the program reduces the gradients, checks them, and a branch
applies them if all of them are finite. The rewritten branch gets windows of the gradients. It also
gets the keys of the all-reduce's group, so that it can gather the new weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import INT32
from tf_fuse.function_graph.view import control_inputs, data_inputs
from tf_fuse.shard_update.plan import SCOPE

_KEYS = ("group_size", "group_key", "instance_key")


def with_group(definition: Any) -> Any:
    """Return a copy of a function with arguments for the keys of an all-reduce's group."""
    copy = type(definition)()
    copy.CopyFrom(definition)
    for key in _KEYS:
        copy.signature.input_arg.add(name=f"{SCOPE}_{key}", type=INT32)
    return copy


def reduce_inside(reduce: Any) -> Any:
    """Return a node, in no function, like an all-reduce with the keys that `with_group` adds."""
    copy = type(reduce)()
    copy.CopyFrom(reduce)
    del copy.input[:]
    copy.input.extend(["", *(f"{SCOPE}_{key}" for key in _KEYS)])
    return copy


def forget_shapes(definition: Any, positions: set[int]) -> None:
    """Drop what a function says of the shapes of arguments."""
    for position in positions:
        if position in definition.arg_attr:
            definition.arg_attr[position].attr.pop("_output_shapes", None)


def call_with_group(node: Any, reduce: Any, names: Mapping[str, str]) -> None:
    """Make a conditional call functions of `with_group`.

    Args:
      node: the conditional; changed.
      reduce: the all-reduce in front of it.
      names: of the new functions, by those of the old ones.
    """
    inputs = [*data_inputs(node), *data_inputs(reduce)[1:4]]
    before = [f"^{name}" for name in control_inputs(node)]
    del node.input[:]
    node.input.extend([*inputs, *before])
    node.attr["Tin"].list.type.extend([INT32] * len(_KEYS))
    for branch in ("then_branch", "else_branch"):
        node.attr[branch].func.name = names[node.attr[branch].func.name]
