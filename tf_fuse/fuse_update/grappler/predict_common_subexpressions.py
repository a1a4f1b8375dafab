# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find nodes that Grappler merges as common subexpressions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tf_fuse.function_graph.operations import ELEMENTWISE
from tf_fuse.function_graph.view import GraphView, data_inputs
from tf_fuse.fuse_update.analysis.grappler_inputs import live, same_as
from tf_fuse.fuse_update.grappler.expression_hashes import attributes_of


class CommonSubexpressions:
    """Finds nodes of a function that compute the same, which Grappler merges."""

    def __init__(self, view: GraphView, is_inner: bool):
        """Store the function; `equal_to` analyzes it at its first call.

        Args:
          view: of the function.
          is_inner: whether another function calls it, so that its results may be unused.
        """
        self._view = view
        self.is_inner = is_inner
        #: Names of nodes that TensorFlow does not prune.
        self.sure = live(view, with_results=not is_inner)
        self._keys: dict[str, object] = {}
        self._numbers: dict[object, int] = {}
        self._groups: dict[object, list[str]] = {}
        self._results = set(view.results)
        self._users: dict[tuple[object, bool], frozenset[str]] = {}
        self._are_results: dict[object, bool] = {}

    def equal_to(self, name: str) -> list[str]:
        """Return the names of a node and of those that compute the same."""
        if not self._groups:
            found = defaultdict(list)
            for node in self._view.in_order():
                self._keys[node.name] = key = self._key(node)
                found[key].append(node.name)
            self._groups = dict(found)
        return self._groups[self._keys[name]]

    def users(self, name: str, through: bool) -> frozenset[str]:
        """Return the names of the nodes that read a node or one that computes the same.

        Args:
          name: of the node.
          through: whether those count that read a tensor from an IdentityN, not the IdentityN.
        """
        same = self.equal_to(name)
        # (Each variable may have such a node: to find the readers of all for each is quadratic.)
        at = self._keys[name], through
        if at not in self._users:
            tensors = (t for one in same for t in self._view.outputs(self._view.nodes[one]))
            self._users[at] = frozenset(u for t in tensors for u in self._users_of(t, through))
        return self._users[at]

    def is_result(self, name: str) -> bool:
        """Return whether the function returns what a node computes."""
        same = self.equal_to(name)
        key = self._keys[name]
        if key not in self._are_results:
            tensors = (t for one in same for t in self._view.outputs(self._view.nodes[one]))
            self._are_results[key] = not self._results.isdisjoint(tensors)
        return self._are_results[key]

    def _users_of(self, tensor: str, through: bool) -> Iterator[str]:
        for use in self._view.uses(tensor):
            if through and self._view.nodes[use.node].op == "IdentityN":
                yield from self._users_of(f"{use.node}:output:{use.index}", through)
            else:
                yield use.node

    def _key(self, node: Any) -> object:
        if node.op not in ELEMENTWISE and node.op != "Const":
            return node.name
        read = [self._key_of(tensor) for tensor in data_inputs(node)]
        if self._view.op_def(node.op).is_commutative:
            read.sort(key=repr)
        key = (node.op, attributes_of(node), tuple(read), self._view.device_of(node))
        # (Keys are numbered, since nested keys would grow as long as the function.)
        return self._numbers.setdefault(key, len(self._numbers))

    def _key_of(self, tensor: str) -> tuple[object, str]:
        tensor = same_as(self._view, tensor)
        name, _, output = tensor.partition(":")
        return self._keys.get(name, name), output
