# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Analyse updates in a branch of a conditional after the all-reduce (loss scaling)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tf_fuse.function_graph.function_lookup import graph_of, static_shapes
from tf_fuse.function_graph.order import Order
from tf_fuse.function_graph.view import GraphView, without_bundles
from tf_fuse.shard_update.add_branch_arguments import forget_shapes, reduce_inside, with_group
from tf_fuse.shard_update.analysis.argument_facts import Scope, inner_scope, reduces
from tf_fuse.shard_update.analysis.cycles import has_cycle
from tf_fuse.shard_update.analysis.function_plan import function_plan
from tf_fuse.shard_update.analysis.replication import (
    ReplicatedProgram,
    Replication,
    analyse_replication,
    inside,
)
from tf_fuse.shard_update.analysis.update_clusters import ClusterFinder
from tf_fuse.shard_update.analysis.update_dependencies import leave_dependent, touched
from tf_fuse.shard_update.plan import BranchPlan, Bucket


def leave_shared_branches(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Leave alone updates that are in one branch with those of another bucket.

    So are those of all replicas of a process, where a strategy looks at all of their gradients.
    """
    buckets_of = Counter(
        node
        for bucket in buckets
        for node in {name for cluster in bucket.sharded for name, _ in cluster.branches}
    )
    found = []
    for bucket in buckets:
        for index, cluster in enumerate(bucket.clusters):
            shared = sorted(name for name, _ in cluster.branches if buckets_of[name] > 1)
            if shared and bucket.reason is None and cluster.reason is None:
                bucket = bucket.with_cluster(index, cluster.leave("in_branch", shared[0]))
        found.append(bucket)
    return found


class BranchAnalysis:
    """Follows the updates of a function's buckets into branches of conditionals."""

    def __init__(
        self,
        program: ReplicatedProgram,
        graph: Any,
        view: GraphView,
        found: Replication,
        scope: Scope,
        exact: bool,
    ):
        """Take the function.

        Args:
          program: that it is of.
          graph: the `FuncGraph` of the planned function.
          view: of the function.
          found: what is replicated in it.
          scope: of it.
          exact: as of `PlanOptions`.
        """
        self._program, self._graph, self._view = program, graph, view
        self._found, self._scope, self._exact = found, scope, exact

    def follow(self, bucket: Bucket) -> Bucket:
        """Return the bucket with a plan of the branch that has its update: all of it or nothing."""
        ways = [way for cluster in bucket.sharded for way in cluster.branches]
        if not ways:
            return bucket
        node = self._view.nodes[min(ways)[0]]
        detail = str(node.name)
        if len(ways) == len(bucket.clusters) and {name for name, _ in ways} == {node.name}:
            bucket, branch = self._branch(bucket, node, [position for _, position in ways])
            if isinstance(branch, BranchPlan):
                return self._with_branch(bucket, branch)
            detail = branch
        clusters = [
            one.leave("in_branch", detail) if one.branches and one.reason is None else one
            for one in bucket.clusters
        ]
        return replace(bucket, clusters=tuple(clusters))

    def _with_branch(self, bucket: Bucket, branch: BranchPlan) -> Bucket:
        inexact = {
            name
            for cluster in bucket.sharded
            for name, one in cluster.reductions.items()
            if not one.exact
        }
        is_exact = branch.node not in touched(self._view, Order(self._view), inexact)
        (inner,) = branch.function.buckets
        clusters = [
            replace(cluster, exact=one.exact and is_exact)
            for cluster, one in zip(bucket.clusters, inner.clusters, strict=True)
        ]
        return replace(bucket, clusters=tuple(clusters), branch=branch)

    def _branch(
        self, bucket: Bucket, node: Any, positions: list[int]
    ) -> tuple[Bucket, BranchPlan | str]:
        """Return the plan of the branch that has an update, or where none was found.

        Returns:
          Also the bucket, with what the branch says of its clusters.
        """
        calls = [
            call
            for call in inside(self._view, self._program, node, self._found)
            if self._uses_any(call.name, positions)
        ]
        graph = graph_of(self._graph, calls[0].name) if len(calls) == 1 else None
        if graph is None or reduces(self._program, calls[0].name):
            return bucket, str(node.name)
        (call,) = calls
        definition = with_group(self._program.function(call.name))
        forget_shapes(definition, set(positions))
        view = GraphView(without_bundles(definition), self._program.op_def)
        scope = inner_scope(self._program, self._view, node, call, self._scope)
        found = analyse_replication(view, self._program, scope.replicated, scope.mirrored)
        shapes = static_shapes(view, graph)
        finder = ClusterFinder(
            view,
            self._program,
            shapes,
            found,
            self._exact,
            scope.outside,
            scope.carried,
            scope.updating,
        )
        dtype = bucket.reduce.attr["T"].type
        clusters = [finder.cluster(view.arguments[position], dtype) for position in positions]
        inner = Bucket(bucket.node, (), tuple(clusters), reduce=reduce_inside(bucket.reduce))
        (inner,) = leave_dependent(view, [inner])
        for index, one in enumerate(inner.clusters):
            cluster = bucket.clusters[index].traced(one, scope.origins)
            if one.reason is not None:
                cluster = cluster.leave(one.reason, one.detail)
            bucket = bucket.with_cluster(index, cluster)
            if one.reason is None and (one.branches or one.size != cluster.size):
                return bucket, one.root
        if any(one.reason is not None for one in inner.clusters) or has_cycle(view, [inner]):
            return bucket, call.name
        function = function_plan(view, shapes, [inner], scope)
        return bucket, BranchPlan(node.name, call.name, function)

    def _uses_any(self, name: str, positions: list[int]) -> bool:
        body = GraphView(self._program.function(name), self._program.op_def)
        tensors = [body.arguments[position] for position in positions]
        return any(body.uses(tensor) or tensor in body.results for tensor in tensors)
