# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Let an operation take rows instead of the whole tensor that they are summed up to."""

from __future__ import annotations

from collections.abc import Mapping

from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import GraphView
from tf_fuse.fuse_update.analysis.fusion_clusters import FusionCluster
from tf_fuse.fuse_update.analysis.row_sums import row_sum_of
from tf_fuse.fuse_update.encode import elementwise
from tf_fuse.fuse_update.encode.encoder_interface import FusedOperation


def take_rows(
    view: GraphView,
    cluster: FusionCluster,
    shapes: Mapping[str, Shape | None],
    operation: FusedOperation,
) -> None:
    """Replace sums of rows that an operation reads by the rows and their numbers.

    Args:
      view: of the function that contains the cluster.
      cluster: what the operation replaces.
      shapes: of the function's tensors.
      operation: changed in place if it is one that can sum rows.
    """
    from tf_fuse.v1 import update_pb2

    node = operation.node
    if node.op != elementwise.OP:
        return
    program = update_pb2.UpdateProgram.FromString(node.attr["program"].s)
    first = node.attr["N"].i
    vectors: list[str] = []
    for index, tensor in enumerate(list(node.input)[first:]):
        found = row_sum_of(view, cluster, shapes, tensor)
        if found is None or program.rows not in (0, found.rows):
            continue
        node.input[first + index] = found.values
        if found.indices not in vectors:
            vectors.append(found.indices)
        at = vectors.index(found.indices)
        program.row_sums.add(input=index, indices=at, op=found.op)
        program.rows = found.rows
    if not vectors:
        return
    program.index_types.extend(map(view.dtype, vectors))
    node.input.extend(vectors)
    node.attr["Tin"].list.type.extend(program.index_types)
    node.attr["program"].s = program.SerializeToString(deterministic=True)
