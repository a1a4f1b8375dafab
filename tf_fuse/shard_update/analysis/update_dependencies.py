# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find updates of a function that depend on each other, so that they cannot all be sharded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tf_fuse.function_graph.order import Order, before, predecessors
from tf_fuse.function_graph.view import GraphView, data_inputs
from tf_fuse.shard_update.plan import Bucket, UpdateCluster, sharded_clusters


def leave_dependent(view: GraphView, buckets: Sequence[Bucket]) -> list[Bucket]:
    """Leave alone clusters that depend on others, and mark those with the bits of a whole update.

    Args:
      view: of the function.
      buckets: of it.

    Returns:
      The buckets with these verdicts.
    """
    found = _leave_shared(view, buckets)
    order = Order(view)
    for number, bucket in enumerate(found):
        while (late := _first_late(view, order, bucket)) is not None:
            index, name = late
            bucket = bucket.with_cluster(
                index, bucket.clusters[index].leave("waits_for_weight", name)
            )
        found[number] = bucket
    return _mark_exact(view, found)


def early_gradients(view: GraphView, bucket: Bucket) -> set[int]:
    """Return the gradients that are left alone, but that a sharded update waits for.

    They cannot come with the new weights.
    """
    if all(cluster.reason is None for cluster in bucket.clusters):
        return set()
    order = Order(view)
    needed: set[str] = set()
    for cluster in bucket.sharded:
        needed |= _needed(view, order, bucket, cluster)
    return {
        index
        for index, cluster in enumerate(bucket.clusters)
        if cluster.reason is not None and any(u.node in needed for u in view.uses(cluster.root))
    }


def written_slots(view: GraphView, bucket: Bucket) -> set[str]:
    """Return the assignments of slots that a gather of the bucket's new weights has to wait for."""
    written: set[str] = set()
    for cluster in bucket.sharded:
        # (The new weight waits for an operation that updates it and its slots.)
        written |= set(_slot_sinks(view, cluster)) - set(cluster.chain)
    return written


def _slot_sinks(view: GraphView, cluster: UpdateCluster) -> list[str]:
    """Return the assignments of a cluster that are of slots, in the order of their names."""
    slots = set(cluster.slots)
    return [s for s in cluster.sinks if slots.intersection(view.assigned(view.nodes[s]))]


def _needed(view: GraphView, order: Order, bucket: Bucket, cluster: UpdateCluster) -> set[str]:
    """Return the nodes that must have run before a cluster's new weight can be gathered.

    It leaves out some nodes in front of the all-reduce: these wait for nothing after it.
    """
    first = order.position(bucket.node) if bucket.node in view.nodes else 0
    replaced = set(cluster.versions) | set(cluster.chain)
    start = (cluster.nodes | set(_slot_sinks(view, cluster))) - replaced
    start |= {
        tensor.lstrip("^").partition(":")[0]
        for sink in cluster.chain
        for tensor in view.nodes[sink].input
    }
    return before(
        view,
        start - replaced,
        lambda name: name not in replaced and order.position(name) > first,
    )


def _first_late(view: GraphView, order: Order, bucket: Bucket) -> tuple[int, str] | None:
    """Index of a cluster whose update waits for gathered new weights, and what it waits for."""
    weights = {cluster.chain[-1] for cluster in bucket.sharded if cluster.chain}
    for index, cluster in enumerate(bucket.clusters):
        if bucket.reason is None and cluster.reason is None:
            late = sorted(_needed(view, order, bucket, cluster) & weights)
            if late:
                return index, late[0]
    return None


def _leave_shared(view: GraphView, buckets: Sequence[Bucket]) -> list[Bucket]:
    """Leave alone clusters that have something in common with another one."""
    found = list(buckets)
    while (shared := _first_shared(view, found)) is not None:
        (number, index), name = shared
        cluster = found[number].clusters[index].leave("shared", name)
        found[number] = found[number].with_cluster(index, cluster)
    return found


def _first_shared(view: GraphView, buckets: Sequence[Bucket]) -> tuple[tuple[int, int], str] | None:
    """Return where a cluster is that has something in common with another one, and what that is."""
    sharded = {
        (number, index): cluster
        for number, bucket in enumerate(buckets)
        for index, cluster in enumerate(bucket.clusters)
        if bucket.reason is None and cluster.reason is None
    }
    by_node: dict[str, tuple[int, int]] = {}
    by_tensor = {tensor: key for key, cluster in sharded.items() for tensor in cluster.members}
    for key, cluster in sharded.items():
        for name in sorted({*cluster.nodes, *cluster.sinks}):
            if by_node.setdefault(name, key) != key:
                return key, name
            for tensor in data_inputs(view.nodes[name]):
                if (other := by_tensor.get(tensor, key)) != key:
                    return other, tensor
    for key, cluster in sharded.items():
        for variable in cluster.slots:
            for other, another in sharded.items():
                if other != key and variable in (*another.slots, *another.weights):
                    return other, variable
    return None


def _mark_exact(view: GraphView, buckets: list[Bucket]) -> list[Bucket]:
    inexact = {
        name
        for cluster in sharded_clusters(buckets)
        for name, reduction in cluster.reductions.items()
        if not reduction.exact
    }
    if not inexact:
        return buckets
    order = Order(view)
    found = {name for name in touched(view, order, inexact) if view.assigned(view.nodes[name])}

    def marked(cluster: UpdateCluster) -> UpdateCluster:
        if not inexact.isdisjoint(cluster.reductions):  # Whoever reads the sum has other bits.
            return replace(cluster, exact=False)
        users = {use.node for use in view.uses(cluster.root)}
        return replace(cluster, exact=not found & (users | touched(view, order, users)))

    return [replace(b, clusters=tuple(map(marked, b.clusters))) for b in buckets]


def levels(view: GraphView, names: set[str]) -> dict[str, int]:
    """Return how many of some reductions, one after the other, each of them waits for.

    Those of a level can be done at once: none of them waits for another one.
    """
    depth: dict[str, int] = {}
    found: dict[str, int] = {}
    for node in view.in_order():
        here = max((depth.get(name, 0) for name in predecessors(node)), default=0)
        if node.name in names:
            found[node.name] = here
            here += 1
        depth[node.name] = here
    return found


def touched(view: GraphView, order: Order, names: set[str]) -> set[str]:
    """Return the nodes that compute from what some nodes make in the same run of the function.

    Through variables as well: what is assigned from it, and read after that.
    """
    reads = order.reads
    found: set[str] = set()
    waiting = sorted(names)
    while waiting:
        node = view.nodes[waiting.pop()]
        following = [use.node for tensor in view.outputs(node) for use in view.uses(tensor)]
        for variable in view.assigned(node):
            following += order.behind(node.name, reads.get(variable, ()))
        for name in following:
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found
