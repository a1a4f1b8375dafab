# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What of an update is computed for the rows of a variable that a gradient is of.

An optimizer may gather rows of a slot that it has just changed, and scatter what it makes of them
to the weight. Such operations are found from the scatter back to the gathers; who gathers from an
elementwise expression of a whole variable gathers from the variable itself instead:

    Gather(v + epsilon, rows)   becomes   Gather(v, rows) + epsilon

Rows may be joined by others (`division.py`); then what is made of them may also be added up to a
whole tensor again, for a slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.graph_view import ASSIGNS, READS, GraphView, control_inputs, data_inputs

SCATTERS = frozenset({"ResourceScatterAdd", "ResourceScatterSub", "ResourceScatterUpdate"})
GATHERS = frozenset({"ResourceGather"})
JOIN = "TfFuse>JoinRows"
# What makes a whole tensor of rows.
SUM = "UnsortedSegmentSum"
# DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64, DT_BFLOAT16, DT_HALF: those that the operation adds.
_TYPES = frozenset({1, 2, 3, 9, 14, 19})
_INDEX_TYPES = frozenset({3, 9})  # DT_INT32, DT_INT64.

# The static shape of a tensor, with None for sizes that are not known; None if its rank is not.
PartialShape = Callable[[str], "tuple[int | None, ...] | None"]


def variable_of(view: GraphView, node: Any) -> str:
    """The variable that a read, an assignment, a gather or a scatter is of."""
    return view.resource(data_inputs(node)[0])


def source_of(view: GraphView, tensor: str) -> str:
    """The tensor that one is the same as."""
    while (node := view.producer(tensor)) is not None and node.op in ("Identity", "IdentityN"):
        tensor = data_inputs(node)[view.output_index(tensor)]
    return tensor


def indices_of(node: Any) -> str:
    """The rows' numbers of a scatter, a sum or a join."""
    return data_inputs(node)[1]


def value_of(node: Any) -> str:
    """What a scatter, a sum or a join has for its rows."""
    return data_inputs(node)[0 if node.op == SUM else 2]


@dataclass
class Rows:
    """What the values of a scatter are made of.

    Attributes:
      nodes: names of the operations, gathers included.
      gathers: by tensor that is gathered rows, the variable.
      same: by tensor that is another one when it is of rows, that one.
      inputs: tensors that it reads, in the order in which they were found.
      joins: names of nodes that join rows to those that it reads.
      hands: names of nodes that hand on the rows' numbers.
    """

    nodes: set[str] = field(default_factory=set)
    gathers: dict[str, str] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    joins: set[str] = field(default_factory=set)
    hands: set[str] = field(default_factory=set)


@dataclass
class Join:
    """Rows that are joined by others.

    Attributes:
      node: name of the one that joins.
      flags: what the flags are made of.
      before: what its values are made of; None if that is done outside.
    """

    node: str
    flags: Rows
    before: Rows | None

    def nodes(self) -> set[str]:
        """Names of all nodes."""
        return {self.node} | self.flags.nodes | (self.before.nodes if self.before else set())

    def variables(self) -> set[str]:
        """All that are read."""
        before = self.before.gathers.values() if self.before else ()
        return {*self.flags.gathers.values(), *before}


class RowFinder:
    """Finds what scatters are made of."""

    def __init__(
        self,
        view: GraphView,
        shapes: Mapping[str, Shape | None],
        partial: PartialShape,
        is_compiled: Callable[[Any], bool],
        updated: set[str],
    ):
        """Takes the function.

        Args:
          view: of the function.
          shapes: of its tensors and variables.
          partial: of its tensors.
          is_compiled: whether a program can have a node.
          updated: variables that the function assigns or scatters to.
        """
        self._view, self._shapes, self._partial = view, shapes, partial
        self._is_compiled, self._updated = is_compiled, updated
        self._joins: dict[str, Join | None] = {}

    def can_scatter(self, node: Any) -> bool:
        """Whether an operation of ours can do what a scatter does."""
        return (
            node.op in SCATTERS
            and node.attr["dtype"].type in _TYPES
            and node.attr["Tindices"].type in _INDEX_TYPES
            and bool(self._shape_of(variable_of(self._view, node)))
        )

    def can_sum(self, node: Any) -> bool:
        """Whether an operation of ours can add up what joined rows are made of."""
        source = self._view.producer(source_of(self._view, indices_of(node)))
        return (
            source is not None
            and source.op == JOIN
            and node.attr["T"].type in _TYPES
            and bool(self.row_shape(node))
        )

    def row_shape(self, node: Any) -> Shape | None:
        """The shape of the table whose rows a scatter, a sum or a join is of."""
        if node.op == SUM:
            return self._shapes.get(self._view.outputs(node)[0])
        if node.op == JOIN:
            return self._shapes.get(data_inputs(node)[0])
        return self._shape_of(variable_of(self._view, node))

    def join(self, name: str) -> Join | None:
        """What joined rows are made of; None if that cannot be done in an operation of ours."""
        if name not in self._joins:
            self._joins[name] = self._find_join(self._view.nodes[name])
        return self._joins[name]

    def _find_join(self, node: Any) -> Join | None:
        flags, before = Rows(), Rows()
        whole = data_inputs(node)[0]
        if not self._visit_whole(whole, self._shapes.get(whole), node, flags):
            return None
        if not self._visit(value_of(node), node, before):
            return Join(node.name, flags, None) if self._is_input(value_of(node), node) else None
        return None if before.joins else Join(node.name, flags, before)

    def rows(self, scatter: Any) -> Rows | None:
        """What the values of a scatter are made of; None if that is done outside."""
        found = Rows()
        if not self._visit(value_of(scatter), scatter, found):
            return None
        if found.joins:
            found.hands = self._handing_on(indices_of(scatter))
            # (Several may read what is made of joined rows; `Stager` looks at all of them.)
            return found
        inside = found.nodes | {scatter.name}
        for name in found.nodes:
            for tensor in self._view.outputs(self._view.nodes[name]):
                if tensor in self._view.results:
                    return None
                if not {use.node for use in self._view.uses(tensor)} <= inside:
                    return None
        return found

    def _handing_on(self, tensor: str) -> set[str]:
        """The nodes between a tensor and what it is the same as."""
        found = set()
        while tensor != source_of(self._view, tensor):
            node: Any = self._view.producer(tensor)
            found.add(node.name)
            tensor = data_inputs(node)[self._view.output_index(tensor)]
        return found

    def _shape_of(self, variable: str) -> Shape | None:
        return self._shapes.get(variable)

    def _visit(self, tensor: str, scatter: Any, found: Rows) -> bool:
        """Whether a tensor is made of gathered rows; what it is made of is noted then."""
        view = self._view
        node = view.producer(tensor)
        if node is None:
            return False
        if node.name in found.nodes:
            return True
        if node.op == JOIN:
            if node.device != scatter.device or self.join(node.name) is None:
                return False
            if source_of(view, indices_of(scatter)).partition(":")[0] != node.name:
                return False
            found.joins.add(node.name)
            found.inputs += [tensor] if tensor not in found.inputs else []
            return True
        if node.op in ("ResourceGather", "GatherV2"):
            is_one = self._is_gather(node, scatter)
            if is_one and node.op == "ResourceGather":
                found.gathers[tensor] = variable_of(view, node)
            elif is_one:
                whole = data_inputs(node)[0]
                is_one = self._visit_whole(whole, self._shapes.get(whole), scatter, found)
                found.same[tensor] = whole
            if is_one:
                found.nodes.add(node.name)
            return is_one
        if not self._is_compiled(node) or node.device != scatter.device:
            return False
        read = data_inputs(node)[:1] if node.op == "Reshape" else data_inputs(node)
        made = [one for one in read if self._visit(one, scatter, found)]
        others = [one for one in read if one not in made]
        if not made or not all(self._is_input(one, scatter) for one in others):
            return False
        found.inputs += [one for one in others if one not in found.inputs]
        found.nodes.add(node.name)
        return True

    def _is_gather(self, node: Any, scatter: Any) -> bool:
        """Whether a node gathers the rows that are scattered to, behind an update."""
        view = self._view
        read = data_inputs(node)
        if node.attr["batch_dims"].i or source_of(view, read[1]) != source_of(
            view, indices_of(scatter)
        ):
            return False
        if node.op == "GatherV2":
            axis = view.producer(read[2])
            return axis is not None and axis.op == "Const" and _is_zero(axis)
        return self._is_behind(node) and self._is_with(node, scatter)

    def _is_with(self, node: Any, scatter: Any) -> bool:
        """Whether the variables of two nodes are in one place."""
        return self._view.place_of(node) == self._view.place_of(scatter)

    def _is_behind(self, node: Any) -> bool:
        """Whether a read of a variable waits for what the function does to it."""
        view, variable = self._view, variable_of(self._view, node)
        before = [view.nodes[name] for name in control_inputs(node) if name in view.nodes]
        return variable in self._updated and any(
            one.op in SCATTERS | ASSIGNS and variable_of(view, one) == variable for one in before
        )

    def _visit_whole(self, tensor: str, shape: Shape | None, scatter: Any, found: Rows) -> bool:
        """Whether a tensor is made element by element of whole variables that were updated."""
        view = self._view
        node = view.producer(tensor)
        if node is None or shape is None or self._shapes.get(tensor) != shape:
            return False
        if node.op in READS:
            variable = variable_of(view, node)
            # (What joined rows are made of may be of the time before.)
            is_one = self._is_behind(node) or (scatter.op == JOIN and variable in self._updated)
            if not is_one or self._shape_of(variable) != shape:
                return False
            if not self._is_with(node, scatter):
                return False
            found.gathers[tensor] = variable
            found.nodes.add(node.name)
            return True
        if not self._is_compiled(node) or node.device != scatter.device or node.op == "Reshape":
            return False
        is_made = False
        for one in data_inputs(node):
            if _is_one(self._shapes.get(one)):
                found.inputs += [one] if one not in found.inputs else []
            elif self._visit_whole(one, shape, scatter, found):
                is_made = True
            else:
                return False
        found.nodes.add(node.name)
        return is_made

    def _is_input(self, tensor: str, scatter: Any) -> bool:
        """Whether a tensor has one element, or a row for each that is scattered to."""
        if _is_one(self._shapes.get(tensor)):
            return True
        row = self.row_shape(scatter)
        shape = self._partial(tensor)
        indices = self._partial(indices_of(scatter))
        if shape is None or row is None or indices is None or len(indices) != 1:
            return False
        return len(shape) == len(row) and shape[1:] == row[1:] and shape[0] == indices[0]


def _is_one(shape: Shape | None) -> bool:
    return shape is not None and math.prod(shape) == 1


def _is_zero(constant: Any) -> bool:
    from tensorflow.python.framework import tensor_util

    value = tensor_util.MakeNdarray(constant.attr["value"].tensor)
    return bool(value.size == 1 and value.reshape(())[()] == 0)
