# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gives functions that update weights a twin that updates a part of them.

As handle packing does, it stands between TensorFlow's functions and the runtime: a function keeps
its name and its body, and what is called is its twin. The plan is made when a function is first
called with the option on, from the graph that it was traced to.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorflow.python.framework import errors

from tf_fuse._eager_calls import Call, extend
from tf_fuse.options import (
    compiles_updates,
    demands_bits,
    fuses_updates,
    gathers_first,
    gathers_narrow,
    group_size,
    shards_anything,
)
from tf_fuse.shard_update import state as state_module
from tf_fuse.shard_update.agreement import Agreement, describe
from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.bundle import Bundle
from tf_fuse.shard_update.calibration import Calibration
from tf_fuse.shard_update.cluster import Cluster, Reader
from tf_fuse.shard_update.compiled import Compiler, Way, no_xla
from tf_fuse.shard_update.containers import container_of, is_of_one_replica, watch_containers
from tf_fuse.shard_update.costs import Costs
from tf_fuse.shard_update.datasets import is_captured, watch_datasets
from tf_fuse.shard_update.decision import Decision
from tf_fuse.shard_update.families import Pack
from tf_fuse.shard_update.functions import REDUCE, operations
from tf_fuse.shard_update.graph_view import ASSIGNS
from tf_fuse.shard_update.leaving import Leaving
from tf_fuse.shard_update.ops import RESOURCE_APPLY
from tf_fuse.shard_update.parts import Held, part_name
from tf_fuse.shard_update.places import has_other_tasks
from tf_fuse.shard_update.plan import Plan, make_plan
from tf_fuse.shard_update.program import ProgramMaker
from tf_fuse.shard_update.replicas import Replicas
from tf_fuse.shard_update.state import State
from tf_fuse.shard_update.verify import Original, verify
from tf_fuse.shard_update.xla import XlaMaker

_log = logging.getLogger("tf_fuse")

_SUFFIX = "__tf_fuse_sharded"
_REDUCE = "CollectiveReduceV2"
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

# The graphs of functions, by name; of a twin, the one of the function that it was made of.
_graphs: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
# Of twins, the shapes of their tensors.
_shapes: dict[str, Mapping[str, Shape | None]] = {}


class _World:
    """The replicas that train together."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        self.reader = Reader(cluster)
        others = set(range(len(cluster.devices))) - set(cluster.own)
        self.readers = {rank: Reader(cluster, [rank]) for rank in sorted(others)}
        self.state = State(self.reader, self.readers)
        self._calibration = Calibration(cluster)
        self.agreement = Agreement(cluster, self.readers, self._calibration.word)
        self._leaving: Leaving | None = None
        for each in [self.reader, *self.readers.values()]:
            atexit.register(each.abandon)

    def costs(self) -> Costs:
        """By which updates are weighed, the same on all replicas.

        Raises:
          tf.errors.OpError: see `Calibration.costs`.
        """
        return self._calibration.costs(self.agreement)

    def prepare(self) -> None:
        """Connects, and has the process wait for others at its end."""
        if self.readers and self._leaving is None:
            self.reader.connect()
            self._leaving = Leaving(self.cluster, self.state, self.readers)


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
    world: _World
    bundle: Bundle
    handles: list[tuple[int, weakref.ref[Any]]]

    def is_of(self, inputs: Sequence[Any]) -> bool:
        """Whether a call is with the variables that the twin was made for."""
        return all(inputs[position] is handle() for position, handle in self.handles)


class Updates:
    """The twins of one eager context."""

    def __init__(self) -> None:
        """Starts without twins."""
        self.decisions: list[Decision] = []
        self._worlds: dict[Cluster, _World] = {}
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
        inputs = state_module.originals(inputs)
        twin = self._twin(context, name, inputs)
        if twin is None or not twin.is_of(inputs):
            with using(context, inputs, name):
                return call(context, name, inputs, num)
        # (Variables of other functions' bundles, which this one reads as any.)
        own = {id(inputs[position]) for position, _ in twin.handles}
        others = [tensor for tensor in inputs if id(tensor) not in own]
        with using(context, others, name), twin.world.state.step(twin.bundle, _user(name)):
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
            if not _has_op(context, name.decode(), {REDUCE}, set()):
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
        graph = _graphs.get(name)
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
            self._worlds[cluster] = _World(cluster)
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
        decision.groups = _groups(len(cluster.devices), group_size(context)) or 1
        decision.describe(graph, inputs, arguments)
        twin = None
        try:
            is_compiled = compiles_updates(context)
            bodies = _bodies(context)
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
        if _has_op(context, name, ASSIGNS | RESOURCE_APPLY, set()):
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
        world: _World,
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

        body = _bodies(context)
        cluster = world.cluster
        count, size = len(cluster.devices), group_size(context)
        groups = _groups(count, size)
        if groups is None:
            return Decision(name, None, "group_size", _why_no_groups(count, size))
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

    def _make(self, context: Any, world: _World, name: str, plan: Plan, inputs: Sequence[Any],
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
        state_module.watch_handles()
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
        _graphs[twin.decode()], _shapes[twin.decode()] = _graphs[name], plan.shapes
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
    if not state_module.is_any_cut():
        return contextlib.nullcontext()

    def is_short() -> bool:
        text = name.decode() if isinstance(name, bytes) else name
        return not _has_op(context, text, _COLLECTIVES, set())

    return state_module.using(tensors, _user(name), is_short)


def _user(name: str | bytes) -> str:
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


def _bodies(context: Any) -> Callable[[str], Any | None]:
    """What knows the `FunctionDef` of each function of a context."""

    def body(name: str) -> Any | None:
        return context.get_function_def(name) if context.has_function(name) else None

    return body


def _groups(replicas: int, size: int) -> int | None:
    """In how many groups of a size (0: of all) replicas are; None if they are not."""
    size = size or replicas
    return None if replicas % size else replicas // size


def _why_no_groups(replicas: int, size: int) -> str:
    sizes = [str(one) for one in range(2, replicas) if replicas % one == 0]
    better = f"{', '.join(sizes)}, or 0 for all of them" if sizes else "0, for all of them"
    return f"it is {size}, which {replicas} replicas are no multiple of; set it to {better}"


def _has_op(context: Any, name: str, ops: Collection[str], seen: set[str]) -> bool:
    """Whether a function, or one that it calls, has one of some operations."""
    seen.add(name)
    if not context.has_function(name):
        return False
    called: set[str] = set()
    for node in context.get_function_def(name).node_def:
        if node.op in ops:
            return True
        called.add(node.op)
        for value in node.attr.values():
            called |= {value.func.name, *(function.name for function in value.list.func)}
    return any(_has_op(context, c, ops, seen) for c in sorted(called - seen - {""}))


def _remember(function: Any) -> None:
    name = function.name
    _graphs[name.decode() if isinstance(name, bytes) else name] = function.graph


def install(
    is_on: Callable[[Any], bool],
    compiles: Callable[[Any], bool],
    fuses: Callable[[Any], bool | None],
) -> None:
    """Extends TensorFlow's eager context, once per process.

    Args:
      is_on: whether updates are to be cut, given the context.
      compiles: whether they are to be compiled, given the context.
      fuses: whether the operations of each are to be one, given the context; None: of those
        functions that replicas run together or that have servers, if updates are to be cut.
    """
    from tensorflow.python.eager.polymorphic_function import transform

    def is_fused(context: Any, name: bytes) -> bool:
        wanted = fuses(context)
        if wanted is None:
            is_shared = has_other_tasks(context) or updates_of(context).has_looked_at(name)
            return is_on(context) and is_shared
        return wanted

    def call(stock: Call, context: Any, name: Any, inputs: Any, num_outputs: int) -> Any:
        def run(context: Any, name: bytes, inputs: Any, num_outputs: int) -> Any:
            if compiles(context):
                compiler = compiler_of(context)
            elif is_fused(context, name):
                compiler = fuser_of(context)
            else:
                return stock(context, name, inputs, num_outputs)
            return compiler.call(context, stock, name, inputs, num_outputs)

        key = name if isinstance(name, bytes) else name.encode()
        if not is_on(context):
            with using(context, inputs, name):
                return run(context, key, inputs, num_outputs)
        return updates_of(context).call(context, run, key, inputs, num_outputs)

    def forget(context: Any, name: bytes) -> None:
        _shapes.pop(name.decode(), None)
        for twins in ("_tf_fuse_updates", "_tf_fuse_compiler", "_tf_fuse_fuser"):
            if (keeper := getattr(context, twins, None)) is not None:
                keeper.forget(context, name)

    extend("_tf_fuse_shards_updates", call, forget)
    watch_datasets()
    watch_containers()
    if _remember not in transform.CONCRETE_FUNCTION_CALLBACKS:
        transform.CONCRETE_FUNCTION_CALLBACKS.append(_remember)


def updates_of(context: Any) -> Updates:
    """The twins of a context; made when first asked for."""
    updates = getattr(context, "_tf_fuse_updates", None)
    if updates is None:
        updates = context._tf_fuse_updates = Updates()
    return updates


def compiler_of(context: Any) -> Compiler:
    """The compiled twins of a context; made when first asked for."""
    return _twins_of(context, "_tf_fuse_compiler", Way("compiled", XlaMaker(), no_xla))


def fuser_of(context: Any) -> Compiler:
    """The twins of a context that have each update in one operation; made when first asked for."""

    def may_differ() -> bool:
        return has_other_tasks(context) and not demands_bits(context)

    maker = ProgramMaker(lambda: context.config, may_differ)
    way = Way("fused", maker, lambda context: "", has_servers=True, may_differ=may_differ)
    return _twins_of(context, "_tf_fuse_fuser", way)


def _twins_of(context: Any, attribute: str, way: Way) -> Compiler:
    twins = getattr(context, attribute, None)
    if twins is None:
        context.ensure_initialized()
        twins = Compiler(context, _graphs, _shapes, way)
        setattr(context, attribute, twins)
    return twins
