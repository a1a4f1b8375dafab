# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The twins of functions that update weights, of which each replica updates a part.

Also what functions without one need: the values of variables that others have in parts.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorflow.python.framework import errors

from tf_fuse._eager_calls import Call
from tf_fuse.options import (
    compiles_updates,
    demands_bits,
    fuses_updates,
    gathers_first,
    gathers_narrow,
    group_size,
    shards_anything,
)
from tf_fuse.shard_update import lending
from tf_fuse.shard_update.agreement import describe
from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.bundle import Bundle
from tf_fuse.shard_update.cluster import Cluster
from tf_fuse.shard_update.containers import container_of, is_of_one_replica
from tf_fuse.shard_update.costs import Costs
from tf_fuse.shard_update.datasets import is_captured
from tf_fuse.shard_update.decision import Decision
from tf_fuse.shard_update.families import Pack
from tf_fuse.shard_update.functions import REDUCE, bodies_of, has_op, operations
from tf_fuse.shard_update.graph_view import ASSIGNS
from tf_fuse.shard_update.ops import RESOURCE_APPLY
from tf_fuse.shard_update.parts import Held, part_name
from tf_fuse.shard_update.plan import Plan, make_plan
from tf_fuse.shard_update.replicas import Replicas, groups_of, why_no_groups
from tf_fuse.shard_update.verify import Original, verify
from tf_fuse.shard_update.world import World

_log = logging.getLogger("tf_fuse")

_SUFFIX = "__tf_fuse_sharded"
_PREFIX = "tf_fuse/plan/"
# Their Python code may use any variable in the middle of a step.
_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
_LOST = (
    "\ntf_fuse: if a task has died, its part of the optimizer's state is lost: restart the program "
    "from its last checkpoint."
)
# A function with one of them waits for other processes.
_COLLECTIVES = frozenset(
    {
        "CollectiveAllToAllV2", "CollectiveAllToAllV3", "CollectiveBcastRecv",
        "CollectiveBcastRecvV2", "CollectiveBcastSend", "CollectiveBcastSendV2", "CollectiveGather",
        "CollectiveGatherV2", "CollectiveReduce", "CollectiveReduceScatterV2", "CollectiveReduceV2",
        "CollectiveReduceV3", "TfFuse>AllGather", "TfFuse>AllReduce", "TfFuse>ReduceScatter",
    }
)  # fmt: skip


@dataclass
class Twin:
    """A function's twin.

    Attributes:
      name: of the twin.
      plan: what it does.
      world: the replicas that it is of.
      bundle: the parts that it uses.
      handles: position and handle of each slot's variable.
    """

    name: bytes
    plan: Plan
    world: World
    bundle: Bundle
    handles: list[tuple[int, weakref.ref[Any]]]

    def is_of(self, inputs: Sequence[Any]) -> bool:
        """Whether a call is with the variables that the twin was made for."""
        return all(inputs[position] is handle() for position, handle in self.handles)


class Updates:
    """The twins of one eager context."""

    def __init__(
        self,
        graphs: MutableMapping[str, Any],
        shapes: MutableMapping[str, Mapping[str, Shape | None]],
    ) -> None:
        """Starts without twins.

        Args:
          graphs: of functions, by name; of a twin, that of the function that it was made of.
          shapes: of twins, those of their tensors.
        """
        self._graphs, self._shapes = graphs, shapes
        self.decisions: list[Decision] = []
        self._worlds: dict[Cluster, World] = {}
        self._twins: dict[bytes, Twin | errors.OpError | None] = {}
        self._told: set[tuple[str, str]] = set()
        # Functions that several replicas run together, and their twins.
        self._shared: set[bytes] = set()
        self._is_one_replica = False
        self._deciding = threading.RLock()

    def has_looked_at(self, name: bytes) -> bool:
        """Whether the updates in a function, or in a twin, are of replicas that train together."""
        return name in self._shared

    def bundles(self) -> list[Bundle]:
        """Of all replicas that train together, those of each together."""
        return [b for world in self._worlds.values() for b in world.state.bundles()]

    def call(self, context: Any, call: Call, name: bytes, inputs: Sequence[Any], num: int) -> Any:
        """Calls a function's twin if it has one, and the function itself otherwise."""
        inputs = lending.originals(inputs)
        twin = self._twin(context, name, inputs)
        if twin is None or not twin.is_of(inputs):
            with using(context, inputs, name):
                return call(context, name, inputs, num)
        # (Variables of other functions' bundles, which this one reads as any.)
        own = {id(inputs[position]) for position, _ in twin.handles}
        others = [tensor for tensor in inputs if id(tensor) not in own]
        with using(context, others, name), twin.world.state.step(twin.bundle, user_of(name)):
            try:
                outputs = call(context, twin.name, inputs, num)
                if context.is_async():
                    context.executor.wait()  # The state is that of a step that has ended.
                return outputs
            except errors.OpError as error:
                error._message = error.message.replace(twin.name.decode(), name.decode())
                if isinstance(error, errors.UnavailableError):
                    error._message += _LOST
                raise

    def forget(self, context: Any, name: bytes) -> None:
        """Drops the twin of a function that is gone."""
        self._shared.discard(name)
        twin = self._twins.pop(name, None)
        if isinstance(twin, Twin):
            self._shared.discard(twin.name)
            # (The report keeps the plan.)
            functions, twin.plan.functions, twin.plan.function = twin.plan.functions, [], None
            for one in [twin.name, *(f.signature.name for f in functions)]:
                if context.has_function(one):
                    context.remove_function(one)

    def _twin(self, context: Any, name: bytes, inputs: Sequence[Any]) -> Twin | None:
        try:
            twin = self._twins[name]
        except KeyError:
            if not has_op(context, name.decode(), {REDUCE}):
                self._note_one_replica(context, name.decode(), inputs)
                self._twins[name] = None
                return None
            # Another thread that calls it waits: it must not do what no other replica does.
            with self._deciding:
                if name not in self._twins:
                    self._shared.add(name)
                    self._twins[name] = self._decide(context, name.decode(), inputs)
                twin = self._twins[name]
        if isinstance(twin, errors.OpError):
            raise twin
        return twin

    def _decide(
        self, context: Any, name: str, inputs: Sequence[Any]
    ) -> Twin | errors.OpError | None:
        graph = self._graphs.get(name)
        if graph is None:
            self._note(Decision(name, None, "traced_before"))
            return None
        found = {i: container_of(tensor, graph) for i, tensor in enumerate(inputs)}
        containers = {i: container for i, container in found.items() if container is not None}
        cluster = _cluster(context, containers.values())
        if isinstance(cluster, str):
            self._note(Decision(name, None, "no_group", cluster))
            return None
        if cluster not in self._worlds:
            self._worlds[cluster] = World(cluster)
        world = self._worlds[cluster]
        try:
            costs = world.costs()
        except errors.OpError as error:
            return error
        definition = context.get_function_def(name)
        arguments = [argument.name for argument in definition.signature.input_arg]
        variables = [arguments[position] for position in sorted(containers)]
        # (Of all replicas' variables, where a dataset has that of one.)
        read = {id(c) for position, c in containers.items() if is_captured(inputs[position])}
        kept = [arguments[i] for i, c in sorted(containers.items()) if id(c) in read]
        decision = self._plan(context, world, definition, graph, variables, kept, costs)
        decision.costs, decision.replicas = costs, len(cluster.devices)
        decision.groups = groups_of(len(cluster.devices), group_size(context)) or 1
        decision.describe(graph, inputs, arguments)
        twin = None
        try:
            is_compiled = compiles_updates(context)
            bodies = bodies_of(context)
            world.agreement.reach(
                describe(name, decision.plan, decision.reason, is_compiled, costs, bodies)
            )
            if decision.plan is not None and decision.plan.function is not None:
                twin = self._make(context, world, name, decision.plan, inputs, containers)
                decision.bundle = twin.bundle
        except errors.OpError as error:
            # Each call gets it: without the twin, this replica would do what no other one does.
            return error
        finally:
            self._note(decision)
        return twin

    def _note_one_replica(self, context: Any, name: str, inputs: Sequence[Any]) -> None:
        """Says once why nothing is cut where there is one replica, which reduces nothing."""
        if self._is_one_replica or not any(map(is_of_one_replica, inputs)):
            return
        if has_op(context, name, ASSIGNS | RESOURCE_APPLY):
            self._is_one_replica = True
            self._note(Decision(name, None, "no_group", "there is one replica", replicas=1))

    def _note(self, decision: Decision) -> None:
        """Logs what was decided, once for all traces of a function that have it in common."""
        from tf_fuse.shard_update.report import summary

        self.decisions.append(decision)
        is_left, line = summary(decision)
        base = decision.function.rpartition("_")[0] or decision.function
        # (Of what is wrong a line is there already.)
        if (base, line) not in self._told and decision.reason != "verification":
            self._told.add((base, line))
            level = logging.WARNING if is_left else logging.INFO
            _log.log(level, "tf_fuse: the update of the weights in %s is %s.", base, line)

    def _plan(
        self,
        context: Any,
        world: World,
        definition: Any,
        graph: Any,
        variables: Sequence[str],
        kept: Collection[str],
        costs: Costs,
    ) -> Decision:
        name = definition.signature.name
        python = sorted(op.name for op in operations(graph) if op.type in _PYTHON)
        if python:
            return Decision(name, None, "python_code", python[0])

        body = bodies_of(context)
        cluster = world.cluster
        count, size = len(cluster.devices), group_size(context)
        groups = groups_of(count, size)
        if groups is None:
            return Decision(name, None, "group_size", why_no_groups(count, size))
        replicas = Replicas(count, {cluster.devices[r]: r for r in cluster.own}, groups)
        packs: list[Pack] = []
        try:
            plan = make_plan(
                definition, graph, body, replicas, variables, _PREFIX,
                exact=demands_bits(context), profitable=not shards_anything(context),
                first_use=gathers_first(context), narrow=gathers_narrow(context),
                is_one=compiles_updates(context) or fuses_updates(context) is not False, kept=kept,
                costs=costs,
            )  # fmt: skip
            packs = plan.packs
            if plan.function is None:
                return Decision(name, plan, "nothing_to_cut")
            original = Original(definition, graph, body)
            wrong = verify(original, plan.function, plan.slots, plan.functions)
        except Exception as error:
            # An error of ours is no reason not to train. All replicas have it: they plan the same.
            _log.debug("tf_fuse: %s", name, exc_info=True)
            wrong = f"{type(error).__name__}: {error}"
        if not wrong:
            return Decision(name, plan)
        _log.warning(
            "tf_fuse: the update of the weights in %s is not cut, since the function that was made "
            "of it is wrong: %s. Training goes on as without shard_weight_update; please report "
            "this.", name, wrong,
        )  # fmt: skip
        return Decision(name, Plan(packs), "verification", wrong)

    def _make(self, context: Any, world: World, name: str, plan: Plan, inputs: Sequence[Any],
              containers: Mapping[int, Any]) -> Twin:  # fmt: skip
        definition = plan.function
        assert definition is not None
        names = [argument.name for argument in definition.signature.input_arg]
        positions = [names.index(slot.argument) for slot in plan.slots]
        # A slot has a variable on each replica; the strategy knows which ones belong together.
        owners = list(dict.fromkeys(id(containers[position]) for position in positions))
        slots: dict[int, dict[int, tuple[int, Any]]] = {rank: {} for rank in world.cluster.own}
        for number, (position, slot) in enumerate(zip(positions, plan.slots, strict=True)):
            index = owners.index(id(containers[position]))
            slots[slot.rank][index] = (number, inputs[position])
        if any(sorted(one) != list(range(len(owners))) for one in slots.values()):
            raise errors.InternalError(
                None, None, f"tf_fuse: {name} does not update the same variables on all replicas"
            )
        handles = {r: [one[i][1] for i in range(len(owners))] for r, one in slots.items()}
        first = slots[world.cluster.own[0]]
        held = [Held.of(plan.slots[first[i][0]]) for i in range(len(owners))]
        lending.watch_handles()
        bundle = world.state.bundle(held, handles)
        world.prepare()
        definition.signature.name = name + _SUFFIX
        index_of = {one[i][0]: i for one in slots.values() for i in one}
        for made in [*plan.functions, definition]:
            for node in made.node_def:
                if node.op == "VarHandleOp":
                    shared = node.attr["shared_name"].s.decode()
                    if shared.startswith(_PREFIX):
                        index = index_of[int(shared.removeprefix(_PREFIX))]
                        node.attr["shared_name"].s = part_name(bundle.scope, index).encode()
            context.add_function_def(made)
        twin = definition.signature.name.encode()
        self._shared.add(twin)
        self._graphs[twin.decode()], self._shapes[twin.decode()] = self._graphs[name], plan.shapes
        taken = [(position, weakref.ref(inputs[position])) for position in positions]
        return Twin(twin, plan, world, bundle, taken)


def using(
    context: Any, tensors: Sequence[Any], name: str | bytes
) -> contextlib.AbstractContextManager[Any]:
    """Sees to it that variables have their values while a function uses their handles.

    Args:
      context: that runs it.
      tensors: that the function gets.
      name: of the function.
    """
    if not lending.is_any_cut():
        return contextlib.nullcontext()

    def is_short() -> bool:
        text = name.decode() if isinstance(name, bytes) else name
        return not has_op(context, text, _COLLECTIVES)

    return lending.using(tensors, user_of(name), is_short)


def user_of(name: str | bytes) -> str:
    """What the report calls a function."""
    return f"function {name.decode() if isinstance(name, bytes) else name}"


def _cluster(context: Any, variables: Iterable[Any]) -> Cluster | str:
    """The replicas that keep some variables equal; or why they are not known."""
    extended = {id(v._distribute_strategy): v._distribute_strategy.extended for v in variables}
    if len(extended) != 1:
        return f"its variables are of {len(extended)} strategies, not of one"
    (one,) = extended.values()
    if one._in_multi_worker_mode():
        return Cluster.of(context)
    return Cluster.here(one.worker_devices)
