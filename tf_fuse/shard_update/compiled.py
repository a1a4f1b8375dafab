# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gives functions that update weights a twin whose elementwise operations are one operation.

The update may be in the function itself, in functions that it calls, or in branches and loops.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tf_fuse._eager_calls import Call, calling_task, lacks_our_ops
from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.cones import IsHere
from tf_fuse.shard_update.functions import op_defs, partial_shapes, rename_called, static_shapes
from tf_fuse.shard_update.graph_view import ASSIGNS, GraphView
from tf_fuse.shard_update.joined_rows import outline_with_rows
from tf_fuse.shard_update.locking import lock_applies
from tf_fuse.shard_update.origins import Site, live
from tf_fuse.shard_update.outline import Maker, Outline, outline
from tf_fuse.shard_update.places import Places, Servers, ask_task, has_other_tasks
from tf_fuse.shard_update.rows import SCATTERS, PartialShape
from tf_fuse.shard_update.shared_reads import share_reads

_log = logging.getLogger("tf_fuse")


@dataclass(frozen=True)
class Way:
    """How the operations become one.

    Attributes:
      name: of the way, in the names of twins.
      maker: of the operations.
      problem: why they cannot be had in a context; "" if they can.
      has_servers: whether they can be on other tasks.
      may_differ: whether last bits there may be others.
    """

    name: str
    maker: Maker
    problem: Callable[[Any], str]
    has_servers: bool = False
    may_differ: Callable[[], bool] = lambda: False


@dataclass
class Compiled:
    """What was decided about one function.

    Attributes:
      function: its name.
      outline: what is compiled of it, and why the rest is not.
      view: of the function.
      has_servers: whether its variables may be on other tasks.
      variables: names of variables, by argument, as far as they are known.
    """

    function: str
    outline: Outline
    view: GraphView
    has_servers: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)


class _Work:
    """A twin that a thread makes."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.is_over = threading.Event()


class Compiler:
    """The twins of one eager context.

    Thread-safe without a lock, since the garbage collector may remove functions on any thread. Who
    calls a function whose twin is being made waits for it: an update that is not one operation
    would be in the middle of others.
    """

    def __init__(
        self,
        context: Any,
        graphs: Mapping[str, Any],
        shapes: Mapping[str, Mapping[str, Shape | None]],
        way: Way,
    ):
        """Starts without twins.

        Args:
          context: the eager context, initialized.
          graphs: of functions, by name.
          shapes: of the tensors of a function, by its name, where they are not those of its graph.
          way: how operations become one.
        """
        self.decisions: list[Compiled] = []
        self._graphs, self._shapes = graphs, shapes
        self._twins: dict[bytes, bytes | None] = {}
        self._in_work: dict[bytes, _Work] = {}
        self._servers = Servers(ask_task, context.host_address_space)
        # Tasks that cannot run a twin.
        self._plain_tasks: set[str] = set()
        self._way, self._suffix = way, f"__tf_fuse_{way.name}"
        self._problem = way.problem(context)
        if self._problem:
            _log.warning("tf_fuse: weight updates are not %s: %s.", way.name, self._problem)

    def call(self, context: Any, call: Call, name: bytes, inputs: Sequence[Any], num: int) -> Any:
        """Calls a function's twin if it has one, and the function itself otherwise."""
        twin = self._twin_of(context, name, inputs)
        if twin is None or (self._plain_tasks and calling_task(context) in self._plain_tasks):
            return call(context, name, inputs, num)
        from tensorflow.python.framework import errors

        try:
            return call(context, twin, inputs, num)
        except errors.OpError as error:
            if not lacks_our_ops(error):
                error._message = error.message.replace(twin.decode(), name.decode())
                raise
            self._note_plain(calling_task(context), error)
            return call(context, name, inputs, num)

    def _note_plain(self, task: str, error: Any) -> None:
        if task not in self._plain_tasks:
            _log.warning(
                "tf_fuse: weight updates in functions that %s runs are not %s: %s",
                task or "the coordinator's own task", self._way.name, error.message,
            )  # fmt: skip
        self._plain_tasks.add(task)

    def _twin_of(self, context: Any, name: bytes, inputs: Sequence[Any]) -> bytes | None:
        while name not in self._twins:
            mine = _Work()
            work = self._in_work.setdefault(name, mine)
            if work is mine:
                try:
                    if name not in self._twins:
                        self._twins[name] = self._twin(context, name.decode(), inputs)
                finally:
                    self._in_work.pop(name, None)
                    mine.is_over.set()
            elif work.thread == mine.thread:
                return None
            else:
                work.is_over.wait()
        return self._twins.get(name)

    def forget(self, context: Any, name: bytes) -> None:
        """Drops the twin of a function that is gone.

        What it calls stays: other functions call the same, and functions to come may.
        """
        twin = self._twins.pop(name, None)
        if twin is not None and context.has_function(twin):
            context.remove_function(twin)

    def _twin(self, context: Any, name: str, inputs: Sequence[Any]) -> bytes | None:
        graph = self._graphs.get(name)
        if self._problem or graph is None:
            return None
        signature = context.get_function_def(name).signature
        places = {a.name: t.device for a, t in zip(signature.input_arg, inputs, strict=True)}
        try:
            site = Site((bool(signature.output_arg),), body=_bodies(context))
            where = self._where(context, places)
            twin = self._compiled(context, name, graph, site, name + self._suffix, where)
            self._describe(graph, signature, inputs)
        except Exception as error:  # An error of ours is no reason not to train.
            _log.debug("tf_fuse: %s", name, exc_info=True)
            _log.warning(
                "tf_fuse: the function %s cannot be %s and stays: %s", name, self._way.name, error
            )
            return None
        return None if twin == name else twin.encode()

    def _describe(self, graph: Any, signature: Any, inputs: Sequence[Any]) -> None:
        """Adds the names of variables to what was decided about a function."""
        names = {id(_handle_of(v)): v.name.partition(":")[0] for v in graph.variables}
        for decision in self.decisions:
            if decision.function == signature.name:
                decision.variables = {
                    argument.name: names[id(tensor)]
                    for argument, tensor in zip(signature.input_arg, inputs, strict=True)
                    if id(tensor) in names
                }

    def _where(self, context: Any, places: Mapping[str, str]) -> IsHere:
        """What tells where operations can be.

        Args:
          context: the eager context.
          places: the devices that a function's arguments are on.
        """
        if self._way.has_servers and has_other_tasks(context):
            return Places(self._servers, places)
        return _is_here(context, places)

    def _compiled(
        self, context: Any, name: str, graph: Any, site: Site, twin: str, where: IsHere
    ) -> str:
        """The name of the function to call instead of another one; it may be the same.

        Args:
          context: the eager context.
          name: of the function.
          graph: that it was made of.
          site: how it is called.
          twin: the name for it.
          where: operations can be.
        """
        definition = context.get_function_def(name)
        if _is_compiled(definition):
            return name
        if context.has_function(twin):
            return twin
        definition = _without_dead(definition, op_defs(site.body))
        view = GraphView(definition, op_defs(site.body))
        if isinstance(where, Places):
            view.place_of = functools.partial(where.of_node, view)
        shapes = self._shapes.get(name) or static_shapes(view, graph)
        inner = self._inner(context, view, shapes, graph, site, where)
        found = Outline()
        if any(node.op in ASSIGNS | SCATTERS for node in definition.node_def):
            is_there = isinstance(where, Places)
            partial = partial_shapes(view, graph) if is_there else None
            view, found = self._outlined(view, shapes, where, site, partial)
            if isinstance(where, Places):
                found.left = [where.explain(left) for left in found.left]
            self.decisions.append(Compiled(name, found, view, is_there))
        function = found.function
        if function is not None and isinstance(where, Places) and self._way.may_differ():
            share_reads(function, view, shapes)
        # (The definition is a copy.)
        is_locked = isinstance(where, Places) and lock_applies(function or definition, view, where)
        if function is None:
            if not inner and not is_locked:
                return name
            function = definition
        for node in function.node_def:
            rename_called(node, inner.get(node.name, {}))
        for made in found.bodies.values():
            if not context.has_function(made.signature.name):
                context.add_function_def(made)
        function.signature.name = twin
        context.add_function_def(function)
        return twin

    def _outlined(
        self,
        view: GraphView,
        shapes: Mapping[str, Shape | None],
        where: IsHere,
        site: Site,
        partial: PartialShape | None,
    ) -> tuple[GraphView, Outline]:
        """What becomes of a function, and the function that that is of."""
        if partial is None or not self._way.may_differ():
            return view, outline(view, shapes, where, self._way.maker, site, partial)
        return outline_with_rows(view, shapes, where, self._way.maker, site, partial)

    def _inner(
        self,
        context: Any,
        view: GraphView,
        shapes: Mapping[str, Shape | None],
        graph: Any,
        site: Site,
        where: IsHere,
    ) -> dict[str, dict[str, str]]:
        """By node that calls functions: those of them that have twins, and their names."""
        found: dict[str, dict[str, str]] = {}
        for node in view.function.node_def:
            called = {f.name for a in node.attr.values() for f in [a.func, *a.list.func]}
            for name in sorted(called & graph._functions.keys()):
                inner = getattr(graph._functions[name], "graph", None)
                if inner is None or not context.has_function(name) or _is_compiled(node):
                    continue
                its = site.of_call(view, shapes, node)
                twin = name + self._suffix + its.suffix
                arguments = context.get_function_def(name).signature.input_arg
                names = [argument.name for argument in arguments]
                if isinstance(where, Places):
                    inside: IsHere = where.inside(view, node, names)
                else:
                    inside = self._where(context, {})
                if self._compiled(context, name, inner, its, twin, inside) == twin:
                    found.setdefault(node.name, {})[name] = twin
        return found


def _without_dead(definition: Any, op_def: Callable[[str], Any]) -> Any:
    """A function without the nodes that TensorFlow leaves out, for which nothing is kept."""
    kept = live(GraphView(definition, op_def), with_results=True)
    pruned = type(definition)()
    pruned.CopyFrom(definition)
    del pruned.node_def[:]
    pruned.node_def.extend(node for node in definition.node_def if node.name in kept)
    return pruned


def _handle_of(variable: Any) -> Any:
    # (A strategy's variable has another one inside.)
    while "_v" in variable.__dict__:
        variable = variable.__dict__["_v"]
    return variable.__dict__.get("_handle")


def _bodies(context: Any) -> Callable[[str], Any]:
    """The definitions of functions, by name; None for others."""
    definitions: dict[str, Any] = {}

    def body(name: str) -> Any:
        if name not in definitions:
            has = bool(name) and context.has_function(name)
            definitions[name] = context.get_function_def(name) if has else None
        return definitions[name]

    return body


def _is_compiled(node: Any) -> bool:
    """Whether a call, or a function, is compiled as a whole."""
    # (Looking for a key that is not there would add it.)
    return "_XlaMustCompile" in node.attr and bool(node.attr["_XlaMustCompile"].b)


def no_xla(context: Any) -> str:
    """Why XLA cannot compile; "" if it can."""
    from tensorflow.python.util import _pywrap_util_port

    if not _pywrap_util_port.IsBuiltWithXLA():
        return "this TensorFlow is built without XLA"
    return no_other_tasks(context)


def no_other_tasks(context: Any) -> str:
    """Why the operations may have to run elsewhere than in this process; "" if not."""
    if has_other_tasks(context):
        return "the variables may be on other tasks than the one that runs the program"
    return ""


def _is_here(context: Any, places: Mapping[str, str]) -> IsHere:
    """Tells what is on a CPU of this process.

    Args:
      context: the eager context.
      places: by variable, the device that it is on.
    """
    from tensorflow.python.framework import device as device_module

    own = device_module.DeviceSpec.from_string(context.host_address_space())
    specs = [device_module.DeviceSpec.from_string(name) for name in context.devices()]
    local = [spec for spec in specs if (spec.job, spec.task) == (own.job, own.task)]

    def is_here(device: str, variable: str | None) -> bool:
        # A variable and who assigns it are on the same device, but which one need not be told.
        if len(local) > 1 and variable is not None and places.get(variable) != device:
            return False
        spec = device_module.DeviceSpec.from_string(device)
        return (
            spec.device_type in (None, "CPU")
            and spec.job in (None, own.job)
            and spec.task in (None, own.task)
            and (len(local) == 1 or bool(device))
        )

    return is_here
