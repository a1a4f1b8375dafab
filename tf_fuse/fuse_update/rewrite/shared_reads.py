# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make a function read each scalar variable once, not once for each weight.

Optimizers read the rate and the count of steps for each weight, and compute from them (such as a
bias correction) for each weight. After one shared read, TensorFlow merges these computations. But
what Grappler makes of a computation depends on how many others read the same. Where bits must not
change, reads are only marked here, and merged behind Grappler (`cc/passes/merge_equal_nodes.h`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import READS, GraphView, control_inputs

_MARK = "_tf_fuse_shared_read"  # kSharedReadAttr of the pass


def share_reads(function: Any, view: GraphView, shapes: Mapping[str, Shape | None]) -> int:
    """Replace all reads of a scalar variable before its assignment by one read.

    Args:
      function: a `FunctionDef`, changed in place.
      view: of a function that contains its reads.
      shapes: of variables, by argument.

    Returns:
      How many reads were removed.
    """
    first: dict[tuple[str, int], str] = {}
    same: dict[str, str] = {}
    for node, variable in _reads(function, view, shapes):
        name = first.setdefault((variable, node.attr["dtype"].type), node.name)
        if name != node.name:
            same[node.name] = name
    _drop(function, same)
    return len(same)


def mark_reads(function: Any, view: GraphView, shapes: Mapping[str, Shape | None]) -> None:
    """Mark the reads that `share_reads` would replace, for the pass that sees the cut graph.

    Args:
      function: as of `share_reads`.
      view: likewise.
      shapes: likewise.
    """
    for node, _ in _reads(function, view, shapes):
        node.attr[_MARK].b = True


def _reads(
    function: Any, view: GraphView, shapes: Mapping[str, Shape | None]
) -> Iterator[tuple[Any, str]]:
    """Yield each read of a scalar variable before its assignment, and the variable."""
    for node in function.node_def:
        if node.op not in READS or node.device or control_inputs(node):
            continue
        variable = str(view.variable_of(node))
        shape = shapes.get(variable)
        if shape is not None and math.prod(shape) == 1:
            yield node, variable


def _drop(function: Any, same: Mapping[str, str]) -> None:
    """Remove nodes, and redirect their consumers to other nodes."""
    for index in reversed(range(len(function.node_def))):
        if function.node_def[index].name in same:
            del function.node_def[index]
    for node in function.node_def:
        old = list(node.input)
        inputs = [_renamed(text, same) for text in old]
        waits = dict.fromkeys(text for text in inputs if text.startswith("^"))
        inputs = [*(text for text in inputs if not text.startswith("^")), *waits]
        if inputs != old:
            node.input[:] = inputs
    for result, tensor in list(function.ret.items()):
        function.ret[result] = _renamed(tensor, same)
    for result, name in list(function.control_ret.items()):
        function.control_ret[result] = same.get(name, name)


def _renamed(text: str, same: Mapping[str, str]) -> str:
    mark = "^" if text.startswith("^") else ""
    name, colon, output = text.removeprefix("^").partition(":")
    return f"{mark}{same.get(name, name)}{colon}{output}"
