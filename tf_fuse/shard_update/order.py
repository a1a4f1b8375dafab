# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Who waits for whom in a function, by tensors and by control edges."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from tf_fuse.shard_update.graph_view import READS, GraphView, control_inputs, data_inputs
from tf_fuse.shard_update.ops import RESOURCE_APPLY


class Order:
    """The order of a function's nodes."""

    def __init__(self, view: GraphView):
        """Takes a view that has no cycle.

        Raises:
          ValueError: it has one.
        """
        self._view = view
        self._positions = {node.name: i for i, node in enumerate(view.in_order())}

    @cached_property
    def reads(self) -> dict[str, list[str]]:
        """By variable, the nodes that read it."""
        found: dict[str, list[str]] = {}
        for node in self._view.nodes.values():
            variables = [str(self._view.variable_of(node))] if node.op in READS else []
            if node.op in RESOURCE_APPLY:
                variables = self._view.assigned(node)
            for variable in variables:
                found.setdefault(variable, []).append(node.name)
        return found

    def behind(self, name: str, among: Iterable[str]) -> set[str]:
        """Those of some nodes that run after a node."""
        wanted = set(among)
        # Who comes later than all of them cannot lead to one.
        last = max((self._positions[one] for one in wanted), default=-1)
        found: set[str] = set()
        waiting = [name]
        while waiting:
            node = self._view.nodes[waiting.pop()]
            following = self._view.followers(node.name) + [
                use.node for tensor in self._view.outputs(node) for use in self._view.uses(tensor)
            ]
            for one in following:
                if one not in found and self._positions[one] <= last:
                    found.add(one)
                    waiting.append(one)
        return found & wanted

    def chain(self, names: Iterable[str]) -> list[str] | None:
        """Nodes in the order in which they always run; None if there is none for some of them."""
        ordered = sorted(names, key=self._positions.__getitem__)
        for one, following in itertools.pairwise(ordered):
            if not self.behind(one, [following]):
                return None
        return ordered

    def position(self, name: str) -> int:
        """Where a node is in an order that all edges keep."""
        return self._positions[name]


def before(
    view: GraphView, names: Iterable[str], leads_on: Callable[[str], bool] = lambda name: True
) -> set[str]:
    """Some nodes, and all that they wait for.

    Args:
      view: of the function.
      names: of the nodes.
      leads_on: whether what a node waits for counts; it does itself.
    """
    found: set[str] = set()
    waiting = [name for name in names if name in view.nodes]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        if leads_on(name):
            waiting += [one for one in predecessors(view.nodes[name]) if one in view.nodes]
    return found


def predecessors(node: Any) -> list[str]:
    """The nodes that a node reads or waits for."""
    made = [tensor.partition(":")[0] for tensor in data_inputs(node) if ":" in tensor]
    return made + control_inputs(node)
