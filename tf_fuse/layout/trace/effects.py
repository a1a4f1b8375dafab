# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find a function's effects beside results and variables: checks, prints and summaries.

TensorFlow runs an operation with such an effect although nothing depends on it. A plan runs it too,
once in each process, on whole values, beside the planned operations. So are the operations that
lead to it and cannot be planned, such as the text of a print.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, NamedTuple

from tf_fuse._tensorflow.graphs.functions import function_of, graph_of

# Operations that are stateful or have no outputs, but whose effect nobody misses if nothing
# depends on them. Operations that write variables are always in the plan.
_HARMLESS: Final = (
    "ControlTrigger", "DestroyResourceOp", "NoOp", "Placeholder", "PlaceholderWithDefault",
    "ReadVariableOp", "VarHandleOp", "VarIsInitializedOp", "VariableShape",
)  # fmt: skip
_HARMLESS_KINDS: Final = (
    "Assign", "Multinomial", "ParameterizedTruncatedNormal", "Random", "ResourceApply",
    "ResourceGather", "ResourceScatter", "ResourceSparseApply", "ResourceStridedSliceAssign",
    "Rng", "StatefulRandom", "StatefulStandardNormal", "StatefulTruncatedNormal",
    "StatefulUniform", "TruncatedNormal",
)  # fmt: skip
# Operations with variables that read nothing; and those that do not write although they
# are stateful.
UNUSED: Final = ("DestroyResourceOp", "VarIsInitializedOp", "VariableShape")
_READERS: Final = ("ResourceGather", "ResourceGatherNd")
_WRITERS: Final = ("Assign", "Resource")
# They could read a variable whose lock another thread cannot take until the call ends.
_OF_PYTHON: Final = ("EagerPyFunc", "PyFunc", "PyFuncStateless")


class Captured(NamedTuple):
    """A resource that is not a variable, as a table or a summary writer: its handle."""

    handle: Any


class Holder(NamedTuple):
    """The handle of a variable that an effect reads: what it is called, and what it holds then."""

    variable: str
    tensor: str


# An operation's input: a tensor's name, one of these, or None if nothing is known.
Argument = str | Captured | Holder | None


class Effect(NamedTuple):
    """An operation that runs beside the plan.

    Attributes:
      operation: a `tf.Operation`; None of what makes its output by itself.
      arguments: its inputs.
      outputs: names of what it makes.
      value: of its output, where it has no operation.
    """

    operation: Any
    arguments: tuple[Argument, ...]
    outputs: tuple[str, ...]
    value: Any = None


def functions_of(operation: Any) -> Iterator[Any]:
    """Return the functions that an operation calls, as loops do."""
    for attribute in operation.node_def.attr.values():
        for one in (attribute.func, *attribute.list.func):
            if one.name:
                yield function_of(operation.graph, one.name)


class Beside(NamedTuple):
    """The operations that run beside a plan.

    Attributes:
      runs: all operations, in their order.
      names: of those that have an effect.
      observed: tensors of the plan that they read.
      left_out: names of those that cannot run.
    """

    runs: tuple[Effect, ...]
    names: tuple[str, ...]
    observed: tuple[str, ...]
    left_out: tuple[str, ...]


class Effects:
    """The operations that make a function's tensors, and those that have effects."""

    def __init__(self) -> None:
        """Start without tensors."""
        self._makers: dict[str, Effect] = {}
        self._found: dict[str, Effect] = {}

    def copied(self) -> Effects:
        """Return the same, to go on with by itself."""
        found = Effects()
        found._makers, found._found = dict(self._makers), dict(self._found)
        return found

    def value(self, name: str, value: Any) -> None:
        """Return a tensor whose value is known, or that the function captured."""
        self._makers[name] = Effect(None, (), (name,), value)

    def operation(
        self, name: str, operation: Any, arguments: tuple[Argument, ...], outputs: tuple[str, ...]
    ) -> None:
        """Return an operation, with a name of its own."""
        one = Effect(operation, arguments, outputs)
        self._makers.update(dict.fromkeys(outputs, one))
        unknown = not any(isinstance(each, Holder) for each in arguments)
        if _has_effect(operation) or (unknown and operation.type.startswith(_WRITERS)):
            self._found[name] = one

    def beside(self, inside: Collection[str], planned: Callable[[str], bool]) -> Beside:
        """Return what has to run beside a plan.

        Args:
          inside: names of operations that are in the plan.
          planned: whether a plan can have a tensor.
        """
        runs: dict[int, Effect] = {}
        observed: dict[str, None] = {}
        names, left_out = [], []
        for name, one in self._found.items():
            if name in inside:
                continue
            way = self._way(one, planned)
            called = f"{one.operation.type} {name!r}"
            if way is None:
                left_out.append(called)
                continue
            names.append(called)
            runs.update((id(each), each) for each in way[0])
            observed.update(dict.fromkeys(way[1]))
        return Beside(tuple(runs.values()), tuple(names), tuple(observed), tuple(left_out))

    def _way(
        self, effect: Effect, planned: Callable[[str], bool]
    ) -> tuple[list[Effect], list[str]] | None:
        """Return the operations that an effect needs, itself last, and what they read of the plan.

        Returns:
          None if it cannot run, since it calls Python or uses what is not known.
        """
        found: dict[int, Effect] = {}
        read: list[str] = []

        def visit(one: Effect) -> bool:
            if one.operation is not None and _calls_python(one.operation):
                return False
            for argument in one.arguments:
                name = argument.tensor if isinstance(argument, Holder) else argument
                if isinstance(name, Captured):
                    continue
                if name is None:
                    return False
                if planned(name):
                    read.append(name)
                    continue
                maker = self._makers.get(name)
                if maker is None or (id(maker) not in found and not visit(maker)):
                    return False
            found[id(one)] = one
            return True

        return (list(found.values()), read) if visit(effect) else None


def _has_effect(operation: Any) -> bool:
    """Return whether an operation, or one that it calls, does more than make its outputs."""
    kind = operation.type
    is_stateful, calls = _traits(kind)
    if calls:
        inner = (one for each in functions_of(operation) for one in graph_of(each).get_operations())
        return any(map(_has_effect, inner))
    if kind in _HARMLESS or kind.startswith(_HARMLESS_KINDS):
        return False
    # Creating a resource is not an effect.
    if any(one.dtype == "resource" for one in operation.outputs):
        return False
    return is_stateful or not operation.outputs


def is_stateful(operation: Any) -> bool:
    """Return whether an operation has a state, or an effect without outputs."""
    kind = operation.type
    return _traits(kind)[0] or (not operation.outputs and kind not in _HARMLESS)


def is_plain(operation: Any) -> bool:
    """Return whether an operation calls no functions and is for tensors of numbers or text."""
    types = [one.dtype for one in (*operation.inputs, *operation.outputs)]
    return not _traits(operation.type)[1] and not {"resource", "variant"} & {
        one.name for one in types
    }


@functools.cache
def _traits(kind: str) -> tuple[bool, bool]:
    """Return whether operations of a kind are stateful, and whether they call functions."""
    from tensorflow.python.framework import op_def_registry

    known = op_def_registry.get(kind)
    if known is None:  # A function, called by its name.
        return True, True
    calls = any(one.type in ("func", "list(func)") for one in known.attr)
    return known.is_stateful, calls


def written_inputs(operation: Any) -> list[int]:
    """Return the numbers of inputs that are handles of what an operation may write."""
    is_stateful, _ = _traits(operation.type)
    if not is_stateful or operation.type in ("ReadVariableOp", *_READERS, *UNUSED):
        return []
    from tensorflow.python.framework import auto_control_deps_utils

    _, written = auto_control_deps_utils.get_read_write_resource_inputs(operation)
    return [number for number, one in enumerate(operation.inputs) if one in written]


def _calls_python(operation: Any) -> bool:
    inner = (one for each in functions_of(operation) for one in graph_of(each).get_operations())
    return operation.type in _OF_PYTHON or any(map(_calls_python, inner))
