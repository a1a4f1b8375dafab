# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Emit an all-gather of weights right before their first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tf_fuse.function_graph.builder import Builder, Range
from tf_fuse.function_graph.view import control_inputs
from tf_fuse.shard_update.plan import UpdateCluster


def hand_out(builder: Builder, cluster: UpdateCluster, tensor: str) -> None:
    """Redirect reads of a weight in front of its update to the gathered tensor.

    Args:
      builder: of the function.
      cluster: with the weight; what its own nodes read is the shard already.
      tensor: that was gathered.
    """
    gather = cluster.gather
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
        for name in gather.aliases:
            builder.nodes[name].attr["T"].type = gather.dtype
        for name in gather.readers:
            # A cast to the type that it has.
            builder.nodes[name].attr["SrcT"].type = gather.dtype


def free_group(builder: Builder, gather: Any) -> None:
    """Remove what the constants of a collective's group key wait for.

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
    """Return where the replicas' elements of a tensor begin, and where the last one's end."""
    return [*(ranges[index][0] for ranges in everyone), size]
