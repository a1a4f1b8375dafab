# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compare what a function does for each replica of this process.

A function of several replicas has the updates of all of them. What it does outside of the replicas
it does once, with the variables of the first one: a sum over a slot is then a part of that
replica's update alone. If replicas shared such an update, the first one would wait for ever for a
collective that the others do not have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

from tf_fuse.shard_update.plan import Bucket, UpdateCluster
from tf_fuse.shard_update.replicas import Replicas


def unlike(
    buckets: Iterable[Bucket], replicas: Replicas, variables: Mapping[str, int]
) -> set[int] | None:
    """Return variables whose updates are not sharded alike for all replicas of this process.

    Args:
      buckets: of the function.
      replicas: of the program, and those that the function is of.
      variables: by argument, a number of the strategy's variable.

    Returns:
      Their numbers; none may be known. None if all replicas do the same.
    """
    found: dict[int, Counter[tuple[Hashable, ...]]] = {
        rank: Counter() for rank in replicas.ranks.values()
    }
    for bucket in buckets:
        if bucket.is_sharded:
            found[replicas.rank(bucket.reduce)][_outline(bucket, variables)] += 1
    all_of = list(found.values())
    if all(one == all_of[0] for one in all_of):
        return None
    clusters: list[Counter[Hashable]] = [
        Counter(one for outline in of.elements() for one in outline if one is not None)
        for of in all_of
    ]
    common = clusters[0]
    for of in clusters[1:]:
        common = common & of
    differ = {one for of in clusters for one in of - common}
    return {number for one in differ for number in _numbers(one)}


def _outline(bucket: Bucket, variables: Mapping[str, int]) -> tuple[Hashable, ...]:
    """Return what has to be equal on all replicas; None for an update that is left alone."""
    clusters = bucket.clusters
    if bucket.branch is not None:
        (inner,) = bucket.branch.function.buckets
        pairs = zip(clusters, inner.clusters, strict=True)
        return tuple(_cluster(one, two, variables) for one, two in pairs)
    return tuple(_cluster(one, one, variables) for one in clusters)


def _cluster(
    cluster: UpdateCluster, inner: UpdateCluster, variables: Mapping[str, int]
) -> Hashable:
    if cluster.reason is not None:
        return None
    reductions = Counter(
        (one.op, one.axes, one.shape, one.dtype) for one in inner.reductions.values()
    )
    return (
        tuple(sorted(variables[name] for name in cluster.updated if name in variables)),
        tuple(sorted(variables[name] for name in cluster.kept if name in variables)),
        cluster.size,
        frozenset(reductions.items()),
        len(inner.chain),
        (cluster.gather.is_first, cluster.gather.dtype),
    )


def _numbers(outline: Hashable) -> tuple[int, ...]:
    assert isinstance(outline, tuple)
    updated, kept, *_ = outline
    return (*updated, *kept)
