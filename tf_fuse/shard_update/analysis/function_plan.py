# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Collect the last verdicts about a function's buckets into its immutable plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import GraphView
from tf_fuse.shard_update.analysis.argument_facts import Scope
from tf_fuse.shard_update.analysis.cycles import has_cycle
from tf_fuse.shard_update.analysis.gather_placement import batches, gather_last
from tf_fuse.shard_update.analysis.update_dependencies import early_gradients, levels, written_slots
from tf_fuse.shard_update.plan import Bucket, CallPlan, UpdatePlan, sharded_clusters


def leave_cycles(view: GraphView, buckets: Sequence[Bucket]) -> list[Bucket]:
    """Gather weights at the end of the step, and then leave buckets alone, until no cycle is left.

    Args:
      view: of the function.
      buckets: of it.

    Returns:
      The buckets with the verdict "cycle" for some.
    """
    found = list(buckets)
    while any(bucket.is_sharded for bucket in found) and has_cycle(view, found):
        if any(cluster.gather.is_first for cluster in sharded_clusters(found)):
            found = gather_last(found)
            continue
        # Each bucket alone has no cycle; two may wait for each other. A bucket whose weights are
        # gathered in a branch waits for nobody there, so it stays if another one can go.
        sharded = [number for number, bucket in enumerate(found) if bucket.is_sharded]
        last = ([n for n in sharded if found[n].branch is None] or sharded)[-1]
        found[last] = found[last].leave("cycle", found[last].node)
    return found


def function_plan(
    view: GraphView,
    shapes: Mapping[str, Shape | None],
    buckets: Sequence[Bucket],
    scope: Scope,
    calls: Sequence[CallPlan] = (),
) -> UpdatePlan:
    """Make the plan of a function once all verdicts about it are there.

    Args:
      view: of the function.
      shapes: of its tensors.
      buckets: of it, with all verdicts.
      scope: of it.
      calls: of functions with all-reduces.
    """
    finished = [
        replace(
            bucket,
            early=tuple(sorted(early_gradients(view, bucket))),
            batches=tuple((dtype, tuple(indices)) for dtype, indices in batches(bucket)),
            written=tuple(sorted(written_slots(view, bucket))),
        )
        if bucket.is_sharded
        else bucket
        for bucket in buckets
    ]
    reductions = {name for cluster in sharded_clusters(buckets) for name in cluster.reductions}
    depths = levels(view, reductions) if reductions else {}
    return UpdatePlan(view, shapes, tuple(finished), scope.origins, depths, tuple(calls))
