# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check the weights that lie in shards between steps, one shard on each replica.

Whatever the rewrite did, this must hold: each weight is gathered once in front of the all-reduce,
of all replicas' own elements and of the value that it had before the step; what is gathered is the
shard, or the shard in another type; and nobody changes a shard before all replicas are in the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tf_fuse.function_graph.view import GraphView, data_inputs
from tf_fuse.shard_update.verify.function_lookup import (
    GATHER,
    SCATTER,
    Bodies,
    WrongError,
    waits_for,
)
from tf_fuse.sharded_variable.shard_spec import ShardSpec

# Between a shard and what is gathered: the replica's own elements, in another type perhaps.
_OF_THE_PART = frozenset({"Cast", "Identity", "Reshape", "Slice"})


def check_gathers(bodies: Bodies, view: GraphView, shards: Sequence[ShardSpec]) -> None:
    """Look at the weights that have shards.

    Args:
      bodies: the function's, and of those that it calls.
      view: of the function.
      shards: all variables that have shards.

    Raises:
      WrongError: says what is wrong.
    """
    for shard in shards:
        if shard.is_weight:
            for body, handle in bodies.handles(view, shard.shared_name):
                _check_weight(bodies, body, handle, shard)


def _check_weight(bodies: Bodies, body: GraphView, handle: Any, shard: ShardSpec) -> None:
    resource = f"{handle.name}:resource:0"
    scatters = {name for name, node in body.nodes.items() if node.op == SCATTER}
    writers = bodies.writers(body, resource)
    for writer in writers:
        if writer not in body.nodes:
            raise WrongError(f"{writer} changes {shard.argument} in a function that is called")
        if not waits_for(body, writer, scatters):
            raise WrongError(
                f"{writer} changes {shard.argument} before all replicas are in the step"
            )
    gathers = [
        (node, index, read)
        for node in body.nodes.values()
        if node.op == GATHER
        for index in range(node.attr["N"].i)
        if (read := _read_of(body, data_inputs(node)[index], resource)) is not None
    ]
    if len(gathers) != 1:
        raise WrongError(f"{shard.argument} is in shards, and gathered {len(gathers)} times")
    ((gather, index, read),) = gathers
    if late := sorted(waits_for(body, read, set(writers))):
        raise WrongError(f"{gather.name} has {shard.argument} as {late[0]} leaves it")
    if not any(waits_for(body, scatter, {gather.name}) for scatter in scatters):
        raise WrongError(f"no all-reduce waits for {gather.name}")
    count = len(shard.owns) + 1
    # (Looking for a key that is not there would add it.)
    bounds = list(gather.attr["bounds"].list.i) if "bounds" in gather.attr else []
    bounds = bounds[index * count :][:count]
    wanted = [*(own[0] for own in shard.owns), math.prod(shard.shape)]
    if bounds and bounds != wanted:
        raise WrongError(f"{gather.name} splits {shard.argument} at {bounds}, not at {wanted}")


def _read_of(body: GraphView, tensor: str, resource: str) -> str | None:
    """Return the read of a variable that a tensor has the elements of."""
    while (node := body.producer(tensor)) is not None and node.op in _OF_THE_PART:
        tensor = data_inputs(node)[0]
    if node is None or node.op != "ReadVariableOp":
        return None
    return str(node.name) if body.resource(data_inputs(node)[0]) == resource else None
