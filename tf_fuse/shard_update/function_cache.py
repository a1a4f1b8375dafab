# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keep and call the rewritten functions in which each replica updates its shard of the weights.

A function without an update may read variables that lie in shards: it gets their whole values.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from tensorflow.python.framework import errors

from tf_fuse._tensorflow.eager import error_messages as tensorflow_errors
from tf_fuse._tensorflow.eager.function_calls import Call
from tf_fuse._tensorflow.variables import distributed_variable
from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.decisions import Decided
from tf_fuse.function_graph.function_lookup import REDUCE, bodies_of, has_op, operations
from tf_fuse.function_graph.operations import RESOURCE_APPLY
from tf_fuse.function_graph.view import ASSIGNS
from tf_fuse.options import fuses_updates, is_on, value_of
from tf_fuse.shard_update.cost_figures import UpdateCosts
from tf_fuse.shard_update.decision import Decision, Verdict, variable_facts
from tf_fuse.shard_update.pipeline import check_update, plan_update, rewrite_update
from tf_fuse.shard_update.plan import PlanOptions, ShardedUpdate
from tf_fuse.shard_update.replicas import Replicas, groups_of, why_no_groups
from tf_fuse.shard_update.rewritten_function import PREFIX, RewrittenFunction, register
from tf_fuse.shard_update.runtime.dataset_captures import is_captured
from tf_fuse.shard_update.runtime.local_replicas import unlike
from tf_fuse.shard_update.runtime.plan_consensus import describe
from tf_fuse.shard_update.runtime.replica_group import ReplicaGroup
from tf_fuse.shard_update.runtime.strategy_variables import container_of, is_of_one_replica
from tf_fuse.shard_update.verify.verifier import Original
from tf_fuse.sharded_variable import handle_access
from tf_fuse.sharded_variable.peers import Peers
from tf_fuse.sharded_variable.shard_group import ShardGroup, after_a_death

_log = logging.getLogger("tf_fuse")

# Their Python code may use any variable in the middle of a step.
_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
_HANDED_OVER = " What a task handed over when it ended can still be read and saved."
# A function with one of them waits for other processes.
_COLLECTIVES = frozenset(
    {
        "CollectiveAllToAllV2", "CollectiveAllToAllV3", "CollectiveBcastRecv",
        "CollectiveBcastRecvV2", "CollectiveBcastSend", "CollectiveBcastSendV2", "CollectiveGather",
        "CollectiveGatherV2", "CollectiveReduce", "CollectiveReduceScatterV2", "CollectiveReduceV2",
        "CollectiveReduceV3", "TfFuse>AllGather", "TfFuse>AllReduce", "TfFuse>ReduceScatter",
    }
)  # fmt: skip


class FunctionCache:
    """The rewritten functions of one eager context."""

    def __init__(
        self,
        graphs: MutableMapping[str, Any],
        shapes: MutableMapping[str, Mapping[str, Shape | None]],
    ) -> None:
        """Start without rewritten functions.

        Args:
          graphs: of functions, by name; of a rewritten function, that of the original.
          shapes: of rewritten functions, those of their tensors.
        """
        self._graphs, self._shapes = graphs, shapes
        self._decided: Decided[Decision] = Decided()
        #: How many functions were sharded ever (""), and left alone, by reason.
        self.counts: Counter[str] = Counter()
        self._replica_groups: dict[Peers, ReplicaGroup] = {}
        self._rewritten: dict[bytes, RewrittenFunction | errors.OpError | None] = {}
        self._told: set[tuple[str, str]] = set()
        # Functions that several replicas run together, and their rewritten functions.
        self._shared: set[bytes] = set()
        self._is_one_replica = False
        self._deciding = threading.RLock()

    def has_looked_at(self, name: bytes) -> bool:
        """Return whether replicas that train together run a function, rewritten or not."""
        return name in self._shared

    @property
    def decisions(self) -> list[Decision]:
        """What was decided about each function that is still there, in the order of first calls."""
        return self._decided.all()

    def done(self) -> dict[str, float]:
        """Return what has been done with all shard groups so far, by the names of counters."""
        total = Counter[str]()
        for replica_group in list(self._replica_groups.values()):
            total.update(replica_group.state.counts())
        return dict(total)

    def shard_groups(self) -> list[ShardGroup]:
        """Of all replicas that train together, those of each together."""
        return [
            b
            for replica_group in list(self._replica_groups.values())
            for b in replica_group.state.shard_groups()
        ]

    def call(self, context: Any, call: Call, name: bytes, inputs: Sequence[Any], num: int) -> Any:
        """Call a function's rewritten if it has one, and the function itself otherwise."""
        inputs = handle_access.originals(inputs)
        rewritten = self._rewritten_of(context, name, inputs)
        if rewritten is None or not rewritten.is_of(inputs):
            with using(context, inputs, name):
                return call(context, name, inputs, num)
        # (Variables of other functions' shard groups, which this one reads as any.)
        own = {position for position, _ in rewritten.handles}
        others = [tensor for position, tensor in enumerate(inputs) if position not in own]
        with (
            using(context, others, name),
            rewritten.replica_group.state.step(rewritten.shard_group, user_of(name)),
        ):
            try:
                outputs = call(context, rewritten.name, inputs, num)
                if context.is_async():
                    context.executor.wait()  # The state is that of a step that has ended.
                return outputs
            except errors.OpError as error:
                text = error.message.replace(rewritten.name.decode(), name.decode())
                if isinstance(error, errors.UnavailableError) and rewritten.shard_group.held:
                    held = rewritten.shard_group.held[0]
                    text += f"\ntf_fuse: {after_a_death(held)}{_HANDED_OVER}"
                tensorflow_errors.set_message(error, text)
                raise

    def forget(self, context: Any, name: bytes) -> None:
        """Drop the rewritten function of a function that is gone."""
        self._shared.discard(name)
        self._decided.forget(name.decode())
        rewritten = self._rewritten.pop(name, None)
        if isinstance(rewritten, RewrittenFunction):
            self._shared.discard(rewritten.name)
            for one in [rewritten.name, *(f.signature.name for f in rewritten.plan.functions)]:
                if context.has_function(one):
                    context.remove_function(one)

    def _rewritten_of(
        self, context: Any, name: bytes, inputs: Sequence[Any]
    ) -> RewrittenFunction | None:
        try:
            rewritten = self._rewritten[name]
        except KeyError:
            if not has_op(context, name.decode(), {REDUCE}):
                self._note_one_replica(context, name.decode(), inputs)
                self._rewritten[name] = None
                return None
            # Another thread that calls it waits: it must not do what no other replica does.
            with self._deciding:
                if name not in self._rewritten:
                    self._shared.add(name)
                    self._rewritten[name] = self._decide(context, name.decode(), inputs)
                rewritten = self._rewritten[name]
        if isinstance(rewritten, errors.OpError):
            raise rewritten
        return rewritten

    def _decide(
        self, context: Any, name: str, inputs: Sequence[Any]
    ) -> RewrittenFunction | errors.OpError | None:
        graph = self._graphs.get(name)
        if graph is None:
            self._note(Decision(name, None, "traced_before"))
            return None
        found = {i: container_of(tensor, graph) for i, tensor in enumerate(inputs)}
        containers = {i: container for i, container in found.items() if container is not None}
        peers = _peers(context, containers.values())
        if isinstance(peers, str):
            self._note(Decision(name, None, "no_group", peers))
            return None
        if peers not in self._replica_groups:
            self._replica_groups[peers] = ReplicaGroup(peers)
        replica_group = self._replica_groups[peers]
        try:
            costs = replica_group.costs()
        except errors.OpError as error:
            return error
        definition = context.get_function_def(name)
        arguments = [argument.name for argument in definition.signature.input_arg]
        variables = {arguments[i]: id(container) for i, container in sorted(containers.items())}
        # (Of all replicas' variables, where a dataset has that of one.)
        read = {id(c) for position, c in containers.items() if is_captured(inputs[position])}
        kept = [arguments[i] for i, c in sorted(containers.items()) if id(c) in read]
        verdict = self._plan(context, replica_group, definition, graph, variables, kept, costs)
        facts = variable_facts(graph, inputs, arguments)
        rewritten = None
        try:
            is_compiled = is_on(context, "compile_weight_update")
            bodies = bodies_of(context)
            replica_group.consensus.reach(
                describe(name, verdict.plan, verdict.reason, is_compiled, costs, bodies)
            )
            if verdict.plan is not None and verdict.plan.function is not None:
                rewritten = register(context, replica_group, name, verdict.plan, inputs, containers)
                self._remember(name, rewritten)
        except errors.OpError as error:
            # Each call raises it: no other replica runs the function as it was traced.
            return error
        finally:
            self._note(
                Decision(
                    function=name,
                    plan=verdict.plan,
                    reason=verdict.reason,
                    detail=verdict.detail,
                    replicas=len(peers.devices),
                    groups=groups_of(len(peers.devices), _group_size(context)) or 1,
                    shard_group=None if rewritten is None else rewritten.shard_group,
                    costs=costs,
                    facts=facts,
                )
            )
        return rewritten

    def _remember(self, name: str, rewritten: RewrittenFunction) -> None:
        """Keep what others ask of a rewritten function: its graph and its shapes."""
        self._shared.add(rewritten.name)
        new = rewritten.name.decode()
        self._graphs[new], self._shapes[new] = self._graphs[name], rewritten.plan.shapes

    def _note_one_replica(self, context: Any, name: str, inputs: Sequence[Any]) -> None:
        """Say once why nothing is sharded where there is one replica, which reduces nothing."""
        if self._is_one_replica or not any(map(is_of_one_replica, inputs)):
            return
        if has_op(context, name, ASSIGNS | RESOURCE_APPLY):
            self._is_one_replica = True
            self._note(Decision(name, None, "no_group", "there is one replica", replicas=1))

    def _note(self, decision: Decision) -> None:
        """Log what was decided, once for all traces of a function that have it in common."""
        from tf_fuse.shard_update.report import summary

        self._decided.add(decision.function, decision)
        self.counts[decision.reason or ""] += 1
        is_left, line = summary(decision)
        base = decision.function.rpartition("_")[0] or decision.function
        # (Of what is wrong a line is there already.)
        if line and (base, line) not in self._told and decision.reason != "verification":
            self._told.add((base, line))
            level = logging.WARNING if is_left else logging.INFO
            _log.log(level, "the update of the weights in %s is %s.", base, line)

    def _plan(
        self,
        context: Any,
        replica_group: ReplicaGroup,
        definition: Any,
        graph: Any,
        variables: Mapping[str, int],
        kept: Sequence[str],
        costs: UpdateCosts,
    ) -> Verdict:
        """Analyse a function, rewrite it by the plan, and verify what was made."""
        name = definition.signature.name
        python = sorted(op.name for op in operations(graph) if op.type in _PYTHON)
        if python:
            return Verdict(None, "python_code", python[0])

        body = bodies_of(context)
        peers = replica_group.peers
        count, size = len(peers.devices), _group_size(context)
        groups = groups_of(count, size)
        if groups is None:
            return Verdict(None, "group_size", why_no_groups(count, size))
        replicas = Replicas(count, {peers.devices[r]: r for r in peers.own}, groups)
        options = PlanOptions(
            exact=is_on(context, "shard_weight_update_exact"),
            profitable=not is_on(context, "shard_weight_update_always"),
            first_use=value_of(context, "shard_weight_update_gather") == "first_use",
            narrow=is_on(context, "shard_weight_update_gather_bfloat16"),
            is_one=is_on(context, "compile_weight_update") or fuses_updates(context) is not False,
        )
        original = Original(definition, graph, body)
        update = ShardedUpdate(())
        try:
            plan = plan_update(original, replicas, variables, options, kept, costs)
            while (differ := unlike(plan.all_buckets, replicas, variables)) is not None:
                more = [name for name, number in variables.items() if number in differ]
                if set(more) <= set(kept):
                    return Verdict(ShardedUpdate(tuple(plan.all_buckets)), "one_replica")
                kept = [*kept, *more]
                plan = plan_update(original, replicas, variables, options, kept, costs, plan)
            update = rewrite_update(plan, original, replicas, PREFIX)
            if update.function is None:
                return Verdict(update, "nothing_to_shard")
            wrong = check_update(original, update)
        except Exception as error:
            # Our error must not stop the training. All replicas have it: they plan the same.
            _log.debug("%s", name, exc_info=True)
            wrong = f"{type(error).__name__}: {error}"
        if not wrong:
            return Verdict(update)
        _log.warning(
            "the update of the weights in %s is not sharded, since the function that was made "
            "of it is wrong: %s. Training goes on as without shard_weight_update; please report "
            "this.", name, wrong,
        )  # fmt: skip
        return Verdict(ShardedUpdate(update.buckets), "verification", wrong)


def using(
    context: Any, tensors: Sequence[Any], name: str | bytes
) -> contextlib.AbstractContextManager[Any]:
    """Keep variables whole while a function uses their handles.

    Args:
      context: that runs it.
      tensors: that the function gets.
      name: of the function.
    """
    if not handle_access.is_any_sharded():
        return contextlib.nullcontext()

    def is_short() -> bool:
        text = name.decode() if isinstance(name, bytes) else name
        return not has_op(context, text, _COLLECTIVES)

    return handle_access.using(tensors, user_of(name), is_short)


def user_of(name: str | bytes) -> str:
    """Return what the report calls a function."""
    return f"function {name.decode() if isinstance(name, bytes) else name}"


def _peers(context: Any, variables: Iterable[Any]) -> Peers | str:
    """Return the replicas that keep some variables equal; or why they are not known."""
    strategies = map(distributed_variable.strategy_of, variables)
    extended = {id(one): one.extended for one in strategies}
    if len(extended) != 1:
        return f"its variables are of {len(extended)} strategies, not of one"
    (one,) = extended.values()
    if distributed_variable.is_of_processes(one):
        return Peers.of(context)
    return Peers.here(one.worker_devices)


def _group_size(context: Any) -> int:
    """Return how many replicas share one copy of the optimizer's state; 0: all."""
    return int(value_of(context, "shard_weight_update_group_size") or 0)
