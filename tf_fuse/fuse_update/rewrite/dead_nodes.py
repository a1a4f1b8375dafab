# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Remove nodes that TensorFlow removes before it optimizes a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tf_fuse.function_graph.view import GraphView
from tf_fuse.fuse_update.analysis.grappler_inputs import live


def without_dead_nodes(definition: Any, op_def: Callable[[str], Any]) -> Any:
    """Return a copy of a `FunctionDef` without the nodes that nothing needs.

    Args:
      definition: the function; it does not change.
      op_def: returns the `OpDef` of an operation or function, by name.
    """
    kept = live(GraphView(definition, op_def), with_results=True)
    pruned = type(definition)()
    pruned.CopyFrom(definition)
    del pruned.node_def[:]
    pruned.node_def.extend(node for node in definition.node_def if node.name in kept)
    return pruned
