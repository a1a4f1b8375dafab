# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Put a traced step on tasks that need not exist, as TensorFlow does when the function first runs.

TensorFlow places the graph, runs Grappler on it, and partitions it. This does the same, offline.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tf_fuse import explain
from tf_fuse.scale.errors import ScaleError

# Grappler removes the first of these attributes, and keeps the second.
_SHAPES, _KEPT_SHAPES = "_output_shapes", "_tf_fuse_output_shapes"
_WORKER = "/job:worker/replica:0/task:0/device:CPU:0"
_SERVER = re.compile(r"/job:ps/replica:0/task:(\d+)")
# Operations that change something, so Grappler must keep them though nothing reads a result.
_CHANGES = ("Assign", "ResourceScatter", "ResourceApply", "ResourceSparseApply", "ResourceStrided")


def server_device(server: int) -> str:
    """Return the device of a server."""
    return f"/job:ps/replica:0/task:{server}/device:CPU:0"


def place(
    graph: Any,
    servers_of: Mapping[str, int],
    servers: Sequence[int],
    one_host: bool = False,
    fuse_operations: bool = True,
) -> Any:
    """Put the variables of a graph on servers, optimize and partition it, and run the pass.

    Args:
      graph: the `GraphDef` of a step, from `tf_fuse.explain.placed_graph`.
      servers_of: number of the server of each variable's handle, by the name of its node.
      servers: number of the server of each variable, whose device the graph has by the variable's
        number.
      one_host: whether all tasks are on one host.
      fuse_operations: whether operations of a server, such as lookups, become one.

    Returns:
      The `tf_fuse.explain.Rewrite`.

    Raises:
      ScaleError: TensorFlow cannot place or partition the graph.
    """
    placed = type(graph)()
    placed.CopyFrom(graph)
    for nodes in (placed.node, *(function.node_def for function in placed.library.function)):
        for node in nodes:
            if found := _SERVER.match(node.device):
                node.device = server_device(servers[int(found[1])])
            elif node.device.startswith("/job:localhost"):
                node.device = ""
    for node in placed.node:
        if node.name in servers_of:
            node.device = server_device(servers_of[node.name])
    try:
        first = explain.rewrite(placed, default_device=_WORKER)
        optimized = _optimized(placed, first)
        tasks = {device.rpartition("/device:")[0] for device in first.before}
        return explain.rewrite(
            optimized,
            default_device=_WORKER,
            splitting="cost",
            addresses=dict.fromkeys(tasks, "localhost:1") if one_host else None,
            fuse_operations=fuse_operations,
        )
    except ValueError as error:
        raise ScaleError(f"TensorFlow cannot partition the step: {error}") from error


def _optimized(graph: Any, rewrite: Any) -> Any:
    """Run Grappler on a graph whose nodes have the devices that TensorFlow's placer found."""
    from tensorflow.core.protobuf import (
        config_pb2,
        device_properties_pb2,
        meta_graph_pb2,
        rewriter_config_pb2,
    )
    from tensorflow.python.grappler import cluster, tf_optimizer

    devices: dict[str, str] = {}
    for device, partition in rewrite.before.items():
        for node in partition.node:
            devices.setdefault(node.name, device)
    meta = meta_graph_pb2.MetaGraphDef()
    meta.graph_def.CopyFrom(graph)
    kept = []
    for node in meta.graph_def.node:
        node.device = devices.get(node.name, node.device)
        node.attr[_KEPT_SHAPES].CopyFrom(node.attr[_SHAPES])
        if node.op == "_Retval" or node.op.startswith(_CHANGES):
            kept.append(node.name)
    for function in meta.graph_def.library.function:
        for node in function.node_def:
            node.attr[_KEPT_SHAPES].CopyFrom(node.attr[_SHAPES])
    meta.collection_def["train_op"].node_list.value.extend(kept)
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.min_graph_nodes = -1
    options.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.TWO
    machine = cluster.Cluster(
        devices=[
            device_properties_pb2.NamedDevice(
                name=device,
                properties=device_properties_pb2.DeviceProperties(
                    type="CPU", num_cores=1, frequency=1000
                ),
            )
            for device in rewrite.before
        ]
    )
    try:
        optimized = tf_optimizer.OptimizeGraph(config, meta, verbose=False, cluster=machine)
    finally:
        machine.Shutdown()
    for nodes in (
        optimized.node,
        *(function.node_def for function in optimized.library.function),
    ):
        for node in nodes:
            if _KEPT_SHAPES in node.attr:
                node.attr[_SHAPES].CopyFrom(node.attr[_KEPT_SHAPES])
                del node.attr[_KEPT_SHAPES]
    return optimized
