# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the shortest path between two layouts by Dijkstra's algorithm."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from typing import NamedTuple

from tf_fuse.layout.relayout.link_rates import GroupLinks
from tf_fuse.layout.relayout.steps import EXCHANGES, RelayoutState, Space, Step, StepSet

# How many spaces are cached: a model has many tensors of one shape.
_KEPT_SPACES = 64


class PathCost(NamedTuple):
    """The cost of a path; fields are compared in this order.

    Attributes:
      seconds: by the links; 0 where none are given.
      received: bytes that all devices together receive.
      messages: of a device, one after the other.
      steps: their number.
      operations: of a device, beside sending.
      touched: bytes that all devices together read and write in these.
    """

    seconds: float
    received: int
    messages: int
    steps: int
    operations: int
    touched: int

    def plus(self, other: PathCost) -> PathCost:
        """Return the cost of both, one after the other."""
        return PathCost(
            self.seconds + other.seconds,
            self.received + other.received,
            self.messages + other.messages,
            self.steps + other.steps,
            self.operations + other.operations,
            self.touched + other.touched,
        )


NOTHING = PathCost(0.0, 0, 0, 0, 0, 0)


class PricedStep(NamedTuple):
    """A step, what it costs, and where it leads."""

    step: Step
    cost: PathCost
    after: RelayoutState


class Router:
    """Find paths in one space.

    It keeps the tree of paths from a layout, so that many paths from few layouts are quick.
    """

    def __init__(self, space: Space, item_bytes: int, links: GroupLinks | None):
        """Take the space and what counts.

        Args:
          space: the layouts and steps.
          item_bytes: of one element.
          links: of the groups; None if bytes count first and messages second.
        """
        self.space = space
        self._item_bytes = item_bytes
        self._links = links
        self._edges: dict[RelayoutState, list[PricedStep]] = {}
        self._trees: dict[RelayoutState, _Tree] = {}

    def cost(self, state: RelayoutState, step: Step) -> PathCost:
        """Return what a step from a state costs."""
        elements, messages = self.space.received(state, step)
        operations, moved = self.space.handling(state, step)
        received, touched = elements * self._item_bytes, moved * self._item_bytes
        seconds = 0.0
        if self._links is not None:
            link = self._links.of(step.axes, step.kind in EXCHANGES)
            devices = math.prod(self.space.sizes)
            awaited = self.space.awaited(state, step) * self._item_bytes
            seconds = link.seconds(awaited / devices, messages, operations, touched / devices)
        return PathCost(seconds, received, messages, 1, operations, touched)

    def edges(self, state: RelayoutState) -> list[PricedStep]:
        """Return all steps from a state."""
        found = self._edges.get(state)
        if found is None:
            found = self._edges[state] = [
                PricedStep(step, self.cost(state, step), after)
                for step, after in self.space.edges(state)
            ]
        return found

    def path(self, source: RelayoutState, target: RelayoutState) -> list[PricedStep] | None:
        """Return the cheapest sequence of steps; None if there is none."""
        tree = self._trees.get(source)
        if tree is None:
            tree = self._trees[source] = _Tree(self, source)
        return tree.path(target)


class _Tree:
    """The cheapest paths from one layout, as far as they were needed."""

    def __init__(self, router: Router, source: RelayoutState):
        self._router = router
        self._best: dict[RelayoutState, PathCost] = {source: NOTHING}
        self._came: dict[RelayoutState, tuple[RelayoutState, PricedStep]] = {}
        self._done: set[RelayoutState] = set()
        # Among equal costs the first one found wins, in a fixed order.
        self._count = itertools.count()
        self._waiting: list[tuple[PathCost, int, RelayoutState]] = [
            (NOTHING, next(self._count), source)
        ]

    def path(self, target: RelayoutState) -> list[PricedStep] | None:
        while target not in self._done:
            if not self._waiting:
                return None
            self._settle_one()
        found = []
        while target in self._came:
            target, edge = self._came[target]
            found.append(edge)
        return found[::-1]

    def _settle_one(self) -> None:
        cost, _, state = heapq.heappop(self._waiting)
        if state in self._done:
            return
        self._done.add(state)
        for edge in self._router.edges(state):
            if edge.after in self._done:
                continue
            through = cost.plus(edge.cost)
            known = self._best.get(edge.after)
            if known is None or through < known:
                self._best[edge.after] = through
                self._came[edge.after] = state, edge
                heapq.heappush(self._waiting, (through, next(self._count), edge.after))


@functools.lru_cache(maxsize=_KEPT_SPACES)
def router(
    sizes: tuple[int, ...],
    shape: tuple[int, ...],
    allowed: StepSet,
    partial: tuple[int, ...],
    item_bytes: int,
    links: GroupLinks | None,
) -> Router:
    """Return a router, the same one for the same arguments."""
    return Router(Space(sizes, shape, allowed, partial), item_bytes, links)
