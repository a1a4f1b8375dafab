# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What of a function is the weight update behind an all-reduce, tensor by tensor.

Section 3.2 of Xu et al. (2020). A strategy reduces its gradients as one vector, a `Pack`. From
each gradient a `Family` grows: the tensors that elementwise operations make of it, of redundant
tensors of the same shape, and of redundant scalars. Elements of a family are computed from the same
elements of its other tensors, so each replica can compute a slice of all of them. A family ends in
assignments: to slots, which only the family reads and writes, and to weights.

No optimizer is known by name here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tf_fuse.shard_update.graph_view import ASSIGNS, READS, GraphView, control_inputs, data_inputs
from tf_fuse.shard_update.redundancy import Redundancy

Shape = tuple[int, ...]

ELEMENTWISE = frozenset(
    {
        "Abs", "Add", "AddN", "AddV2", "BitwiseAnd", "BitwiseOr", "Cast", "Ceil", "ClipByValue",
        "Cos", "Div", "DivNoNan", "Equal", "Erf", "Exp", "Expm1", "Floor", "FloorDiv", "FloorMod",
        "Greater", "GreaterEqual", "Identity", "Inv", "IsFinite", "IsInf", "IsNan", "Less",
        "LessEqual", "Log", "Log1p", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum", "Minimum",
        "Mod", "Mul", "MulNoNan", "Neg", "NotEqual", "OnesLike", "Pow", "RealDiv", "Reciprocal",
        "Relu", "Rint", "Round", "Rsqrt", "SelectV2", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt",
        "Square", "SquaredDifference", "StopGradient", "Sub", "Tanh", "TruncateDiv", "Xdivy",
        "Xlog1py", "Xlogy", "ZerosLike",
    }
)  # fmt: skip

# Why a gradient's update is left as it is.
REASONS = {
    "not_all_replicas": "the all-reduce is of a part of the replicas",
    "waits_for_itself": "the update of one gradient reads another one that is left alone",
    "read_whole": "the reduced pack is read as a whole",
    "unknown_shape": "the shape of a tensor is not known when the function is traced",
    "no_update": "no variable is assigned from the gradient alone",
    "not_elementwise": "an operation that is not elementwise reads a tensor of the update",
    "not_redundant": "the update reads a tensor that may differ from replica to replica",
    "returned": "the function returns a tensor of the update",
    "read_after_update": "the new weight is read again in the same step",
    "assigned_twice": "the weight is assigned more than once in a step",
    "several_weights": "the gradient alone changes more than one weight",
    "escapes": "an operation other than reads and assignments gets the variable",
}


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
      weights: resources of the other variables that it assigns.
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
    reason: str | None = None
    detail: str = ""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

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
    """

    node: str
    parts: list[str]
    families: list[Family]
    reason: str | None = None
    detail: str = ""


class Clusters:
    """Finds the packs of a function."""

    def __init__(self, view: GraphView, shapes: Mapping[str, Shape | None], found: Redundancy):
        """Takes the function, the static shapes of its tensors, and what is redundant in it."""
        self._view = view
        self._shapes = shapes
        self._found = found
        self._results = set(view.results)
        # By variable, its reads and its assignments.
        self._accesses: dict[str, tuple[list[str], list[str]]] = {}
        for name in sorted(view.nodes):
            variable = view.variable_of(view.nodes[name])
            if variable is not None:
                is_write = view.nodes[name].op not in READS
                self._accesses.setdefault(variable, ([], []))[is_write].append(name)

    def pack(self, node: Any) -> Pack:
        """The pack of an all-reduce."""
        view = self._view
        (whole,) = view.outputs(node)
        parts = self._parts(data_inputs(node)[0], node)
        roots = self._roots(whole, len(parts))
        if roots is None:
            if self._shape(whole) is None:
                return Pack(node.name, parts, [], "unknown_shape", whole)
            return Pack(node.name, parts, [], "read_whole", node.name)
        sizes = [self._size(part) for part in parts]
        for part, size in zip(parts, sizes, strict=True):
            if size is None:
                return Pack(node.name, parts, [], "unknown_shape", part)
        return Pack(node.name, parts, [self._family(root) for root in roots])

    def _parts(self, packed: str, reduce: Any) -> list[str]:
        concat = self._view.producer(packed)
        if (
            concat is not None
            and concat.op == "ConcatV2"
            and [use.node for use in self._view.uses(packed)] == [reduce.name]
            and all(len(self._shape(x) or (0, 0)) == 1 for x in data_inputs(concat)[:-1])
        ):
            return data_inputs(concat)[:-1]
        return [packed]

    def _roots(self, whole: str, count: int) -> list[str] | None:
        """The parts of the reduced vector; None if something else is made of it."""
        uses = self._view.uses(whole)
        is_split = [self._view.nodes[use.node].op for use in uses] == ["SplitV"]
        if count == 1 and not is_split:
            return [whole]
        if whole in self._results or len(uses) != 1:
            return None
        split = self._view.nodes[uses[0].node]
        if split.op != "SplitV" or uses[0].index != 0:
            return None
        outputs = self._view.outputs(split)
        return outputs if len(outputs) == count else None

    def _family(self, root: str) -> Family:
        shape = self._shape(root)
        if shape is None:
            return Family(root, ()).leave("unknown_shape", root)
        # A variable that the family assigns is taken for a slot, whose reads are members, until one
        # of them is seen to be read by something else.
        no_slots: set[str] = set()
        while True:
            family = Family(root, shape, {root})
            problem = self._grow(family, no_slots)
            if problem is None:
                return self._with_variables(family)
            reason, detail, origin = problem
            if origin == root:
                return family.leave(reason, detail)
            no_slots.add(origin)

    def _grow(self, family: Family, no_slots: set[str]) -> tuple[str, str, str] | None:
        """Follows the gradient, then the slots that are assigned from it.

        Returns:
          What keeps it from being cut, where, and whether that is made of the gradient (its root)
          or of a variable.
        """
        origins = {family.root: family.root}
        waiting = [family.root]
        slots: set[str] = set()
        while waiting:
            tensor = waiting.pop()
            if tensor in self._results:
                return "returned", tensor, origins[tensor]
            for use in self._view.uses(tensor):
                node = self._view.nodes[use.node]
                if node.op in ASSIGNS and use.index == 1:
                    if node.name not in family.sinks:
                        family.sinks.append(node.name)
                    continue
                made, why = self._made(node, use.index, family)
                if made is None:
                    return *why, origins[tensor]
                if made not in family.members:
                    self._join(made, family)
                    family.nodes.add(node.name)
                    origins[made] = origins[tensor]
                    waiting.append(made)
            if not waiting:
                new = self._assigned(family) - slots - no_slots
                for variable in sorted(new):
                    slots.add(variable)
                    for read in self._accesses[variable][0]:
                        self._join(value := f"{read}:value:0", family)
                        origins[value] = variable
                        waiting.append(value)
        family.sinks.sort()
        return None

    def _join(self, tensor: str, family: Family) -> None:
        """Makes a tensor a member; the first one behind the pack has the gradient's shape."""
        family.members.add(tensor)
        shape = self._shape(tensor)
        if len(family.shape) == 1 and shape is not None and len(shape) != 1:
            family.shape = shape

    def _assigned(self, family: Family) -> set[str]:
        return {str(self._view.variable_of(self._view.nodes[sink])) for sink in family.sinks}

    def _made(self, node: Any, index: int, family: Family) -> tuple[str | None, tuple[str, str]]:
        """The member that a node makes of a member; or None, and why it makes none."""
        outputs = self._view.outputs(node)
        inputs = data_inputs(node)
        if node.op == "IdentityN":
            return outputs[index], ("", "")
        if node.op == "Reshape" and index == 0:
            if self._size(outputs[0]) == family.size:
                return outputs[0], ("", "")
            return None, ("unknown_shape", outputs[0])
        if node.op not in ELEMENTWISE:
            return None, ("not_elementwise", f"{node.name} ({node.op})")
        shape = self._shape(outputs[0])
        if shape is None:
            return None, ("unknown_shape", outputs[0])
        if math.prod(shape) != family.size:
            return None, ("not_elementwise", f"{node.name} ({node.op})")
        for tensor in inputs:
            if tensor not in self._found.tensors:
                return None, ("not_redundant", tensor)
            if self._shape(tensor) not in (shape, ()):
                return None, ("not_elementwise", f"{node.name} ({node.op})")
        return outputs[0], ("", "")

    def _with_variables(self, family: Family) -> Family:
        """Tells slots from weights."""
        view = self._view
        by_variable: dict[str, list[str]] = {}
        for sink in family.sinks:
            by_variable.setdefault(str(view.variable_of(view.nodes[sink])), []).append(sink)
        if not by_variable:
            return family.leave("no_update", family.root)
        for variable in sorted(by_variable):
            reads, assigns = self._accesses[variable]
            escapes = view.escapes(variable)
            if variable not in self._found.variables:
                return family.leave("not_redundant", variable)
            if escapes:
                return family.leave("escapes", f"{variable} in {escapes[0]}")
            mine = by_variable[variable]
            if reads and all(f"{read}:value:0" in family.members for read in reads):
                if set(assigns) != set(mine):
                    return family.leave("assigned_twice", variable)
                family.slots.append(variable)
                continue
            # What assigns it before, such as weight decay, is left to all replicas.
            last = mine[0]
            if len(mine) > 1 or not all(last in self._behind(a) for a in set(assigns) - {last}):
                return family.leave("assigned_twice", variable)
            if again := sorted(self._behind(last) & set(reads)):
                return family.leave("read_after_update", again[0])
            if family.weights:
                return family.leave("several_weights", variable)
            family.weights.append(variable)
        return family

    def _behind(self, name: str) -> set[str]:
        """The nodes that run after a node."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            node = self._view.nodes[waiting.pop()]
            following = self._view.followers(node.name) + [
                use.node for tensor in self._view.outputs(node) for use in self._view.uses(tensor)
            ]
            for one in following:
                if one not in found:
                    found.add(one)
                    waiting.append(one)
        return found

    def _shape(self, tensor: str) -> Shape | None:
        return self._shapes.get(tensor)

    def _size(self, tensor: str) -> int | None:
        shape = self._shape(tensor)
        return None if shape is None else math.prod(shape)


def imports(view: GraphView, family: Family) -> dict[str, str]:
    """The tensors from outside that a family's nodes read and that are cut for it.

    Returns:
      By tensor, the variable that it is the value of, or "".
    """
    found: dict[str, str] = {}
    for name in sorted(family.nodes):
        node = view.nodes[name]
        if node.op in ("IdentityN", "Reshape"):
            continue
        for tensor in data_inputs(node):
            if tensor in family.members:
                continue
            producer = view.producer(tensor)
            is_read = producer is not None and producer.op in READS
            found[tensor] = str(view.variable_of(producer)) if is_read else ""
    return found


def depends_on(view: GraphView, tensors: set[str], origins: set[str]) -> bool:
    """Whether any of some tensors and "^nodes" is made from, or waits for, some nodes."""
    seen: set[str] = set()
    waiting = [
        tensor.lstrip("^").partition(":")[0]
        for tensor in tensors
        if ":" in tensor or tensor.startswith("^")
    ]
    while waiting:
        name = waiting.pop()
        if name in origins:
            return True
        if name in seen or name not in view.nodes:
            continue
        seen.add(name)
        node = view.nodes[name]
        waiting += [tensor.partition(":")[0] for tensor in data_inputs(node) if ":" in tensor]
        waiting += control_inputs(node)
    return False
