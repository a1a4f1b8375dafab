# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Register the functions that the rewrite made, and the shards that they use."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorflow.python.framework import errors

from tf_fuse.shard_update.plan import ShardedUpdate
from tf_fuse.shard_update.runtime.replica_group import ReplicaGroup
from tf_fuse.sharded_variable import handle_access
from tf_fuse.sharded_variable.local_shards import ShardRanges, shard_name
from tf_fuse.sharded_variable.shard_group import ShardGroup

#: Beginning of the shared names of shards in a function that is not registered yet.
PREFIX = "tf_fuse/plan/"
_SUFFIX = "__tf_fuse_sharded"


@dataclass
class RewrittenFunction:
    """A function that runs in place of one that updates weights.

    Attributes:
      name: of the rewritten function.
      plan: what it does.
      replica_group: the replicas that it is of.
      shard_group: the shards that it uses.
      handles: position and handle of each shard's variable.
    """

    name: bytes
    plan: ShardedUpdate
    replica_group: ReplicaGroup
    shard_group: ShardGroup
    handles: list[tuple[int, weakref.ref[Any]]]

    def is_of(self, inputs: Sequence[Any]) -> bool:
        """Return whether a call is with the variables that the rewritten function was made for.

        And with each of them once: what is in shards has no value under another name.
        """
        if any(inputs[position] is not handle() for position, handle in self.handles):
            return False
        own = {id(inputs[position]) for position, _ in self.handles}
        return sum(id(tensor) in own for tensor in inputs) == len(self.handles)


def register(
    context: Any,
    replica_group: ReplicaGroup,
    name: str,
    plan: ShardedUpdate,
    inputs: Sequence[Any],
    containers: Mapping[int, Any],
) -> RewrittenFunction:
    """Register the functions of a sharded update with a context, and make their shards.

    Args:
      context: the eager context.
      replica_group: the replicas that run the function.
      name: of the original function.
      plan: with a function to run.
      inputs: of the first call.
      containers: by position of an input that is a variable, the strategy's variable.

    Returns:
      What to call from now on.

    Raises:
      tf.errors.InternalError: the function updates other variables on one replica than on another.
      tf.errors.OpError: another replica has died or does not answer.
    """
    definition = plan.function
    assert definition is not None
    names = [argument.name for argument in definition.signature.input_arg]
    positions = [names.index(shard.argument) for shard in plan.shards]
    # A shard has a variable on each replica; the strategy knows which ones belong together.
    owners = list(dict.fromkeys(id(containers[position]) for position in positions))
    shards: dict[int, dict[int, tuple[int, Any]]] = {rank: {} for rank in replica_group.peers.own}
    for number, (position, shard) in enumerate(zip(positions, plan.shards, strict=True)):
        index = owners.index(id(containers[position]))
        shards[shard.rank][index] = (number, inputs[position])
    if any(sorted(one) != list(range(len(owners))) for one in shards.values()):
        raise errors.InternalError(
            None, None, f"tf_fuse: {name} does not update the same variables on all replicas"
        )
    handles = {r: [one[i][1] for i in range(len(owners))] for r, one in shards.items()}
    first = shards[replica_group.peers.own[0]]
    held = [ShardRanges.of(plan.shards[first[i][0]]) for i in range(len(owners))]
    handle_access.watch_handles()
    shard_group = replica_group.state.shard_group(held, handles)
    replica_group.prepare()
    definition.signature.name = name + _SUFFIX
    index_of = {one[i][0]: i for one in shards.values() for i in one}
    for made in [*plan.functions, definition]:
        for node in made.node_def:
            if node.op == "VarHandleOp":
                shared = node.attr["shared_name"].s.decode()
                if shared.startswith(PREFIX):
                    index = index_of[int(shared.removeprefix(PREFIX))]
                    node.attr["shared_name"].s = shard_name(shard_group.scope, index).encode()
        context.add_function_def(made)
    taken = [(position, weakref.ref(inputs[position])) for position in positions]
    new = definition.signature.name.encode()
    return RewrittenFunction(new, plan, replica_group, shard_group, taken)
