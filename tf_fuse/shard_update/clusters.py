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
from typing import Any

from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.families import Family, Pack
from tf_fuse.shard_update.graph_view import ASSIGNS, READS, GraphView, data_inputs
from tf_fuse.shard_update.growth import Growth, Known, Problem
from tf_fuse.shard_update.ops import (
    ELEMENTWISE,
    REDUCTIONS,
    RESOURCE_APPLY,
    SAME_ELEMENTS,
    apply_inputs,
    can_broadcast,
)
from tf_fuse.shard_update.reductions import Reductions
from tf_fuse.shard_update.redundancy import Redundancy, World
from tf_fuse.shard_update.weights import Weights


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
        self._view = view
        self._known = Known(view, shapes, found, outside, carried)
        self._weights = Weights(self._known, world)
        self._reductions = Reductions(view, shapes, exact)

    # --- Packs -----------------------------------------------------------------------------------

    def pack(self, node: Any) -> Pack:
        """The pack of an all-reduce."""
        view = self._view
        (whole,) = view.outputs(node)
        parts = self._parts(data_inputs(node)[0], node)
        roots = self._roots(whole, len(parts))
        if roots is None:
            if self._known.shape(whole) is None:
                return Pack(node.name, parts, [], "unknown_shape", whole)
            return Pack(node.name, parts, [], "read_whole", node.name)
        for part in parts:
            if self._known.size(part) is None:
                return Pack(node.name, parts, [], "unknown_shape", part)
        dtype = node.attr["T"].type
        return Pack(node.name, parts, [self.family(root, dtype) for root in roots], reduce=node)

    def _parts(self, packed: str, reduce: Any) -> list[str]:
        concat = self._view.producer(packed)
        if (
            concat is not None
            and concat.op == "ConcatV2"
            and [use.node for use in self._view.uses(packed)] == [reduce.name]
            and all(len(self._known.shape(x) or (0, 0)) == 1 for x in data_inputs(concat)[:-1])
        ):
            return data_inputs(concat)[:-1]
        return [packed]

    def _roots(self, whole: str, count: int) -> list[str] | None:
        """The parts of the reduced vector; None if something else is made of it."""
        uses = self._view.uses(whole)
        is_split = [self._view.nodes[use.node].op for use in uses] == ["SplitV"]
        if count == 1 and not is_split:
            return [whole]
        if whole in self._known.results or len(uses) != 1:
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
        shape = self._known.shape(root)
        if shape is None:
            return Family(root, ()).leave("unknown_shape", root)
        # A variable that the family assigns is taken for a slot, whose reads are members, until one
        # of them is seen to be read by something else; likewise what is read and assigned of a
        # weight.
        problems: dict[str, Problem] = {}
        while True:
            growth = Growth(Family(root, shape), set(problems))
            growth.join(root, root, shape)
            problem = self._grow(growth) or self._weights.settle(growth, dtype)
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

    def _grow(self, growth: Growth) -> Problem | None:
        """Follows the gradient, then the variables that are assigned from it."""
        while growth.waiting:
            while growth.waiting:
                problem = self._follow(growth, growth.waiting.pop())
                if problem is not None:
                    return problem
            for variable in sorted(self._known.assigned(growth.family)):
                if self._known.may_be_slot(growth, variable):
                    for read in self._known.accesses[variable][0]:
                        self._known.join(growth, f"{read}:value:0", variable)
                else:
                    problem = self._weights.grow(growth, variable)
                    if problem is not None:
                        return problem
            self._pull(growth.family)
            self._adopt(growth)
        growth.family.sinks.sort()
        return None

    def _follow(self, growth: Growth, tensor: str) -> Problem | None:
        """Looks at what reads a member."""
        family, origin = growth.family, growth.origins[tensor]
        if tensor in self._known.results:
            return Problem("returned", tensor, origin)
        for use in self._view.uses(tensor):
            node = self._view.nodes[use.node]
            if self._is_sink(node, use.index):
                why = self._check_sink(node, family)
                if why is not None:
                    return Problem(*why, origin)
                growth.add_sink(node.name, origin)
            elif node.op == "If" and use.index > 0:
                if data_inputs(node)[0] not in self._known.found.tensors:
                    return Problem("not_redundant", data_inputs(node)[0], origin)
                family.branches.add((node.name, use.index - 1))
            elif node.op in REDUCTIONS:
                reduction = self._reductions.of(node)
                if isinstance(reduction, tuple):
                    return Problem(*reduction, origin)
                family.reductions[node.name] = reduction
            else:
                made, why = self._made(node, use.index, family)
                if made is None:
                    return Problem(*why, origin)
                family.nodes.add(node.name)
                self._known.join(growth, made, origin)
        return None

    def _adopt(self, growth: Growth) -> None:
        """Takes variables for slots that the family reads alone, but that others assign."""
        family = growth.family
        users = family.nodes | set(family.sinks)
        tensors = {tensor for name in users for tensor in data_inputs(self._view.nodes[name])}
        for tensor in sorted(tensors - family.members):
            node = self._view.producer(tensor)
            if node is None or node.op not in READS or self._known.size(tensor) != family.size:
                continue
            variable = str(self._view.variable_of(node))
            reads, assigns = self._known.accesses[variable]
            values = [f"{read}:value:0" for read in reads]
            if (
                variable in growth.excluded | self._known.outside
                or variable in self._known.assigned(family)
                or not assigns
                or not {u.node for value in values for u in self._view.uses(value)} <= users
                or not all(self._known.is_cuttable(assign, family) for assign in assigns)
            ):
                continue
            for assign in assigns:
                growth.add_sink(assign, variable)
            for value in values:
                self._known.join(growth, value, variable)

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
            if self._known.size(variable) != family.size:
                return "not_elementwise", f"{node.name} ({node.op})"
        if node.op in RESOURCE_APPLY:
            inputs = data_inputs(node)
            for index in apply_inputs(self._view.op_def(node.op)).scalars:
                if inputs[index] not in self._known.found.tensors:
                    return "not_redundant", inputs[index]
            for slot in variables[1:]:
                reads, assigns = self._known.accesses[slot]
                if reads or assigns != [node.name] or slot in self._known.outside:
                    return "assigned_twice", slot
        return None

    def _made(self, node: Any, index: int, family: Family) -> tuple[str | None, tuple[str, str]]:
        """The member that a node makes of a member; or None, and why it makes none."""
        outputs = self._view.outputs(node)
        inputs = data_inputs(node)
        if node.op in SAME_ELEMENTS and index == 0:
            if self._known.size(outputs[0]) == family.size:
                return outputs[0], ("", "")
            return None, ("unknown_shape", outputs[0])
        if node.op not in ELEMENTWISE:
            return None, ("not_elementwise", f"{node.name} ({node.op})")
        shape = self._known.shape(outputs[0])
        if shape is None:
            return None, ("unknown_shape", outputs[0])
        if math.prod(shape) != family.size:
            return None, ("not_elementwise", f"{node.name} ({node.op})")
        for tensor in inputs:
            if tensor not in self._known.found.tensors:
                return None, ("not_redundant", tensor)
            other = self._known.shape(tensor)
            if other is None:
                return None, ("unknown_shape", tensor)
            if other not in (shape, ()) and not can_broadcast(node.op):
                return None, ("not_elementwise", f"{node.name} ({node.op})")
        return outputs[0], ("", "")

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
                or tensor in self._known.results
                or tensor not in self._known.found.tensors
                or self._known.size(tensor) != family.size
                or not {use.node for use in self._view.uses(tensor)} <= family.nodes | sinks
                or self._made(node, 0, family)[0] != tensor
            ):
                continue
            family.members.add(tensor)
            family.nodes.add(node.name)
            waiting += data_inputs(node)
