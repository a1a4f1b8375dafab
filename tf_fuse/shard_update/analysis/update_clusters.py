# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the weight-update clusters of a function: what it computes from each reduced gradient.

Section 3.2 of Xu et al. (2020). A strategy reduces its gradients as one vector, a `Bucket`. From
each gradient an `UpdateCluster` grows: the tensors that elementwise operations make of it, of
replicated tensors of the same shape, and of replicated tensors that broadcast to it. Elements of a
cluster are computed from the same elements of its other tensors, so each replica can compute a
slice of each. A cluster ends in assignments (to slots, which only the cluster reads and writes, and
to a weight) and in reductions. The result of a reduction is not a member, since all replicas need
all of it.

A weight may be assigned several times in a step, as by a weight decay and the update after it. The
reads between such assignments see a *version* of it, which is a member.

No optimizer is known by name here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.operations import (
    ELEMENTWISE,
    REDUCTIONS,
    RESOURCE_APPLY,
    SAME_ELEMENTS,
    apply_inputs,
    can_broadcast,
)
from tf_fuse.function_graph.view import ASSIGNS, READS, GraphView, data_inputs
from tf_fuse.shard_update.analysis.cluster_growth import (
    ClusterProblem,
    FunctionFacts,
    Growth,
    Reductions,
)
from tf_fuse.shard_update.analysis.gradient_reductions import leads_to_update
from tf_fuse.shard_update.analysis.replication import ReplicatedProgram, Replication
from tf_fuse.shard_update.analysis.weight_assignments import WeightAssignments
from tf_fuse.shard_update.plan import Bucket, UpdateCluster


class ClusterFinder:
    """Finds the buckets of a function."""

    def __init__(
        self,
        view: GraphView,
        program: ReplicatedProgram,
        shapes: Mapping[str, Shape | None],
        found: Replication,
        exact: bool = False,
        outside: Collection[str] = (),
        carried: Collection[str] = (),
        updating: Collection[str] = (),
    ):
        """Take the function.

        Args:
          view: of it.
          program: what else there is.
          shapes: the static shapes of its tensors.
          found: what is replicated in it.
          exact: whether to leave alone what would not be bit-equal.
          outside: arguments that are variables which others than the function read or assign.
          carried: arguments that the function returns unchanged, for its next iteration.
          updating: results from which the function's callers may update a variable.
        """
        self._view, self._program, self._updating = view, program, updating
        self._known = FunctionFacts(view, shapes, found, outside, carried)
        self._weights = WeightAssignments(self._known, program)
        self._reductions = Reductions(view, shapes, exact)
        self._exact = exact

    # --- Buckets ---------------------------------------------------------------------------------

    def bucket(self, node: Any) -> Bucket:
        """Return the bucket of an all-reduce."""
        (whole,) = self._view.outputs(node)
        bucket = self._bucket(node, whole)
        if bucket.reason is not None and not self._leads_to_update(whole):
            return bucket.leave("no_update", node.name)
        return bucket

    def _bucket(self, node: Any, whole: str) -> Bucket:
        tensors = self._tensors(data_inputs(node)[0], node)
        roots = self._roots(whole, len(tensors))
        if roots is None:
            if self._known.shape(whole) is None:
                return Bucket(node.name, tuple(tensors), (), "unknown_shape", whole)
            return Bucket(node.name, tuple(tensors), (), "read_whole", node.name)
        for tensor in tensors:
            if self._known.size(tensor) is None:
                return Bucket(node.name, tuple(tensors), (), "unknown_shape", tensor)
        dtype = node.attr["T"].type
        clusters = tuple(self.cluster(root, dtype) for root in roots)
        return Bucket(node.name, tuple(tensors), clusters, reduce=node)

    def _tensors(self, packed: str, reduce: Any) -> list[str]:
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
        """Return the tensors in the reduced vector; None if something else is made of it."""
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

    # --- Clusters --------------------------------------------------------------------------------

    def cluster(self, root: str, dtype: int) -> UpdateCluster:
        """Return the cluster of a gradient.

        Args:
          root: the gradient, in the shape that it has in the bucket, or as a branch gets it.
          dtype: number of the type of what is reduced.
        """
        cluster = self._cluster(root, dtype)
        if self._exact and cluster.reason is None and cluster.size == 1:
            product = self._reordered(cluster)
            if product is not None:
                return cluster.leave("not_exact", f"{product} (Mul)")
        if cluster.reason is not None and not self._leads_to_update(root):
            return cluster.leave("no_update", root)
        return cluster

    def _reordered(self, cluster: UpdateCluster) -> str | None:
        """Return a product of three factors of one element each.

        Grappler (MinimizeBroadcasts) multiplies those in the order of their names, which are others
        in a sharded update.
        """
        nodes = self._view.nodes
        assigned = [one for sink in cluster.sinks for one in data_inputs(nodes[sink])[1:]]
        made = [nodes[name] for name in sorted(cluster.nodes)]
        made += filter(None, map(self._view.producer, assigned))
        for node in made:
            factors = map(self._view.producer, data_inputs(node))
            if node.op == "Mul" and any(one is not None and one.op == "Mul" for one in factors):
                return str(node.name)
        return None

    def _leads_to_update(self, tensor: str) -> bool:
        return leads_to_update(self._view, self._program, [tensor], self._updating)

    def _cluster(self, root: str, dtype: int) -> UpdateCluster:
        shape = self._known.shape(root)
        if shape is None:
            return UpdateCluster(root, ()).leave("unknown_shape", root)
        # A variable that the cluster assigns is taken for a slot, whose reads are members, until
        # one of them is seen to be read by something else; likewise what is read and assigned of a
        # weight.
        problems: dict[str, ClusterProblem] = {}
        while True:
            growth = Growth(root, shape, set(problems))
            growth.join(root, root, shape)
            problem = self._grow(growth) or self._weights.classify(growth, dtype)
            cluster = growth.cluster()
            if problem is None:
                return cluster
            if problem.origin == root:
                why = [problems[v] for v in problem.others if v in problems]
                for one in why:
                    if one.reason == "not_exact":
                        return cluster.leave(one.reason, one.detail)
                # Say why they are not slots.
                details = [problem.detail, *(f"{one.detail}: {one.reason}" for one in why)]
                return cluster.leave(problem.reason, "; ".join(details))
            problems[problem.origin] = problem

    def _grow(self, growth: Growth) -> ClusterProblem | None:
        """Follow the gradient, then the variables that are assigned from it."""
        while growth.waiting:
            while growth.waiting:
                problem = self._follow(growth, growth.waiting.pop())
                if problem is not None:
                    return problem
            for variable in sorted(self._known.assigned(growth)):
                if self._known.may_be_slot(growth, variable):
                    for read in self._known.accesses[variable][0]:
                        self._known.join(growth, f"{read}:value:0", variable)
                else:
                    problem = self._weights.grow(growth, variable)
                    if problem is not None:
                        return problem
            self._pull(growth)
            self._adopt(growth)
        growth.sinks.sort()
        return None

    def _follow(self, growth: Growth, tensor: str) -> ClusterProblem | None:
        """Look at what reads a member."""
        origin = growth.origins[tensor]
        if tensor in self._known.results:
            return ClusterProblem("returned", tensor, origin)
        for use in self._view.uses(tensor):
            node = self._view.nodes[use.node]
            if self._is_sink(node, use.index):
                why = self._check_sink(node, growth)
                if why is not None:
                    return ClusterProblem(*why, origin)
                growth.add_sink(node.name, origin)
            elif node.op == "If" and use.index > 0:
                if data_inputs(node)[0] not in self._known.found.tensors:
                    return ClusterProblem("not_replicated", data_inputs(node)[0], origin)
                growth.branches.add((node.name, use.index - 1))
            elif node.op in REDUCTIONS:
                reduction = self._reductions.of(node)
                if isinstance(reduction, tuple):
                    return ClusterProblem(*reduction, origin)
                growth.reductions[node.name] = reduction
            else:
                made, why = self._made(node, use.index, growth)
                if made is None:
                    return ClusterProblem(*why, origin)
                growth.nodes.add(node.name)
                self._known.join(growth, made, origin)
        return None

    def _adopt(self, growth: Growth) -> None:
        """Take variables for slots that the cluster reads alone, but that others assign."""
        users = growth.nodes | set(growth.sinks)
        tensors = {tensor for name in users for tensor in data_inputs(self._view.nodes[name])}
        for tensor in sorted(tensors - growth.members):
            node = self._view.producer(tensor)
            if node is None or node.op not in READS or self._known.size(tensor) != growth.size:
                continue
            variable = str(self._view.variable_of(node))
            reads, assigns = self._known.accesses[variable]
            values = [f"{read}:value:0" for read in reads]
            if (
                variable in growth.excluded | self._known.outside
                or variable in self._known.assigned(growth)
                or not assigns
                or not {u.node for value in values for u in self._view.uses(value)} <= users
                or not all(self._known.can_shard(assign, growth) for assign in assigns)
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

    def _check_sink(self, node: Any, growth: Growth) -> tuple[str, str] | None:
        """Return why an assignment cannot be of a shard; None if it can."""
        variables = self._view.assigned(node)
        for variable in variables:
            if self._known.size(variable) != growth.size:
                return "not_elementwise", f"{node.name} ({node.op})"
        if node.op in RESOURCE_APPLY:
            inputs = data_inputs(node)
            for index in apply_inputs(self._view.op_def(node.op)).scalars:
                if inputs[index] not in self._known.found.tensors:
                    return "not_replicated", inputs[index]
            for slot in variables[1:]:
                reads, assigns = self._known.accesses[slot]
                if reads or assigns != [node.name] or slot in self._known.outside:
                    return "assigned_twice", slot
        return None

    def _made(self, node: Any, index: int, growth: Growth) -> tuple[str | None, tuple[str, str]]:
        """Return the member that a node makes of a member; or None, and why it makes none."""
        outputs = self._view.outputs(node)
        inputs = data_inputs(node)
        if node.op in SAME_ELEMENTS and index == 0:
            if self._known.size(outputs[0]) == growth.size:
                return outputs[0], ("", "")
            return None, ("unknown_shape", outputs[0])
        if node.op not in ELEMENTWISE:
            return None, ("not_elementwise", f"{node.name} ({node.op})")
        shape = self._known.shape(outputs[0])
        if shape is None:
            return None, ("unknown_shape", outputs[0])
        if math.prod(shape) != growth.size:
            return None, ("not_elementwise", f"{node.name} ({node.op})")
        for tensor in inputs:
            if tensor not in self._known.found.tensors:
                return None, ("not_replicated", tensor)
            other = self._known.shape(tensor)
            if other is None:
                return None, ("unknown_shape", tensor)
            if other not in (shape, ()) and not can_broadcast(node.op):
                return None, ("not_elementwise", f"{node.name} ({node.op})")
        return outputs[0], ("", "")

    def _pull(self, growth: Growth) -> None:
        """Make members of what is read by the cluster alone, and can be computed by elements."""
        if growth.size == 1:
            return  # It would save nothing.
        sinks = set(growth.sinks)
        waiting = sorted(
            {tensor for name in growth.nodes for tensor in data_inputs(self._view.nodes[name])}
            | {tensor for name in sinks for tensor in data_inputs(self._view.nodes[name])[1:]}
        )
        while waiting:
            tensor = waiting.pop()
            node = self._view.producer(tensor)
            if (
                node is None
                or tensor in growth.members
                or tensor in self._known.results
                or tensor not in self._known.found.tensors
                or self._known.size(tensor) != growth.size
                or not {use.node for use in self._view.uses(tensor)} <= growth.nodes | sinks
                or self._made(node, 0, growth)[0] != tensor
            ):
                continue
            growth.members.add(tensor)
            growth.nodes.add(node.name)
            waiting += data_inputs(node)
