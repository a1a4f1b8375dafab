# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Divide items with several loads each over servers, so that each load is even.

List scheduling (Graham, 1969) takes the heaviest item first (LPT), and puts each on the server that
gives the best balance. Then items are moved and exchanged while that helps. The balance is the sum
of the eighth powers of all servers' loads, each relative to its mean: with one load the best server
is the least loaded one, with several the one whose largest load grows least.

The same items get the same servers in any order and in every process: no sum here depends on how it
is vectorised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# How many items of a server an exchange considers, and how many exchanges there are.
_MOST_ITEMS = 128
_MOST_ROUNDS = 400
# A gain below this is rounding.
_LEAST_GAIN = 1e-9


@dataclass(frozen=True)
class Item:
    """An item that one server keeps.

    Attributes:
      key: sorts items of the same weight; items with one key are alike.
      loads: of each kind, 0 or more.
      server: where it has to be; None for anywhere.
      whole: what it is a piece of; pieces of one whole go to different servers, as far as there are
        enough. "" for no piece.
    """

    key: tuple[Any, ...]
    loads: tuple[float, ...]
    server: int | None = None
    whole: str = ""


class ServerLoads:
    """The loads of the servers.

    Attributes:
      loads: of each server, of each kind.
      counts: of each server, how many items it has.
    """

    def __init__(self, servers: int, kinds: int):
        """Start with empty servers.

        Args:
          servers: how many there are, at least 1.
          kinds: how many loads an item has.
        """
        self.loads = [[0.0] * kinds for _ in range(servers)]
        self.counts = [0] * servers
        self._pieces: dict[str, list[int]] = {}

    def copy(self) -> ServerLoads:
        """Return a copy."""
        made = ServerLoads(len(self.counts), len(self.loads[0]))
        made.loads = [list(one) for one in self.loads]
        made.counts = list(self.counts)
        made._pieces = {whole: list(one) for whole, one in self._pieces.items()}
        return made

    def add(self, item: Item, server: int) -> None:
        """Put an item on a server."""
        for kind, load in enumerate(item.loads):
            self.loads[server][kind] += load
        self.counts[server] += 1
        if item.whole:
            self._pieces.setdefault(item.whole, [0] * len(self.counts))[server] += 1

    def remove(self, item: Item, server: int) -> None:
        """Take an item from a server."""
        for kind, load in enumerate(item.loads):
            self.loads[server][kind] = max(0.0, self.loads[server][kind] - load)
        self.counts[server] -= 1
        if item.whole:
            self._pieces[item.whole][server] -= 1

    def best(self, item: Item, means: Sequence[float] | None = None) -> int:
        """Return the server that is best off with an item more.

        Args:
          item: to be put there.
          means: of each kind, what a server has when all items are placed; None for what it has on
            average with this one.

        Returns:
          Its number. Servers with fewer pieces of the same whole come first; of servers that are
          equally well off the one with the fewest items, and of those the first.
        """
        if means is None:
            sums = [sum(one) for one in zip(*self.loads, strict=True)]
            means = [
                (total + load) / len(self.counts)
                for total, load in zip(sums, item.loads, strict=True)
            ]
        pieces = self._pieces.get(item.whole) or [0] * len(self.counts)

        def badness(server: int) -> tuple[float, ...]:
            growth = 0.0
            for load, more, mean in zip(self.loads[server], item.loads, means, strict=True):
                if mean > 0:
                    growth += _eighth((load + more) / mean) - _eighth(load / mean)
            return pieces[server], growth, self.counts[server], server

        return min(range(len(self.counts)), key=badness)


def assign(items: Sequence[Item], servers: ServerLoads) -> list[int]:
    """Choose a server for each item.

    With one kind of load, no pieces and no item that has to be somewhere, the fullest of n servers
    has at most the mean and (1 - 1/n) times the heaviest item; and, where servers were empty, at
    most 4/3 of the least that is possible (Graham, 1969).

    Args:
      items: to be placed, in any order.
      servers: what they have already; is not changed.

    Returns:
      Of each item its server.
    """
    placed = servers.copy()
    sums = [
        sum(one)
        for one in zip(*placed.loads, *(i.loads for i in sorted(items, key=_order)), strict=True)
    ]
    means = [total / len(placed.counts) for total in sums]
    chosen = [-1] * len(items)
    fixed = {index for index, item in enumerate(items) if item.server is not None}
    order = sorted(
        range(len(items)), key=lambda i: (i not in fixed, _heaviest_first(items[i], sums))
    )
    for index in order:
        item = items[index]
        chosen[index] = placed.best(item, means) if item.server is None else item.server
        placed.add(item, chosen[index])
    free = [i for i in order if i not in fixed and not items[i].whole]
    _refine(items, chosen, free, placed, means)
    return chosen


def imbalance(loads: Sequence[float]) -> float:
    """Return the largest of some loads, relative to their mean; 1 where there is none."""
    mean = sum(loads) / len(loads)
    return max(loads) / mean if mean > 0 else 1.0


def _order(item: Item) -> tuple[Any, ...]:
    return item.key, item.loads


def _heaviest_first(item: Item, sums: Sequence[float]) -> tuple[Any, ...]:
    shares = (load / total for load, total in zip(item.loads, sums, strict=True) if total > 0)
    return -max(shares, default=0.0), item.key, item.loads


def _eighth(value: Any) -> Any:
    """Return the eighth power, by products: they have the same bits everywhere, `pow` has not."""
    square = value * value
    fourth = square * square
    return fourth * fourth


def _badness(loads: Any) -> Any:
    """Sum up eighth powers over the last axis, one after the other."""
    total = _eighth(loads[..., 0])
    for kind in range(1, loads.shape[-1]):
        total = total + _eighth(loads[..., kind])
    return total


def _refine(
    items: Sequence[Item],
    chosen: list[int],
    free: Sequence[int],
    placed: ServerLoads,
    means: Sequence[float],
) -> None:
    """Move and exchange items while that makes loads more even; change `chosen`."""
    kinds = [kind for kind, mean in enumerate(means) if mean > 0]
    if not kinds or len(placed.counts) < 2 or not free:
        return
    scale = np.array([1.0 / means[kind] for kind in kinds])
    loads = np.array([[one[kind] for kind in kinds] for one in placed.loads]) * scale
    sizes = {i: np.array([items[i].loads[kind] for kind in kinds]) * scale for i in free}
    on: list[list[int]] = [[] for _ in placed.counts]
    for index in free:
        on[chosen[index]].append(index)
    for _ in range(_MOST_ROUNDS):
        found = _best_exchange(loads, sizes, on)
        if found is None:
            return
        source, target, given, taken = found
        for moved, here, there in ((given, source, target), (taken, target, source)):
            if moved is not None:
                loads[here] -= sizes[moved]
                loads[there] += sizes[moved]
                on[here].remove(moved)
                on[there].append(moved)
                chosen[moved] = there


def _best_exchange(
    loads: Any, sizes: dict[int, Any], on: list[list[int]]
) -> tuple[int, int, int | None, int | None] | None:
    """Return the best move or exchange from the fullest server that can gain."""
    fullest = sorted(range(len(on)), key=lambda one: (-float(loads[one].max()), one))
    nothing = np.zeros(loads.shape[1])
    for source in fullest:
        gives = _some(on[source])
        if not gives:
            continue
        given = np.array([sizes[i] for i in gives])[:, None]
        best: tuple[float, int, int | None, int | None] | None = None
        for target in range(len(on)):
            if target == source:
                continue
            takes: list[int | None] = [None, *_some(on[target])]
            taken = np.array([nothing if i is None else sizes[i] for i in takes])[None]
            before = _badness(loads[source]) + _badness(loads[target])
            after = _badness(loads[source] - given + taken) + _badness(
                loads[target] + given - taken
            )
            where = int(np.argmin(after))
            gain = float(before - after.flat[where])
            row, column = divmod(where, len(takes))
            if gain > _LEAST_GAIN and (best is None or gain > best[0]):
                best = gain, target, gives[row], takes[column]
        if best is not None:
            return source, *best[1:]
    return None


def _some(items: list[int]) -> list[int]:
    """Return all items of a short list; of a long one as many as are looked at, evenly spread."""
    if len(items) <= _MOST_ITEMS:
        return items
    step = len(items) / _MOST_ITEMS
    return [items[int(number * step)] for number in range(_MOST_ITEMS)]
