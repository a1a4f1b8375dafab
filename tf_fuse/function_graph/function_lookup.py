# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Look up what TensorFlow knows about functions: graphs, operations and shapes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from tf_fuse._tensorflow.graphs.functions import called_by
from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import GraphView

REDUCE = "CollectiveReduceV2"


def graph_of(graph: Any, name: str) -> Any | None:
    """Return the `FuncGraph` of a function that another one calls."""
    atomic = called_by(graph).get(name)
    return getattr(atomic, "graph", None)


def operations(graph: Any) -> Iterator[Any]:
    """Return the operations of a function, and of those that it calls."""
    seen: set[int] = set()
    waiting = [graph]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield from one.get_operations()
            calls = called_by(one).values()
            waiting += [getattr(call, "graph", None) for call in calls]


def rename_called(node: Any, names: Mapping[str, str]) -> None:
    """Replace the functions that a node calls, by name."""
    for value in node.attr.values():
        for function in [value.func, *value.list.func]:
            if function.name in names:
                function.name = names[function.name]


def static_shapes(view: GraphView, graph: Any) -> dict[str, Shape | None]:
    """Return the shapes of a function's tensors, as far as TensorFlow inferred them.

    Returns:
      By tensor, its shape; for a variable's argument, the shape of the value. None if a size is
      unknown.
    """
    from tensorflow.python.ops import handle_data_util

    shapes: dict[str, Shape | None] = {}
    # (A function may have been given more arguments.)
    for argument, tensor in zip(view.arguments, graph.inputs, strict=False):
        shapes[argument] = _static(tensor.shape)
        data = handle_data_util.get_resource_handle_data(tensor)
        if data is not None and data.is_set and data.shape_and_type:
            shapes[argument] = _static(data.shape_and_type[0].shape)
    for operation in graph.get_operations():
        node = view.nodes.get(operation.name)
        if node is not None:
            outputs = view.outputs(node)
            # (A conditional or a loop may have got more results since, for gradients.)
            for name, tensor in zip(outputs, operation.outputs, strict=False):
                shapes[name] = _static(tensor.shape)
    return shapes


def partial_shapes(view: GraphView, graph: Any) -> Callable[[str], tuple[int | None, ...] | None]:
    """Return a lookup of the shapes of a function's tensors; None stands for an unknown size."""
    known: dict[str, Any] = dict(
        zip(view.arguments, (tensor.shape for tensor in graph.inputs), strict=False)
    )
    for operation in graph.get_operations():
        node = view.nodes.get(operation.name)
        if node is not None:
            outputs = (tensor.shape for tensor in operation.outputs)
            known.update(zip(view.outputs(node), outputs, strict=False))

    def shape_of(tensor: str) -> tuple[int | None, ...] | None:
        shape = known.get(tensor)
        return None if shape is None or shape.rank is None else tuple(shape.as_list())

    return shape_of


def _static(shape: Any) -> Shape | None:
    from tensorflow.python.framework import tensor_shape

    shape = tensor_shape.TensorShape(shape)
    return tuple(shape.as_list()) if shape.is_fully_defined() else None


def op_defs(function: Callable[[str], Any | None]) -> Callable[[str], Any]:
    """Return a lookup of the `OpDef` of each operation and of each function in `function`."""
    from tensorflow.python.framework import op_def_registry

    known: dict[str, Any] = {}

    def op_def(name: str) -> Any:
        if name in known:
            return known[name]
        called = function(name)
        if called is not None:
            return called.signature
        found = op_def_registry.get(name)
        if found is None:
            raise KeyError(name)
        known[name] = found
        return found

    return op_def


def bodies_of(context: Any) -> Callable[[str], Any | None]:
    """Return a lookup of the `FunctionDef` of each function of a context."""

    def body(name: str) -> Any | None:
        return context.get_function_def(name) if context.has_function(name) else None

    return body


def has_op(context: Any, name: str, ops: Collection[str], seen: set[str] | None = None) -> bool:
    """Return whether a function, or a function that it calls, contains one of `ops`.

    Args:
      context: that knows the functions.
      name: of the function.
      ops: the operations.
      seen: names of functions that are not looked at again.
    """
    seen = set() if seen is None else seen
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
    return any(has_op(context, c, ops, seen) for c in sorted(called - seen - {""}))
