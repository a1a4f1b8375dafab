# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keep and call the rewritten functions of one eager context."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from tf_fuse._tensorflow.eager import error_messages as tensorflow_errors
from tf_fuse._tensorflow.eager.function_calls import Call, calling_task, lacks_our_ops
from tf_fuse._tensorflow.variables.sharded_variable import handle_inside
from tf_fuse.function_graph.builder import Shape
from tf_fuse.fuse_update.analysis.devices import (
    ArgumentDevices,
    Servers,
    ask_task,
    has_other_tasks,
)
from tf_fuse.fuse_update.analysis.fusion_clusters import CanFuseOn
from tf_fuse.fuse_update.analysis.grappler_inputs import CallSite
from tf_fuse.fuse_update.analysis.local_nodes import can_fuse_locally
from tf_fuse.fuse_update.backend import Backend
from tf_fuse.fuse_update.fusion_decision import FusionDecision
from tf_fuse.fuse_update.pipeline import FunctionCall, Pipeline, Records

_log = logging.getLogger("tf_fuse")


class _Rewriting:
    """A function that a thread rewrites at the moment."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.is_over = threading.Event()


class _Variant:
    """The rewritten functions for one set of options, and of devices of passed variables.

    Attributes:
      pipeline: rewrites functions.
      rewritten: the name of each function's rewritten one; None: the function itself is called.
      in_progress: functions that threads rewrite at the moment.
    """

    def __init__(self, pipeline: Pipeline):
        self.pipeline = pipeline
        self.rewritten: dict[bytes, bytes | None] = {}
        self.in_progress: dict[bytes, _Rewriting] = {}


class UpdateFuser:
    """The rewritten functions of one eager context.

    TensorFlow optimizes and places a function again when a program calls it with other options, or
    with variables of other devices. So there is a rewritten function for each of them.

    Thread-safe without a lock, since the garbage collector may remove functions on any thread. A
    thread that calls a function while another thread rewrites it waits: an update that is not fused
    could be half done when a fused one reads it.
    """

    def __init__(
        self,
        context: Any,
        graphs: Mapping[str, Any],
        shapes: Mapping[str, Mapping[str, Shape | None]],
        backend: Backend,
    ):
        """Start without rewritten functions.

        Args:
          context: the eager context, initialized.
          graphs: the `FuncGraph` of each function, by name.
          shapes: by function, the shapes of its tensors where its graph does not have them.
          backend: runs the fused updates.
        """
        self._graphs, self._backend = graphs, backend
        self._shapes, self._records = shapes, Records()
        self._variants: dict[Hashable, _Variant] = {}
        self._handles: dict[bytes, tuple[int, ...]] = {}
        self._servers = Servers(ask_task, context.host_address_space)
        # Tasks that cannot run a rewritten function.
        self._tasks_without_plugin: set[str] = set()
        self._problem = backend.problem(context)
        if self._problem:
            _log.warning("weight updates are not %s: %s.", backend.name, self._problem)

    @property
    def decisions(self) -> list[FusionDecision]:
        """What was decided about each function that still exists, in the order of first calls."""
        return self._records.decided.all()

    @property
    def counts(self) -> Counter[str]:
        """How many updates were ever fused, and how many assignments were not."""
        return self._records.counts

    def call(self, context: Any, call: Call, name: bytes, inputs: Sequence[Any], num: int) -> Any:
        """Call the rewritten function if there is one, else the function itself."""
        rewritten = self._rewritten_of(context, name, inputs)
        without_plugin = self._tasks_without_plugin
        if rewritten is None or (without_plugin and calling_task(context) in without_plugin):
            return call(context, name, inputs, num)
        from tensorflow.python.framework import errors

        try:
            return call(context, rewritten, inputs, num)
        except errors.OpError as error:
            if not lacks_our_ops(error):
                text = error.message.replace(rewritten.decode(), name.decode())
                tensorflow_errors.set_message(error, text)
                raise
            self._note_missing_plugin(calling_task(context), error)
            return call(context, name, inputs, num)

    def _note_missing_plugin(self, task: str, error: Any) -> None:
        if task not in self._tasks_without_plugin:
            _log.warning(
                "weight updates in functions that %s runs are not %s: %s",
                task or "the coordinator's own task", self._backend.name, error.message,
            )  # fmt: skip
        self._tasks_without_plugin.add(task)

    def _rewritten_of(self, context: Any, name: bytes, inputs: Sequence[Any]) -> bytes | None:
        handles = self._passed_handles(name)
        if _is_one_passed_twice(handles, inputs):
            return None
        variant = self.variant(tuple(inputs[i].device for i in handles))
        while name not in variant.rewritten:
            mine = _Rewriting()
            current = variant.in_progress.setdefault(name, mine)
            if current is mine:
                try:
                    if name not in variant.rewritten:
                        made = self._rewrite(context, variant.pipeline, name.decode(), inputs)
                        variant.rewritten[name] = made
                finally:
                    variant.in_progress.pop(name, None)
                    mine.is_over.set()
            elif current.thread == mine.thread:
                return None
            else:
                current.is_over.wait()
        return variant.rewritten.get(name)

    def variant(self, devices: tuple[str, ...] = ()) -> _Variant:
        """Return the rewritten functions for calls by this thread.

        Args:
          devices: of the variables that are passed as arguments.
        """
        key = self._backend.variant(), devices
        if (found := self._variants.get(key)) is not None:
            return found
        number = f"_{len(self._variants)}" if self._variants else ""
        suffix = f"__tf_fuse_{self._backend.name}{number}"
        pipeline = Pipeline(self._backend, suffix, self._shapes, self._records)
        return self._variants.setdefault(key, _Variant(pipeline))

    def _passed_handles(self, name: bytes) -> tuple[int, ...]:
        """Return the positions of variables that a program may pass anew with each call."""
        found = self._handles.get(name)
        if found is None:
            graph = self._graphs.get(name.decode())
            found = () if graph is None else _handles_of(graph)
            self._handles[name] = found
        return found

    def forget(self, context: Any, name: bytes) -> None:
        """Drop what was made of a function that is gone, and what was decided about it.

        The bodies that operations call stay: other functions call the same, or may do so later.
        """
        self._records.decided.forget(name.decode())
        self._handles.pop(name, None)
        made = {variant.rewritten.pop(name, None) for variant in list(self._variants.values())}
        for one in made | self._records.called.pop(name, set()):
            if one is not None and context.has_function(one):
                context.remove_function(one)

    def _rewrite(
        self, context: Any, pipeline: Pipeline, name: str, inputs: Sequence[Any]
    ) -> bytes | None:
        """Return the name of the rewritten function, or None if nothing changes."""
        graph = self._graphs.get(name)
        if self._problem or graph is None:
            return None
        signature = context.get_function_def(name).signature
        devices = {a.name: t.device for a, t in zip(signature.input_arg, inputs, strict=True)}
        try:
            found = pipeline.run(
                context,
                FunctionCall(
                    name,
                    graph,
                    CallSite((bool(signature.output_arg),), body=_bodies(context)),
                    name + pipeline.suffix,
                    self._can_fuse_on(context, devices),
                    _variable_names(graph, signature, inputs),
                ),
            )
        except Exception as error:  # An error of ours must not stop the training.
            _log.debug("%s", name, exc_info=True)
            _log.warning(
                "the function %s cannot be %s and stays: %s", name, self._backend.name, error
            )
            return None
        return None if found == name else found.encode()

    def _can_fuse_on(self, context: Any, devices: Mapping[str, str]) -> CanFuseOn:
        """Return the predicate for assignments that may be fused.

        Args:
          context: the eager context.
          devices: the device of each argument of the function.
        """
        if self._backend.has_servers and has_other_tasks(context):
            return ArgumentDevices(self._servers, devices)
        return can_fuse_locally(context, devices)


def _handles_of(graph: Any) -> tuple[int, ...]:
    """Return the positions of a function's arguments that are variables, captures left out.

    Iterators are handles, too. Each worker has its own, and all of them call one function.
    """
    from tensorflow.python.framework import dtypes

    captures = {id(tensor) for tensor in graph.internal_captures}
    arguments = [i for i, tensor in enumerate(graph.inputs) if id(tensor) not in captures]
    return tuple(
        position
        for position, is_iterator in zip(
            arguments, _are_iterators(graph, len(arguments)), strict=True
        )
        if graph.inputs[position].dtype == dtypes.resource and not is_iterator
    )


def _are_iterators(graph: Any, count: int) -> list[bool]:
    """Return which of a function's `count` arguments its signature says are iterators of tf.data.

    All are False if the signature has another number of tensors: two for a variable passed twice.
    """
    import tensorflow as tf

    found: list[bool] = []
    for spec in tf.nest.flatten(graph.structured_input_signature):
        if isinstance(spec, tf.TypeSpec):
            tensors = len(tf.nest.flatten(spec, expand_composites=True))
            found += [isinstance(spec, tf.data.IteratorSpec)] * tensors
    return found if len(found) == count else [False] * count


def _is_one_passed_twice(handles: Sequence[int], inputs: Sequence[Any]) -> bool:
    """Return whether a variable that is passed is another input, too: two names of one variable."""
    if not handles:
        return False
    passed = {id(inputs[i]) for i in handles}
    return sum(id(tensor) in passed for tensor in inputs) > len(handles)


def _variable_names(graph: Any, signature: Any, inputs: Sequence[Any]) -> dict[str, str]:
    """Return the names of a function's variables in the program, by argument."""
    names = {id(handle_inside(v)): v.name.partition(":")[0] for v in graph.variables}
    return {
        argument.name: names[id(tensor)]
        for argument, tensor in zip(signature.input_arg, inputs, strict=True)
        if id(tensor) in names
    }


def _bodies(context: Any) -> Callable[[str], Any]:
    """Return a cached lookup of `FunctionDef`s by name, with None for unknown names."""
    definitions: dict[str, Any] = {}

    def body(name: str) -> Any:
        if name not in definitions:
            has = bool(name) and context.has_function(name)
            definitions[name] = context.get_function_def(name) if has else None
        return definitions[name]

    return body
