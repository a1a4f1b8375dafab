# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Distinguish slots from weights, and find the assignments of a weight in a cluster."""

from __future__ import annotations

from tf_fuse.function_graph.operations import type_of
from tf_fuse.function_graph.order import Order
from tf_fuse.shard_update.analysis.cluster_growth import ClusterProblem, FunctionFacts, Growth
from tf_fuse.shard_update.analysis.replication import ReplicatedProgram, only_reads


class WeightAssignments:
    """Looks at the variables that clusters assign."""

    def __init__(self, known: FunctionFacts, program: ReplicatedProgram):
        """Take the function.

        Args:
          known: of it.
          program: what else there is.
        """
        self._known, self._view, self._program = known, known.view, program
        self._order = Order(known.view)

    def grow(self, growth: Growth, weight: str) -> ClusterProblem | None:
        """Add earlier assignments of a weight, and the versions that assignments make."""
        reads, assigns = self._known.accesses[weight]
        chain = self._order.chain(assigns)
        mine = [sink for sink in assigns if sink in growth.origins]
        if chain is None:
            return ClusterProblem("assigned_twice", weight, growth.origins[mine[0]])
        own = [chain.index(sink) for sink in mine if growth.origins[sink] != sink]
        first = min(own)
        for sink in chain[first : max(own)]:
            if sink not in mine and self._known.can_shard(sink, growth):
                growth.add_sink(sink, growth.root)
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
                    return ClusterProblem("read_after_update", read, growth.root)
                origin = read
            elif number > first:
                origin = chain[number - 1]
            else:
                continue
            self._known.join(growth, f"{read}:value:0", origin)
        return None

    def _takes(self, growth: Growth, sink: str) -> bool:
        """Return whether an earlier assignment of a weight can probably be sharded, too."""
        return sink not in growth.excluded and self._known.can_shard(sink, growth)

    def _leads_to_update(self, read: str) -> bool:
        """Return whether something is assigned that is made of what a node reads."""
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

    def classify(self, growth: Growth, dtype: int) -> ClusterProblem | None:
        """Classify the variables as slots or weights, once all members are known."""
        by_variable: dict[str, list[str]] = {}
        for sink in growth.sinks:
            for variable in self._view.assigned(self._view.nodes[sink]):
                by_variable.setdefault(variable, []).append(sink)
        if len(growth.branches) > 1 or (by_variable and growth.branches):
            return ClusterProblem("in_branch", min(growth.branches)[0], growth.root)
        if growth.branches:
            return None
        if not by_variable:
            return ClusterProblem("no_update", growth.root, growth.root)
        for variable in sorted(by_variable):
            mine = by_variable[variable]
            origin = growth.origins[mine[0]]
            if variable not in self._known.found.variables:
                return ClusterProblem("not_replicated", variable, origin)
            if self._is_slot(growth, variable, mine):
                if escapes := self._known.escapes(variable, but_shape=False):
                    return ClusterProblem("escapes", f"{variable} in {escapes[0]}", origin)
                growth.slots.append(variable)
                continue
            if self._known.may_be_slot(growth, variable):
                return ClusterProblem("assigned_twice", variable, variable)
            if growth.weights:
                others = (growth.weights[0], variable)
                return ClusterProblem("several_weights", variable, origin, others)
            problem = self._classify_weight(growth, variable, mine, dtype)
            if problem is not None:
                return problem
        return None

    def _is_slot(self, growth: Growth, variable: str, mine: list[str]) -> bool:
        """Return whether nobody but the cluster reads and assigns a variable."""
        reads, assigns = self._known.accesses[variable]
        sinks = [self._view.nodes[sink] for sink in mine]
        if any(variable in self._view.assigned(sink)[1:] for sink in sinks):
            return True  # Its other uses have been looked at.
        return (
            self._known.may_be_slot(growth, variable)
            and bool(reads)
            and all(f"{read}:value:0" in growth.members for read in reads)
            and set(assigns) == set(mine)
        )

    def _classify_weight(
        self, growth: Growth, weight: str, mine: list[str], dtype: int
    ) -> ClusterProblem | None:
        origin = growth.origins[mine[0]]
        if why := self._misused(weight, mine):
            return ClusterProblem(*why, origin)
        chain = self._order.chain(self._known.accesses[weight][1])
        assert chain is not None, weight  # Or it would not have grown.
        first, last = (f(map(chain.index, mine)) for f in (min, max))
        growth.chain = chain[first : last + 1]
        if missing := sorted(set(growth.chain) - set(mine)):
            return ClusterProblem("assigned_twice", f"{weight} in {missing[0]}", origin)
        node = self._view.nodes[growth.chain[-1]]
        if type_of(node) != dtype:
            return ClusterProblem("other_type", weight, origin)
        for read in self._known.accesses[weight][0]:
            if f"{read}:value:0" in growth.members:
                version = self._version(growth, read)
                if version is None:
                    return ClusterProblem("read_after_update", read, origin)
                growth.versions[read] = version
        growth.weights.append(weight)
        return None

    def _misused(self, weight: str, mine: list[str]) -> tuple[str, str] | None:
        """Return what else uses a weight and would read another value than without the pass."""
        for name in self._known.escapes(weight, but_shape=True):
            node = self._view.nodes.get(name)
            if node is None or not only_reads(self._view, self._program, node, weight):
                return "escapes", f"{weight} in {name or 'the results'}"
            before = [bool(self._order.behind(sink, [name])) for sink in mine]
            after = [bool(self._order.behind(name, [sink])) for sink in mine]
            if not all(before) and not all(after):
                return "read_after_update", name
        return None

    def _version(self, growth: Growth, read: str) -> int | None:
        """Which assignment of a cluster's chain makes what a node reads.

        Args:
          growth: of a cluster with a weight.
          read: a read of it after the first one.

        Returns:
          Its index; None if it is not certain.
        """
        before = [read in self._order.behind(sink, [read]) for sink in growth.chain]
        number = before.count(True)
        if before != [True] * number + [False] * (len(before) - number) or number == 0:
            return None
        if number < len(before) and not self._order.behind(read, [growth.chain[number]]):
            return None
        return number - 1
