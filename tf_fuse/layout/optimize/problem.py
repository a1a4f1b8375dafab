# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the search problem: operations, their strategies, and the costs between them."""

from __future__ import annotations

import collections
import dataclasses
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

import numpy as np

from tf_fuse._deprecated.former_keyword import former_keyword
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.mesh import Mesh, problem_of_names

# How many names an error lists; of more it gives their number.
_NAMED = 8
# The tag of strategies that split nothing but the batch.
DATA = "data"


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One way to run an operation.

    Attributes:
      name: of the strategy, unique in its operation.
      compute_seconds: of the operation itself, forward and, in training, backward.
      communication_seconds: of the collectives that belong to the strategy, as the all-reduce of a
        matmul whose contracted dimension is split.
      memory_bytes: what each device holds for it during the whole step.
      transient_bytes: what it holds besides at the time points of `Node.live`.
      tags: what modes choose by; "data" where only the batch is split.
    """

    name: str
    compute_seconds: float = 0.0
    communication_seconds: float = 0.0
    memory_bytes: int = 0
    transient_bytes: int = 0
    tags: frozenset[str] = frozenset()

    @property
    def seconds(self) -> float:
        """Both times."""
        return self.compute_seconds + self.communication_seconds

    def problems(self, who: str) -> list[str]:
        """Return what is wrong with its numbers."""
        found = [
            f"{who}{name} is a finite number, 0 or more, got {value!r}"
            for name, value in (
                ("compute_seconds", self.compute_seconds),
                ("communication_seconds", self.communication_seconds),
            )
            if not (math.isfinite(value) and value >= 0)
        ]
        for name, value in (
            ("memory_bytes", self.memory_bytes),
            ("transient_bytes", self.transient_bytes),
        ):
            if not is_count(value):
                found.append(f"{who}{name} is a whole number, 0 or more, got {value!r}")
        text = problem_of_names(f"{who}tags", self.tags)
        return [*found, text] if text else found


@dataclasses.dataclass(frozen=True)
class Node:
    """An operation, for which one strategy is to be chosen.

    Attributes:
      name: unique in the problem.
      candidates: its strategies, one or more.
      signature: what it is: kind and shapes. A saved plan fits only where it is the same.
      live: first and last time point at which `transient_bytes` are held; None if at none.
    """

    name: str
    candidates: tuple[Candidate, ...]
    signature: str = ""
    live: tuple[int, int] | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the strategies."""
        return tuple(one.name for one in self.candidates)

    def index(self, strategy: str) -> int:
        """Return the place of a strategy, from 0.

        Raises:
          LayoutError: there is none of this name.
        """
        if strategy not in self.names:
            raise LayoutError(
                f"operation {self.name!r} has no strategy {strategy!r}; it has: "
                f"{listed(self.names)}"
            )
        return self.names.index(strategy)

    def problems(self) -> list[str]:
        """Return what is wrong with it."""
        who = f"operation {self.name!r}"
        if not self.candidates:
            return [f"{who} has no strategies; give it one at least, as to replicate it"]
        found = [
            f"{who} has strategy {name!r} {count} times; give each its own name"
            for name, count in sorted(collections.Counter(self.names).items())
            if count > 1
        ]
        for one in self.candidates:
            found += one.problems(f"{who}, strategy {one.name!r}: ")
        if self.live is not None and not 0 <= self.live[0] <= self.live[1]:
            found.append(f"{who} is live from {self.live[0]} to {self.live[1]}; give first <= last")
        if self.live is None and any(one.transient_bytes for one in self.candidates):
            found.append(f"{who} has transient_bytes, but no time points; set live")
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class Edge:
    """A tensor that leaves one operation and enters another one.

    Attributes:
      source: name of the operation that makes it.
      target: name of the one that takes it.
      seconds: [strategies of source, strategies of target] of the relayout between them; infinite
        where there is none.
      tensor: its name, for reports.
      memory_bytes: likewise, what each device holds during the whole step because of a relayout, as
        a copy that the gradient needs; None for nothing.
    """

    source: str
    target: str
    seconds: np.ndarray
    tensor: str = ""
    memory_bytes: np.ndarray | None = None

    def __str__(self) -> str:
        return f"{self.source} -> {self.target}" + (f" ({self.tensor})" if self.tensor else "")


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """Operations, tensors between them, and the memory of a device.

    Attributes:
      nodes: the operations.
      edges: the tensors; several may lie between two operations, each is paid for.
      memory_limit_bytes: of each device, at each time point; None if it does not matter.
      mesh: the devices; None where a problem has none, as in tests.
    """

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    memory_limit_bytes: int | None = None
    mesh: Mesh | None = None

    def __init__(
        self,
        nodes: Iterable[Node],
        edges: Iterable[Edge] = (),
        memory_limit_bytes: int | None = None,
        mesh: Mesh | None = None,
    ):
        """Check and keep a problem.

        Raises:
          LayoutError: names are there twice or unknown, a matrix has another shape than its ends
            have strategies, a number is negative or none. All that are found are named.
        """
        object.__setattr__(self, "nodes", tuple(nodes))
        object.__setattr__(self, "edges", tuple(edges))
        object.__setattr__(self, "memory_limit_bytes", memory_limit_bytes)
        object.__setattr__(self, "mesh", mesh)
        raise_if(self._problems())

    @cached_property
    def indices(self) -> dict[str, int]:
        """Place of each operation, by its name."""
        return {node.name: i for i, node in enumerate(self.nodes)}

    def node(self, name: str) -> Node:
        """Return the operation of a name.

        Raises:
          LayoutError: there is none.
        """
        if name not in self.indices:
            raise LayoutError(
                f"unknown operation {name!r}; known operations: {listed(sorted(self.indices))}"
            )
        return self.nodes[self.indices[name]]

    @former_keyword("pins", "constraints")
    def allowed(self, constraints: Mapping[str, str | Sequence[str]]) -> dict[int, tuple[int, ...]]:
        """Return the strategies that constraints leave of the operations that they name.

        Args:
          constraints: by name of an operation, a strategy or several to choose from.

        Returns:
          By number of an operation, numbers of strategies, in order.

        Raises:
          LayoutError: there is no such operation or strategy, or none is left.
        """
        found: dict[int, tuple[int, ...]] = {}
        problems = []
        for name, wanted in sorted(constraints.items()):
            several = [wanted] if isinstance(wanted, str) else list(wanted)
            try:
                node = self.node(name)
                places = tuple(sorted({node.index(one) for one in several}))
            except LayoutError as error:
                problems.append(f"constraint: {error}")
                continue
            if not places:
                problems.append(
                    f"constraint: operation {name!r} is left no strategy; name one at least"
                )
            found[self.indices[name]] = places
        raise_if(problems)
        return found

    def _problems(self) -> list[str]:
        names = [node.name for node in self.nodes]
        found = [
            f"operation {name!r} is there {names.count(name)} times; give each its own name"
            for name in sorted({name for name in names if names.count(name) > 1})
        ] if len(set(names)) < len(names) else []  # fmt: skip
        # Layers repeat: what many operations or tensors share is looked at once.
        sound: set[tuple] = set()
        for node in self.nodes:
            in_order = node.live is None or 0 <= node.live[0] <= node.live[1]
            key = id(node.candidates), node.live is None, in_order
            problems = [] if key in sound else node.problems()
            if not problems:
                sound.add(key)
            found += problems
        for edge in self.edges:
            found += self._problems_of(edge, sound)
        limit = self.memory_limit_bytes
        if limit is not None and not is_count(limit):
            found.append(f"memory_limit_bytes is a whole number, 0 or more, or None, got {limit!r}")
        return found

    def _problems_of(self, edge: Edge, sound: set[tuple]) -> list[str]:
        unknown = sorted({one for one in (edge.source, edge.target) if one not in self.indices})
        if unknown:
            return [
                f"edge {edge}: unknown operation {name!r}; known operations: "
                f"{listed(sorted(self.indices))}"
                for name in unknown
            ]
        if edge.source == edge.target:
            return [f"edge {edge} leads back to itself; add its cost to that of the strategies"]
        wanted = tuple(len(self.node(end).candidates) for end in (edge.source, edge.target))
        held = edge.memory_bytes
        for name, table in (("seconds", edge.seconds), ("memory_bytes", held)):
            if table is not None and np.shape(table) != wanted:
                return [
                    f"edge {edge} has {name} of shape {np.shape(table)}, but its operations have "
                    f"{wanted[0]} and {wanted[1]} strategies; give one number for each pair"
                ]
        key = id(edge.seconds), id(held)
        if key in sound:
            return []
        if held is not None and not (np.asarray(held).dtype.kind in "iu" and np.all(held >= 0)):
            return [f"edge {edge}: memory_bytes are whole numbers, 0 or more"]
        # Not `< 0`: that is false for NaN.
        bad = np.argwhere(~(np.asarray(edge.seconds) >= 0))
        if len(bad):
            at = tuple(map(int, bad[0]))
            return [
                f"edge {edge}: seconds{list(at)} is 0 or more, or infinite, "
                f"got {float(edge.seconds[at])!r}"
            ]
        sound.add(key)
        return []


def is_count(value: object) -> bool:
    """Return whether it is a whole number, 0 or more."""
    try:
        return not isinstance(value, bool) and operator.index(value) >= 0  # type: ignore[arg-type]
    except TypeError:
        return False


def listed(names: Sequence[str]) -> str:
    """Return names for an error: the first ones, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (", ".join(names[:_NAMED]) or "none") + more
