# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Graphs of sessions: their stamps, and what a rewrite by these finds."""

from tensorflow.core.framework import graph_pb2

from tests.unit.passes.pass_testing import PS0, W0, source, trace, use
from tf_fuse.v1 import receive_stamp_pb2

STAMP = "_tf_fuse_stamp"


def found(result):
    """Groups with the nodes they replace, and what was left with its reason; depth included."""
    groups = sorted(
        (g.send_device, g.recv_device, g.depth, [(s.recv_node, s.may_be_dead) for s in g.slots])
        for g in result.report.groups
    )
    return groups, sorted((s.reason, s.slot.recv_node) for s in result.report.skips)


def stamp_of(n):
    return receive_stamp_pb2.ReceiveStamp.FromString(n.attr[STAMP].s)


def stamped_nodes(graphs):
    """All nodes with a stamp, by name."""
    return {n.name: n for graph in graphs.values() for n in graph.node if STAMP in n.attr}


def copy(graphs):
    return {
        name: graph_pb2.GraphDef.FromString(g.SerializeToString()) for name, g in graphs.items()
    }


def two_reads():
    return trace(lambda: use(W0, "x", source(PS0, "a"), source(PS0, "b")))


def changed(stamp, **fields):
    for name, value in fields.items():
        setattr(stamp.inputs[0], name, value)
    return stamp.SerializeToString()
