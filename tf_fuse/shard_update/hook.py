# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gives functions that update weights a twin that updates a part of them.

As handle packing does, it stands between TensorFlow's functions and the runtime: a function keeps
its name and its body, and what is called is its twin. The plan is made when a function is first
called with the option on, from the graph that it was traced to.
"""

from __future__ import annotations

import atexit
import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tf_fuse.shard_update import state as state_module
from tf_fuse.shard_update.agreement import Agreement
from tf_fuse.shard_update.bundle import Bundle, part_name
from tf_fuse.shard_update.cluster import Cluster, Reader
from tf_fuse.shard_update.leaving import Leaving
from tf_fuse.shard_update.plan import Plan, Replicas, make_plan
from tf_fuse.shard_update.state import State
from tf_fuse.shard_update.verify import Original, verify

_log = logging.getLogger("tf_fuse")

_SUFFIX = "__tf_fuse_sharded"
_REDUCE = "CollectiveReduceV2"
_PREFIX = "tf_fuse/plan/"
# Their Python code may use any variable in the middle of a step.
_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})

# Why a function with an all-reduce runs as it is.
FUNCTION_REASONS = {
    "nothing_to_cut": "no gradient's update can be cut",
    "python_code": "an operation runs Python code in the step, which may use any variable",
    "verification": "the function that was made of it is wrong, which is an error of tf_fuse",
}

# The graphs of functions, by name.
_graphs: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

Call = Callable[[Any, bytes, Sequence[Any], int], Any]


@dataclass
class Twin:
    """A function's twin.

    Attributes:
      name: of the twin.
      plan: what it does.
      bundle: the parts that it uses.
      handles: position and handle of each slot's variable.
    """

    name: bytes
    plan: Plan
    bundle: Bundle
    handles: list[tuple[int, Any]]

    def is_of(self, inputs: Sequence[Any]) -> bool:
        """Whether a call is with the variables that the twin was made for."""
        return all(inputs[position] is handle for position, handle in self.handles)


@dataclass
class Decision:
    """What was decided about one function.

    Attributes:
      function: its name.
      plan: what is cut; None if nothing was looked at.
      reason: why nothing is cut, a key of FUNCTION_REASONS; None if something is.
      detail: the node that is the reason, or what is wrong.
      bundle: the parts that the function uses; None before it has them.
      variables: names of variables, by argument.
      element_bytes: of what is reduced, by all-reduce.
    """

    function: str
    plan: Plan | None
    reason: str | None = None
    detail: str = ""
    bundle: Bundle | None = None
    variables: dict[str, str] = field(default_factory=dict)
    element_bytes: dict[str, int] = field(default_factory=dict)


class Updates:
    """The twins of one eager context."""

    def __init__(self, context: Any):
        """Looks at the cluster."""
        self.cluster = Cluster.of(context)
        self.decisions: list[Decision] = []
        self._twins: dict[bytes, Twin | None] = {}
        self._told: set[tuple[str, str]] = set()
        if isinstance(self.cluster, Cluster):
            reader = self._reader = Reader(self.cluster)
            self.state: State | None = State(self.cluster.own[0], reader)
            others = set(range(len(self.cluster.devices))) - set(self.cluster.own)
            self._readers = {rank: Reader(self.cluster, [rank]) for rank in sorted(others)}
            self._agreement = Agreement(self.cluster, self._readers)
            self._leaving: Leaving | None = None
            for each in [reader, *self._readers.values()]:
                atexit.register(each.abandon)
        else:
            self.state = None
            _log.warning("tf_fuse: weight updates are not sharded: %s.", self.cluster)

    def call(self, context: Any, call: Call, name: bytes, inputs: Sequence[Any], num: int) -> Any:
        """Calls a function's twin if it has one, and the function itself otherwise."""
        twin = self._twin(context, name, inputs)
        if twin is None or not twin.is_of(inputs):
            use(inputs, name)
            return call(context, name, inputs, num)
        from tensorflow.python.framework import errors

        assert self.state is not None
        # (Variables of other functions' bundles, which this one reads as any.)
        own = {id(handle) for _, handle in twin.handles}
        use([tensor for tensor in inputs if id(tensor) not in own], name)
        with self.state.step(twin.bundle, _user(name)):
            try:
                return call(context, twin.name, inputs, num)
            except errors.OpError as error:
                error._message = error.message.replace(twin.name.decode(), name.decode())
                raise

    def forget(self, context: Any, name: bytes) -> None:
        """Drops the twin of a function that is gone."""
        twin = self._twins.pop(name, None)
        if twin is not None and context.has_function(twin.name):
            context.remove_function(twin.name)

    def _twin(self, context: Any, name: bytes, inputs: Sequence[Any]) -> Twin | None:
        try:
            return self._twins[name]
        except KeyError:
            pass
        self._twins[name] = None  # (While it is being made, on this thread or on another.)
        twin = self._twins[name] = self._decide(context, name.decode(), inputs)
        return twin

    def _decide(self, context: Any, name: str, inputs: Sequence[Any]) -> Twin | None:
        if not isinstance(self.cluster, Cluster):
            return None
        graph = _graphs.get(name)
        if graph is None or not any(op.type == _REDUCE for op in graph.get_operations()):
            return None
        decision = self._plan(context, name, graph, inputs)
        arguments = [a.name for a in context.get_function_def(name).signature.input_arg]
        decision.variables = _names(graph, inputs, arguments)
        decision.element_bytes = _element_bytes(graph)
        self.decisions.append(decision)
        self._agreement.reach(name, decision.plan, _in_words(decision))
        plan, twin = decision.plan, None
        if plan is not None and plan.function is not None:
            twin = self._make(context, name, plan, inputs)
            decision.bundle = twin.bundle
        self._tell(decision)
        return twin

    def _tell(self, decision: Decision) -> None:
        """Logs what was decided, once for all traces of a function that have it in common."""
        from tf_fuse.shard_update.report import summary

        assert isinstance(self.cluster, Cluster)
        is_left, line = summary(decision, len(self.cluster.devices))
        base = decision.function.rpartition("_")[0] or decision.function
        # (Of what is wrong a line is there already.)
        if (base, line) not in self._told and decision.reason != "verification":
            self._told.add((base, line))
            level = logging.WARNING if is_left else logging.INFO
            _log.log(level, "tf_fuse: the update of the weights in %s is %s.", base, line)

    def _plan(self, context: Any, name: str, graph: Any, inputs: Sequence[Any]) -> Decision:
        assert isinstance(self.cluster, Cluster)
        operations = [op for one in _all_graphs(graph) for op in one.get_operations()]
        python = sorted(op.name for op in operations if op.type in _PYTHON)
        if python:
            return Decision(name, None, "python_code", python[0])

        def body(called: str) -> Any:
            return context.get_function_def(called) if context.has_function(called) else None

        definition = context.get_function_def(name)
        names = [argument.name for argument in definition.signature.input_arg]
        mirrored = [n for n, t in zip(names, inputs, strict=True) if _is_mirrored(t, graph)]
        replicas = Replicas(len(self.cluster.devices), self.cluster.own[0])
        plan = make_plan(definition, graph, body, replicas, mirrored, _PREFIX)
        if plan.function is None:
            return Decision(name, plan, "nothing_to_cut")
        wrong = verify(Original(definition, graph, body), plan.function, plan.slots, plan.functions)
        if not wrong:
            return Decision(name, plan)
        _log.warning(
            "tf_fuse: the update of the weights in %s is not cut, since the function that was made "
            "of it is wrong: %s. Training goes on as without shard_weight_update; please report "
            "this.", name, wrong,
        )  # fmt: skip
        return Decision(name, Plan(plan.packs), "verification", wrong)

    def _make(self, context: Any, name: str, plan: Plan, inputs: Sequence[Any]) -> Twin:
        assert self.state is not None and isinstance(self.cluster, Cluster)
        definition = plan.function
        assert definition is not None
        names = [argument.name for argument in definition.signature.input_arg]
        positions = [names.index(slot.argument) for slot in plan.slots]
        handles = [inputs[position] for position in positions]
        state_module.watch_handles()
        bundle = self.state.bundle(plan.slots, handles)
        self._reader.connect()
        self._leaving = self._leaving or Leaving(self.cluster, self.state, self._readers)
        definition.signature.name = name + _SUFFIX
        for node in definition.node_def:
            if node.op == "VarHandleOp":
                shared = node.attr["shared_name"].s.decode()
                if shared.startswith(_PREFIX):
                    number = int(shared.removeprefix(_PREFIX))
                    node.attr["shared_name"].s = part_name(bundle.number, number).encode()
        context.add_function_def(definition)
        return Twin(
            definition.signature.name.encode(), plan, bundle,
            list(zip(positions, handles, strict=True)),
        )  # fmt: skip


def _in_words(decision: Decision) -> str:
    """Why a function is left alone; "" if it is not."""
    if decision.reason is None:
        return ""
    words = FUNCTION_REASONS[decision.reason]
    return f"{words}: {decision.detail}" if decision.detail else words


def use(tensors: Sequence[Any], name: str | bytes) -> None:
    """Sees to it that variables have their values before a function gets their handles.

    Args:
      tensors: that the function gets.
      name: of the function.
    """
    if state_module.is_any_parted():
        for tensor in tensors:
            state_module.use(tensor, _user(name))


def _user(name: str | bytes) -> str:
    """What the report calls a function."""
    return f"function {name.decode() if isinstance(name, bytes) else name}"


def _names(graph: Any, inputs: Sequence[Any], arguments: Sequence[str]) -> dict[str, str]:
    """The names of a function's variables, by argument."""
    by_handle = {id(v.__dict__.get("_handle")): v.name.partition(":")[0] for v in graph.variables}
    return {
        argument: by_handle[id(tensor)]
        for argument, tensor in zip(arguments, inputs, strict=True)
        if id(tensor) in by_handle
    }


def _element_bytes(graph: Any) -> dict[str, int]:
    """The size of an element, by all-reduce, of a function and those that it calls."""
    operations = [op for one in _all_graphs(graph) for op in one.get_operations()]
    return {op.name: int(op.get_attr("T").size) for op in operations if op.type == _REDUCE}


def _all_graphs(graph: Any) -> list[Any]:
    """The graphs of the functions that a function calls, and, last, its own."""
    found: dict[int, Any] = {}
    waiting = [graph]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in found:
            found[id(one)] = one
            calls = getattr(one, "_functions", {}).values()
            waiting += [getattr(call, "graph", None) for call in calls]
    return list(found.values())[::-1]


def _is_mirrored(tensor: Any, graph: Any) -> bool:
    """Whether a tensor is the handle of a variable that a strategy keeps equal on all replicas."""
    from tensorflow.python.distribute import values
    from tensorflow.python.framework import dtypes

    if getattr(tensor, "dtype", None) != dtypes.resource:
        return False
    container = getattr(tensor, "_distributed_container", None)
    if container is None:  # One that was made in a function has it itself.
        for variable in graph.variables:
            if variable.__dict__.get("_handle") is tensor:
                container = getattr(variable, "_distributed_container", None)
    return container is not None and type(container()) is values.MirroredVariable


def _remember(function: Any) -> None:
    name = function.name
    _graphs[name.decode() if isinstance(name, bytes) else name] = function.graph


def install(is_on: Callable[[Any], bool]) -> None:
    """Extends TensorFlow's eager context, once per process.

    Args:
      is_on: whether updates are to be cut, given the context.
    """
    from tensorflow.python.eager import context as context_module
    from tensorflow.python.eager.polymorphic_function import transform

    cls = context_module.Context
    if getattr(cls, "_tf_fuse_shards_updates", False):
        return
    stock_call = cls.call_function
    stock_remove = cls.remove_function

    def call_function(self: Any, name: Any, tensor_inputs: Any, num_outputs: int) -> Any:
        if not is_on(self):
            use(tensor_inputs, name)
            return stock_call(self, name, tensor_inputs, num_outputs)
        updates = updates_of(self)
        key = name if isinstance(name, bytes) else name.encode()
        return updates.call(self, stock_call, key, tensor_inputs, num_outputs)

    def remove_function(self: Any, name: Any) -> None:
        stock_remove(self, name)
        updates = getattr(self, "_tf_fuse_updates", None)
        if updates is not None:
            updates.forget(self, name if isinstance(name, bytes) else name.encode())

    call_function.__doc__ = stock_call.__doc__
    remove_function.__doc__ = stock_remove.__doc__
    cls.call_function = call_function
    cls.remove_function = remove_function
    cls._tf_fuse_shards_updates = True
    transform.CONCRETE_FUNCTION_CALLBACKS.append(_remember)


def updates_of(context: Any) -> Updates:
    """The twins of a context; made when first asked for."""
    updates = getattr(context, "_tf_fuse_updates", None)
    if updates is None:
        context.ensure_initialized()
        updates = context._tf_fuse_updates = Updates(context)
    return updates
