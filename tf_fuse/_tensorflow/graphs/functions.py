# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read the functions that a `Graph` calls, add operations to it and mark them. Replace nothing."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, MutableMapping
from typing import Any

from tf_fuse._tensorflow import feature_names
from tf_fuse._tensorflow.members import Is, Member, Stored, Takes

_CLASS = "tensorflow.python.framework.ops:Graph"
MEMBERS = (
    Member(
        _CLASS,
        "_functions",
        Stored(),
        "holds a graph's functions",
        (feature_names.WEIGHT_UPDATES, feature_names.LAYOUT),
    ),
    Member(
        _CLASS,
        "_get_function",
        Takes("self", "name"),
        "to find a called function",
        (feature_names.LAYOUT,),
    ),
    Member(
        _CLASS,
        "_add_function_recursive",
        Takes("self", "function", "overwrite"),
        "to copy an operation",
        (feature_names.LAYOUT,),
    ),
    Member(
        "tensorflow.python.framework.func_graph:FuncGraph",
        "_create_op_internal",
        Takes(
            "self", "op_type", "inputs", "dtypes", "input_types", "name", "attrs", "op_def",
            "compute_device",
        ),
        "to copy an operation",
        (feature_names.LAYOUT,),
    ),
    Member(
        "tensorflow.python.framework.ops:Operation",
        "_set_attr",
        Takes("self", "attr_name", "attr_value"),
        "to mark tensors",
        (feature_names.LAYOUT, feature_names.COMPRESSION, feature_names.KERAS_FIT),
    ),
    Member(
        _CLASS,
        "_colocation_stack",
        Is("property"),
        "to see beside which operation TensorFlow will put one",
        (feature_names.PLACEMENT,),
    ),
    Member(
        _CLASS,
        "_name_stack",
        Is("property"),
        "is the name scope that a program makes variables in",
        (feature_names.PLACEMENT,),
    ),
)  # fmt: skip

# Of functions that have none.
_graphs: MutableMapping[Any, Any] = weakref.WeakKeyDictionary()


def called_by(graph: Any) -> Mapping[str, Any]:
    """Return the functions that a graph calls, by name; none for other objects."""
    functions: Mapping[str, Any] = getattr(graph, "_functions", {})
    return functions


def function_of(graph: Any, name: str) -> Any:
    """Return a function that a graph calls; None if it does not."""
    return graph._get_function(name)


def graph_of(function: Any) -> Any:
    """Return the graph of a function that a graph calls; of a `Defun` one made of its text."""
    if hasattr(function, "graph"):
        return function.graph
    if function not in _graphs:
        from tensorflow.python.framework import function_def_to_graph, ops

        with ops.Graph().as_default() as outer:  # It has the functions that this one calls.
            function.add_to_graph(outer)
            _graphs[function] = function_def_to_graph.function_def_to_graph(function.definition)
    return _graphs[function]


def add_function(graph: Any, function: Any) -> None:
    """Add a function to a graph, with all functions that it calls."""
    if hasattr(function, "graph"):
        graph._add_function_recursive(function)
    else:
        function.add_to_graph(graph)


def create_operation(
    graph: Any, kind: str, inputs: list[Any], types: list[Any], attributes: Any, name: str
) -> Any:
    """Add an operation to a graph."""
    return graph._create_op_internal(kind, inputs, types, attrs=attributes, name=name)


def set_text_attribute(operation: Any, name: str, text: str) -> None:
    """Give an operation an attribute; one with a leading underscore does not change its result."""
    from tensorflow.core.framework import attr_value_pb2

    operation._set_attr(name, attr_value_pb2.AttrValue(s=text.encode()))


def set_flag(operation: Any, name: str, is_on: bool) -> None:
    """Set an attribute of an operation that is a bool."""
    from tensorflow.core.framework import attr_value_pb2

    operation._set_attr(name, attr_value_pb2.AttrValue(b=is_on))


def colocation(graph: Any) -> list[Any]:
    """Return the operations beside which a program puts what it makes, the innermost first."""
    operations: list[Any] = graph._colocation_stack.peek_objs()
    return operations


def name_scope(graph: Any) -> str:
    """Return the name scope that what is made now gets; "" for none."""
    return str(graph._name_stack or "")
