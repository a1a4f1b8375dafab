# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Find the sums of rows that only one cluster reads.

Where an optimizer of Keras 3 changes all rows of a slot, it makes the gradient of an embedding
dense first. For a table of gigabytes that is gigabytes for each step of each worker:

    UnsortedSegmentSum(Square(rows), indices, number of rows)  ─► cluster

The cluster's operation can take the rows instead, and sum them up where it needs them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import GraphView, control_inputs, data_inputs
from tf_fuse.fuse_update.analysis.fusion_clusters import FusionCluster
from tf_fuse.fuse_update.analysis.rows import ADDED_TYPES, SUM, indices_of, value_of

# What may happen to the rows before; their bits do not depend on where an element lies.
_APPLIED = frozenset({"Abs", "Neg", "Square"})


@dataclass(frozen=True)
class RowSum:
    """Rows, and how they make a tensor.

    Attributes:
      values: the tensor that has the rows.
      indices: the tensor of their numbers.
      op: TensorFlow's name of what happens to each element before it is added, or "".
      rows: of the sum.
    """

    values: str
    indices: str
    op: str
    rows: int


def row_sum_of(
    view: GraphView, cluster: FusionCluster, shapes: Mapping[str, Shape | None], tensor: str
) -> RowSum | None:
    """Return the rows whose sum a cluster reads, or None if it reads something else.

    Args:
      view: of the function that contains the cluster.
      cluster: reads the tensor.
      shapes: of the function's tensors.
      tensor: what may be a sum of rows.
    """
    shape = shapes.get(tensor)
    inside = set(cluster.nodes)
    node = view.producer(tensor)
    if node is None or node.op != SUM or not shape or math.prod(shape) != cluster.size:
        return None
    device = view.device_of(view.nodes[cluster.nodes[-1]])
    values, indices = value_of(node), indices_of(node)
    if (
        view.dtype(values) not in ADDED_TYPES
        or not _is_only_for(view, node, inside)
        or view.device_of(node) != device
    ):
        return None
    applied = view.producer(values)
    op = ""
    if (
        applied is not None
        and applied.op in _APPLIED
        and _is_only_for(view, applied, {node.name})
        and view.device_of(applied) == device
    ):
        op, (values,) = applied.op, data_inputs(applied)
    return RowSum(values, indices, op, shape[0])


def _is_only_for(view: GraphView, node: Any, readers: set[str]) -> bool:
    """Return whether nothing but the readers needs a node, and it waits for its inputs only."""
    (tensor,) = view.outputs(node)
    return (
        {use.node for use in view.uses(tensor)} <= readers
        and tensor not in view.results
        and not view.followers(node.name)
        and not control_inputs(node)
    )
