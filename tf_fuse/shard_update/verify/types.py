# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check shapes and types of a rewritten function by TensorFlow's shape inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tf_fuse.function_graph.view import data_inputs
from tf_fuse.shard_update.verify.function_lookup import Bodies, WrongError

_ASSIGNS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})


@dataclass(frozen=True)
class Body:
    """A function as it is called.

    Attributes:
      definition: its `FunctionDef`.
      graph: the `FuncGraph` that it was traced to, or None.
      inputs: tensors with the shapes of its arguments; None where they are not known.
    """

    definition: Any
    graph: Any
    inputs: list[Any]


def check_types(before: Bodies, old: Body, after: Bodies, new: Body) -> tuple[Inferred, Inferred]:
    """TensorFlow makes a graph of the function, and finds the shapes and types of before.

    Args:
      before: all original functions.
      old: the original function.
      after: all rewritten functions.
      new: the rewritten function.

    Returns:
      What TensorFlow finds of `old` and of `new`.

    Raises:
      WrongError: says what is wrong.
    """
    was, now = Inferred(before, old), Inferred(after, new)
    for argument in old.definition.signature.output_arg:
        one = was.tensor(old.definition.ret[argument.name])
        other = now.tensor(new.definition.ret[argument.name])
        _check_like(f"the result {argument.name}", one.dtype, one.shape, other)
    view = after.view(new.definition)
    for name in sorted(view.nodes):
        node = view.nodes[name]
        if node.op not in _ASSIGNS:
            continue
        variable = view.resource(data_inputs(node)[0])
        if variable in view.arguments and (held := now.held(variable)) is not None:
            _check_like(f"what {name} assigns to {variable}", *held, now.tensor(node.input[1]))
    return was, now


def _check_like(what: str, dtype: Any, shape: Any, tensor: Any) -> None:
    if tensor.dtype != dtype:
        raise WrongError(f"{what} is {tensor.dtype.name}, not {dtype.name}")
    is_same = tensor.shape == shape if shape.is_fully_defined() else True
    if not is_same or not tensor.shape.is_compatible_with(shape):
        raise WrongError(f"{what} has the shape {tensor.shape}, not {shape}")


class Inferred:
    """What TensorFlow's shape inference says of a function."""

    def __init__(self, bodies: Bodies, body: Body):
        """Make a graph.

        Args:
          bodies: the functions that it calls.
          body: the function.

        Raises:
          WrongError: TensorFlow makes none of it.
        """
        from tensorflow.python.framework import errors, importer, ops

        graph_def, self._names = _flat(bodies, body.definition)
        read = {tensor for node in graph_def.node for tensor in node.input}
        self._graph = ops.Graph()
        with self._graph.as_default():
            self._arguments = _placeholders(body)
            by_name = {f"{name}:0": tensor for name, tensor in self._arguments.items()}
            by_name.update((f"^{name}", tensor) for name, tensor in self._arguments.items())
            inputs = {name: tensor for name, tensor in by_name.items() if name in read}
            try:
                importer.import_graph_def(graph_def, input_map=inputs, name="")
            except (ValueError, TypeError, errors.OpError) as error:
                raise WrongError(f"TensorFlow does not take it: {error}") from None

    def tensor(self, name: str) -> Any:
        """Return a tensor, by its name in the function."""
        if name in self._arguments:
            return self._arguments[name]
        return self._graph.get_tensor_by_name(self._names[name])

    def held(self, argument: str) -> tuple[Any, Any] | None:
        """Type and shape of the value of an argument that is a variable; None: not known."""
        from tensorflow.python.framework import dtypes, tensor_shape
        from tensorflow.python.ops import handle_data_util

        data = handle_data_util.get_resource_handle_data(self._arguments[argument])
        if data is None or not data.is_set or not data.shape_and_type:
            return None
        (one, *_) = data.shape_and_type
        return dtypes.as_dtype(one.dtype), tensor_shape.TensorShape(one.shape)


def _flat(bodies: Bodies, definition: Any) -> tuple[Any, dict[str, str]]:
    """Return a function's body as a graph without its arguments, and its tensors' names there."""
    from tensorflow.core.framework import graph_pb2
    from tensorflow.python.framework import versions

    view = bodies.view(definition)
    names = {argument: f"{argument}:0" for argument in view.arguments}
    for node in view.nodes.values():
        names.update((t, f"{node.name}:{i}") for i, t in enumerate(view.outputs(node)))
    graph_def = graph_pb2.GraphDef()
    graph_def.versions.producer = versions.GRAPH_DEF_VERSION
    graph_def.node.extend(definition.node_def)
    for node in graph_def.node:
        node.input[:] = [names.get(tensor, tensor) for tensor in node.input]
        # (They are placed with arguments, which are not in the graph.)
        node.attr.pop("_class", None)
    library = {view.function.signature.name: view.function for view in bodies.all_of(definition)}
    del library[definition.signature.name]
    graph_def.library.function.extend(library[name] for name in sorted(library))
    return graph_def, names


def _placeholders(body: Body) -> dict[str, Any]:
    """Return a function's arguments in the default graph."""
    from tensorflow.python.ops import array_ops, handle_data_util

    arguments = body.definition.signature.input_arg
    found = {}
    for argument, tensor in zip(arguments, body.inputs, strict=True):
        shape = None if tensor is None else tensor.shape
        found[argument.name] = array_ops.placeholder(argument.type, shape, name=argument.name)
        data = None if tensor is None else handle_data_util.get_resource_handle_data(tensor)
        if data is not None and data.is_set:
            handle_data_util.set_handle_data(found[argument.name], data)
    return found
