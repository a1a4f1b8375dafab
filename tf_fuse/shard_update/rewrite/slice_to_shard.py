# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Emit slices, so that the nodes of a cluster compute this replica's window of each tensor.

The nodes stay, with the same names. Slots are read from and assigned to variables that have no more
elements than the window.
"""

from __future__ import annotations

import math
from typing import Any

from tf_fuse.function_graph.builder import Builder, Range, Shape
from tf_fuse.function_graph.operations import RESOURCE_APPLY, SAME_ELEMENTS, type_of
from tf_fuse.function_graph.view import READS, control_inputs, data_inputs
from tf_fuse.shard_update.plan import SCOPE, Bucket, UpdateCluster
from tf_fuse.sharded_variable.shard_spec import ShardSpec, window


class ShardSlicer:
    """Slices clusters of a function.

    Attributes:
      slots: variables that have shards from now on.
    """

    def __init__(self, builder: Builder, prefix: str, first: int):
        """Take the function.

        Args:
          builder: of the copy that is changed.
          prefix: of the shared names of the shards.
          first: number of the first shard.
        """
        self._builder, self._prefix, self._first = builder, prefix, first
        self.shards: list[ShardSpec] = []
        # By variable that has a shard, the handle of that.
        self._handles: dict[str, str] = {}

    def slice(self, bucket: Bucket, index: int, own: Range) -> None:
        """Make the nodes of a cluster compute this replica's window."""
        cluster, scope = bucket.clusters[index], scope_of(bucket, index)
        whole = bucket.reduce
        shard = f"{bucket.node}:shards:{index}"
        range_ = window(own, cluster.size)
        dtype = whole.attr["T"].type
        if cluster.root in self._builder.view.arguments:
            shard = cluster.root  # A branch gets the window.
        else:
            # Zeros are around what is this replica's.
            around = (own[0] - range_[0], range_[1] - own[1])
            shard = self._builder.padded(
                f"{scope}/window", shard, dtype, around, 1, 0, whole.device
            )
        # Grappler reorders products by what it knows of their shapes.
        sized = self._builder.sized(f"{scope}/sized", shard, dtype, range_, whole.device)
        self._builder.replace(cluster.root, sized)
        self._slice_nodes(scope, cluster, range_, own)

    def read_shard(self, name: str, cluster: UpdateCluster) -> str:
        """Return the window of a weight that has a shard, as it is before the update."""
        if name not in self._builder.nodes:
            sink = self._builder.nodes[cluster.chain[0]]
            handle = self._handles[cluster.weights[0]]
            self._builder.add(name, "ReadVariableOp", [handle], sink.device, dtype=type_of(sink))
            sink.input.append(f"^{name}")
        return f"{name}:value:0"

    def _slice_nodes(self, scope: str, cluster: UpdateCluster, range_: Range, own: Range) -> None:
        for variable in cluster.held:
            self._hold(variable, range_, own, variable in cluster.weights)
        slices: dict[tuple[str, Shape], str] = {}
        for name in sorted(cluster.nodes):
            self._slice_node(scope, cluster, name, range_, slices)
        for name in sorted(cluster.sinks):
            old, node = self._builder.view.nodes[name], self._builder.nodes[name]
            if node.op not in RESOURCE_APPLY and self._is_whole(cluster, node, old, 1):
                shape = self._builder.shape(old.input[1])
                node.input[1] = self._slice_input(
                    scope, cluster, old.input[1], shape, range_, slices
                )

    def _slice_node(
        self, scope: str, cluster: UpdateCluster, name: str, range_: Range, slices: dict[Any, str]
    ) -> None:
        old, node = self._builder.view.nodes[name], self._builder.nodes[name]
        node.attr.pop("_output_shapes", None)
        if node.op in SAME_ELEMENTS:
            if self._is_whole(cluster, node, old, 0):
                shape = self._builder.shape(old.input[0])
                node.input[0] = self._slice_input(
                    scope, cluster, old.input[0], shape, range_, slices
                )
            _make_identity(node)
            if data_inputs(old)[0] == cluster.root:
                # Grappler would drop an identity, and then see another name: it has products of
                # tensors of the same size in an order that depends on their names.
                _make_sized(node, range_)
        else:
            shape = self._builder.shape(self._builder.view.outputs(old)[0])
            for position, tensor in enumerate(data_inputs(old)):
                if self._is_whole(cluster, node, old, position):
                    new = self._slice_input(scope, cluster, tensor, shape, range_, slices)
                    node.input[position] = new

    def _is_whole(self, cluster: UpdateCluster, node: Any, old: Any, position: int) -> bool:
        """Return whether a node's input is a whole tensor: neither in the cluster nor replaced."""
        tensor = old.input[position]
        return tensor not in cluster.members and node.input[position] == self._builder.now(tensor)

    def _slice_input(
        self,
        scope: str,
        cluster: UpdateCluster,
        tensor: str,
        shape: Shape,
        range_: Range,
        slices: dict[Any, str],
    ) -> str:
        """Return the window of a tensor, broadcast to a shape; a scalar for one element."""
        if tensor in cluster.members:
            return tensor
        if tensor in {f"{read}:value:0" for read in cluster.gather.reads or ()}:
            return self.read_shard(f"{scope}/held", cluster)
        builder = self._builder
        its = builder.shape(tensor)
        size = math.prod(its)
        if its == () and shape != ():
            return tensor  # Grappler must see a scalar where there was one.
        key = (tensor, shape if size != cluster.size else ())
        if key not in slices:
            here, device = f"{scope}/{len(slices)}", builder.device(tensor)
            if size == cluster.size:
                new = builder.part(here, tensor, builder.dtype(tensor), range_, device)
            elif size == 1:
                new = builder.reshape(here, tensor, builder.dtype(tensor), [], device)
            else:
                new = builder.broadcast_part(here, tensor, shape, range_, device)
            slices[key] = new
        return slices[key]

    def _hold(self, variable: str, range_: Range, own: Range, is_weight: bool) -> None:
        """Redirect reads and assignments of a variable to the variable of this replica's shard."""
        users = self._builder.view.users(variable)
        user = next((node for node in users if node.op in READS), users[0])
        dtype = type_of(user)
        name = f"{self._prefix}{self._first + len(self.shards)}"
        shape = self._builder.shape(variable)
        shard = ShardSpec(variable, name, *range_, own, shape, dtype, is_weight=is_weight)
        self.shards.append(shard)
        handle = self._builder.variable(
            f"{SCOPE}/{variable}", shard.shared_name, range_, dtype, user.device
        )
        self._handles[variable] = handle
        for user in users:
            node = self._builder.nodes[user.name]
            node.attr.pop("_output_shapes", None)
            for position, tensor in enumerate(data_inputs(node)):
                if self._builder.view.resource(tensor) == variable:
                    node.input[position] = handle


def scope_of(bucket: Bucket, index: int) -> str:
    """Beginning of the names of what is added for a cluster."""
    return f"{bucket.node}/{SCOPE}_{index}"


def _make_identity(node: Any) -> None:
    kept = [node.input[0], *(f"^{before}" for before in control_inputs(node))]
    del node.input[:]
    node.input.extend(kept)
    dtype = node.attr["T"].type
    node.attr.clear()
    node.op = "Identity"
    node.attr["T"].type = dtype


def _make_sized(node: Any, range_: Range) -> None:
    """Replace an identity by `EnsureShape` with the number of elements."""
    node.op = "EnsureShape"
    node.attr["shape"].shape.dim.add(size=range_[1] - range_[0])
