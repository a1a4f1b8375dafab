# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Describe what a function without side effects computes, as a text to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tf_fuse._tensorflow.dtype_numbers import INT32, INT64
from tf_fuse.function_graph.view import GraphView, data_inputs

# Attributes that do not change what is computed.
_TYPES = frozenset(
    {
        "DstT", "Index", "N", "SrcT", "T", "Taxis", "Tdim", "Tidx", "Tin", "Tindices", "Tout",
        "Tparams", "Tshape", "dtype", "out_type", "output_shapes", "shape",
    }
)  # fmt: skip
# The types of row numbers.
_NUMBERS = frozenset({INT32, INT64})
# Texts grow fast where tensors are used more than once.
_LONGEST = 100_000


class BranchText:
    """Describes the results of a function."""

    def __init__(
        self,
        definition: Any,
        arguments: Sequence[str],
        body: Callable[[str], Any],
        op_def: Callable[[str], Any],
    ):
        """Start with the texts of the arguments.

        Args:
          definition: the `FunctionDef`.
          arguments: a text for each of its arguments.
          body: returns the `FunctionDef` of another function, by name.
          op_def: returns the `OpDef` of an operation, by name.
        """
        self._view = GraphView(definition, op_def)
        self._body, self._op_def = body, op_def
        self._said = dict(zip(self._view.arguments, arguments, strict=True))

    def outputs(self) -> list[str]:
        """Return the text of each result."""
        return [self._of(tensor) for tensor in self._view.results]

    def _of(self, tensor: str) -> str:
        if tensor not in self._said:
            text = self._made(tensor)
            self._said[tensor] = text if len(text) <= _LONGEST else "too long"
        return self._said[tensor]

    def _made(self, tensor: str) -> str:
        node = self._view.producer(tensor)
        if node is None:
            return f"?{tensor}"
        read = data_inputs(node)
        if node.op == "Identity" or (node.op == "Cast" and self._is_number(node)):
            return self._of(read[0])
        if node.op == "Const":
            return _constant(node)
        if node.op in ("If", "StatelessIf"):
            return self._conditional(node, self._view.output_index(tensor))
        if node.op == "StridedSlice" and (known := self._element(node)):
            return known
        index = self._view.output_index(tensor)
        name = node.op if index == 0 else f"{node.op}.{index}"
        return f"{name}{self._attributes(node)}({', '.join(map(self._of, read))})"

    def _is_number(self, node: Any) -> bool:
        return {node.attr["SrcT"].type, node.attr["DstT"].type} <= _NUMBERS

    def _conditional(self, node: Any, index: int) -> str:
        predicate, *given = (self._of(tensor) for tensor in data_inputs(node))
        said = []
        for key in ("then_branch", "else_branch"):
            definition = self._body(node.attr[key].func.name)
            if definition is None:
                return f"?{node.name}"
            branch = BranchText(definition, given, self._body, self._op_def)
            said.append(branch.outputs()[index])
        return f"If({predicate}, {', '.join(said)})"

    def _element(self, node: Any) -> str:
        """Return the element that a node takes from a constant vector, or ""."""
        values = [_value(self._view.producer(tensor)) for tensor in data_inputs(node)]
        if self._attributes(node) != "[shrink_axis_mask=1]" or any(v is None for v in values):
            return ""
        vector, begin, _, step = values
        if vector.ndim != 1 or begin.size != 1 or step.tolist() != [1]:
            return ""
        at = int(begin[0])
        return str(int(vector[at])) if 0 <= at < vector.size else ""

    def _attributes(self, node: Any) -> str:
        """Return the attributes that differ from the operation's defaults."""
        defaults = {one.name: one for one in self._op_def(node.op).attr}
        said = []
        for key in sorted(node.attr):
            value = node.attr[key]
            if key in _TYPES or key.startswith("_"):
                continue
            if key in defaults and defaults[key].default_value == value:
                continue
            number = value.list.i if value.HasField("list") else value.i
            if value.HasField("list"):
                number = list(number)
            elif not value.HasField("i"):
                number = str(value).strip()
            said.append(f"{key}={number}")
        return f"[{','.join(said)}]" if said else ""


def _value(node: Any) -> Any:
    from tensorflow.python.framework import tensor_util

    if node is None or node.op != "Const":
        return None
    return tensor_util.MakeNdarray(node.attr["value"].tensor)


def _constant(node: Any) -> str:
    value = _value(node)
    if value.dtype.kind == "f" and value.ndim > 0 and value.shape[0] == 1 and not value.any():
        return "zeros"
    return str(value.tolist())
