# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Predict from a plan whether nodes of the rewritten function would wait for one another.

The rewrite adds collectives. Each waits for several tensors, so one update may come to wait for
another one that waits for it. This module predicts which node would wait for which, from the plan
alone; names of nodes are those of the original function, and of added collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tf_fuse.function_graph.operations import RESOURCE_APPLY, SAME_ELEMENTS
from tf_fuse.function_graph.view import GraphView, control_inputs, data_inputs
from tf_fuse.shard_update.analysis.gather_placement import batches
from tf_fuse.shard_update.analysis.update_dependencies import early_gradients, levels, written_slots
from tf_fuse.shard_update.plan import Bucket, UpdateCluster, sharded_clusters


def has_cycle(view: GraphView, buckets: Sequence[Bucket]) -> bool:
    """Return whether nodes of the rewritten function would wait for one another.

    Args:
      view: of the original function.
      buckets: of it, with all verdicts.
    """
    waits = _Waits(view)
    depths = levels(view, {n for one in sharded_clusters(buckets) for n in one.reductions})
    for bucket in buckets:
        if bucket.is_sharded:
            waits.add(bucket, depths)
    return waits.are_circular()


class _Waits:
    """Which node of the rewritten function waits for which."""

    def __init__(self, view: GraphView):
        """Take the original function."""
        self._view = view
        self._data = {n: list(data_inputs(node)) for n, node in view.nodes.items()}
        # What a node waits for besides the tensors that it reads.
        self._more = {n: set(control_inputs(node)) for n, node in view.nodes.items()}
        # By tensor, the node that makes what is read instead.
        self._instead: dict[str, str] = {}

    def add(self, bucket: Bucket, depths: dict[str, int]) -> None:
        """Add what sharding a bucket changes."""
        self._reduce_scatter(bucket)
        for cluster in bucket.sharded:
            self._slice(bucket, cluster)
        self._reduce(bucket, depths)
        if any(cluster.branches for cluster in bucket.sharded):
            return
        early = early_gradients(self._view, bucket)
        for index in early:
            self._join(bucket, "early", [bucket.node], [])
            self._instead[bucket.clusters[index].root] = f"{bucket.node} early"
        first = self._gather_first(bucket)
        gathered: list[str] = []
        for index, cluster in enumerate(bucket.clusters):
            if cluster.reason is None and cluster.weights and index not in first:
                gathered.append(self._new_weight(bucket, index, cluster))
            elif not first or (cluster.reason is not None and index not in early):
                gathered.append(bucket.node)
        if gathered:
            self._join(bucket, "gather", [*gathered, *written_slots(self._view, bucket)], [])
        for index, cluster in enumerate(bucket.clusters):
            if cluster.reason is not None and index not in early:
                self._instead[cluster.root] = f"{bucket.node} gather"
            elif cluster.reason is None and cluster.weights and index not in first:
                last = cluster.chain[-1]
                del self._data[last][1:]
                self._more[last].add(f"{bucket.node} gather")

    def _join(self, bucket: Bucket, what: str, nodes: Iterable[str], tensors: Iterable[str]) -> str:
        """Add a collective that waits for nodes and tensors, and for the keys of its group."""
        name = f"{bucket.node} {what}"
        self._more.setdefault(name, set()).update(nodes)
        self._data.setdefault(name, []).extend(tensors)
        self._more[name].update(map(_maker, self._keys(bucket)))
        return name

    def _keys(self, bucket: Bucket) -> list[str]:
        return data_inputs(bucket.reduce)[1:4]

    def _reduce_scatter(self, bucket: Bucket) -> None:
        """Add the edges of a reduce-scatter, which reads the gradients without packing them."""
        if bucket.node in self._view.nodes:
            (reduced,) = self._view.outputs(self._view.nodes[bucket.node])
            for use in self._view.uses(reduced):
                if self._view.nodes[use.node].op == "SplitV":
                    self._remove(use.node)
            packed = data_inputs(bucket.reduce)[0]
            if list(bucket.tensors) != [packed]:
                self._remove(_maker(packed))
            self._data[bucket.node] = []
            self._more[bucket.node].update(map(_maker, [*bucket.tensors, *self._keys(bucket)]))
        for cluster in bucket.sharded:
            is_argument = cluster.root in self._view.arguments
            self._instead[cluster.root] = "" if is_argument else bucket.node

    def _remove(self, node: str) -> None:
        self._data.pop(node, None)
        self._more.pop(node, None)

    def _slice(self, bucket: Bucket, cluster: UpdateCluster) -> None:
        """Add the edges of a cluster, which reads slices, its shards, and shards of variables."""
        for variable in cluster.held:
            for user in self._view.users(variable):
                self._data[user.name] = [
                    tensor
                    for tensor in self._data[user.name]
                    if self._view.resource(tensor) != variable
                ]
        own = {f"{read}:value:0" for read in cluster.gather.reads or ()}
        for name in cluster.nodes:
            if self._view.nodes[name].op in SAME_ELEMENTS:
                del self._data[name][1:]
        sinks = [s for s in cluster.sinks if self._view.nodes[s].op not in RESOURCE_APPLY]
        for name in [*cluster.nodes, *sinks]:
            self._data[name] = [tensor for tensor in self._data[name] if tensor not in own]

    def _reduce(self, bucket: Bucket, depths: dict[str, int]) -> None:
        """All reductions of a level and type wait for one all-reduce."""
        for cluster in bucket.sharded:
            for name, reduction in cluster.reductions.items():
                read = data_inputs(self._view.nodes[name])[:1]
                what = f"reduce {depths[name]} {reduction.wire_type}"
                self._data[name] = []
                self._more[name].add(self._join(bucket, what, [], read))

    def _gather_first(self, bucket: Bucket) -> set[int]:
        """Read in front of the update wait for gathers, and the reduce-scatter for these."""
        first: set[int] = set()
        before = ""
        for number, (_, indices) in enumerate(batches(bucket)):
            name = f"{bucket.node} first {number}"
            # (A constant that waits for others is copied without that.)
            keys = [one for one in self._keys(bucket) if not self._is_constant(one)]
            self._data[name], self._more[name] = [], {before, *map(_maker, keys)}
            self._more[bucket.node].add(name)
            for index in indices:
                cluster = bucket.clusters[index]
                for read in cluster.gather.reads or ():
                    self._data[read] = []
                    self._more[read].add(name)
                self._more[cluster.chain[0]].add(bucket.node)
            first.update(indices)
            before = name
        return first

    def _is_constant(self, tensor: str) -> bool:
        node = self._view.producer(tensor)
        return node is not None and node.op == "Const"

    def _new_weight(self, bucket: Bucket, index: int, cluster: UpdateCluster) -> str:
        """Return the node that makes the shard of the new weight, after reads are replaced."""
        value = ""
        for number, name in enumerate(cluster.chain):
            sink = self._view.nodes[name]
            version = f"{bucket.node} weight {index} {number}"
            # The value that is assigned, and the version before it or else the weight itself.
            self._data[version], self._more[version] = self._data[name][1:], set()
            if sink.op != "AssignVariableOp":
                self._more[version].add(value)
                if not value:
                    self._data[version] = list(self._data[name])
                if not value or sink.op in RESOURCE_APPLY:
                    self._more[version] |= self._more[name]
            if sink.op in RESOURCE_APPLY:
                self._more[name].add(version)
            value = version
            for read, seen in cluster.versions.items():
                if seen == number:
                    self._instead[f"{read}:value:0"] = value
        return value

    def are_circular(self) -> bool:
        """Return whether some nodes wait for one another."""
        before = {
            name: {self._instead.get(tensor, _maker(tensor)) for tensor in tensors}
            | self._more[name]
            for name, tensors in self._data.items()
        }
        following: dict[str, list[str]] = {}
        missing = {}
        for name, nodes in before.items():
            known = [one for one in nodes if one in before]
            missing[name] = len(known)
            for one in known:
                following.setdefault(one, []).append(name)
        ready = [name for name, count in missing.items() if count == 0]
        done = 0
        while ready:
            done += 1
            for name in following.get(ready.pop(), ()):
                missing[name] -= 1
                if missing[name] == 0:
                    ready.append(name)
        return done < len(before)


def _maker(tensor: str) -> Any:
    """Return the node that makes a tensor; "" for an argument."""
    return tensor.partition(":")[0] if ":" in tensor else ""
