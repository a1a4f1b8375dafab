# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hash what the nodes of a graph compute, without regard to their names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from tf_fuse.function_graph.view import ASSIGNS, READS, data_inputs

COMMUTATIVE = frozenset({"Add", "AddV2", "Mul"})


class Expressions:
    """Hashes what nodes compute, without regard to their names."""

    def __init__(self, graph: Any):
        """Hash the nodes of a `GraphDef`."""
        self._nodes = {node.name: node for node in graph.node}
        self._known: dict[str, bytes] = {}
        for name in in_order(graph, list(self._nodes), {}):
            self._known[name] = self._make(self._nodes[name])

    def get(self, text: str) -> bytes:
        """Return the expression of an input of a node."""
        return self._known[text.partition(":")[0]]

    def _make(self, node: Any) -> bytes:
        if node.op in READS | ASSIGNS or node.op == "VarHandleOp":
            return str(node.name).encode()
        read = [self.get(text) for text in data_inputs(node)]
        if node.op in COMMUTATIVE:  # (Grappler sorts its inputs by their names.)
            read.sort()
        parts = [str(node.op).encode(), attributes_of(node), *read]
        return hashlib.sha256(repr(parts).encode()).digest()


def in_order(graph: Any, ends: Iterable[str], leaves: Mapping[str, str]) -> list[str]:
    """Return the nodes that some nodes depend on, in topological order.

    Args:
      graph: a `GraphDef`.
      ends: names of the nodes.
      leaves: names of nodes to leave out, together with their inputs.
    """
    nodes = {node.name: node for node in graph.node}
    done: dict[str, None] = {}
    waiting = [(name, False) for name in sorted(ends, reverse=True)]
    while waiting:
        name, is_ready = waiting.pop()
        if name in done or name in leaves:
            continue
        if is_ready:
            done[name] = None
            continue
        waiting.append((name, True))
        before = {text.lstrip("^").partition(":")[0] for text in nodes[name].input}
        waiting.extend((one, False) for one in sorted(before) if one not in done)
    return list(done)


def attributes_of(node: Any) -> bytes:
    """Return the serialized public attributes of a node."""
    from tensorflow.core.framework import node_def_pb2

    copy = node_def_pb2.NodeDef()
    for key in node.attr:
        if not key.startswith("_"):
            copy.attr[key].CopyFrom(node.attr[key])
    return bytes(copy.SerializeToString(deterministic=True))
