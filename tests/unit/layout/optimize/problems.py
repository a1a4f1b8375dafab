# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Problems for tests of searches: small ones at random, of each shape of graph."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from tf_fuse.layout.optimize import Candidate, Edge, Node, Problem

PICOSECOND = 1e-12


def chain(rng: random.Random, count: int) -> list[tuple[int, int]]:
    """Each operation feeds the next one."""
    return [(i, i + 1) for i in range(count - 1)]


def series_parallel(rng: random.Random, count: int) -> list[tuple[int, int]]:
    """Edges are cut in two, or doubled with an operation between, until there are enough."""
    edges = [(0, 1)] if count > 1 else []
    for new in range(2, count):
        a, b = rng.choice(edges)
        if rng.random() < 0.5:
            edges.remove((a, b))
        edges += [(a, new), (new, b)]
    return edges


def general(rng: random.Random, count: int) -> list[tuple[int, int]]:
    """Any two operations, with some chance; some twice, and some against their numbers."""
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j]
    return [pair for pair in pairs if rng.random() < 0.4]


GRAPHS = {"chain": chain, "series_parallel": series_parallel, "general": general}


def problem(
    seed: int,
    graph: str,
    most_nodes: int = 6,
    infinite: float = 0.0,
    points: bool = False,
    copies: bool = False,
) -> Problem:
    """A problem at random, in small whole picoseconds and bytes, so that many choices are equal.

    Args:
      seed: of it.
      graph: its kind.
      most_nodes: operations, at most.
      infinite: share of infinite entries.
      points: whether memory differs between time points.
      copies: whether edges hold memory.
    """
    rng = random.Random(seed)
    sizes = [rng.randint(1, 4) for _ in range(rng.randint(1, most_nodes))]
    nodes = []
    for i, size in enumerate(sizes):
        live = tuple(sorted(rng.randint(0, 4) for _ in range(2))) if points else None
        nodes.append(
            Node(
                f"n{i}",
                tuple(
                    Candidate(
                        f"s{s}",
                        rng.randint(0, 5) * PICOSECOND,
                        rng.randint(0, 5) * PICOSECOND,
                        rng.randint(0, 6),
                        rng.randint(0, 6) if live else 0,
                    )
                    for s in range(size)
                ),
                live=live,
            )
        )
    edges = []
    for a, b in GRAPHS[graph](rng, len(sizes)):
        seconds = [
            [
                float("inf") if rng.random() < infinite else rng.randint(0, 9) * PICOSECOND
                for _ in range(sizes[b])
            ]
            for _ in range(sizes[a])
        ]
        held = [[rng.randint(0, 3) for _ in range(sizes[b])] for _ in range(sizes[a])]
        edges.append(
            Edge(f"n{a}", f"n{b}", np.array(seconds), "", np.array(held) if copies else None)
        )
    return Problem(nodes, edges)


def limited(one: Problem, limit: int | None) -> Problem:
    """The same with a memory limit."""
    return Problem(one.nodes, one.edges, limit, one.mesh)


def simple(
    costs: Sequence[Sequence[int]],
    edges: Sequence[tuple[int, int, Sequence[Sequence[float]]]] = (),
    memory: Sequence[Sequence[int]] | None = None,
    limit: int | None = None,
) -> Problem:
    """A problem whose operations are a, b, ... with strategies s0, s1, ..., in picoseconds."""
    names = "abcdefghijklmnopqrstuvwxyz"
    nodes = [
        Node(
            names[i],
            tuple(
                Candidate(f"s{s}", cost * PICOSECOND, 0.0, memory[i][s] if memory else 0)
                for s, cost in enumerate(mine)
            ),
        )
        for i, mine in enumerate(costs)
    ]
    return Problem(
        nodes,
        [Edge(names[a], names[b], np.array(table) * PICOSECOND) for a, b, table in edges],
        limit,
    )
