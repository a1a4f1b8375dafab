# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Estimate whether sharding the update of a bucket saves more time than it costs.

Section 3.2 of Xu et al. (2020), for CPUs: what is saved is the time of the update on the elements
that others take; what it costs is that a reduce-scatter and an all-gather take longer than an
all-reduce, and that there are more operations. `cost_figures.py` has the figures, the same on
all replicas, so that all decide alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tf_fuse.function_graph.builder import Shape
from tf_fuse.shard_update.cost_figures import DEFAULTS, Profit, UpdateCosts
from tf_fuse.shard_update.plan import Bucket


def profit(
    bucket: Bucket,
    shapes: Mapping[str, Shape | None],
    width: int,
    replicas: int,
    groups: int = 1,
    is_one: bool = False,
    costs: UpdateCosts = DEFAULTS,
) -> Profit:
    """Estimate what sharding a bucket saves.

    Args:
      bucket: that can be sharded.
      shapes: of the function's tensors.
      width: of an element, in bytes.
      replicas: how many take part.
      groups: in how many groups; each does the whole update once.
      is_one: whether one operation does the update of a weight, in one pass over memory.
      costs: the figures.

    Returns:
      The estimate. A bucket that cannot be sharded has none to make.
    """
    operations = 0
    for cluster in bucket.clusters:
        if cluster.reason is None:
            whole = [t for t in cluster.members if math.prod(shapes.get(t) or ()) == cluster.size]
            # What is assigned is a pass over memory, too.
            passes = len(whole) + len(cluster.sinks)
            if is_one:  # The gradient is read; the weight and its slots are read and written.
                passes = min(passes, 1 + 2 * len({*cluster.weights, *cluster.slots}))
            operations += width * cluster.size * passes
    total = width * sum(cluster.size for cluster in bucket.clusters)
    wire = total if replicas == 2 else 0
    overhead = costs.collective_us + costs.gradient_us * len(bucket.clusters)
    if groups > 1:
        overhead += costs.share_us
    return Profit(
        saved=1e-9 * costs.operation_ns_per_byte * operations * (1 - groups / replicas),
        cost=1e-6 * overhead + 1e-9 * costs.wire_ns_per_byte * wire,
        passes=operations,
        gradients=len(bucket.clusters),
        wire=wire,
        replicas=replicas,
        groups=groups,
        costs=costs,
    )


def leave_unprofitable(
    bucket: Bucket,
    shapes: Mapping[str, Shape | None],
    width: int,
    replicas: int,
    groups: int = 1,
    always: bool = False,
    is_one: bool = False,
    costs: UpdateCosts = DEFAULTS,
) -> Bucket:
    """Estimate what sharding a bucket saves, and leave it alone if the step would take longer.

    Args:
      bucket: of a function.
      shapes: of the function's tensors.
      width: of an element, in bytes.
      replicas: how many take part.
      groups: as of `profit`.
      always: whether to shard it in any case.
      is_one: as of `profit`.
      costs: as of `profit`.

    Returns:
      The bucket with its estimate, and perhaps with the verdict "no_profit".
    """
    # (An update in a branch is not visible from here.)
    if not bucket.is_sharded or any(cluster.branches for cluster in bucket.clusters):
        return bucket
    estimate = profit(bucket, shapes, width, replicas, groups, is_one, costs)
    bucket = replace(bucket, profit=estimate)
    return bucket if estimate or always else bucket.leave("no_profit", str(estimate))
