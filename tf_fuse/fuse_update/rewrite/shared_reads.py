# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Mark the reads of scalar variables that may become one.

Optimizers read the rate and the count of steps for each weight, and compute from them (such as a
bias correction) for each weight. `cc/passes/merge_rates_pass.cc` merges these reads, and what is
computed from them. It does so behind Grappler: what that makes of a computation depends on how many
others read the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import READS, GraphView, control_inputs

MARK = "_tf_fuse_shared_read"


def mark_reads(function: Any, view: GraphView, shapes: Mapping[str, Shape | None]) -> None:
    """Mark each read of a scalar variable that comes before its assignment.

    Args:
      function: a `FunctionDef`, changed in place.
      view: of a function that contains its reads.
      shapes: of variables, by argument.
    """
    for node in function.node_def:
        if node.op not in READS or node.device or control_inputs(node):
            continue
        shape = shapes.get(str(view.variable_of(node)))
        if shape is not None and math.prod(shape) == 1:
            node.attr[MARK].b = True
