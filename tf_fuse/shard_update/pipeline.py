# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Shard the weight updates of a function (Xu et al., 2020), phase by phase.

| phase | gets | gives |
|---|---|---|
| 1. `analysis/` | the function as it was traced | an `UpdatePlan`: verdicts, never changed later |
| 2. `rewrite/` | the plan | a `ShardedUpdate`: the functions to run instead |
| 3. `verify/` | the functions before and after | what is wrong, or "" |

Analysis changes nothing that it looks at, the rewrite decides nothing, and verification knows
neither. `function_cache.py` runs the phases when a function is first called, plans again if the
replicas of this process differ (`runtime/local_replicas.py`), lets all replicas compare what they
decided (`runtime/plan_consensus.py`), and calls the new function from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from tf_fuse.function_graph.function_lookup import op_defs
from tf_fuse.shard_update.analysis.argument_facts import Scope
from tf_fuse.shard_update.analysis.planner import Planner, explain_difference
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
    return rewrite_update(plan, original, replicas, prefix)


def plan_update(
    original: Original,
    replicas: Replicas,
    mirrored: Collection[str],
    options: PlanOptions = _NOTHING,
    kept: Collection[str] = (),
    costs: UpdateCosts = DEFAULTS,
    before: UpdatePlan | None = None,
) -> UpdatePlan:
    """Decide which weight updates of a function replicas share: phase 1.

    Args:
      original: the function as it was traced.
      replicas: of the program.
      mirrored: arguments that are variables with the same value on all replicas.
      options: what the user asked for.
      kept: arguments that are variables which others use at any time.
      costs: for the estimate of what sharding saves.
      before: an earlier plan of the function, if replicas of this process differed in it and
        `kept` has the variables in which they did.
    """
    function: Callable[[str], Any | None] = original.function
    is_full_group = reduces_over(replicas.count)
    program = ReplicatedProgram(replicas.count, function, op_defs(function), is_full_group)
    scope = Scope.outermost(original.definition, mirrored, kept)
    planner = Planner(program, original.graph, replicas, options, costs)
    plan = planner.plan(original.definition, original.graph, scope)
    return plan if before is None else explain_difference(before, plan)


def rewrite_update(
    plan: UpdatePlan, original: Original, replicas: Replicas, prefix: str
) -> ShardedUpdate:
    """Carry out a plan of a function: phase 2; arguments as above."""
    return rewrite(plan, replicas, prefix, called_functions, original.function)


def check_update(original: Original, update: ShardedUpdate) -> str:
    """Compare the new functions with the original: phase 3.

    Returns:
      What is wrong, in words; "" if nothing is.
    """
    return verify(original, update.function, update.shards, update.functions)
