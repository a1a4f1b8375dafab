# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Add operations that count updates on servers, for the staleness of gradients.

When a step begins, an operation on the server reads how many updates a variable has had, and passes
the number to the fused update. The updates by others in between are the update's staleness
("Staleness-Aware Async-SGD for Distributed Deep Learning", Zhang et al., 2016). Nothing of it
leaves the server.
"""

from __future__ import annotations

from typing import Any

from tf_fuse.function_graph.view import GraphView
from tf_fuse.fuse_update.analysis.fusion_clusters import FusionCluster

COUNT_OP = "TfFuse>UpdateCount"


def count_of(view: GraphView, cluster: FusionCluster, node: Any) -> Any:
    """Make an operation count its updates; return the node that reads the count.

    Args:
      view: of the original function.
      cluster: the cluster that the operation replaces.
      node: the operation; it has its name, but no control inputs yet.
    """
    from tensorflow.core.framework import node_def_pb2

    handles = list(node.input[: node.attr["N"].i])
    subject = _subject(view, cluster, handles)
    count = node_def_pb2.NodeDef(name=f"{node.name}/begun", op=COUNT_OP, device=cluster.device)
    count.input.append(handles[subject])
    node.input.append(f"{count.name}:count:0")
    node.attr["C"].i = 1
    node.attr["subject"].i = subject
    return count


def _subject(view: GraphView, cluster: FusionCluster, handles: list[str]) -> int:
    """Return the variable to count: one that other nodes read, too, as they read weights."""
    inside = set(cluster.nodes)
    for index, handle in enumerate(handles):
        if any(use.node not in inside for use in view.uses(handle)):
            return index
    return len(handles) - 1
