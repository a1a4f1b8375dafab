# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Families that are being grown, and what is known of the function that they grow in."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.families import Family
from tf_fuse.shard_update.graph_view import ASSIGNS, READS, GraphView, data_inputs
from tf_fuse.shard_update.ops import RESOURCE_APPLY
from tf_fuse.shard_update.redundancy import Redundancy


@dataclass(frozen=True)
class Problem:
    """What keeps a family from being cut.

    Attributes:
      reason: a key of REASONS.
      detail: where.
      origin: what was taken for a part of the family, and led there: its root, a variable, or a
        read or an assignment of the weight.
      others: variables of which one would have to be a slot.
    """

    reason: str
    detail: str
    origin: str
    others: tuple[str, ...] = ()


@dataclass
class Growth:
    """A family that is being grown.

    Attributes:
      family: so far.
      excluded: origins that led to a problem.
      origins: of each member, and of each assignment of the family.
      waiting: members whose uses have not been looked at.
    """

    family: Family
    excluded: set[str]
    origins: dict[str, str] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)

    def join(self, tensor: str, origin: str, shape: Shape | None) -> None:
        """Makes a tensor a member; the first one behind the pack has the gradient's shape."""
        family = self.family
        if tensor in self.origins:
            return
        family.members.add(tensor)
        self.origins[tensor] = origin
        self.waiting.append(tensor)
        if len(family.shape) == 1 and shape is not None and len(shape) != 1:
            family.shape = shape

    def add_sink(self, node: str, origin: str) -> None:
        """Adds an assignment to the family."""
        if node not in self.origins:
            self.origins[node] = origin
            self.family.sinks.append(node)


class Known:
    """What is known of a function before families grow in it.

    Attributes:
      view: of the function.
      found: what is redundant in it.
      outside: arguments that are variables which others than the function read or assign.
      results: what it returns.
      accesses: by variable, its reads and its assignments.
    """

    def __init__(
        self,
        view: GraphView,
        shapes: Mapping[str, Shape | None],
        found: Redundancy,
        outside: Collection[str],
        carried: Collection[str],
    ):
        """Takes the function.

        Args:
          view: of it.
          shapes: the static shapes of its tensors.
          found: what is redundant in it.
          outside: arguments that are variables which others than the function read or assign.
          carried: arguments that the function returns as they are, for its next iteration.
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
        """The shape of a tensor, as far as it is known."""
        return self._shapes.get(tensor)

    def size(self, tensor: str) -> int | None:
        """The number of a tensor's elements, if it is known."""
        shape = self.shape(tensor)
        return None if shape is None else math.prod(shape)

    def join(self, growth: Growth, tensor: str, origin: str) -> None:
        """Makes a tensor a member of a family."""
        growth.join(tensor, origin, self.shape(tensor))

    def assigned(self, family: Family) -> set[str]:
        """The variables that are assigned by values, and the weights of other updates."""
        return {self.view.assigned(self.view.nodes[sink])[0] for sink in family.sinks}

    def is_applied(self, variable: str) -> bool:
        """Whether a variable is the weight of an operation that updates it."""
        nodes = [self.view.nodes[name] for name in self.accesses[variable][1]]
        return any(n.op in RESOURCE_APPLY and self.view.assigned(n)[0] == variable for n in nodes)

    def may_be_slot(self, growth: Growth, variable: str) -> bool:
        """Whether a variable that a family assigns is taken for a slot until more is seen of it."""
        return variable not in growth.excluded | self.outside and not self.is_applied(variable)

    def is_cuttable(self, assign: str, family: Family) -> bool:
        """Whether a part can be assigned instead of the whole, as far as the value goes."""
        node = self.view.nodes[assign]
        if node.op not in ASSIGNS:
            return False
        value = data_inputs(node)[1]
        return value in self.found.tensors and self.size(value) == family.size

    def escapes(self, variable: str, but_shape: bool) -> list[str]:
        """As `GraphView.escapes`, but for results that are for the next iteration."""
        found = self.view.escapes(variable, but_shape)
        return [name for name in found if name or variable not in self._carried]
