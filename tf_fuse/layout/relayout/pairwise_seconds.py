# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compute the seconds of the cheapest relayouts between many layouts at once.

A search needs the seconds of every possible relayout, but the steps of few. The possible steps
depend on a shape only by the divisors of its sizes, and the bytes of a step grow with the number of
elements. So all shapes with the same divisors share one graph of layouts, in arrays. For a tensor,
its edges get their seconds, and Bellman's and Ford's method finds the least sums from many layouts
at once. Sums start at the source, as a plan's do, so the seconds are those of `plan_relayout` to
the last bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import astuple
from typing import NamedTuple

import numpy as np

from tf_fuse.layout.relayout.factor_dimensions import cut
from tf_fuse.layout.relayout.link_rates import GroupLinks, Links, of_mesh
from tf_fuse.layout.relayout.redistribution import default_steps, state_of
from tf_fuse.layout.relayout.steps import EXCHANGES, MASK, PAD, RelayoutState, Space, StepSet
from tf_fuse.layout.types.tensor_layout import TensorLayout

_KEPT = 256
# How many tensors' results each net keeps.
_KEPT_SIZES = 32
_KEPT_PAIRS = 1 << 17
# Numbers of an array that are worked on at once, so that it stays in a processor's cache.
_AT_ONCE = 1 << 20


def relayout_seconds(
    sources: Sequence[TensorLayout],
    targets: Sequence[TensorLayout],
    item_bytes: int,
    links: Links,
    allowed: StepSet | None = None,
) -> np.ndarray:
    """Return the seconds of the cheapest relayouts from some layouts of a tensor to others.

    Args:
      sources: of one shape, on one mesh.
      targets: of the same shape and mesh.
      item_bytes: of one element.
      links: as of `plan_relayout`.
      allowed: as of `plan_relayout`.

    Returns:
      [sources, targets] seconds; infinite where no sequence of allowed steps leads there.
    """
    found = np.zeros((len(sources), len(targets)))
    if not found.size:
        return found
    mesh, shape = sources[0].mesh, sources[0].shape
    steps = allowed or default_steps(mesh)
    of_groups = of_mesh(mesh, links)
    elements = math.prod(shape)
    # Only the common divisors matter: a dimension may be cut into factors, each split by some axes.
    alike = tuple(math.gcd(size, mesh.size**2) for size in shape)
    first, last = (tuple(map(_state, side)) for side in (sources, targets))
    for net, partial, (i, j, a, b) in _pairs(mesh.shape, alike, first, last, steps):
        rows, number = np.unique(a, return_inverse=True)
        best = net.seconds(rows.tolist(), partial, elements * item_bytes, of_groups)
        found[i, j] = best[number.ravel(), b]
    return found


_state = functools.lru_cache(maxsize=_KEPT_PAIRS)(state_of)


# Axes of groups, and whether their devices make an all-to-all.
_Group = tuple[tuple[int, ...], bool]


class _StepArrays(NamedTuple):
    """The steps between layouts, as arrays, sorted by where they lead.

    Attributes:
      begin: number of the layout that a step is from.
      ends: numbers of the layouts that steps lead to, each once.
      starts: for each of them where its steps begin.
      received: elements that all devices receive in a step.
      messages: of a device.
      operations: of a device, beside sending.
      touched: elements that all devices read and write in these.
      group: number of a step's groups.
      makes: the axis over which a step makes the tensor partial; -1 if over none.
      groups: (axes, whether it is an all-to-all) of steps' groups, by number.
    """

    begin: np.ndarray
    ends: np.ndarray
    starts: np.ndarray
    received: np.ndarray
    messages: np.ndarray
    operations: np.ndarray
    touched: np.ndarray
    group: np.ndarray
    makes: np.ndarray
    groups: tuple[_Group, ...]


class _Net:
    """All layouts of the tensors of shapes that are divided alike, and the steps between them."""

    def __init__(self, space: Space):
        self._space = space
        self._elements = math.prod(space.shape)
        self._number: dict[RelayoutState, int] = {}
        # From where, to where, elements, messages, operations, elements touched, axis that becomes
        # partial, groups.
        self._steps: list[tuple[int, int, int, int, int, int, int, _Group]] = []
        self._edges: _StepArrays | None = None
        # Caches of edges' seconds and of least sums, by what they depend on.
        self._known: dict[tuple, tuple[np.ndarray, dict[int, np.ndarray]]] = {}

    def number(self, state: RelayoutState) -> int:
        """Return the number of a layout; add it and all that it reaches."""
        found = self._number.get(state)
        if found is None:
            found = self._number[state] = len(self._number)
            self._explore(state)
        return found

    def _explore(self, state: RelayoutState) -> None:
        self._edges = None
        self._known.clear()
        waiting = [state]
        while waiting:
            before = waiting.pop()
            for step, after in self._space.edges(before):
                if after not in self._number:
                    self._number[after] = len(self._number)
                    waiting.append(after)
                received = self._space.awaited(before, step), self._space.received(before, step)[1]
                handling = self._space.handling(before, step)
                makes = step.axes[0] if step.kind in (MASK, PAD) else -1
                ends = self._number[before], self._number[after]
                group = step.axes, step.kind in EXCHANGES
                self._steps.append((*ends, *received, *handling, makes, group))

    def seconds(
        self, sources: Sequence[int], partial: tuple[int, ...], whole_bytes: int, links: GroupLinks
    ) -> np.ndarray:
        """Return the least seconds from some layouts to all.

        Args:
          sources: their numbers.
          partial: axes over which a tensor may become partial on the way, if not over any.
          whole_bytes: of the tensor.
          links: of the groups.

        Returns:
          [sources, layouts].
        """
        edges = self._edges = self._edges or self._sorted()
        if self._space.allowed.any_partial:
            partial = tuple(range(len(self._space.sizes)))
        key = partial, whole_bytes, links
        if key not in self._known:
            if len(self._known) == _KEPT_SIZES:
                self._known.clear()
            self._known[key] = self._weights(edges, *key), {}
        weights, rows = self._known[key]
        missing = [one for one in sources if one not in rows]
        many = max(1, _AT_ONCE // max(1, len(weights)))
        for at in range(0, len(missing), many):
            some = missing[at : at + many]
            rows.update(zip(some, self._least(edges, weights, some), strict=True))
        return np.array([rows[one] for one in sources])

    def _sorted(self) -> _StepArrays:
        steps = sorted(self._steps, key=lambda one: one[1])
        groups = {group: i for i, group in enumerate(dict.fromkeys(one[-1] for one in steps))}
        rows = [(*numbers, groups[group]) for *numbers, group in steps]
        columns = np.array(rows, np.int64).reshape(-1, 8).T
        begin, end, received, messages, operations, touched, makes, group = columns
        ends, starts = np.unique(end, return_index=True)
        return _StepArrays(
            begin, ends, starts, received, messages, operations, touched, group, makes,
            tuple(groups),
        )  # fmt: skip

    def _weights(
        self, edges: _StepArrays, partial: tuple[int, ...], whole_bytes: int, links: GroupLinks
    ) -> np.ndarray:
        """Return the seconds of each step, as `Router.cost` does; infinite if not allowed."""
        slow = [astuple(links.of(*group)) for group in edges.groups]
        message, byte, operation, touched = np.reshape(slow, (-1, 4)).T
        item_bytes, devices = whole_bytes // self._elements, math.prod(self._space.sizes)
        found = (
            message[edges.group] * edges.messages
            + byte[edges.group] * (edges.received * item_bytes / devices)
            + operation[edges.group] * edges.operations
            + touched[edges.group] * (edges.touched * item_bytes / devices)
        )
        return np.where(np.isin(edges.makes, [-1, *partial]), found, np.inf)

    def _least(self, edges: _StepArrays, weights: np.ndarray, sources: Sequence[int]) -> np.ndarray:
        best = np.full((len(sources), len(self._number)), np.inf)
        best[np.arange(len(sources)), sources] = 0.0
        while len(weights):
            through = np.minimum.reduceat(best[:, edges.begin] + weights, edges.starts, axis=1)
            lower = np.minimum(best[:, edges.ends], through)
            if np.array_equal(lower, best[:, edges.ends]):
                break
            best[:, edges.ends] = lower
        return best


@functools.lru_cache(maxsize=_KEPT)
def _net(sizes: tuple[int, ...], shape: tuple[int, ...], allowed: StepSet) -> _Net:
    return _Net(Space(sizes, shape, allowed, range(len(sizes))))


@functools.lru_cache(maxsize=_KEPT_PAIRS)
def _place(
    sizes: tuple[int, ...],
    shape: tuple[int, ...],
    source: RelayoutState,
    target: RelayoutState,
    allowed: StepSet,
) -> tuple[_Net, int, int]:
    """Return the net in which two layouts are, and their numbers."""
    first, last = source.splits, target.splits
    if allowed.strided:
        shape, first, last = cut(shape, first, last, sizes.__getitem__)
    whole = math.prod(sizes)
    # The order of dimensions does not matter, and neither do those that cannot be split.
    dims = sorted(
        (
            (math.gcd(size, whole), before, after)
            for size, before, after in zip(shape, first, last, strict=True)
            if before or after or math.gcd(size, whole) > 1
        ),
        reverse=True,
    )
    net = _net(sizes, tuple(size for size, _, _ in dims), allowed)
    start = net.number(RelayoutState(tuple(before for _, before, _ in dims), source.partial))
    return (
        net,
        start,
        net.number(RelayoutState(tuple(after for _, _, after in dims), target.partial)),
    )


@functools.lru_cache(maxsize=_KEPT)
def _pairs(
    sizes: tuple[int, ...],
    shape: tuple[int, ...],
    sources: tuple[RelayoutState, ...],
    targets: tuple[RelayoutState, ...],
    allowed: StepSet,
) -> list[tuple[_Net, tuple[int, ...], np.ndarray]]:
    """Return, per net and axes, [place of source, of target, number of source, of target]."""
    found: dict[tuple[_Net, tuple[int, ...]], list[tuple[int, int, int, int]]] = {}
    for i, source in enumerate(sources):
        for j, target in enumerate(targets):
            net, a, b = _place(sizes, shape, source, target, allowed)
            found.setdefault((net, target.partial), []).append((i, j, a, b))
    return [(*key, np.array(rows).T) for key, rows in found.items()]
