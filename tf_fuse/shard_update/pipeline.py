# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shard the weight updates of a function (Xu et al., 2020), phase by phase.

| phase | gets | gives |
|---|---|---|
| 1. `analysis/` | the function as it was traced | an `UpdatePlan`: verdicts, never changed later |
| 2. `rewrite/` | the plan | a `ShardedUpdate`: the functions to run instead |
| 3. `verify/` | the functions before and after | what is wrong, or "" |

Analysis changes nothing that it looks at, the rewrite decides nothing, and verification knows
neither. `function_cache.py` runs the phases when a function is first called, lets replicas compare
what they decided (`runtime/plan_consensus.py`), and calls the new function from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from tf_fuse.function_graph.function_lookup import op_defs
from tf_fuse.shard_update.analysis.argument_facts import Scope
from tf_fuse.shard_update.analysis.planner import Planner
from tf_fuse.shard_update.analysis.replication import ReplicatedProgram, called_functions
from tf_fuse.shard_update.cost_figures import DEFAULTS, UpdateCosts
from tf_fuse.shard_update.plan import PlanOptions, ShardedUpdate, UpdatePlan
from tf_fuse.shard_update.replicas import Replicas, reduces_over
from tf_fuse.shard_update.rewrite.function_rewriter import rewrite
from tf_fuse.shard_update.verify.verifier import Original, verify

_NOTHING = PlanOptions()


def shard_update(
    original: Original,
    replicas: Replicas,
    mirrored: Collection[str],
    prefix: str,
    options: PlanOptions = _NOTHING,
    kept: Collection[str] = (),
    costs: UpdateCosts = DEFAULTS,
) -> ShardedUpdate:
    """Shard the weight updates of a function: phases 1 and 2.

    Args:
      original: the function as it was traced.
      replicas: of the program.
      mirrored: arguments that are variables with the same value on all replicas.
      prefix: of the shared names of shards, different for each function.
      options: what the user asked for.
      kept: arguments that are variables which others use at any time.
      costs: for the estimate of what sharding saves.

    Returns:
      The verdicts about all updates, and the functions to run. The new function has the name and
      the signature of the original.
    """
    plan = plan_update(original, replicas, mirrored, options, kept, costs)
    return rewrite(plan, replicas, prefix, called_functions, original.function)


def plan_update(
    original: Original,
    replicas: Replicas,
    mirrored: Collection[str],
    options: PlanOptions = _NOTHING,
    kept: Collection[str] = (),
    costs: UpdateCosts = DEFAULTS,
) -> UpdatePlan:
    """Decide which weight updates of a function replicas share: phase 1; arguments as above."""
    function: Callable[[str], Any | None] = original.function
    is_full_group = reduces_over(replicas.count)
    program = ReplicatedProgram(replicas.count, function, op_defs(function), is_full_group)
    scope = Scope.outermost(original.definition, mirrored, kept)
    planner = Planner(program, original.graph, replicas, options, costs)
    return planner.plan(original.definition, original.graph, scope)


def check_update(original: Original, update: ShardedUpdate) -> str:
    """Compare the new functions with the original: phase 3.

    Returns:
      What is wrong, in words; "" if nothing is.
    """
    return verify(original, update.function, update.shards, update.functions)
