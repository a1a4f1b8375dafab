# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Analyse a function and those that it calls, and return the plan of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tf_fuse.function_graph.function_lookup import REDUCE, graph_of, static_shapes
from tf_fuse.function_graph.view import GraphView, without_bundles
from tf_fuse.shard_update.analysis.argument_facts import Scope, inner_scope, reduces
from tf_fuse.shard_update.analysis.branches import BranchAnalysis, leave_shared_branches
from tf_fuse.shard_update.analysis.function_plan import function_plan, leave_cycles
from tf_fuse.shard_update.analysis.gather_placement import place_gathers
from tf_fuse.shard_update.analysis.replication import (
    ReplicatedProgram,
    Replication,
    analyse_replication,
    inside,
)
from tf_fuse.shard_update.analysis.update_clusters import ClusterFinder
from tf_fuse.shard_update.analysis.update_dependencies import leave_dependent
from tf_fuse.shard_update.cost_figures import UpdateCosts
from tf_fuse.shard_update.cost_model.profit import leave_unprofitable
from tf_fuse.shard_update.plan import Bucket, CallPlan, PlanOptions, UpdatePlan
from tf_fuse.shard_update.replicas import Replicas, width_of


class Planner:
    """Analyses functions of one program."""

    def __init__(
        self,
        program: ReplicatedProgram,
        graph: Any,
        replicas: Replicas,
        options: PlanOptions,
        costs: UpdateCosts,
    ):
        """Take the program.

        Args:
          program: that the functions are of.
          graph: the `FuncGraph` of the planned function.
          replicas: of the program.
          options: what the user asked for.
          costs: for the estimate of what sharding saves.
        """
        self._program, self._graph, self._replicas = program, graph, replicas
        self._options, self._costs = options, costs

    def plan(self, definition: Any, graph: Any, scope: Scope) -> UpdatePlan:
        """Plan a function.

        Args:
          definition: its `FunctionDef`.
          graph: the `FuncGraph` that it was traced to, which has the shapes.
          scope: of it.
        """
        view = GraphView(without_bundles(definition), self._program.op_def)
        found = analyse_replication(view, self._program, scope.replicated, scope.mirrored)
        shapes = static_shapes(view, graph)
        buckets = self._buckets(view, shapes, found, scope)
        calls = [
            call
            for _, node in sorted(view.nodes.items())
            for call in self._calls(view, node, found, scope)
        ]
        return function_plan(view, shapes, buckets, scope, calls)

    def _buckets(
        self, view: GraphView, shapes: dict[str, Any], found: Replication, scope: Scope
    ) -> list[Bucket]:
        """Return the verdicts about a function's own all-reduces, phase by phase."""
        options, groups = self._options, self._replicas.groups
        buckets = self._grow(view, shapes, found, scope)
        if not buckets:
            return []
        buckets = leave_dependent(view, buckets)
        buckets = [self._judge(bucket, shapes) for bucket in buckets]
        buckets = leave_shared_branches(buckets)
        if options.first_use:
            buckets = place_gathers(
                view, buckets, scope.inside, scope.carried, options.narrow, groups
            )
        branches = BranchAnalysis(self._program, self._graph, view, found, scope, options.exact)
        buckets = [branches.follow(bucket) for bucket in buckets]
        return leave_cycles(view, buckets)

    def _grow(
        self, view: GraphView, shapes: dict[str, Any], found: Replication, scope: Scope
    ) -> list[Bucket]:
        """Return the buckets of a function, with a cluster for each gradient."""
        reduces_here = [node for _, node in sorted(view.nodes.items()) if node.op == REDUCE]
        if not reduces_here:
            return []
        finder = ClusterFinder(
            view,
            self._program,
            shapes,
            found,
            self._options.exact,
            scope.outside,
            scope.carried,
            scope.updating,
        )
        buckets = []
        for node in reduces_here:
            if self._program.is_full_group(view, node) and self._replicas.has(node):
                bucket = finder.bucket(node)
            else:
                bucket = Bucket(node.name, (), (), "not_all_replicas", node.name)
            buckets.append(bucket.in_function(scope.name, scope.origins))
        return buckets

    def _judge(self, bucket: Bucket, shapes: dict[str, Any]) -> Bucket:
        """Estimate what sharding a bucket saves, and leave it alone if that is not enough."""
        if not bucket.is_sharded:
            return bucket
        return leave_unprofitable(
            bucket,
            shapes,
            width_of(bucket.reduce.attr["T"].type),
            self._replicas.count,
            self._replicas.groups,
            always=not self._options.profitable,
            is_one=self._options.is_one,
            costs=self._costs,
        )

    def _calls(
        self, view: GraphView, node: Any, found: Replication, scope: Scope
    ) -> list[CallPlan]:
        """Return the plans of the functions with all-reduces that a node calls."""
        calls = []
        for call in inside(view, self._program, node, found):
            if not reduces(self._program, call.name):
                continue
            graph = graph_of(self._graph, call.name)
            plan = None
            if graph is not None:
                inner = inner_scope(self._program, view, node, call, scope)
                plan = self.plan(self._program.function(call.name), graph, inner)
            calls.append(CallPlan(node.name, call.name, plan))
        return calls


def explain_difference(before: UpdatePlan, after: UpdatePlan) -> UpdatePlan:
    """Return a plan with the reason of updates that are left alone since an earlier plan.

    Args:
      before: the earlier plan, in which replicas differ.
      after: the plan of the same function, in which variables have other users.
    """
    calls = [
        replace(new, function=explain_difference(old.function, new.function))
        if old.function is not None and new.function is not None
        else new
        for old, new in zip(before.calls, after.calls, strict=True)
    ]
    pairs = zip(before.buckets, after.buckets, strict=True)
    return replace(
        after, buckets=tuple(_explained(old, new) for old, new in pairs), calls=tuple(calls)
    )


def _explained(was: Bucket, bucket: Bucket) -> Bucket:
    for index, (old, new) in enumerate(zip(was.clusters, bucket.clusters, strict=True)):
        if was.reason is None and old.reason is None and new.reason is not None:
            bucket = bucket.with_cluster(index, new.leave("one_replica", new.detail))
    return bucket
