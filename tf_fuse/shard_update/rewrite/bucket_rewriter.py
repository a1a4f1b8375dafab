# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Emit the function in which a replica updates its shard of the weights, bucket by bucket.

Section 4.2 of Xu et al. (2020). The all-reduce of a bucket becomes a reduce-scatter; the clusters'
nodes stay, with the same names, and compute vectors of this replica's elements; slots are read from
and assigned to variables that have no more elements than that; new weights are gathered from all
replicas and assigned. What is left alone gets its whole gradient by the same gather, or, where an
update that is sharded needs that, by a sum of all replicas' shards before it.

Replicas may be in groups. Each group has everything once, and gathers what its own members have. A
replica sums only a part of its elements, which no other replica sums: the chunk of the ring that an
all-reduce would have summed in the same order. Sums over all replicas are of these parts.

Nodes that wait for others, by name, wait for the same ones as before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import BFLOAT16, DOUBLE, FLOAT, HALF
from tf_fuse.function_graph.builder import Builder, Range
from tf_fuse.function_graph.view import control_inputs, data_inputs
from tf_fuse.shard_update.plan import SCOPE, Bucket, Reduction, UpdatePlan
from tf_fuse.shard_update.rewrite import reduce_shards
from tf_fuse.shard_update.rewrite.gather_before_use import bounds_of, free_group, hand_out
from tf_fuse.shard_update.rewrite.reduce_shards import ReplicaPlace
from tf_fuse.shard_update.rewrite.slice_to_shard import ShardSlicer, scope_of
from tf_fuse.shard_update.rewrite.weight_shard import WeightShards
from tf_fuse.sharded_variable.shard_spec import ShardSpec, window

_FLOATS = frozenset({FLOAT, DOUBLE, BFLOAT16, HALF})


class BucketRewriter:
    """Changes a copy of a function, bucket by bucket."""

    def __init__(self, plan: UpdatePlan, prefix: str, first: int = 0):
        """Start with the original function.

        Args:
          plan: of the function.
          prefix: of the shared names of the shards.
          first: number of the first shard.
        """
        self._view, self._levels = plan.view, plan.levels
        self._place = ReplicaPlace(1, 0)
        self._builder = Builder(plan.view, plan.shapes)
        self._slicer = ShardSlicer(self._builder, prefix, first)
        self._weights = WeightShards(self._builder)

    @property
    def function(self) -> Any:
        """The copy."""
        return self._builder.function

    @property
    def shards(self) -> list[ShardSpec]:
        """Variables that have shards from now on."""
        return self._slicer.shards

    def shard(
        self,
        bucket: Bucket,
        place: ReplicaPlace,
        everyone: Sequence[Sequence[Range]],
        summed: Sequence[Range],
    ) -> None:
        """Rewrite one bucket.

        Args:
          bucket: of the function, sharded.
          place: of the replica that the bucket is of.
          everyone: of each replica and each tensor of the bucket, the first element that is the
            replica's, and the one after the last.
          summed: of each tensor of the bucket, those of this replica's that no other one sums.
        """
        whole, ranges = bucket.reduce, everyone[place.rank]
        self._place = place
        if bucket.node in self._view.nodes:
            self._reduce_scatter(bucket, whole)
        for index, cluster in enumerate(bucket.clusters):
            if cluster.reason is None:
                self._slicer.slice(bucket, index, ranges[index])
        self._reduce(bucket, ranges, summed)
        if any(cluster.branches for cluster in bucket.clusters if cluster.reason is None):
            return  # What follows it is in another function.
        early = bucket.early
        self._bring_early(bucket, ranges, summed, early)
        first = self._gather_first(bucket, everyone)
        gathered = {}
        for index, cluster in enumerate(bucket.clusters):
            if cluster.reason is None and cluster.weights and index not in first:
                gathered[index] = self._weights.shard(
                    scope_of(bucket, index), cluster, ranges[index]
                )
            elif not first or (cluster.reason is not None and index not in early):
                gathered[index] = f"{bucket.node}:shards:{index}"
        outputs = self._gather_last(bucket, gathered, everyone)
        for index, output in outputs.items():
            cluster = bucket.clusters[index]
            if cluster.reason is not None and index not in early:
                self._builder.replace(cluster.root, output)
            elif cluster.reason is None and cluster.weights:
                self._weights.assign(cluster, output)

    def _reduce_scatter(self, bucket: Bucket, whole: Any) -> None:
        """Put it in the place of the all-reduce. What buckets and unpacks goes."""
        (reduced,) = self._view.outputs(whole)
        for use in self._view.uses(reduced):
            if self._view.nodes[use.node].op == "SplitV":
                self._builder.remove(use.node)
        packed = data_inputs(whole)[0]
        if tuple(bucket.tensors) != (packed,):
            self._builder.remove(packed.partition(":")[0])
        node = self._builder.nodes[bucket.node]
        node.Clear()
        self._collective(node, "TfFuse>ReduceScatter", whole, bucket.tensors)
        node.name = bucket.node
        node.input.extend(f"^{before}" for before in control_inputs(whole))

    # --- Reductions ------------------------------------------------------------------------------

    def _reduce(
        self,
        bucket: Bucket,
        ranges: Sequence[Range],
        summed: Sequence[Range],
    ) -> None:
        """Emit the reductions: one all-reduce for each level and type."""
        batches: dict[tuple[int, int], list[tuple[int, Reduction]]] = defaultdict(list)
        for index, cluster in enumerate(bucket.clusters):
            if cluster.reason is None:
                for name in sorted(cluster.reductions):
                    reduction = cluster.reductions[name]
                    batches[self._levels[name], reduction.wire_type].append((index, reduction))
        for level, dtype in sorted(batches):
            batch = batches[level, dtype]
            sent = [self._send(bucket, i, ranges[i], summed[i], one) for i, one in batch]
            name = f"{bucket.node}/{SCOPE}_reduce_{level}_{dtype}"
            totals = self._all_reduce(bucket, name, sent, dtype)
            for (_, reduction), total in zip(batch, totals, strict=True):
                self._finish(reduction, total)

    def _send(
        self, bucket: Bucket, index: int, own: Range, summed: Range, reduction: Reduction
    ) -> str:
        """Return what this replica's elements add to a reduction, each of one replica alone."""
        builder, old = self._builder, self._view.nodes[reduction.node]
        scope = f"{reduction.node}/{SCOPE}"
        tensor = data_inputs(old)[0]
        range_ = window(own, bucket.clusters[index].size)
        tensor = self._builder.own(scope, tensor, reduction.dtype, summed, range_, old.device)
        part = reduce_shards.own_part(builder, scope, reduction, tensor, summed, old.device)
        return reduce_shards.placed(builder, scope, reduction, part, self._place, old.device)

    def _finish(self, reduction: Reduction, total: str) -> None:
        """Replace a reduction by an identity of the all-reduced result."""
        old, node = self._view.nodes[reduction.node], self._builder.nodes[reduction.node]
        scope = f"{reduction.node}/{SCOPE}"
        total = reduce_shards.finished(self._builder, scope, reduction, total, old.device)
        node.Clear()
        node.name, node.op, node.device = old.name, "Identity", old.device
        node.input.extend([total, *(f"^{before}" for before in control_inputs(old))])
        node.attr["T"].type = reduction.dtype

    def _all_reduce(
        self, bucket: Bucket, name: str, tensors: Sequence[str], dtype: int
    ) -> list[str]:
        """Return the sums of tensors over all replicas, beside the collective of the bucket."""
        whole = bucket.reduce
        node = self._builder.add(name, "", [], whole.device)
        self._collective(node, "TfFuse>AllReduce", whole, tensors)
        node.attr["T"].type = dtype
        # (Other collectives of the bucket have its keys, too.)
        where = "" if bucket.node in self._view.nodes else "branch/"
        node.attr["tag"].s = f"{where}{name.rpartition('/')[2]}".encode()
        return [f"{name}:outputs:{i}" for i in range(len(tensors))]

    def _bring_early(
        self,
        bucket: Bucket,
        ranges: Sequence[Range],
        summed: Sequence[Range],
        indices: Sequence[int],
    ) -> None:
        """Bring whole gradients before the new weights: zeros but for what is a replica's own."""
        if not indices:
            return
        whole = bucket.reduce
        dtype = whole.attr["T"].type
        shards = []
        for index in indices:
            begin, end = summed[index]
            around = (begin, bucket.clusters[index].size - end)
            # Adding it changes nothing, not even the sign of a zero.
            zero = -0.0 if dtype in _FLOATS else 0
            name, shard = f"{scope_of(bucket, index)}/whole", f"{bucket.node}:shards:{index}"
            shard = self._builder.own(
                name, shard, dtype, summed[index], ranges[index], whole.device
            )
            shards.append(self._builder.padded(name, shard, dtype, around, 1, zero, whole.device))
        outputs = self._all_reduce(bucket, f"{bucket.node}/{SCOPE}_early", shards, dtype)
        for index, output in zip(indices, outputs, strict=True):
            self._builder.replace(bucket.clusters[index].root, output)

    # --- Gathers ---------------------------------------------------------------------------------

    def _gather_last(
        self, bucket: Bucket, shards: Mapping[int, str], everyone: Sequence[Sequence[Range]]
    ) -> dict[int, str]:
        """Gather after the update; return the whole tensors."""
        if not shards:
            return {}
        name = f"{bucket.node}/{SCOPE}_gather"
        outputs = self._gather(bucket, name, shards, everyone)
        # A replica that has the new weights knows that all others have written their slots.
        node = self._builder.nodes[name]
        node.input.extend(f"^{written}" for written in bucket.written)
        return outputs

    def _gather_first(self, bucket: Bucket, everyone: Sequence[Sequence[Range]]) -> set[int]:
        """Redirect reads in front of the update to gathers of the weights' shards.

        Returns:
          The indices of the clusters whose weights these are.
        """
        first, own, before = bucket.batches, everyone[self._place.rank], ""
        for number, (dtype, indices) in enumerate(first):
            name = f"{bucket.node}/{SCOPE}_first_{number}"
            shards = {index: self._old_shard(bucket, index, own[index]) for index in indices}
            outputs = self._gather(bucket, name, shards, everyone, dtype)
            node = self._builder.nodes[name]
            free_group(self._builder, node)
            node.attr["tag"].s = name.rpartition("/")[2].encode()
            if before:
                node.input.append(f"^{before}")
            before = name
            # Nobody is in the next step's gather before all have what they wanted of this one's.
            self._builder.nodes[bucket.node].input.append(f"^{name}")
            for index, output in outputs.items():
                cluster = bucket.clusters[index]
                hand_out(self._builder, cluster, output)
                # What others may read between steps changes when all are in the next one.
                sink = self._builder.nodes[cluster.chain[0]]
                sink.input.append(f"^{bucket.node}")
        return {index for _, indices in first for index in indices}

    def _old_shard(self, bucket: Bucket, index: int, own: Range) -> str:
        """Return this replica's shard of a weight before the update, of the type that travels."""
        cluster, scope = bucket.clusters[index], f"{scope_of(bucket, index)}/first"
        shard = self._slicer.read_shard(f"{scope}/part", cluster)
        dtype, device = bucket.reduce.attr["T"].type, self._builder.nodes[cluster.chain[0]].device
        shard = self._builder.own(scope, shard, dtype, own, window(own, cluster.size), device)
        if not cluster.gather.dtype:
            return shard
        cast = self._builder.add(
            f"{scope}/narrow", "Cast", [shard], device, SrcT=dtype, DstT=cluster.gather.dtype
        )
        return f"{cast.name}:y:0"

    def _gather(
        self,
        bucket: Bucket,
        name: str,
        shards: Mapping[int, str],
        everyone: Sequence[Sequence[Range]],
        dtype: int = 0,
    ) -> dict[int, str]:
        """Gather shards of a bucket's weights or gradients.

        Args:
          bucket: that they are of.
          name: of the node.
          shards: this replica's, by index of the cluster.
          everyone: of each replica, its elements of each of the clusters' tensors.
          dtype: number of their type; 0: the bucket's.
        """
        whole, shapes = bucket.reduce, []
        for index in shards:
            cluster = bucket.clusters[index]
            is_weight = cluster.reason is None and cluster.weights
            shapes.append(self._builder.shape(cluster.weights[0]) if is_weight else (cluster.size,))
        wanted = [
            self._builder.constant(f"{name}/shape_{i}", list(shape), whole.device)
            for i, shape in enumerate(shapes)
        ]
        node = self._builder.add(name, "", [], whole.device)
        self._collective(node, "TfFuse>AllGather", whole, [*shards.values(), *wanted])
        node.attr["N"].i = len(shards)
        node.attr["T"].type = dtype or whole.attr["T"].type
        if dtype or len(shards) < len(bucket.clusters):
            # They are sharded where the bucket is, but only some are there, or they are of another
            # type.
            node.attr["packed"].b = False
            for index in shards:
                bounds = bounds_of(everyone, index, bucket.clusters[index].size)
                node.attr["bounds"].list.i.extend(bounds)
        return {index: f"{name}:outputs:{i}" for i, index in enumerate(shards)}

    def _collective(self, node: Any, op: str, whole: Any, inputs: Sequence[str]) -> None:
        """Make a node a collective of the group of an all-reduce."""
        node.op, node.device = op, whole.device
        node.input.extend([*inputs, *data_inputs(whole)[1:4]])
        node.attr["T"].type = whole.attr["T"].type
        node.attr["N"].i = len(inputs)
        node.attr["packed"].b = True
        if self._place.groups > 1 and op != "TfFuse>AllReduce":
            node.attr["groups"].i = self._place.groups
        node.attr["rank"].i = self._place.rank
        node.attr["timeout_seconds"].f = whole.attr["timeout_seconds"].f
