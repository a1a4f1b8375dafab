# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the part of an update that is computed for the gradient's rows of a variable only.

An optimizer may gather rows of a slot that it has just changed, compute with them, and scatter the
results to the weight. `RowFinder` follows such operations from the scatter back to the gathers. A
gather from an elementwise expression of a whole variable becomes a gather from the variable:

    Gather(v + epsilon, rows)   becomes   Gather(v, rows) + epsilon

A division may join further rows (`keras_row_division.py`). Then the results may also be summed up
to a whole tensor again, for a slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import BFLOAT16, DOUBLE, FLOAT, HALF, INT32, INT64
from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import (
    ASSIGNS,
    READS,
    GraphView,
    control_inputs,
    data_inputs,
    value_inputs,
)

SCATTERS = frozenset({"ResourceScatterAdd", "ResourceScatterSub", "ResourceScatterUpdate"})
GATHERS = frozenset({"ResourceGather"})
JOIN = "TfFuse>JoinRows"
# Sums rows up to a whole tensor.
SUM = "UnsortedSegmentSum"
# Those that the operation adds.
ADDED_TYPES = frozenset({FLOAT, DOUBLE, INT32, INT64, BFLOAT16, HALF})
_INDEX_TYPES = frozenset({INT32, INT64})

# Returns the static shape of a tensor, with None for unknown sizes; None if its rank is unknown.
PartialShape = Callable[[str], "tuple[int | None, ...] | None"]


def variable_of(view: GraphView, node: Any) -> str:
    """Return the variable that a node reads, assigns, gathers from or scatters to."""
    return view.resource(data_inputs(node)[0])


def source_of(view: GraphView, tensor: str) -> str:
    """Return the source of a tensor, looking through nodes that forward it."""
    while (node := view.producer(tensor)) is not None and node.op in ("Identity", "IdentityN"):
        tensor = data_inputs(node)[view.output_index(tensor)]
    return tensor


def indices_of(node: Any) -> str:
    """Return the rows' numbers of a scatter, a sum or a join."""
    return data_inputs(node)[1]


def value_of(node: Any) -> str:
    """Return the values of the rows of a scatter, a sum or a join."""
    return data_inputs(node)[0 if node.op == SUM else 2]


@dataclass
class Rows:
    """The operations that compute the values of a scatter.

    Attributes:
      nodes: names of the operations, gathers included.
      gathers: the variable of each tensor of gathered rows.
      same: by tensor of rows, the whole tensor whose rows it has.
      inputs: tensors that the operations read from outside, in the order in which they were found.
      joins: names of nodes that join further rows to those that the operations read.
      hands: names of nodes that forward the row numbers.
    """

    nodes: set[str] = field(default_factory=set)
    gathers: dict[str, str] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    joins: set[str] = field(default_factory=set)
    hands: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Join:
    """A node that joins further rows to some rows.

    Attributes:
      node: its name.
      flags: the operations that compute its flags.
      before: the operations that compute its values; None if they stay outside.
    """

    node: str
    flags: Rows
    before: Rows | None

    def nodes(self) -> set[str]:
        """Return names of all nodes."""
        return {self.node} | self.flags.nodes | (self.before.nodes if self.before else set())

    def variables(self) -> set[str]:
        """Return all variables that the operations read."""
        before = self.before.gathers.values() if self.before else ()
        return {*self.flags.gathers.values(), *before}


class RowFinder:
    """Finds the operations that compute the values of scatters."""

    def __init__(
        self,
        view: GraphView,
        shapes: Mapping[str, Shape | None],
        partial: PartialShape,
        is_compiled: Callable[[Any], bool],
        updated: set[str],
    ):
        """Store the function.

        Args:
          view: of the function.
          shapes: of its tensors and variables.
          partial: shapes of its tensors, with None for unknown sizes.
          is_compiled: returns whether a program can contain a node.
          updated: variables that the function assigns or scatters to.
        """
        self._view, self._shapes, self._partial = view, shapes, partial
        self._is_compiled, self._updated = is_compiled, updated
        self._joins: dict[str, Join | None] = {}

    def can_scatter(self, node: Any) -> bool:
        """Return whether our operation can replace a scatter."""
        return (
            node.op in SCATTERS
            and node.attr["dtype"].type in ADDED_TYPES
            and node.attr["Tindices"].type in _INDEX_TYPES
            and bool(self._shape_of(variable_of(self._view, node)))
        )

    def can_sum(self, node: Any) -> bool:
        """Return whether our operation can replace a sum of joined rows."""
        source = self._view.producer(source_of(self._view, indices_of(node)))
        return (
            source is not None
            and source.op == JOIN
            and node.attr["T"].type in ADDED_TYPES
            and bool(self.row_shape(node))
        )

    def row_shape(self, node: Any) -> Shape | None:
        """Return the shape of the table of a scatter, a sum or a join."""
        if node.op == SUM:
            return self._shapes.get(self._view.outputs(node)[0])
        if node.op == JOIN:
            return self._shapes.get(data_inputs(node)[0])
        return self._shape_of(variable_of(self._view, node))

    def join(self, name: str) -> Join | None:
        """Return the operations of a join, or None if our operation cannot contain it."""
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
        """Return the operations that compute a scatter's values; None if they stay outside."""
        found = Rows()
        if not self._visit(value_of(scatter), scatter, found):
            return None
        if found.joins:
            found.hands = self._handing_on(indices_of(scatter))
            # (Several scatters may use joined rows; `StagedEncoder` checks all of them.)
            return found
        self._grow(found, scatter)
        inside = found.nodes | {scatter.name}
        for name in found.nodes:
            for tensor in self._view.outputs(self._view.nodes[name]):
                if tensor in self._view.results:
                    return None
                if not {use.node for use in self._view.uses(tensor)} <= inside:
                    return None
        return found

    def _grow(self, found: Rows, scatter: Any) -> None:
        """Add producers of inputs that have no other consumer: Grappler may change them as well."""
        view, waiting = self._view, list(found.inputs)
        while waiting:
            tensor = waiting.pop()
            node = view.producer(tensor)
            if node is None or node.name in found.nodes or not self._is_compiled(node):
                continue
            read = value_inputs(node)
            users = {use.node for use in view.uses(tensor)}
            if (
                node.device == scatter.device
                and not _is_one(self._shapes.get(tensor))
                and tensor not in view.results
                and users <= found.nodes | {scatter.name}
                and all(self._is_input(one, scatter) for one in read)
            ):
                found.nodes.add(node.name)
                found.inputs.remove(tensor)
                new = [one for one in dict.fromkeys(read) if one not in found.inputs]
                found.inputs += new
                waiting += new

    def _handing_on(self, tensor: str) -> set[str]:
        """Return the nodes that forward a tensor from its source."""
        found = set()
        while tensor != source_of(self._view, tensor):
            node: Any = self._view.producer(tensor)
            found.add(node.name)
            tensor = data_inputs(node)[self._view.output_index(tensor)]
        return found

    def _shape_of(self, variable: str) -> Shape | None:
        return self._shapes.get(variable)

    def _visit(self, tensor: str, scatter: Any, found: Rows) -> bool:
        """Return whether a tensor is computed from gathered rows; if so, add its operations."""
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
        read = value_inputs(node)
        made = [one for one in read if self._visit(one, scatter, found)]
        others = [one for one in read if one not in made]
        if not made or not all(self._is_input(one, scatter) for one in others):
            return False
        found.inputs += [one for one in others if one not in found.inputs]
        found.nodes.add(node.name)
        return True

    def _is_gather(self, node: Any, scatter: Any) -> bool:
        """Return whether a node gathers the rows of a scatter, after an update of its variable."""
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
        """Return whether the variables of two nodes are on one device."""
        return self._view.device_of(node) == self._view.device_of(scatter)

    def _is_behind(self, node: Any) -> bool:
        """Return whether a read of a variable waits for the function's update of it."""
        view, variable = self._view, variable_of(self._view, node)
        before = [view.nodes[name] for name in control_inputs(node) if name in view.nodes]
        return variable in self._updated and any(
            one.op in SCATTERS | ASSIGNS and variable_of(view, one) == variable for one in before
        )

    def _visit_whole(self, tensor: str, shape: Shape | None, scatter: Any, found: Rows) -> bool:
        """Return whether a tensor is computed elementwise from whole, updated variables."""
        view = self._view
        node = view.producer(tensor)
        if node is None or shape is None or self._shapes.get(tensor) != shape:
            return False
        if node.op in READS:
            variable = variable_of(view, node)
            # (A join may read a variable before its update.)
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
        """Return whether a tensor has one element, or one row for each scattered row."""
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
