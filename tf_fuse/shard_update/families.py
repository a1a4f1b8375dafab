# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The tensors that can be cut like one gradient, those of one all-reduce, and why some cannot."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.reductions import Reduction

# Why a gradient's update is left as it is.
REASONS = {
    "not_all_replicas": "the all-reduce is of a part of the replicas",
    "waits_for_weight": "the update waits for the new weight of another gradient of the pack",
    "read_whole": "the reduced pack is read as a whole",
    "unknown_shape": "the shape of a tensor is not known when the function is traced",
    "no_update": "no variable is assigned from the gradient alone",
    "not_elementwise": "an operation that is not elementwise reads a tensor of the update",
    "not_exact": "a sum over the update's elements would be added in another order",
    "not_redundant": "the update reads a tensor that may differ from replica to replica",
    "other_type": "the weight has another type than the gradients that are reduced",
    "returned": "the function returns a tensor of the update",
    "read_after_update": "the weight is read whole between two assignments of the update",
    "assigned_twice": "something else assigns the variable, during the update or behind it",
    "several_weights": "the gradient alone changes more than one weight",
    "shared": "the update of another gradient reads or makes a tensor of this one",
    "escapes": "an operation other than reads and assignments gets the variable",
    "nested": "the all-reduce is in a function that is called, and whose graph is not known",
    "in_branch": "a branch has a part of the update, or the updates of several all-reduces",
    "cycle": "parts of the function would wait for one another",
    "no_profit": "the step would take longer by an estimate",
}


@dataclass
class Gather:
    """Where the new weight of a family is put together, for all replicas.

    Attributes:
      reads: nodes that read the weight in front of the update, and get what is gathered for them;
        None if it is gathered at the end of the step.
      dtype: number of the type that travels in place of the weight's own; 0 if that does.
      reason: why at the end and not at its first use, a key of `GATHER_REASONS`; "" if it was not
        asked for, or is done.
      detail: the node or variable that is the reason.
      wide: the node that needs the weight's own type; "" if none does, or a narrow one was not
        asked for.
    """

    reads: list[str] | None = None
    dtype: int = 0
    reason: str = ""
    detail: str = ""
    wide: str = ""

    @property
    def is_first(self) -> bool:
        """Whether it is gathered right before its first use."""
        return self.reads is not None

    def stay(self, reason: str, detail: str) -> None:
        """Leaves it at the end of the step."""
        self.reads, self.dtype, self.wide = None, 0, ""
        self.reason, self.detail = reason, detail


@dataclass
class Family:
    """The tensors that can be cut like one gradient.

    Attributes:
      root: the gradient, a part of the reduced pack.
      shape: of the gradient as the update sees it.
      members: tensors that are cut.
      nodes: that make them.
      sinks: assignments of members.
      slots: resources of variables that only this family reads and assigns.
      weights: resources of the other variables that it assigns, one at most.
      chain: assignments of the weight that are cut, in order.
      versions: by read of the weight that is a member, which of them makes what it reads.
      reductions: nodes that reduce members over some or all axes.
      branches: conditionals that get it, and as which argument. If there is one, the update is in
        a branch of that.
      exact: whether all that it assigns has the bits of a whole update: nothing in it is made of a
        sum that is added in another order.
      gather: where its new weight is put together.
      reason: why it is left alone, a key of REASONS; None if it can be cut.
      detail: the node or tensor that is the reason.
    """

    root: str
    shape: Shape
    members: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    sinks: list[str] = field(default_factory=list)
    slots: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    chain: list[str] = field(default_factory=list)
    versions: dict[str, int] = field(default_factory=dict)
    reductions: dict[str, Reduction] = field(default_factory=dict)
    branches: set[tuple[str, int]] = field(default_factory=set)
    exact: bool = True
    gather: Gather = field(default_factory=Gather)
    reason: str | None = None
    detail: str = ""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def held(self) -> list[str]:
        """Resources of the variables of which each replica keeps a part."""
        return [*self.slots, *(self.weights if self.gather.is_first else [])]

    def leave(self, reason: str, detail: str) -> Family:
        """Leaves it alone."""
        self.reason, self.detail = reason, detail
        return self


@dataclass
class Pack:
    """An all-reduce and what is in it.

    Attributes:
      node: name of the all-reduce.
      parts: the local tensors that it reduces as one vector, in order.
      families: of each part.
      reason: why all of it is left alone, or None.
      detail: the node that is the reason.
      function: that it is in, if that is called by the one that is planned; else "".
      reduce: the all-reduce. In a branch behind it, a node that has its type, device and keys.
      profit: what cutting it would save, a `profit.Profit`; None where that was not estimated.
    """

    node: str
    parts: list[str]
    families: list[Family]
    reason: str | None = None
    detail: str = ""
    function: str = ""
    reduce: Any = None
    profit: Any = None
