# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Order the nodes of a function by data and control edges."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from tf_fuse.function_graph.operations import RESOURCE_APPLY
from tf_fuse.function_graph.view import READS, GraphView, control_inputs, data_inputs


class Order:
    """The order of a function's nodes."""

    def __init__(self, view: GraphView):
        """Give each node of a view a number.

        Raises:
          ValueError: the view has a cycle.
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
        """Return the nodes of `among` that run after `name`."""
        wanted = set(among)
        # A node after the last of them cannot lead to one.
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
        """Return nodes in the order in which they always run, or None if it is not fixed."""
        ordered = sorted(names, key=self._positions.__getitem__)
        for one, following in itertools.pairwise(ordered):
            if not self.behind(one, [following]):
                return None
        return ordered

    def position(self, name: str) -> int:
        """Return the position of a node in a topological order."""
        return self._positions[name]


def before(
    view: GraphView, names: Iterable[str], leads_on: Callable[[str], bool] = lambda name: True
) -> set[str]:
    """Return some nodes and all nodes that they depend on.

    Args:
      view: of the function.
      names: of the nodes.
      leads_on: whether to follow the inputs of a node; the node itself always counts.
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
    """Return the nodes that a node reads or waits for."""
    made = [tensor.partition(":")[0] for tensor in data_inputs(node) if ":" in tensor]
    return made + control_inputs(node)
