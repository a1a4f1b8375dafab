# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Decide where replicas gather each new weight, and in which type.

The default is the end of the step. The second placement of section 4.2 of Xu et al. (2020) is right
before the first use: each replica then holds a shard of the weight between steps, as of a slot. An
all-gather at the beginning of the step serves the reads in front of the update, and the assignments
assign shards. So the analysis has to know all that uses the variable in the step: reads in front of
the update, reads that the update makes of its own, and its assignments.

A read that only casts a weight to a narrower type gets the same bits whether the cast is done
before or after the transfer. So the narrow type may travel, if the user asks for that.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import BFLOAT16, FLOAT, HALF
from tf_fuse.function_graph.operations import RESOURCE_APPLY
from tf_fuse.function_graph.order import Order
from tf_fuse.function_graph.view import ASSIGNS, READS, GraphView
from tf_fuse.shard_update.analysis.replication import called_functions
from tf_fuse.shard_update.plan import Bucket, Gather, UpdateCluster

# A gather has as many elements, or more. What a collective costs by itself (0.5 ms, as
# `cost_figures.py` has it) is an eighth of what 4 MiB take on a link of 10 Gbit/s, and less
# on slower ones.
_BATCH_ELEMENTS = 1 << 20
_NARROW = frozenset({BFLOAT16, HALF})
_ALIASES = frozenset({"Identity", "IdentityN"})


def place_gathers(
    view: GraphView,
    buckets: Sequence[Bucket],
    inside: Collection[str],
    carried: Collection[str],
    narrow: bool,
    groups: int = 1,
) -> list[Bucket]:
    """Decide for each weight whose update is sharded where it is gathered, and in which type.

    Args:
      view: of the function.
      buckets: of it.
      inside: its arguments that are variables which only it uses.
      carried: arguments that it returns unchanged, for its next iteration.
      narrow: whether a narrower type may travel.
      groups: into which the replicas are divided.

    Returns:
      The buckets with these decisions.
    """
    if not any(bucket.is_sharded for bucket in buckets):
        return list(buckets)
    order = Order(view)

    def placed(bucket: Bucket, cluster: UpdateCluster) -> UpdateCluster:
        if bucket.reason is not None or cluster.reason is not None:
            return cluster
        gather = cluster.gather
        if groups > 1:
            gather = Gather(reason="in_groups", detail=bucket.node)
        elif cluster.branches:
            gather = Gather(reason="in_branch", detail=min(cluster.branches)[0])
        elif cluster.weights:
            gather = _place(view, order, bucket, cluster, inside, carried)
            if gather.is_first:
                gather = _with_readers(view, cluster, gather)
                if narrow:
                    gather = _with_type(view, bucket, gather)
        return replace(cluster, gather=gather)

    return [replace(b, clusters=tuple(placed(b, one) for one in b.clusters)) for b in buckets]


def gather_last(buckets: Sequence[Bucket]) -> list[Bucket]:
    """Gather all weights at the end of the step, since a gather at the beginning makes a cycle."""

    def moved(bucket: Bucket, cluster: UpdateCluster) -> UpdateCluster:
        is_sharded = bucket.reason is None and cluster.reason is None
        if not is_sharded or not cluster.gather.is_first:
            return cluster
        return replace(cluster, gather=Gather(reason="cycle", detail=bucket.node))

    return [replace(b, clusters=tuple(moved(b, one) for one in b.clusters)) for b in buckets]


def _place(
    view: GraphView,
    order: Order,
    bucket: Bucket,
    cluster: UpdateCluster,
    inside: Collection[str],
    carried: Collection[str],
) -> Gather:
    (weight,) = cluster.weights
    users = _users(view, weight)
    reads = [node.name for node in users if _is_in_front(order, cluster, node)]
    obstacles = (_obstacle(view, cluster, reads, node) for node in users)
    if weight not in inside:
        return Gather(reason="used_outside", detail=weight)
    if None in users and weight not in carried:
        return Gather(reason="returned", detail=weight)
    if (found := next(filter(None, obstacles), None)) is not None:
        return Gather(reason=found[0], detail=found[1])
    if not reads:
        return Gather(reason="not_read", detail=weight)
    if order.behind(cluster.chain[0], [bucket.node]):
        # The first assignment is to wait for the all-reduce.
        return Gather(reason="cycle", detail=cluster.chain[0])
    return Gather(reads=tuple(reads))


def _is_in_front(order: Order, cluster: UpdateCluster, node: Any) -> bool:
    """Return whether a node reads a weight as it is before the update."""
    return (
        node is not None
        and node.op in READS
        and node.name not in cluster.versions
        and not any(order.behind(sink, [node.name]) for sink in cluster.chain)
    )


def _obstacle(
    view: GraphView, cluster: UpdateCluster, reads: Collection[str], node: Any
) -> tuple[str, str] | None:
    """Return why a node keeps the weight that it gets from being sharded, and where; or None.

    Args:
      view: of the function.
      cluster: with the weight.
      reads: nodes that read it in front of the update.
      node: None if the weight is returned.
    """
    if node is None or node.name in cluster.versions or node.name in cluster.chain:
        return None
    if node.op in READS:
        (value,) = view.outputs(node)
        if node.name in reads:
            return ("returned", value) if value in view.results else None
        is_used = view.uses(value) or value in view.results
        return ("read_after_update", node.name) if is_used else None
    if called_functions(node):
        return "read_in_function", node.name
    if node.op in ASSIGNS | RESOURCE_APPLY:
        return "assigned_elsewhere", node.name
    return "escapes", f"{node.name} ({node.op})"


def _users(view: GraphView, resource: str) -> list[Any]:
    """All nodes that get a variable, by name; after them None if the function returns it."""
    found, returned = set(), False
    waiting = [resource]
    while waiting:
        tensor = waiting.pop()
        returned |= tensor in view.results
        for use in view.uses(tensor):
            node = view.nodes[use.node]
            if node.op in _ALIASES:
                waiting.append(view.outputs(node)[use.index])
            else:
                found.add(node.name)
    return [*(view.nodes[name] for name in sorted(found)), *([None] if returned else [])]


# --- Types ---------------------------------------------------------------------------------------


def _with_type(view: GraphView, bucket: Bucket, gather: Gather) -> Gather:
    """Let the type travel to which all readers cast the weight."""
    if bucket.reduce.attr["T"].type != FLOAT:
        return gather
    types = set()
    for name in gather.readers:
        node = view.nodes[name]
        types.add(node.attr["DstT"].type if _is_narrow(node) else FLOAT)
        if FLOAT in types or len(types) > 1:
            return replace(gather, wide=f"{name} ({node.op})")
    return replace(gather, dtype=types.pop()) if types else gather


def _is_narrow(node: Any) -> bool:
    # (One that truncates does not round as the one that is done before it travels.)
    return (
        node.op == "Cast"
        and node.attr["SrcT"].type == FLOAT
        and node.attr["DstT"].type in _NARROW
        # (Looking for a key that is not there would add it.)
        and not ("Truncate" in node.attr and node.attr["Truncate"].b)
    )


def _with_readers(view: GraphView, cluster: UpdateCluster, gather: Gather) -> Gather:
    """Note the nodes that get the gathered tensor: identities that hand it on, and all others."""
    handing, others = set(), set()
    waiting = [f"{read}:value:0" for read in gather.reads or ()]
    while waiting:
        for use in view.uses(waiting.pop()):
            node = view.nodes[use.node]
            if _takes_shard(view, cluster, use.node):
                continue
            if node.op == "Identity" and not set(view.outputs(node)) & set(view.results):
                handing.add(use.node)
                waiting += view.outputs(node)
            else:
                others.add(use.node)
    return replace(gather, aliases=tuple(sorted(handing)), readers=tuple(sorted(others)))


def _takes_shard(view: GraphView, cluster: UpdateCluster, node: str) -> bool:
    """Return whether a node reads the shard of the cluster's weight, not the gathered tensor."""
    is_sink = node in cluster.sinks and view.nodes[node].op in ASSIGNS
    return node in cluster.nodes or is_sink


def batches(bucket: Bucket) -> list[tuple[int, list[int]]]:
    """Return what of a bucket is gathered at once before its first use, in order.

    The last gradients of a bucket are of the weights that a step reads first. So these come first,
    and who reads them need not wait for the others.

    Returns:
      Of each batch the number of the type that travels (0: the bucket's), and the indices of its
      clusters.
    """
    found: list[tuple[int, list[int]]] = []
    open_batches: dict[int, int] = {}  # By type, elements of the batch that may grow.
    for index, cluster in reversed(list(enumerate(bucket.clusters))):
        if cluster.reason is None and cluster.gather.is_first:
            dtype = cluster.gather.dtype
            if open_batches.get(dtype, _BATCH_ELEMENTS) >= _BATCH_ELEMENTS:
                found.append((dtype, []))
                open_batches[dtype] = 0
            batch = [indices for one, indices in found if one == dtype][-1]
            batch.insert(0, index)
            open_batches[dtype] += cluster.size
    return found
