# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the cheapest choice by eliminating one operation after the other.

The method is that of "Exploring Hidden Dimensions in Parallelizing Convolutional Neural Networks"
(Jia et al., 2018, node and edge elimination), MindSpore's and Tofu's searches; see `order.py` for
what it is on graphs that are not series-parallel.

**Two criteria.** Entries are pairs, compared in order: of equal costs the one with less memory is
taken. Pairs that are added and compared like this form an ordered group, so all that is true of the
elimination of numbers is true of pairs, and the result is least in both, in this order. The same
function with the two exchanged finds the least memory.

**Repeated layers** are solved once, exactly. The result of an elimination depends only on its
tables. Tables are stored under the hash of their contents, so equal tables are one, and results are
stored under the tables that they come from. A layer whose strategies and edges equal those of an
earlier layer thus takes no arithmetic at all, and a chain of n equal blocks takes powers of one
matrix: M, M M, (M M)(M M), ... (`order_of` goes in rounds to make it so). Nothing is assumed about
the graph, and the result is the same, number by number, as without.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tf_fuse.layout.optimize.methods.order import EliminationOrder
from tf_fuse.layout.optimize.methods.tables import INFINITE, Tables


class Factor(NamedTuple):
    """A table over some operations.

    Attributes:
      scope: numbers of the operations, in order; one dimension for each.
      table: its number in a `Store`.
    """

    scope: tuple[int, ...]
    table: int


class Input(NamedTuple):
    """A table of pairs of numbers over some operations, in order."""

    scope: tuple[int, ...]
    first: np.ndarray
    second: np.ndarray


class Projection(NamedTuple):
    """The result of one elimination.

    Attributes:
      table: number of the table over the operations that stay.
      best: [strategies of those that stay] the strategy of the one that went.
    """

    table: int
    best: np.ndarray


class Store:
    """Tables of pairs of numbers, each kept once, and what was made of them."""

    def __init__(self) -> None:
        self.pairs: list[tuple[np.ndarray, np.ndarray]] = []
        # How many eliminations were computed, and how many were reused.
        self.computed = 0
        self.reused = 0
        self._known: dict[bytes, int] = {}
        self._made: dict[tuple, Projection] = {}

    def add(self, first: np.ndarray, second: np.ndarray) -> int:
        """Return the number of a table of pairs; equal tables have one."""
        digest = hashlib.blake2b(
            repr((first.dtype.str, first.shape, second.shape)).encode(), digest_size=20
        )
        digest.update(first.tobytes())
        digest.update(second.tobytes())
        key = digest.digest()
        if key not in self._known:
            self._known[key] = len(self.pairs)
            self.pairs.append((first, second))
        return self._known[key]

    def project(self, factors: Sequence[Factor], scope: Sequence[int], gone: int) -> Projection:
        """Add tables, and minimize over some operations.

        Args:
          factors: over parts of the scope.
          scope: operations, in order but that those which go stand first.
          gone: how many of them go.
        """
        place = {node: i for i, node in enumerate(scope)}
        key = (
            len(scope),
            gone,
            tuple(sorted((one.table, tuple(place[n] for n in one.scope)) for one in factors)),
        )
        if key in self._made:
            self.reused += 1
            return self._made[key]
        self.computed += 1
        first, second = self._sum(key[2], len(scope))
        table, best = least(first, second, gone)
        made = self._made[key] = Projection(self.add(*table), best)
        return made

    def _sum(self, parts: tuple, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the sum of tables whose dimensions have the given places."""
        spreads = [
            tuple(spread(array, places, rank) for array in self.pairs[table])
            for table, places in parts
        ]
        first, second = spreads[0]
        for one, two in spreads[1:]:
            first, second = plus(first, one), plus(second, two)
        return first, second


def spread(array: np.ndarray, places: Sequence[int], rank: int) -> np.ndarray:
    """Return an array with its dimensions at the given places, and 1 at others."""
    order = np.argsort(places)
    shape = [1] * rank
    for axis in order:
        shape[places[axis]] = array.shape[axis]
    return array.transpose(order).reshape(shape)


def plus(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the sum; what cannot be stays so. Floating-point tables have their own infinity."""
    total = one + other
    if total.dtype == np.int64:
        np.minimum(total, INFINITE, out=total)
    return total


def least(
    first: np.ndarray, second: np.ndarray, gone: int
) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Return the least pairs over the leading dimensions, and which entries they are.

    Of equal pairs it is the first entry, so the same problem gives the same choice.
    """
    shape = np.broadcast_shapes(first.shape, second.shape)
    count = math.prod(shape[:gone])
    first = np.broadcast_to(first, shape).reshape(count, *shape[gone:])
    second = np.broadcast_to(second, shape).reshape(count, *shape[gone:])
    lowest = first.min(axis=0)
    among = np.where(first == lowest, second, _above(second))
    best = among.argmin(axis=0)
    return (lowest, np.take_along_axis(among, best[None], axis=0)[0]), best


def _above(array: np.ndarray) -> float:
    return np.inf if array.dtype.kind == "f" else np.iinfo(np.int64).max


@dataclasses.dataclass(frozen=True)
class Eliminated:
    """The result of eliminating all operations of an order.

    Attributes:
      order: in which they went.
      factors: for each of them the tables that it was part of when it went.
      messages: for each of them the table that it left.
      best: for each of them [strategies of its scope] its own strategy.
      rest: tables over the core.
      total: the least (first, second) of what is over no operation any more.
      store: where the tables are.
    """

    order: EliminationOrder
    factors: tuple[tuple[Factor, ...], ...]
    messages: tuple[Factor, ...]
    best: tuple[np.ndarray, ...]
    rest: tuple[Factor, ...]
    total: tuple[float, float]
    store: Store

    def choice(self, core: Mapping[int, int] | None = None) -> list[int]:
        """Return the strategies, by number of the operation.

        Args:
          core: those of the operations that are left.
        """
        found = dict(core or {})
        for node, scope, best in reversed(
            list(zip(self.order.nodes, self.order.scopes, self.best, strict=True))
        ):
            # A dimension of size 1 stands for all: the table does not depend on that operation.
            at = (min(found[one], size - 1) for one, size in zip(scope, best.shape, strict=True))
            found[node] = int(best[tuple(at)])
        return [found[node] for node in sorted(found)]

    def core_tables(self, tables: Tables) -> Tables:
        """Return the tables over the operations that are left, as a problem without memory.

        Args:
          tables: that were eliminated from.
        """
        core = self.order.core
        place = {node: i for i, node in enumerate(core)}
        cost = [np.zeros(tables.sizes[node], np.int64) for node in core]
        pairs: dict[tuple[int, int], np.ndarray] = {}
        for factor in self.rest:
            table = self.store.pairs[factor.table][0]
            if len(factor.scope) == 1:
                at = place[factor.scope[0]]
                cost[at] = np.minimum(cost[at] + table, INFINITE)
            else:
                key = (place[factor.scope[0]], place[factor.scope[1]])
                pairs[key] = np.minimum(pairs[key] + table, INFINITE) if key in pairs else table
        zeros = tuple(np.zeros_like(one) for one in cost)
        return Tables(
            tuple(cost), zeros, zeros, (frozenset(),) * len(core), 1, pairs, {},
            tuple(np.arange(len(one)) for one in cost), None,
        )  # fmt: skip


def eliminate(order: EliminationOrder, inputs: Sequence[Input], store: Store) -> Eliminated:
    """Eliminate the operations of an order.

    Args:
      order: which, and in which order.
      inputs: tables, one of each operation alone among them.
      store: where tables are kept.
    """
    made = [Factor(one.scope, store.add(one.first, one.second)) for one in inputs]
    of_node: dict[int, dict[int, Factor]] = collections.defaultdict(dict)
    for number, factor in enumerate(made):
        for node in factor.scope:
            of_node[node][number] = factor
    taken, messages, choices = [], [], []
    for node, scope in zip(order.nodes, order.scopes, strict=True):
        mine = of_node.pop(node)
        for number, factor in mine.items():
            for other in factor.scope:
                if other != node:
                    del of_node[other][number]
        table, best = store.project(tuple(mine.values()), (node, *scope), 1)
        message = Factor(scope, table)
        for other in scope:
            of_node[other][len(made)] = message
        made.append(message)
        taken.append(tuple(mine.values()))
        messages.append(message)
        choices.append(best)
    rest = {number: one for mine in of_node.values() for number, one in mine.items()}
    ends = [store.pairs[one.table] for one in messages if not one.scope]
    return Eliminated(
        order, tuple(taken), tuple(messages), tuple(choices),
        tuple(rest[number] for number in sorted(rest)),
        (sum(one.item() for one, _ in ends), sum(two.item() for _, two in ends)),
        store,
    )  # fmt: skip


def cheapest(tables: Tables, order: EliminationOrder, store: Store) -> Eliminated:
    """Eliminate for the least cost, then the least memory (summed over time points)."""
    points = tables.points
    alone = [
        Input((i,), cost, memory)
        for i, (cost, memory) in enumerate(zip(tables.cost, memory_of(tables), strict=True))
    ]
    pairs = [Input(key, pair, tables.between(key) * points) for key, pair in tables.pairs.items()]
    return eliminate(order, [*alone, *pairs], store)


def smallest(tables: Tables, order: EliminationOrder, store: Store) -> Eliminated:
    """Eliminate for the least memory, then the least cost; for problems with one time point."""
    # Impossible entries are infinite in both.
    alone = [
        Input((i,), np.where(cost >= INFINITE, INFINITE, memory), cost)
        for i, (cost, memory) in enumerate(zip(tables.cost, memory_of(tables), strict=True))
    ]
    pairs = [
        Input(key, np.where(pair >= INFINITE, INFINITE, tables.between(key)), pair)
        for key, pair in tables.pairs.items()
    ]
    return eliminate(order, [*alone, *pairs], store)


def memory_of(tables: Tables) -> list[np.ndarray]:
    """Return, for each operation, [strategies] bytes, summed over all time points."""
    return [
        held * tables.points + transient * len(live)
        for held, transient, live in zip(tables.held, tables.transient, tables.live, strict=True)
    ]
