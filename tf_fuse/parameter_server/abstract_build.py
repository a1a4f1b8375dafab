# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a program that builds a model without making its variables, and list them.

The program runs in a graph of its own, where a variable is a node. Afterwards the state that a
program could notice is restored: random numbers, and the numbers in Keras's names.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tensorflow.python.framework import ops

from tf_fuse._tensorflow.graphs import functions
from tf_fuse._tensorflow.keras import global_state
from tf_fuse._tensorflow.keras import variable as keras_variable

# Initial values of this many bytes and more are replaced by zeros.
_LARGE = 1024


@dataclass(frozen=True)
class Recorded:
    """A variable that the program made.

    Attributes:
      name: with the scopes that it was made in, as an eager program names it.
      graph_name: as a program that builds a graph names it.
      shape: of its value; None where it is not fully defined.
      dtype: name of its type.
      trainable: whether steps update it.
      beside: graph_name of the variable that it is colocated with; "" for none.
      server: number of the task of job "ps" that a device scope names; None for none.
      in_pieces: whether the program asked for its pieces.
    """

    name: str
    graph_name: str
    shape: tuple[int, ...] | None
    dtype: str
    trainable: bool
    beside: str
    server: int | None
    in_pieces: bool = False


class _Thread(threading.local):
    """What the program has asked for the pieces of, by graph_name, while it is recorded."""

    asked: set[str] | None = None


_thread = _Thread()


def note_pieces(variables: Iterable[Any]) -> None:
    """Report to the recorder that the program takes the pieces of variables.

    Args:
      variables: of TensorFlow.
    """
    if _thread.asked is not None:
        _thread.asked.update(_graph_name(one) for one in variables)


class _Scratch(ops.Graph):
    """A graph that also knows scopes by the names that the program gave them.

    A graph numbers scopes of one name; without a graph they all have that name.
    """

    def __init__(self) -> None:
        super().__init__()
        self._given = {"": ""}

    def name_scope(self, name: str | None) -> Any:
        """Enter a name scope, as a graph does; yield the graph's scope."""
        return self._scope(name)

    @contextlib.contextmanager
    def _scope(self, name: str | None) -> Iterator[str]:
        outer = self.given_scope()
        with super().name_scope(name) as scope:
            if name and not name.endswith("/"):
                self._given[scope.rstrip("/")] = f"{outer}/{name}" if outer else name
            yield scope

    def given_scope(self) -> str:
        """Return the scopes around what is made now, by the names that were given."""
        scope = functions.name_scope(self)
        return self._given.get(scope, scope)


def record(function: Callable[[], Any]) -> list[Recorded]:
    """Run a function in a graph of its own, and list the variables that it makes.

    Args:
      function: builds a model, and its optimizer perhaps.

    Returns:
      The variables, in the order in which they were made.

    Raises:
      Exception: whatever the function raises; it may need values, which a graph does not have.
    """
    from tensorflow.python.ops import variable_scope

    recorded: list[Recorded] = []
    graph = _Scratch()
    outer = ops.get_name_scope()

    def creator(next_creator: Any, **kwargs: Any) -> Any:
        default = ops.get_default_graph()
        scope = default.given_scope() if default is graph else ops.get_name_scope()
        kwargs["initial_value"] = _without_values(kwargs.get("initial_value"), kwargs.get("dtype"))
        kwargs.pop("colocate_with", None)
        variable = next_creator(**kwargs)
        name = kwargs.get("name") or "Variable"
        recorded.append(_describe(variable, f"{scope}/{name}" if scope else name))
        return variable

    with (
        _unnoticed(graph),
        _noting_pieces(),
        graph.as_default(),
        graph.name_scope(f"{outer}/" if outer else None),
        variable_scope.variable_creator_scope(creator),
    ):
        function()
        asked = _thread.asked or set()
    return [replace(one, in_pieces=one.graph_name in asked) for one in recorded]


@contextlib.contextmanager
def _noting_pieces() -> Iterator[None]:
    before, _thread.asked = _thread.asked, set()
    try:
        yield
    finally:
        _thread.asked = before


def _op(variable: Any) -> Any:
    return variable.op if not hasattr(variable, "handle") else variable.handle.op


def _graph_name(variable: Any) -> str:
    return str(_op(variable).name)


def _describe(variable: Any, name: str) -> Recorded:
    op = _op(variable)
    groups = [group.decode() for group in op.colocation_groups()]
    beside = [g.removeprefix("loc:@") for g in groups if g.removeprefix("loc:@") != op.name]
    spec = _spec(op.device)
    shape = variable.shape
    return Recorded(
        name=str(name),
        graph_name=op.name,
        shape=tuple(shape.as_list()) if shape.is_fully_defined() else None,
        dtype=variable.dtype.base_dtype.name,
        trainable=bool(variable.trainable),
        beside=beside[0] if beside else "",
        server=spec.task if spec.job == "ps" else None,
    )


def _spec(device: str) -> Any:
    from tensorflow.python.framework import device as device_module

    return device_module.DeviceSpec.from_string(device or "")


def _without_values(value: Any, dtype: Any) -> Any:
    """Return zeros of the initial value's shape, if it is large or belongs to no graph."""
    from tensorflow.python.framework import dtypes
    from tensorflow.python.ops import array_ops

    if callable(value):
        shape = None if dtype is None else keras_variable.initial_shape(value)
        if shape is not None:  # (To draw numbers takes most of the time of a build.)
            return lambda: array_ops.zeros(shape, dtypes.as_dtype(dtype))
        return lambda: _without_values(value(), dtype)
    is_array = isinstance(value, np.ndarray) and value.nbytes >= _LARGE and value.dtype != object
    if is_array or isinstance(value, ops.EagerTensor):
        kind = dtypes.as_dtype(dtype if dtype is not None else value.dtype)
        if kind not in (dtypes.resource, dtypes.variant):
            return array_ops.zeros(tuple(value.shape), kind)
    return value


@contextlib.contextmanager
def _unnoticed(graph: ops.Graph) -> Iterator[None]:
    """Restore the global state that building a model changes."""
    with contextlib.ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        stack.enter_context(global_state.keep_keras())
        stack.enter_context(global_state.keep_tf_keras(graph))
        yield
