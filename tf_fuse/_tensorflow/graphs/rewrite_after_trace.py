# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Change the graph of a function when the function is traced, and no earlier.

While a function is traced, its program can ask for any tensor and for any path: a gradient tape
that watches an intermediate value, `tf.gradients`, forward accumulators, `tf.custom_gradient`,
which looks for variables, and code that walks along the inputs of operations. So the graph is
TensorFlow's own until then. When the function has returned, nobody can ask for what is inside.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import AT_FIRST_USE, Member, Takes

_log = logging.getLogger("tf_fuse")
_CHANGES = "_tf_fuse_changes"
_LAST = "_tf_fuse_last_changes"
# Operations that only hand on their input, as gradients of it, too.
ELEMENTWISE = frozenset({"Cast", "Identity"})

_FEATURES = (feature_names.GATHERS, feature_names.MATMULS)
_TRACE_FEATURES = (*_FEATURES, feature_names.COMPRESSION)
_OPERATION = "tensorflow.python.framework.ops:Operation"
_TRACE = Member(
    "tensorflow.python.framework.func_graph",
    "func_graph_from_py_func",
    Takes(
        "name", "python_func", "args", "kwargs", "signature", "func_graph",
        "add_control_dependencies", "arg_names", "op_return_value", "collections",
        "capture_by_value", "create_placeholders",
    ),
    "Graphs of functions are changed after tracing.",
    _TRACE_FEATURES,
    AT_FIRST_USE,
)  # fmt: skip
MEMBERS = (
    _TRACE,
    Member(
        _OPERATION,
        "_update_input",
        Takes("self", "index", "tensor"),
        "to redirect consumers",
        (*_FEATURES, feature_names.KERAS_FIT),
    ),
    Member(
        _OPERATION,
        "_get_control_flow_context",
        Takes("self"),
        "to leave TensorFlow 1's control flow alone",
        _FEATURES,
    ),
)


# By name of the caller: is called with each traced graph, when its changes are made.
_with_each: dict[str, Callable[[Any], None]] = {}


def install() -> None:
    """Extend TensorFlow's tracing, once per process."""
    from tensorflow.python.framework import func_graph

    if monkey_patch.is_replaced(_TRACE):
        return
    stock = func_graph.func_graph_from_py_func
    signature = inspect.signature(stock)

    @functools.wraps(stock)
    def func_graph_from_py_func(*args: Any, **kwargs: Any) -> Any:
        graph = stock(*args, **kwargs)
        # A graph without automatic control dependencies is one that a program goes on with:
        # `wrap_function` prunes it to any of its tensors, and adds to it.
        bound = signature.bind(*args, **kwargs).arguments
        if bound.get("add_control_dependencies", True):
            _change(graph)
            for who, call in _with_each.items():
                with _logging_errors(f"{who} leaves {graph.name} unchanged"):
                    call(graph)
        return graph

    monkey_patch.replace(_TRACE, func_graph_from_py_func)


def call_with_each(who: str, call: Callable[[Any], None]) -> None:
    """Call a function with the graph of each function that is traced from now on.

    Args:
      who: a name of the caller; a later call replaces its function.
      call: gets the graph when its changes are made.
    """
    install()
    _with_each[who] = call


def when_traced(op: Any, change: Callable[[Any], None]) -> None:
    """Change the graph of an operation when that has been traced.

    Nothing is changed in a graph that has no such end, as those of sessions.

    Args:
      op: an operation of a graph that is being built.
      change: gets the operation; what it adds to the graph is on the operation's device. It calls
        `replace` last: where it fails, the graph stays.
    """
    graph = op.graph
    if not graph.building_function or op._get_control_flow_context() is not None:
        return
    changes = getattr(graph, _CHANGES, None)
    if changes is None:
        changes = []
        setattr(graph, _CHANGES, changes)
    changes.append((op, change))


def when_changed(op: Any, finish: Callable[[list[Any]], None]) -> None:
    """Call a function when all changes of a graph are made.

    Args:
      op: an operation of the graph.
      finish: is called once, with all operations that it was noted for.
    """
    last = getattr(op.graph, _LAST, None)
    if last is None:
        last = {}
        setattr(op.graph, _LAST, last)
    last.setdefault(finish, {})[op] = None


def _change(graph: Any) -> None:
    from tensorflow.python.framework import ops

    changes = getattr(graph, _CHANGES, None)
    if not changes:
        return
    setattr(graph, _CHANGES, None)
    for op, change in changes:
        with _logging_errors(_stays(op)), graph.as_default(), ops.device(op.device):
            change(op)
    last = getattr(graph, _LAST, None) or {}
    setattr(graph, _LAST, None)
    for finish, noted in last.items():
        with _logging_errors(_stays(next(iter(noted)))):
            finish(list(noted))


def _stays(op: Any) -> str:
    return f"the operation {op.name} of {op.graph.name} stays unchanged"


@contextlib.contextmanager
def _logging_errors(consequence: str) -> Iterator[None]:
    """Log errors, and what follows from them: ours must not stop the training."""
    try:
        yield
    except Exception as error:
        _log.debug("%s", consequence, exc_info=True)
        _log.warning("%s: %s: %s", consequence, type(error).__name__, error)


def replace(old: Any, new: Any) -> None:
    """Make all operations that read a tensor read another one with the same value.

    Args:
      old: the tensor.
      new: of the same graph; it must not be computed from the old one.
    """
    for consumer in old.consumers():
        for index, tensor in enumerate(consumer.inputs):
            if tensor is old:
                set_input(consumer, index, new)


def set_input(op: Any, index: int, tensor: Any) -> None:
    """Give an operation another input, of the same graph."""
    op._update_input(index, tensor)


def chain_to(tensor: Any) -> tuple[list[Any], Any]:
    """Go back from a tensor over operations that only hand on their input.

    Args:
      tensor: of a graph.

    Returns:
      These operations, the last one first, and the operation before them; None for that if the
      gradient of one of them is not TensorFlow's own.
    """
    between: list[Any] = []
    op = getattr(tensor, "op", None)
    while op is not None and op.type in ELEMENTWISE:
        if not has_own_gradient(op):
            return between, None
        between.append(op)
        op = op.inputs[0].op
    return between, op


def has_own_gradient(op: Any) -> bool:
    """Return whether the gradient of an operation is the one of its type."""
    try:
        op.get_attr("_gradient_op_type")
    except ValueError:
        return True
    return False
