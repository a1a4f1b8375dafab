# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compute, for every strategy of every operation, the least cost of a choice that has it.

An elimination goes from the leaves of a tree of tables to its root. On the way back, each operation
gets the least cost of the rest of the problem for each choice of its table's operations. With its
own tables, this gives the least total for each of its strategies.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tf_fuse.layout.optimize.methods.elimination import Eliminated, Factor


@dataclasses.dataclass(frozen=True)
class Marginals:
    """Least totals.

    Attributes:
      outside: for each operation, in the order of elimination, the least of all that is not below
        it, over its scope; None where the scope is empty.
      totals: by number of the operation, [strategies] the least (first) total with each.
    """

    outside: tuple[np.ndarray | None, ...]
    totals: tuple[np.ndarray, ...]


def marginals_of(done: Eliminated) -> Marginals:
    """Compute marginals backwards through an elimination that left no core."""
    assert not done.order.core
    place = {node: i for i, node in enumerate(done.order.nodes)}
    outside: list[Factor | None] = [None] * len(place)
    # For each operation, the least total of the components that it is not part of.
    others: list[float] = [0] * len(place)
    totals: dict[int, np.ndarray] = {}
    for i in reversed(range(len(place))):
        node, scope = done.order.nodes[i], done.order.scopes[i]
        if scope:
            # The table goes to the operation of its scope that is eliminated first.
            parent = min(place[one] for one in scope)
            outside[i] = _outside(done, i, parent, outside[parent])
            others[i] = others[parent]
        else:
            others[i] = done.total[0] - done.store.pairs[done.messages[i].table][0].item()
        above = outside[i]
        mine = [*done.factors[i], *([above] if above else [])]
        table = done.store.project(mine, (*scope, node), len(scope)).table
        totals[node] = done.store.pairs[table][0] + others[i]
    return Marginals(
        tuple(None if one is None else done.store.pairs[one.table][0] for one in outside),
        tuple(totals[node] for node in sorted(totals)),
    )


def _outside(done: Eliminated, child: int, parent: int, above: Factor | None) -> Factor:
    """Return the costs of the parent's tables without the child's, over the child's scope."""
    scope = done.order.scopes[child]
    message = done.messages[child]
    rest = [one for one in done.factors[parent] if one is not message]
    rest += [above] if above else []
    whole = (done.order.nodes[parent], *done.order.scopes[parent])
    gone = tuple(one for one in whole if one not in scope)
    return Factor(scope, done.store.project(rest, (*gone, *scope), len(gone)).table)
