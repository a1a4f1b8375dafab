# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the weight-update cluster while it grows, and the facts about its function."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tf_fuse._tensorflow.dtype_numbers import BFLOAT16, BOOL, DOUBLE, FLOAT, HALF, INT32, INT64
from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.operations import RESOURCE_APPLY, is_exact_reduction
from tf_fuse.function_graph.view import ASSIGNS, READS, GraphView, data_inputs
from tf_fuse.shard_update.analysis.replication import Replication
from tf_fuse.shard_update.plan import Reduction, UpdateCluster

# Types that collectives take: float, double, int32, int64, bfloat16, half.
_TYPES = frozenset({FLOAT, DOUBLE, INT32, INT64, BFLOAT16, HALF})
_INTEGERS = frozenset({INT32, INT64})


@dataclass(frozen=True)
class ClusterProblem:
    """What keeps a cluster from being sharded.

    Attributes:
      reason: a key of REASONS.
      detail: where.
      origin: what was taken for a part of the cluster, and led there: its root, a variable, or a
        read or an assignment of the weight.
      others: variables; one of them would have to be a slot.
    """

    reason: str
    detail: str
    origin: str
    others: tuple[str, ...] = ()


@dataclass
class Growth:
    """A cluster that grows; only analysis sees it, and `cluster` makes the plan's record.

    Attributes:
      root: the gradient.
      shape: of the gradient as the update sees it.
      excluded: origins that led to a problem.
      members: as of `UpdateCluster`, and so are `nodes`, `sinks`, `slots`, `weights`, `chain`,
        `versions`, `reductions` and `branches`.
      origins: of each member, and of each assignment of the cluster.
      waiting: members whose uses have not been looked at.
    """

    root: str
    shape: Shape
    excluded: set[str]
    members: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    sinks: list[str] = field(default_factory=list)
    slots: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    chain: list[str] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    reductions: dict[str, Reduction] = field(default_factory=dict)
    branches: set[tuple[str, int]] = field(default_factory=set)
    origins: dict[str, str] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def cluster(self) -> UpdateCluster:
        """Return the plan's record of what has grown."""
        return UpdateCluster(
            self.root,
            self.shape,
            members=frozenset(self.members),
            nodes=frozenset(self.nodes),
            sinks=tuple(self.sinks),
            slots=tuple(self.slots),
            weights=tuple(self.weights),
            chain=tuple(self.chain),
            versions=dict(self.versions),
            reductions=dict(self.reductions),
            branches=frozenset(self.branches),
        )

    def join(self, tensor: str, origin: str, shape: Shape | None) -> None:
        """Make a tensor a member; the first one after the bucket has the gradient's shape."""
        if tensor in self.origins:
            return
        self.members.add(tensor)
        self.origins[tensor] = origin
        self.waiting.append(tensor)
        if len(self.shape) == 1 and shape is not None and len(shape) != 1:
            self.shape = shape

    def add_sink(self, node: str, origin: str) -> None:
        """Add an assignment to the cluster."""
        if node not in self.origins:
            self.origins[node] = origin
            self.sinks.append(node)


class FunctionFacts:
    """What is known of a function before clusters grow in it.

    Attributes:
      view: of the function.
      found: what is replicated in it.
      outside: arguments that are variables which others than the function read or assign.
      results: what it returns.
      accesses: by variable, its reads and its assignments.
    """

    def __init__(
        self,
        view: GraphView,
        shapes: Mapping[str, Shape | None],
        found: Replication,
        outside: Collection[str],
        carried: Collection[str],
    ):
        """Take the function.

        Args:
          view: of it.
          shapes: the static shapes of its tensors.
          found: what is replicated in it.
          outside: arguments that are variables which others than the function read or assign.
          carried: arguments that the function returns unchanged, for its next iteration.
        """
        self.view, self.found = view, found
        self.outside, self._carried = frozenset(outside), frozenset(carried)
        self._shapes = shapes
        self.results = set(view.results)
        self.accesses: dict[str, tuple[list[str], list[str]]] = {}
        for name in sorted(view.nodes):
            node = view.nodes[name]
            if node.op in READS:
                self._of(str(view.variable_of(node)))[0].append(name)
            for variable in view.assigned(node):
                self._of(variable)[1].append(name)

    def _of(self, variable: str) -> tuple[list[str], list[str]]:
        return self.accesses.setdefault(variable, ([], []))

    def shape(self, tensor: str) -> Shape | None:
        """Return the shape of a tensor, as far as it is known."""
        return self._shapes.get(tensor)

    def size(self, tensor: str) -> int | None:
        """Return the number of a tensor's elements, if it is known."""
        shape = self.shape(tensor)
        return None if shape is None else math.prod(shape)

    def join(self, growth: Growth, tensor: str, origin: str) -> None:
        """Make a tensor a member of a cluster."""
        growth.join(tensor, origin, self.shape(tensor))

    def assigned(self, growth: Growth) -> set[str]:
        """Return the variables that are assigned by values, and the weights of other updates."""
        return {self.view.assigned(self.view.nodes[sink])[0] for sink in growth.sinks}

    def is_applied(self, variable: str) -> bool:
        """Return whether a variable is the weight of an operation that updates it."""
        nodes = [self.view.nodes[name] for name in self.accesses[variable][1]]
        return any(n.op in RESOURCE_APPLY and self.view.assigned(n)[0] == variable for n in nodes)

    def may_be_slot(self, growth: Growth, variable: str) -> bool:
        """Return whether an assigned variable is taken for a slot until more is seen of it."""
        return variable not in growth.excluded | self.outside and not self.is_applied(variable)

    def can_shard(self, assign: str, growth: Growth) -> bool:
        """Return whether the assigned value lets a replica assign its shard alone."""
        node = self.view.nodes[assign]
        if node.op not in ASSIGNS:
            return False
        value = data_inputs(node)[1]
        return value in self.found.tensors and self.size(value) == growth.size

    def escapes(self, variable: str, but_shape: bool) -> list[str]:
        """Return as `GraphView.escapes` does, but ignore results for the next iteration."""
        found = self.view.escapes(variable, but_shape)
        return [name for name in found if name or variable not in self._carried]


class Reductions:
    """Finds out what reductions reduce."""

    def __init__(self, view: GraphView, shapes: Mapping[str, Shape | None], exact: bool):
        """Take the function, its tensors' shapes, and whether bits must not change."""
        self._view = view
        self._shapes = shapes
        self._exact = exact

    def of(self, node: Any) -> Reduction | tuple[str, str]:
        """Return the reduction that a node is; or why it cannot be done by shards, and where."""
        tensor = data_inputs(node)[0]
        (output,) = self._view.outputs(node)
        shape, result = self._shapes.get(tensor), self._shapes.get(output)
        if shape is None or result is None:
            return "unknown_shape", output
        axes = tuple(range(len(shape))) if node.op == "L2Loss" else self._axes(node, len(shape))
        if axes is None:
            return "unknown_shape", data_inputs(node)[1]
        dtype = BOOL if node.op in ("All", "Any") else node.attr["T"].type
        if dtype not in _TYPES | {BOOL} or (node.op == "Mean" and dtype in _INTEGERS):
            return "not_elementwise", f"{node.name} ({node.op})"
        exact = is_exact_reduction(node.op, dtype in _INTEGERS)
        if self._exact and not exact:
            return "not_exact", f"{node.name} ({node.op})"
        return Reduction(node.name, node.op, axes, shape, result, dtype, exact)

    def _axes(self, node: Any, rank: int) -> tuple[int, ...] | None:
        from tensorflow.python.framework import tensor_util

        constant = self._view.producer(data_inputs(node)[1])
        if constant is None or constant.op != "Const":
            return None
        values = np.atleast_1d(tensor_util.MakeNdarray(constant.attr["value"].tensor))
        return tuple(sorted({int(value) % rank for value in values} if rank else set()))
