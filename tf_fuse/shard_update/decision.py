# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the record of what was decided about the weight updates of a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tf_fuse._tensorflow.variables.resource_variable import own_handle
from tf_fuse.function_graph.function_lookup import REDUCE, operations
from tf_fuse.shard_update.cost_figures import UpdateCosts
from tf_fuse.shard_update.plan import ShardedUpdate
from tf_fuse.sharded_variable.shard_group import ShardGroup

# Why a function with an all-reduce runs unchanged.
FUNCTION_REASONS = {
    "group_size": "the replicas cannot be in groups of shard_weight_update_group_size",
    "no_group": "it is not known which replicas train together",
    "nothing_to_shard": "no gradient's update can be sharded with profit",
    "one_replica": "the replicas of this process do not update their variables alike",
    "python_code": "an operation runs Python code in the step, which may use any variable",
    "traced_before": "it was traced before tf_fuse was imported",
    "verification": "the function that was made of it is wrong, which is an error of tf_fuse",
}


@dataclass(frozen=True)
class VariableFacts:
    """What the report says of a function's variables, and of what it reduces.

    Attributes:
      names: of the variables, by argument.
      element_bytes: of what is reduced, by all-reduce.
      element_types: names of the types of that.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    element_bytes: Mapping[str, int] = field(default_factory=dict)
    element_types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What the plan of a function says: what is sharded, or why nothing is.

    Attributes:
      plan, reason, detail: as of `Decision`.
    """

    plan: ShardedUpdate | None
    reason: str | None = None
    detail: str = ""


@dataclass(frozen=True)
class Decision:
    """What was decided about one function.

    Attributes:
      function: its name.
      plan: what is sharded; None if nothing was looked at.
      reason: why nothing is sharded, a key of FUNCTION_REASONS; None if something is.
      detail: the node that is the reason, or what is wrong.
      replicas: how many train together; 0 if that is not known.
      groups: in how many groups they keep the state, each all of it; 0 as `replicas`.
      shard_group: the shards that the function uses; None before it has them.
      costs: the figures by which it was decided; None if there was nothing to decide.
      facts: of its variables.
    """

    function: str
    plan: ShardedUpdate | None
    reason: str | None = None
    detail: str = ""
    replicas: int = 0
    groups: int = 0
    shard_group: ShardGroup | None = None
    costs: UpdateCosts | None = None
    facts: VariableFacts = field(default_factory=VariableFacts)


def variable_facts(graph: Any, inputs: Sequence[Any], arguments: Sequence[str]) -> VariableFacts:
    """Return what the report says of a function's variables.

    Args:
      graph: that the function was traced to.
      inputs: of a call.
      arguments: their names.
    """
    by_handle = {id(own_handle(one)): one.name.partition(":")[0] for one in graph.variables}
    types = _element_types(graph)
    return VariableFacts(
        {
            argument: by_handle[id(tensor)]
            for argument, tensor in zip(arguments, inputs, strict=True)
            if id(tensor) in by_handle
        },
        {name: int(dtype.size) for name, dtype in types.items()},
        {name: str(dtype.name) for name, dtype in types.items()},
    )


def _element_types(graph: Any) -> dict[str, Any]:
    """Return the type of what is reduced, by all-reduce, of a function and those that it calls."""
    return {op.name: op.get_attr("T") for op in operations(graph) if op.type == REDUCE}
