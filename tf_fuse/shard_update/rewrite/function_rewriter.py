# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Rewrite a function and those that it calls by their plan; decide nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tf_fuse.function_graph.builder import Range, Shape
from tf_fuse.function_graph.function_lookup import rename_called
from tf_fuse.shard_update.add_branch_arguments import call_with_group, with_group
from tf_fuse.shard_update.plan import Bucket, ShardedUpdate, UpdatePlan
from tf_fuse.shard_update.replicas import Replicas, ranges_of, summed_of
from tf_fuse.shard_update.rewrite.bucket_rewriter import BucketRewriter
from tf_fuse.shard_update.rewrite.reduce_shards import ReplicaPlace
from tf_fuse.sharded_variable.shard_spec import ShardSpec, window


def rewrite(
    plan: UpdatePlan,
    replicas: Replicas,
    prefix: str,
    called: Callable[[Any], list[str]],
    function: Callable[[str], Any | None],
) -> ShardedUpdate:
    """Carry out a plan.

    Args:
      plan: of the function.
      replicas: of the program.
      prefix: of the shared names of shards.
      called: the names of the functions that a node calls.
      function: the `FunctionDef` of a function, or None.

    Returns:
      The functions to run, with the plan's verdicts.
    """
    rewriter = _FunctionRewriter(replicas, prefix, called, function)
    new = rewriter.rewrite(plan)
    shapes: dict[str, Shape | None] = {}
    if any(bucket.is_sharded for bucket in plan.buckets):
        shapes = {**plan.shapes, **_shard_shapes(plan, replicas)}
    return ShardedUpdate(
        tuple(plan.all_buckets), new, tuple(rewriter.shards), tuple(rewriter.functions), shapes
    )


class _FunctionRewriter:
    """Rewrites functions of one plan.

    Attributes:
      shards: variables that each replica keeps a shard of.
      functions: new ones that are called.
    """

    def __init__(
        self,
        replicas: Replicas,
        prefix: str,
        called: Callable[[Any], list[str]],
        function: Callable[[str], Any | None],
    ):
        self._replicas, self._prefix = replicas, prefix
        self._called, self._function = called, function
        self.shards: list[ShardSpec] = []
        self.functions: list[Any] = []

    def rewrite(self, plan: UpdatePlan) -> Any | None:
        """Return what to run instead of a function; None if it stays."""
        new = self._rewrite_buckets(plan)
        name = plan.view.function.signature.name
        renamed: dict[str, dict[str, str]] = {}
        for call in plan.calls:
            inner = None if call.function is None else self.rewrite(call.function)
            if inner is not None:
                inner.signature.name = f"{call.name}_{len(self.functions)}_of_{name}"
                renamed.setdefault(call.node, {})[call.name] = inner.signature.name
                self.functions.append(inner)
        if not renamed:
            return new
        if new is None:
            new = type(plan.view.function)()
            new.CopyFrom(plan.view.function)
        for node in new.node_def:
            if node.name in renamed:
                rename_called(node, renamed[node.name])
        return new

    def _rewrite_buckets(self, plan: UpdatePlan) -> Any | None:
        """Return the function with its own buckets sharded; None if none is."""
        sharded = [bucket for bucket in plan.buckets if bucket.is_sharded]
        if not sharded:
            return None
        branches = {
            bucket.node: self._rewrite_buckets(bucket.branch.function)
            for bucket in sharded
            if bucket.branch is not None
        }
        rewriter = BucketRewriter(plan, self._prefix, len(self.shards))
        owns: dict[str, tuple[Range, ...]] = {}
        ranks: dict[str, int] = {}
        for bucket in sharded:
            rank = self._replicas.rank(bucket.reduce)
            place = ReplicaPlace(self._replicas.count, rank, self._replicas.groups)
            everyone = [ranges_of(self._replicas, bucket, r) for r in range(self._replicas.count)]
            rewriter.shard(bucket, place, everyone, summed_of(self._replicas, bucket, rank))
            for index, cluster in enumerate(bucket.clusters):
                owns.update({one: tuple(r[index] for r in everyone) for one in cluster.held})
                ranks.update(dict.fromkeys(cluster.held, rank))
        self.shards += [
            replace(
                shard,
                argument=plan.origins[shard.argument],
                owns=owns[shard.argument],
                rank=ranks[shard.argument],
                groups=self._replicas.groups,
            )
            for shard in rewriter.shards
        ]
        for bucket in sharded:
            if bucket.branch is not None:
                self._call_branch(rewriter.function, bucket, branches[bucket.node])
        return rewriter.function

    def _call_branch(self, function: Any, bucket: Bucket, new: Any) -> None:
        """Make a conditional call the rewritten branch."""
        assert bucket.branch is not None
        (node,) = (one for one in function.node_def if one.name == bucket.branch.node)
        names = {}
        for name in self._called(node):
            taken = name == bucket.branch.taken
            branch = new if taken else with_group(self._function(name))
            branch.signature.name = f"{name}_{len(self.functions)}_of_{function.signature.name}"
            names[name] = branch.signature.name
            self.functions.append(branch)
        call_with_group(node, bucket.reduce, names)


def _shard_shapes(plan: UpdatePlan, replicas: Replicas) -> dict[str, Shape | None]:
    """Return the shapes of the tensors that a replica computes a window of."""
    shapes: dict[str, Shape | None] = {}
    for bucket in plan.buckets:
        if not bucket.is_sharded:
            continue
        ranges = ranges_of(replicas, bucket, replicas.rank(bucket.reduce))
        for own, cluster in zip(ranges, bucket.clusters, strict=True):
            begin, end = window(own, cluster.size)
            for tensor in cluster.members if cluster.reason is None else ():
                shape = plan.shapes.get(tensor)
                if shape is not None and math.prod(shape) == cluster.size:
                    shapes[tensor] = (end - begin,)
    return shapes
