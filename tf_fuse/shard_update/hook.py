# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gives functions that update weights a twin that updates a part of them.

As handle packing does, it stands between TensorFlow's functions and the runtime: a function keeps
its name and its body, and what is called is its twin. The plan is made when a function is first
called with the option on, from the graph that it was traced to.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_fuse.options import compiles_updates
from tf_fuse.shard_update import state as state_module
from tf_fuse.shard_update.agreement import Agreement
from tf_fuse.shard_update.bundle import Bundle, part_name
from tf_fuse.shard_update.cluster import Cluster, Reader
from tf_fuse.shard_update.clusters import Shape
from tf_fuse.shard_update.compiled import Compiler
from tf_fuse.shard_update.plan import Plan, Replicas, make_plan
from tf_fuse.shard_update.state import State

_log = logging.getLogger("tf_fuse")

_SUFFIX = "__tf_fuse_sharded"
_REDUCE = "CollectiveReduceV2"
_PREFIX = "tf_fuse/plan/"
# Their Python code may use any variable in the middle of a step.
_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})

# The graphs of functions, by name; of a twin, the one of the function that it was made of.
_graphs: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
# Of twins, the shapes of their tensors.
_shapes: dict[str, Mapping[str, Shape | None]] = {}

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
      reason: why nothing is cut, in words; "" if something is.
    """

    function: str
    plan: Plan | None
    reason: str


class Updates:
    """The twins of one eager context."""

    def __init__(self, context: Any):
        """Looks at the cluster."""
        self.cluster = Cluster.of(context)
        self.decisions: list[Decision] = []
        self._twins: dict[bytes, Twin | None] = {}
        if isinstance(self.cluster, Cluster):
            reader = Reader(self.cluster)
            self.state: State | None = State(self.cluster.own[0], reader)
            self._agreement = Agreement(self.cluster, reader)
        else:
            self.state = None
            _log.warning("tf_fuse: weight updates are not sharded: %s.", self.cluster)

    def call(self, context: Any, call: Call, name: bytes, inputs: Sequence[Any], num: int) -> Any:
        """Calls a function's twin if it has one, and the function itself otherwise."""
        twin = self._twin(context, name, inputs)
        if twin is None or not twin.is_of(inputs):
            use(inputs)
            return call(context, name, inputs, num)
        from tensorflow.python.framework import errors

        assert self.state is not None
        # (Variables of other functions' bundles, which this one reads as any.)
        own = {id(handle) for _, handle in twin.handles}
        use([tensor for tensor in inputs if id(tensor) not in own])
        with self.state.step(twin.bundle):
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
        plan, reason = self._plan(context, name, graph, inputs)
        self.decisions.append(Decision(name, plan, reason))
        self._agreement.reach(name, plan, reason, compiles_updates(context))
        if plan is None or plan.function is None:
            return None
        return self._make(context, name, plan, inputs)

    def _plan(
        self, context: Any, name: str, graph: Any, inputs: Sequence[Any]
    ) -> tuple[Plan | None, str]:
        assert isinstance(self.cluster, Cluster)
        python = sorted(op.name for op in graph.get_operations() if op.type in _PYTHON)
        if python:
            return None, f"{python[0]} runs Python code in the step, which may use any variable"

        def body(called: str) -> Any:
            return context.get_function_def(called) if context.has_function(called) else None

        definition = context.get_function_def(name)
        names = [argument.name for argument in definition.signature.input_arg]
        mirrored = [n for n, t in zip(names, inputs, strict=True) if _is_mirrored(t, graph)]
        replicas = Replicas(len(self.cluster.devices), self.cluster.own[0])
        plan = make_plan(definition, graph, body, replicas, mirrored, _PREFIX)
        return plan, "" if plan.function is not None else "no gradient's update can be cut"

    def _make(self, context: Any, name: str, plan: Plan, inputs: Sequence[Any]) -> Twin:
        assert self.state is not None
        definition = plan.function
        assert definition is not None
        names = [argument.name for argument in definition.signature.input_arg]
        positions = [names.index(slot.argument) for slot in plan.slots]
        handles = [inputs[position] for position in positions]
        state_module.watch_handles()
        bundle = self.state.bundle(plan.slots, handles)
        definition.signature.name = name + _SUFFIX
        for node in definition.node_def:
            if node.op == "VarHandleOp":
                shared = node.attr["shared_name"].s.decode()
                if shared.startswith(_PREFIX):
                    number = int(shared.removeprefix(_PREFIX))
                    node.attr["shared_name"].s = part_name(bundle.number, number).encode()
        context.add_function_def(definition)
        twin = definition.signature.name.encode()
        _graphs[twin.decode()], _shapes[twin.decode()] = _graphs[name], plan.shapes
        return Twin(twin, plan, bundle, list(zip(positions, handles, strict=True)))


def use(tensors: Sequence[Any]) -> None:
    """Sees to it that variables have their values before a function gets their handles."""
    if state_module.is_any_parted():
        for tensor in tensors:
            state_module.use(tensor)


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


def install(is_on: Callable[[Any], bool], compiles: Callable[[Any], bool]) -> None:
    """Extends TensorFlow's eager context, once per process.

    Args:
      is_on: whether updates are to be cut, given the context.
      compiles: whether they are to be compiled, given the context.
    """
    from tensorflow.python.eager import context as context_module
    from tensorflow.python.eager.polymorphic_function import transform

    cls = context_module.Context
    if getattr(cls, "_tf_fuse_shards_updates", False):
        return
    stock_call = cls.call_function
    stock_remove = cls.remove_function

    def run(self: Any, name: bytes, tensor_inputs: Any, num_outputs: int) -> Any:
        if not compiles(self):
            return stock_call(self, name, tensor_inputs, num_outputs)
        return compiler_of(self).call(self, stock_call, name, tensor_inputs, num_outputs)

    def call_function(self: Any, name: Any, tensor_inputs: Any, num_outputs: int) -> Any:
        key = name if isinstance(name, bytes) else name.encode()
        if not is_on(self):
            use(tensor_inputs)
            return run(self, key, tensor_inputs, num_outputs)
        return updates_of(self).call(self, run, key, tensor_inputs, num_outputs)

    def remove_function(self: Any, name: Any) -> None:
        stock_remove(self, name)
        key = name if isinstance(name, bytes) else name.encode()
        _shapes.pop(key.decode(), None)
        for twins in ("_tf_fuse_updates", "_tf_fuse_compiler"):
            if (keeper := getattr(self, twins, None)) is not None:
                keeper.forget(self, key)

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


def compiler_of(context: Any) -> Compiler:
    """The compiled twins of a context; made when first asked for."""
    compiler = getattr(context, "_tf_fuse_compiler", None)
    if compiler is None:
        context.ensure_initialized()
        compiler = context._tf_fuse_compiler = Compiler(context, _graphs, _shapes)
    return compiler
