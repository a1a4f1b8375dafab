# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""From a function to the one that updates a part of the weights, and what was decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tf_fuse.shard_update.branch import (
    Branch,
    call_with_group,
    forget_shapes,
    reduce_inside,
    with_group,
)
from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.clusters import Clusters
from tf_fuse.shard_update.costs import DEFAULTS, Costs
from tf_fuse.shard_update.early_gather import settle_gathers, stay_all
from tf_fuse.shard_update.families import Pack
from tf_fuse.shard_update.functions import REDUCE, graph_of, op_defs, rename_called, static_shapes
from tf_fuse.shard_update.graph_view import GraphView, without_bundles
from tf_fuse.shard_update.order import Order
from tf_fuse.shard_update.profit import leave_unprofitable
from tf_fuse.shard_update.reductions import Place, levels, touched
from tf_fuse.shard_update.redundancy import (
    Inside,
    Redundancy,
    World,
    analyse,
    called_functions,
    inside,
    is_loop,
)
from tf_fuse.shard_update.replicas import (
    Replicas,
    cut_shapes,
    ranges_of,
    reduces_over,
    slots_of,
    summed_of,
    width_of,
)
from tf_fuse.shard_update.rewrite import Rewriter
from tf_fuse.shard_update.slot import Slot
from tf_fuse.shard_update.waiting import cut_families, is_sharded, settle


@dataclass
class Plan:
    """What becomes of a function.

    Attributes:
      packs: its all-reduces, in the order of their nodes' names; then those of functions that it
        calls.
      function: the `FunctionDef` to run instead; None if nothing is cut.
      slots: variables that have parts then.
      functions: that it calls, and that are to be there before it runs.
      shapes: of the new function's tensors, as far as they are known.
    """

    packs: list[Pack]
    function: Any | None = None
    slots: list[Slot] = field(default_factory=list)
    functions: list[Any] = field(default_factory=list)
    shapes: dict[str, Shape | None] = field(default_factory=dict)


def make_plan(
    definition: Any,
    graph: Any,
    function: Callable[[str], Any | None],
    replicas: Replicas,
    mirrored: Collection[str],
    prefix: str,
    exact: bool = False,
    profitable: bool = False,
    first_use: bool = False,
    narrow: bool = False,
    is_one: bool = False,
    kept: Collection[str] = (),
    costs: Costs = DEFAULTS,
) -> Plan:
    """Plans a function.

    Args:
      definition: its `FunctionDef`.
      graph: the `FuncGraph` that it was made of, which has the shapes.
      function: the `FunctionDef` of a function that it calls, or None.
      replicas: of the program.
      mirrored: arguments that are variables with the same value on all replicas.
      prefix: of the shared names of parts, no other plan's.
      exact: whether to leave alone what would not have the bits of a whole update.
      profitable: whether to leave alone what would make the step longer, by an estimate.
      first_use: whether to gather weights right before their first use, where that is possible.
      narrow: whether these may travel in a narrower type, where all that read them cast them to it.
      is_one: whether one operation will do the update of a weight.
      kept: arguments that are variables which others use at any time.
      costs: for the estimate.

    Returns:
      The plan. It has the function's name and signature.
    """
    planner = _Planner(function, graph, replicas, prefix, exact, profitable)
    planner.first_use, planner.narrow, planner.is_one = first_use, narrow, is_one
    planner.costs = costs
    arguments = {argument.name: argument.name for argument in definition.signature.input_arg}
    scope = _Scope("", [], list(mirrored), arguments, frozenset(kept), frozenset())
    new = planner.plan(definition, graph, scope)
    return Plan(planner.packs, new, planner.slots, planner.functions, planner.shapes)


@dataclass(frozen=True)
class _Scope:
    """What is known of a function's arguments.

    Attributes:
      name: of the function; "" of the one that is planned.
      redundant: those that are equal on all replicas.
      mirrored: those that are variables whose values are.
      origins: those that are variables, and the arguments of the function that is planned which
        they come from.
      outside: those that are variables which others than this function use.
      carried: those that are returned as they are, for the next iteration.
    """

    name: str
    redundant: list[str]
    mirrored: list[str]
    origins: Mapping[str, str]
    outside: frozenset[str]
    carried: frozenset[str]


class _Planner:
    """Plans a function, and those that it calls.

    Attributes:
      packs: all-reduces so far.
      slots: variables that have parts.
      functions: new ones that are called.
      shapes: of the tensors of the function itself.
      first_use: as of `make_plan`.
      narrow: as of `make_plan`.
      is_one: as of `make_plan`.
      costs: as of `make_plan`.
    """

    first_use = False
    narrow = False
    is_one = False
    costs = DEFAULTS

    def __init__(
        self,
        function: Callable[[str], Any | None],
        graph: Any,
        replicas: Replicas,
        prefix: str,
        exact: bool,
        profitable: bool,
    ):
        self._graph = graph
        self._profitable = profitable
        self._replicas = replicas
        self._prefix = prefix
        self._exact = exact
        self._op_def = op_defs(function)
        is_full_group = reduces_over(replicas.count)
        self._world = World(replicas.count, function, self._op_def, is_full_group)
        self.packs: list[Pack] = []
        self.slots: list[Slot] = []
        self.functions: list[Any] = []
        self.shapes: dict[str, Shape | None] = {}

    def plan(self, definition: Any, graph: Any, scope: _Scope) -> Any | None:
        """Plans one function; returns what to run instead, or None."""
        view = GraphView(without_bundles(definition), self._op_def)
        found = analyse(view, self._world, scope.redundant, scope.mirrored)
        new = self._plan_packs(view, graph, found, scope)
        for name in sorted(view.nodes):
            changed = self._plan_calls(view, view.nodes[name], found, scope)
            if not changed:
                continue
            if new is None:
                new = type(definition)()
                new.CopyFrom(view.function)
            (node,) = (node for node in new.node_def if node.name == name)
            rename_called(node, changed)
        return new

    def _plan_packs(
        self, view: GraphView, graph: Any, found: Redundancy, scope: _Scope
    ) -> Any | None:
        reduces = [n for _, n in sorted(view.nodes.items()) if n.op == REDUCE]
        if not reduces:
            return None
        shapes = static_shapes(view, graph)
        clusters = Clusters(
            view, self._world, shapes, found, self._exact, scope.outside, scope.carried
        )
        packs = [_pack(clusters, view, self._world, self._replicas, node) for node in reduces]
        for pack in packs:
            pack.function = scope.name
        self.packs += packs
        settle(view, packs)
        for pack in filter(is_sharded, packs):
            width = width_of(pack.reduce.attr["T"].type)
            leave_unprofitable(
                [pack], shapes, width, self._replicas.count, self._replicas.groups,
                always=not self._profitable, is_one=self.is_one, costs=self.costs,
            )  # fmt: skip
        _leave_shared_branches(packs)
        if self.first_use:
            inside = scope.origins.keys() - scope.outside
            settle_gathers(view, packs, inside, scope.carried, self.narrow, self._replicas.groups)
        branches = {
            pack.node: self._plan_branch(view, pack, found, scope)
            for pack in packs
            if pack.reason is None and any(f.branches for f in pack.families if f.reason is None)
        }
        while any(map(is_sharded, packs)):
            rewriter = self._rewrite(view, shapes, packs)
            if _has_cycle(rewriter.function, self._op_def):
                if stay_all(packs):
                    continue
                # (Each pack alone has none; two may wait for each other. Those whose weights are
                # gathered in a branch wait for nobody there.)
                last = [p for p in packs if is_sharded(p) and branches.get(p.node) is None][-1]
                last.reason, last.detail = "cycle", last.node
                continue
            for slot in slots_of(rewriter, self._replicas, packs):
                self.slots.append(replace(slot, argument=scope.origins[slot.argument]))
            if not scope.name:
                self.shapes.update(shapes)
                self.shapes.update(cut_shapes(shapes, self._replicas, packs))
            for pack in filter(is_sharded, packs):
                if (branch := branches.get(pack.node)) is not None:
                    self._carry_out(branch, pack, rewriter)
            return rewriter.function
        return None

    def _plan_branch(
        self, view: GraphView, pack: Pack, found: Redundancy, scope: _Scope
    ) -> Branch | None:
        """Plans a pack's update in a branch of a conditional, all of it or nothing."""
        cut = [family for family in pack.families if family.reason is None]
        ways = [way for family in cut for way in family.branches]
        node = view.nodes[min(ways)[0]]
        detail = node.name
        if len(ways) == len(pack.families) and {name for name, _ in ways} == {node.name}:
            positions = [position for _, position in ways]
            branch = self._branch(view, node, pack, positions, found, scope)
            if isinstance(branch, Branch):
                inexact = {n for f in cut for n, one in f.reductions.items() if not one.exact}
                is_exact = node.name not in touched(view, Order(view), inexact)
                for family, inner in zip(pack.families, branch.pack.families, strict=True):
                    family.exact = inner.exact and is_exact
                return branch
            detail = branch
        for family in cut:
            if family.branches and family.reason is None:
                family.leave("in_branch", detail)
        return None

    def _branch(
        self,
        view: GraphView,
        node: Any,
        pack: Pack,
        positions: list[int],
        found: Redundancy,
        scope: _Scope,
    ) -> Branch | str:
        """The branch that has an update; or where it is seen that it cannot be cut."""
        calls = [
            call
            for call in inside(view, self._world, node, found)
            if self._uses_any(call.name, positions)
        ]
        graph = graph_of(self._graph, calls[0].name) if len(calls) == 1 else None
        if graph is None or self._reduces(calls[0].name):
            return str(node.name)
        (call,) = calls
        definition = with_group(self._world.function(call.name))
        forget_shapes(definition, set(positions))
        inner = GraphView(without_bundles(definition), self._op_def)
        known = self._inner(view, node, call, scope)
        equal = analyse(inner, self._world, known.redundant, known.mirrored)
        shapes = static_shapes(inner, graph)
        clusters = Clusters(
            inner, self._world, shapes, equal, self._exact, known.outside, known.carried
        )
        dtype = pack.reduce.attr["T"].type
        families = [clusters.family(inner.arguments[position], dtype) for position in positions]
        new = Pack(pack.node, [], families, reduce=reduce_inside(pack.reduce))
        settle(inner, [new])
        for family, one in zip(pack.families, families, strict=True):
            if one.reason is not None:
                family.leave(one.reason, one.detail)
            elif one.branches or one.size != family.size:
                return one.root
        if any(one.reason is not None for one in families):
            return call.name
        rewriter = self._rewrite(inner, shapes, [new])
        if _has_cycle(rewriter.function, self._op_def):
            return call.name
        for slot in slots_of(rewriter, self._replicas, [new]):
            self.slots.append(replace(slot, argument=known.origins[slot.argument]))
        return Branch(node.name, new, call.name, inner, rewriter)

    def _uses_any(self, name: str, positions: list[int]) -> bool:
        body = GraphView(self._world.function(name), self._op_def)
        tensors = [body.arguments[position] for position in positions]
        return any(body.uses(tensor) or tensor in body.results for tensor in tensors)

    def _carry_out(self, branch: Branch, pack: Pack, rewriter: Rewriter) -> None:
        """Has a conditional call the branch that updates a part."""
        (node,) = (one for one in rewriter.function.node_def if one.name == branch.node)
        names = {}
        for name in called_functions(node):
            new = branch.rewriter.function
            if name != branch.taken:
                new = with_group(self._world.function(name))
            old = rewriter.function.signature.name
            names[name] = new.signature.name = f"{name}_{len(self.functions)}_of_{old}"
            self.functions.append(new)
        call_with_group(node, pack.reduce, names)

    def _rewrite(
        self, view: GraphView, shapes: dict[str, Shape | None], packs: list[Pack]
    ) -> Rewriter:
        """Carries out what was decided."""
        rewriter = Rewriter(view, shapes, self._prefix, len(self.slots))
        reductions = {name for family in cut_families(packs) for name in family.reductions}
        depths = levels(view, reductions)
        for pack in filter(is_sharded, packs):
            rank = self._replicas.rank(pack.reduce)
            place = Place(self._replicas.count, rank, self._replicas.groups)
            everyone = [ranges_of(self._replicas, pack, r) for r in range(self._replicas.count)]
            rewriter.shard(pack, place, everyone, summed_of(self._replicas, pack, rank), depths)
        return rewriter

    def _plan_calls(
        self, view: GraphView, node: Any, found: Redundancy, scope: _Scope
    ) -> dict[str, str]:
        """Plans the functions that a node calls.

        Returns:
          By function that changes, the name of the new one.
        """
        changed = {}
        for call in inside(view, self._world, node, found):
            definition = self._world.function(call.name)
            if not self._reduces(call.name):
                continue
            graph = graph_of(self._graph, call.name)
            if graph is None:
                self.packs.append(Pack(node.name, [], [], "nested", call.name, call.name))
                continue
            new = self.plan(definition, graph, self._inner(view, node, call, scope))
            if new is not None:
                name = f"{call.name}_{len(self.functions)}_of_{view.function.signature.name}"
                new.signature.name = changed[call.name] = name
                self.functions.append(new)
        return changed

    def _inner(self, view: GraphView, node: Any, call: Inside, scope: _Scope) -> _Scope:
        """What is known of the arguments of a function that is called."""
        body = GraphView(self._world.function(call.name), self._op_def)
        outer = dict(zip(body.arguments, map(view.resource, call.arguments), strict=True))
        origins = {a: scope.origins[o] for a, o in outer.items() if o in scope.origins}
        carried = set()
        if is_loop(node):
            carried = {
                argument
                for argument, result in zip(body.arguments, body.results, strict=True)
                if body.resource(result) == argument
            }
        outside = {
            argument
            for position, argument in enumerate(body.arguments)
            if outer[argument] not in scope.origins
            or outer[argument] in scope.outside
            or list(outer.values()).count(outer[argument]) > 1
            or self._is_used_elsewhere(view, node, call, position, scope)
        }
        return _Scope(
            call.name, call.redundant, call.mirrored, origins, frozenset(outside),
            frozenset(carried),
        )  # fmt: skip

    def _is_used_elsewhere(
        self, view: GraphView, node: Any, call: Inside, position: int, scope: _Scope
    ) -> bool:
        """Whether a variable that a function gets is used by others than it."""
        resource = view.resource(call.arguments[position])
        users = [name for name in view.escapes(resource, but_shape=False) if name != node.name]
        if view.users(resource) or [n for n in users if n or resource not in scope.carried]:
            return True
        if is_loop(node):
            handed_on = view.outputs(node)[position]
            if view.uses(handed_on) or handed_on in view.results:
                return True
        for other in called_functions(node):
            definition = self._world.function(other)
            if other != call.name and definition is not None:
                body = GraphView(definition, self._op_def)
                argument = body.arguments[position]
                if body.users(argument) or [one for one in body.escapes(argument, False) if one]:
                    return True
        return False

    def _reduces(self, name: str) -> bool:
        """Whether a function, or one that it calls, has an all-reduce."""
        definition = self._world.function(name)
        return definition is not None and any(
            node.op == REDUCE or any(map(self._reduces, called_functions(node)))
            for node in definition.node_def
        )


def _leave_shared_branches(packs: list[Pack]) -> None:
    """Leaves updates alone that are in one branch with those of another pack.

    So are those of all replicas of a process, where a strategy looks at all of their gradients.
    """
    cut = {
        pack.node: [f for f in pack.families if f.reason is None and f.branches]
        for pack in packs
        if pack.reason is None
    }
    packs_of = Counter(
        node for some in cut.values() for node in {name for f in some for name, _ in f.branches}
    )
    for family in (family for some in cut.values() for family in some):
        shared = sorted(name for name, _ in family.branches if packs_of[name] > 1)
        if shared:
            family.leave("in_branch", shared[0])


def _has_cycle(function: Any, op_def: Callable[[str], Any]) -> bool:
    try:
        for _ in GraphView(function, op_def).in_order():
            pass
    except ValueError:
        return True
    return False


def _pack(clusters: Clusters, view: GraphView, world: World, replicas: Replicas, node: Any) -> Pack:
    if not world.is_full_group(view, node) or not replicas.has(node):
        return Pack(node.name, [], [], "not_all_replicas", node.name)
    return clusters.pack(node)
