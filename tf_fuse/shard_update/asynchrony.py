# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How updates on servers are counted, and how old the values are that their gradients are of.

When a step begins on a server, an operation there tells how many updates a variable has had; the
update is given that number, and what others have done meanwhile is its staleness ("Staleness-Aware
Async-SGD for Distributed Deep Learning", Zhang et al., 2016). Nothing of it leaves the server.
"""

from __future__ import annotations

from typing import Any

from tf_fuse.shard_update.cones import Cone
from tf_fuse.shard_update.graph_view import GraphView

COUNT_OP = "TfFuse>UpdateCount"


def count_of(view: GraphView, cone: Cone, node: Any) -> Any:
    """Has an operation's updates counted; returns the node that tells how many there were.

    Args:
      view: of the function as it was.
      cone: what the operation does.
      node: the operation, which has its name, and no control inputs yet.
    """
    from tensorflow.core.framework import node_def_pb2

    handles = list(node.input[: node.attr["N"].i])
    subject = _subject(view, cone, handles)
    count = node_def_pb2.NodeDef(name=f"{node.name}/begun", op=COUNT_OP, device=cone.device)
    count.input.append(handles[subject])
    node.input.append(f"{count.name}:count:0")
    node.attr["C"].i = 1
    node.attr["subject"].i = subject
    return count


def _subject(view: GraphView, cone: Cone, handles: list[str]) -> int:
    """Which variable stands for all: one that something else reads, too, as it does weights."""
    inside = set(cone.nodes)
    for index, handle in enumerate(handles):
        if any(use.node not in inside for use in view.uses(handle)):
            return index
    return len(handles) - 1
