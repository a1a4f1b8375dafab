# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What of a function is the weight update behind an all-reduce, tensor by tensor.

Section 3.2 of Xu et al. (2020). A strategy reduces its gradients as one vector, a `Pack`. From
each gradient a `Family` grows: the tensors that elementwise operations make of it, of redundant
tensors of the same shape, and of redundant tensors that broadcast to it. Elements of a family are
computed from the same elements of its other tensors, so each replica can compute a slice of all of
them. A family ends in assignments: to slots, which only the family reads and writes, and to a
weight; and in reductions, whose results are no part of it, since all replicas need all of them.

A weight may be assigned several times in a step, as by a weight decay and the update behind it. The
reads between such assignments see a *version* of it, which is a member.

No optimizer is known by name here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.families import Family, Pack
from tf_fuse.shard_update.graph_view import ASSIGNS, READS, GraphView, data_inputs
from tf_fuse.shard_update.ops import (
    ELEMENTWISE,
    REDUCTIONS,
    RESOURCE_APPLY,
    SAME_ELEMENTS,
    apply_inputs,
    can_broadcast,
    type_of,
)
from tf_fuse.shard_update.order import Order
from tf_fuse.shard_update.reductions import Reductions
from tf_fuse.shard_update.redundancy import Redundancy, World, only_reads


@dataclass(frozen=True)
class _Problem:
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
class _Growth:
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


class Clusters:
    """Finds the packs of a function."""

    def __init__(
        self,
        view: GraphView,
        world: World,
        shapes: Mapping[str, Shape | None],
        found: Redundancy,
        exact: bool = False,
        outside: Collection[str] = (),
        carried: Collection[str] = (),
    ):
        """Takes the function.

        Args:
          view: of it.
          world: what else there is.
          shapes: the static shapes of its tensors.
          found: what is redundant in it.
          exact: whether to leave alone what would not be bit-equal.
          outside: arguments that are variables which others than the function read or assign.
          carried: arguments that the function returns as they are, for its next iteration.
        """
        self._outside = frozenset(outside)
        self._carried = frozenset(carried)
        self._view = view
        self._world = world
        self._shapes = shapes
        self._found = found
        self._order = Order(view)
        self._reductions = Reductions(view, shapes, exact)
        self._results = set(view.results)
        # By variable, its reads and its assignments.
        self._accesses: dict[str, tuple[list[str], list[str]]] = {}
        for name in sorted(view.nodes):
            node = view.nodes[name]
            if node.op in READS:
                self._of(str(view.variable_of(node)))[0].append(name)
            for variable in view.assigned(node):
                self._of(variable)[1].append(name)

    def _of(self, variable: str) -> tuple[list[str], list[str]]:
        return self._accesses.setdefault(variable, ([], []))

    # --- Packs -----------------------------------------------------------------------------------

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
        for part in parts:
            if self._size(part) is None:
                return Pack(node.name, parts, [], "unknown_shape", part)
        dtype = node.attr["T"].type
        return Pack(node.name, parts, [self.family(root, dtype) for root in roots], reduce=node)

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

    # --- Families --------------------------------------------------------------------------------

    def family(self, root: str, dtype: int) -> Family:
        """The family of a gradient.

        Args:
          root: the gradient, in the shape that it has in the pack, or as a branch gets it.
          dtype: number of the type of what is reduced.
        """
        shape = self._shape(root)
        if shape is None:
            return Family(root, ()).leave("unknown_shape", root)
        # A variable that the family assigns is taken for a slot, whose reads are members, until one
        # of them is seen to be read by something else; likewise what is read and assigned of a
        # weight.
        problems: dict[str, _Problem] = {}
        while True:
            growth = _Growth(Family(root, shape), set(problems))
            growth.join(root, root, shape)
            problem = self._grow(growth) or self._settle(growth, dtype)
            family = growth.family
            if problem is None:
                return family
            if problem.origin == root:
                why = [problems[v] for v in problem.others if v in problems]
                for one in why:
                    if one.reason == "not_exact":
                        return family.leave(one.reason, one.detail)
                # Say why they are no slots.
                details = [problem.detail, *(f"{one.detail}: {one.reason}" for one in why)]
                return family.leave(problem.reason, "; ".join(details))
            problems[problem.origin] = problem

    def _grow(self, growth: _Growth) -> _Problem | None:
        """Follows the gradient, then the variables that are assigned from it."""
        while growth.waiting:
            while growth.waiting:
                problem = self._follow(growth, growth.waiting.pop())
                if problem is not None:
                    return problem
            for variable in sorted(self._assigned(growth.family)):
                if variable not in growth.excluded | self._outside and not self._is_applied(
                    variable
                ):
                    for read in self._accesses[variable][0]:
                        self._join(growth, f"{read}:value:0", variable)
                else:
                    problem = self._grow_weight(growth, variable)
                    if problem is not None:
                        return problem
            self._pull(growth.family)
            self._adopt(growth)
        growth.family.sinks.sort()
        return None

    def _follow(self, growth: _Growth, tensor: str) -> _Problem | None:
        """Looks at what reads a member."""
        family, origin = growth.family, growth.origins[tensor]
        if tensor in self._results:
            return _Problem("returned", tensor, origin)
        for use in self._view.uses(tensor):
            node = self._view.nodes[use.node]
            if self._is_sink(node, use.index):
                why = self._check_sink(node, family)
                if why is not None:
                    return _Problem(*why, origin)
                growth.add_sink(node.name, origin)
            elif node.op == "If" and use.index > 0:
                if data_inputs(node)[0] not in self._found.tensors:
                    return _Problem("not_redundant", data_inputs(node)[0], origin)
                family.branches.add((node.name, use.index - 1))
            elif node.op in REDUCTIONS:
                reduction = self._reductions.of(node)
                if isinstance(reduction, tuple):
                    return _Problem(*reduction, origin)
                family.reductions[node.name] = reduction
            else:
                made, why = self._made(node, use.index, family)
                if made is None:
                    return _Problem(*why, origin)
                family.nodes.add(node.name)
                self._join(growth, made, origin)
        return None

    def _adopt(self, growth: _Growth) -> None:
        """Takes variables for slots that the family reads alone, but that others assign."""
        family = growth.family
        users = family.nodes | set(family.sinks)
        tensors = {tensor for name in users for tensor in data_inputs(self._view.nodes[name])}
        for tensor in sorted(tensors - family.members):
            node = self._view.producer(tensor)
            if node is None or node.op not in READS or self._size(tensor) != family.size:
                continue
            variable = str(self._view.variable_of(node))
            reads, assigns = self._accesses[variable]
            values = [f"{read}:value:0" for read in reads]
            if (
                variable in growth.excluded | self._outside
                or variable in self._assigned(family)
                or not assigns
                or not {u.node for value in values for u in self._view.uses(value)} <= users
                or not all(self._is_cuttable(assign, family) for assign in assigns)
            ):
                continue
            for assign in assigns:
                growth.add_sink(assign, variable)
            for value in values:
                self._join(growth, value, variable)

    def _is_cuttable(self, assign: str, family: Family) -> bool:
        """Whether a part can be assigned instead of the whole, as far as the value goes."""
        node = self._view.nodes[assign]
        if node.op not in ASSIGNS:
            return False
        value = data_inputs(node)[1]
        return value in self._found.tensors and self._size(value) == family.size

    def _is_sink(self, node: Any, index: int) -> bool:
        if node.op in ASSIGNS:
            return index == 1
        if node.op in RESOURCE_APPLY:
            return index == apply_inputs(self._view.op_def(node.op)).gradient
        return False

    def _check_sink(self, node: Any, family: Family) -> tuple[str, str] | None:
        """Why an assignment cannot be of a part; None if it can."""
        variables = self._view.assigned(node)
        for variable in variables:
            if self._size(variable) != family.size:
                return "not_elementwise", f"{node.name} ({node.op})"
        if node.op in RESOURCE_APPLY:
            inputs = data_inputs(node)
            for index in apply_inputs(self._view.op_def(node.op)).scalars:
                if inputs[index] not in self._found.tensors:
                    return "not_redundant", inputs[index]
            for slot in variables[1:]:
                reads, assigns = self._accesses[slot]
                if reads or assigns != [node.name] or slot in self._outside:
                    return "assigned_twice", slot
        return None

    def _join(self, growth: _Growth, tensor: str, origin: str) -> None:
        growth.join(tensor, origin, self._shape(tensor))

    def _assigned(self, family: Family) -> set[str]:
        """The variables that are assigned by values, and the weights of other updates."""
        return {self._view.assigned(self._view.nodes[sink])[0] for sink in family.sinks}

    def _is_applied(self, variable: str) -> bool:
        """Whether a variable is the weight of an operation that updates it."""
        nodes = [self._view.nodes[name] for name in self._accesses[variable][1]]
        return any(n.op in RESOURCE_APPLY and self._view.assigned(n)[0] == variable for n in nodes)

    def _made(self, node: Any, index: int, family: Family) -> tuple[str | None, tuple[str, str]]:
        """The member that a node makes of a member; or None, and why it makes none."""
        outputs = self._view.outputs(node)
        inputs = data_inputs(node)
        if node.op in SAME_ELEMENTS and index == 0:
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
            other = self._shape(tensor)
            if other is None:
                return None, ("unknown_shape", tensor)
            if other not in (shape, ()) and not can_broadcast(node.op):
                return None, ("not_elementwise", f"{node.name} ({node.op})")
        return outputs[0], ("", "")

    # --- Weights ---------------------------------------------------------------------------------

    def _grow_weight(self, growth: _Growth, weight: str) -> _Problem | None:
        """Has earlier assignments of a weight join, and the versions that assignments make."""
        reads, assigns = self._accesses[weight]
        chain = self._order.chain(assigns)
        mine = [sink for sink in assigns if sink in growth.origins]
        if chain is None:
            return _Problem("assigned_twice", weight, growth.origins[mine[0]])
        own = [chain.index(sink) for sink in mine if growth.origins[sink] != sink]
        first = min(own)
        for sink in chain[first : max(own)]:
            if sink not in mine and self._is_cuttable(sink, growth.family):
                growth.add_sink(sink, growth.family.root)
        while first > 0 and self._takes(growth, chain[first - 1]):
            first -= 1
            growth.add_sink(chain[first], chain[first])
        for read in reads:
            number = sum(bool(self._order.behind(sink, [read])) for sink in chain)
            if number > max(own):
                if read in growth.excluded or not self._leads_to_update(read):
                    continue
                origin = read
            elif number > min(own):
                if read in growth.excluded:
                    return _Problem("read_after_update", read, growth.family.root)
                origin = read
            elif number > first:
                origin = chain[number - 1]
            else:
                continue
            self._join(growth, f"{read}:value:0", origin)
        return None

    def _takes(self, growth: _Growth, sink: str) -> bool:
        """Whether an earlier assignment of a weight can be cut as well, as far as can be seen."""
        return sink not in growth.excluded and self._is_cuttable(sink, growth.family)

    def _leads_to_update(self, read: str) -> bool:
        """Whether something is assigned that is made of what a node reads."""
        seen: set[str] = set()
        waiting = [read]
        while waiting:
            node = self._view.nodes[waiting.pop()]
            if self._view.assigned(node):
                return True
            for tensor in self._view.outputs(node):
                for use in self._view.uses(tensor):
                    if use.node not in seen:
                        seen.add(use.node)
                        waiting.append(use.node)
        return False

    def _settle(self, growth: _Growth, dtype: int) -> _Problem | None:
        """Tells slots from weights, once all members are known."""
        family = growth.family
        by_variable: dict[str, list[str]] = {}
        for sink in family.sinks:
            for variable in self._view.assigned(self._view.nodes[sink]):
                by_variable.setdefault(variable, []).append(sink)
        if len(family.branches) > 1 or (by_variable and family.branches):
            return _Problem("in_branch", min(family.branches)[0], family.root)
        if family.branches:
            return None
        if not by_variable:
            return _Problem("no_update", family.root, family.root)
        for variable in sorted(by_variable):
            mine = by_variable[variable]
            origin = growth.origins[mine[0]]
            if variable not in self._found.variables:
                return _Problem("not_redundant", variable, origin)
            if self._is_slot(growth, variable, mine):
                if escapes := self._escapes(variable, but_shape=False):
                    return _Problem("escapes", f"{variable} in {escapes[0]}", origin)
                family.slots.append(variable)
                continue
            if variable not in growth.excluded | self._outside and not self._is_applied(variable):
                return _Problem("assigned_twice", variable, variable)
            if family.weights:
                others = (family.weights[0], variable)
                return _Problem("several_weights", variable, origin, others)
            problem = self._settle_weight(growth, variable, mine, dtype)
            if problem is not None:
                return problem
        return None

    def _is_slot(self, growth: _Growth, variable: str, mine: list[str]) -> bool:
        """Whether nobody but the family reads and assigns a variable."""
        reads, assigns = self._accesses[variable]
        sinks = [self._view.nodes[sink] for sink in mine]
        if any(variable in self._view.assigned(sink)[1:] for sink in sinks):
            return True  # Its other uses have been looked at.
        return (
            variable not in growth.excluded | self._outside
            and not self._is_applied(variable)
            and bool(reads)
            and all(f"{read}:value:0" in growth.family.members for read in reads)
            and set(assigns) == set(mine)
        )

    def _settle_weight(
        self, growth: _Growth, weight: str, mine: list[str], dtype: int
    ) -> _Problem | None:
        family = growth.family
        origin = growth.origins[mine[0]]
        if why := self._misused(family, weight, mine):
            return _Problem(*why, origin)
        chain = self._order.chain(self._accesses[weight][1])
        assert chain is not None, weight  # Or it would not have grown.
        first, last = (f(map(chain.index, mine)) for f in (min, max))
        family.chain = chain[first : last + 1]
        if missing := sorted(set(family.chain) - set(mine)):
            return _Problem("assigned_twice", f"{weight} in {missing[0]}", origin)
        node = self._view.nodes[family.chain[-1]]
        if type_of(node) != dtype:
            return _Problem("other_type", weight, origin)
        for read in self._accesses[weight][0]:
            if f"{read}:value:0" in family.members:
                version = self._version(family, read)
                if version is None:
                    return _Problem("read_after_update", read, origin)
                family.versions[read] = version
        family.weights.append(weight)
        return None

    def _escapes(self, variable: str, but_shape: bool) -> list[str]:
        found = self._view.escapes(variable, but_shape)
        return [name for name in found if name or variable not in self._carried]

    def _misused(self, family: Family, weight: str, mine: list[str]) -> tuple[str, str] | None:
        """What else there is that gets a weight, unless it reads what it would see without us."""
        for name in self._escapes(weight, but_shape=True):
            node = self._view.nodes.get(name)
            if node is None or not only_reads(self._view, self._world, node, weight):
                return "escapes", f"{weight} in {name or 'the results'}"
            before = [bool(self._order.behind(sink, [name])) for sink in mine]
            after = [bool(self._order.behind(name, [sink])) for sink in mine]
            if not all(before) and not all(after):
                return "read_after_update", name
        return None

    def _version(self, family: Family, read: str) -> int | None:
        """Which assignment of a family's chain makes what a node reads.

        Args:
          family: with a weight.
          read: a read of it behind the first one.

        Returns:
          Its index; None if it is not certain.
        """
        before = [read in self._order.behind(sink, [read]) for sink in family.chain]
        number = before.count(True)
        if before != [True] * number + [False] * (len(before) - number) or number == 0:
            return None
        if number < len(before) and not self._order.behind(read, [family.chain[number]]):
            return None
        return number - 1

    def _pull(self, family: Family) -> None:
        """Makes members of what is read by the family alone, and can be computed by elements."""
        if family.size == 1:
            return  # It would save nothing.
        sinks = set(family.sinks)
        waiting = sorted(
            {tensor for name in family.nodes for tensor in data_inputs(self._view.nodes[name])}
            | {tensor for name in sinks for tensor in data_inputs(self._view.nodes[name])[1:]}
        )
        while waiting:
            tensor = waiting.pop()
            node = self._view.producer(tensor)
            if (
                node is None
                or tensor in family.members
                or tensor in self._results
                or tensor not in self._found.tensors
                or self._size(tensor) != family.size
                or not {use.node for use in self._view.uses(tensor)} <= family.nodes | sinks
                or self._made(node, 0, family)[0] != tensor
            ):
                continue
            family.members.add(tensor)
            family.nodes.add(node.name)
            waiting += data_inputs(node)

    def _shape(self, tensor: str) -> Shape | None:
        return self._shapes.get(tensor)

    def _size(self, tensor: str) -> int | None:
        shape = self._shape(tensor)
        return None if shape is None else math.prod(shape)
