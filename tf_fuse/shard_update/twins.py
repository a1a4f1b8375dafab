# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Nodes that are one node for Grappler, which looks for common subexpressions first."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tf_fuse.shard_update.expressions import attributes_of
from tf_fuse.shard_update.graph_view import GraphView, data_inputs
from tf_fuse.shard_update.ops import ELEMENTWISE
from tf_fuse.shard_update.origins import live, same_as


class Twins:
    """Finds nodes of a function that are one node for Grappler: they compute the same."""

    def __init__(self, view: GraphView, is_inner: bool):
        """Takes the function; it is looked at when first asked.

        Args:
          view: of the function.
          is_inner: whether a function calls it, so that no one may read what it returns.
        """
        self._view = view
        self.is_inner = is_inner
        #: Names of nodes that are there for sure.
        self.sure = live(view, with_results=not is_inner)
        self._keys: dict[str, object] = {}
        self._numbers: dict[object, int] = {}
        self._twins: dict[object, list[str]] = {}

    def of(self, name: str) -> list[str]:
        """The names of a node and of its twins."""
        if not self._twins:
            found = defaultdict(list)
            for node in self._view.in_order():
                self._keys[node.name] = key = self._key(node)
                found[key].append(node.name)
            self._twins = dict(found)
        return self._twins[self._keys[name]]

    def _key(self, node: Any) -> object:
        if node.op not in ELEMENTWISE and node.op != "Const":
            return node.name
        read = [self._key_of(tensor) for tensor in data_inputs(node)]
        if self._view.op_def(node.op).is_commutative:
            read.sort(key=repr)
        key = (node.op, attributes_of(node), tuple(read), self._view.place_of(node))
        # (Numbers, since a key of keys would be as long as the function.)
        return self._numbers.setdefault(key, len(self._numbers))

    def _key_of(self, tensor: str) -> tuple[object, str]:
        tensor = same_as(self._view, tensor)
        name, _, output = tensor.partition(":")
        return self._keys.get(name, name), output
