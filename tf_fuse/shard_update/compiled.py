# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gives functions that update weights a twin whose elementwise operations are one operation.

The update may be in the function itself, in functions that it calls, or in branches and loops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_fuse._eager_calls import Call
from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.cones import IsHere
from tf_fuse.shard_update.functions import op_defs, rename_called, static_shapes
from tf_fuse.shard_update.graph_view import ASSIGNS, GraphView
from tf_fuse.shard_update.origins import Site, live
from tf_fuse.shard_update.outline import Maker, Outline, outline

_log = logging.getLogger("tf_fuse")


@dataclass(frozen=True)
class Way:
    """How the operations become one.

    Attributes:
      name: of the way, in the names of twins.
      maker: of the operations.
      problem: why they cannot be had in a context; "" if they can.
    """

    name: str
    maker: Maker
    problem: Callable[[Any], str]


@dataclass
class Compiled:
    """What was decided about one function.

    Attributes:
      function: its name.
      outline: what is compiled of it, and why the rest is not.
    """

    function: str
    outline: Outline


class Compiler:
    """The twins of one eager context.

    Thread-safe without a lock, since the garbage collector may remove functions on any thread.
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
        self._way, self._suffix = way, f"__tf_fuse_{way.name}"
        self._problem = way.problem(context)
        if self._problem:
            _log.warning("tf_fuse: weight updates are not %s: %s.", way.name, self._problem)

    def call(self, context: Any, call: Call, name: bytes, inputs: Sequence[Any], num: int) -> Any:
        """Calls a function's twin if it has one, and the function itself otherwise."""
        try:
            twin = self._twins[name]
        except KeyError:
            self._twins[name] = None  # (While it is being made, on this thread or on another.)
            twin = self._twins[name] = self._twin(context, name.decode(), inputs)
        if twin is None:
            return call(context, name, inputs, num)
        from tensorflow.python.framework import errors

        try:
            return call(context, twin, inputs, num)
        except errors.OpError as error:
            error._message = error.message.replace(twin.decode(), name.decode())
            raise

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
            twin = self._compiled(context, name, graph, site, name + self._suffix, places)
        except Exception as error:  # An error of ours is no reason not to train.
            _log.debug("tf_fuse: %s", name, exc_info=True)
            _log.warning(
                "tf_fuse: the function %s cannot be %s and stays: %s", name, self._way.name, error
            )
            return None
        return None if twin == name else twin.encode()

    def _compiled(
        self,
        context: Any,
        name: str,
        graph: Any,
        site: Site,
        twin: str,
        places: Mapping[str, str] | None = None,
    ) -> str:
        """The name of the function to call instead of another one; it may be the same.

        Args:
          context: the eager context.
          name: of the function.
          graph: that it was made of.
          site: how it is called.
          twin: the name for it.
          places: the devices that its arguments are on, if they are known.
        """
        definition = context.get_function_def(name)
        if _is_compiled(definition):
            return name
        if context.has_function(twin):
            return twin
        definition = _without_dead(definition, op_defs(site.body))
        view = GraphView(definition, op_defs(site.body))
        shapes = self._shapes.get(name) or static_shapes(view, graph)
        inner = self._inner(context, view, shapes, graph, site)
        found = Outline()
        if any(node.op in ASSIGNS for node in definition.node_def):
            is_here = _is_here(context, places or {})
            found = outline(view, shapes, is_here, self._way.maker, site)
            self.decisions.append(Compiled(name, found))
        function = found.function
        if function is None:
            if not inner:
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

    def _inner(
        self,
        context: Any,
        view: GraphView,
        shapes: Mapping[str, Shape | None],
        graph: Any,
        site: Site,
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
                if self._compiled(context, name, inner, its, twin) == twin:
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
    if context._server_def is not None and context._collective_ops_server_def is None:
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
