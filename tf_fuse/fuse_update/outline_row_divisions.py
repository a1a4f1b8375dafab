# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Outline updates on servers in which Keras 3 divides rows by a whole table."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from tf_fuse.function_graph.builder import Shape
from tf_fuse.function_graph.view import GraphView
from tf_fuse.fuse_update.analysis.devices import ArgumentDevices
from tf_fuse.fuse_update.analysis.fusion_clusters import CanFuseOn
from tf_fuse.fuse_update.analysis.grappler_inputs import CallSite, live
from tf_fuse.fuse_update.analysis.keras_row_division import divisions
from tf_fuse.fuse_update.analysis.rows import JOIN, PartialShape
from tf_fuse.fuse_update.encode.encoder_interface import Encoder
from tf_fuse.fuse_update.outline import Outline, outline
from tf_fuse.fuse_update.rewrite.row_divisions import replace_divisions


def outline_with_divisions(
    view: GraphView,
    shapes: Mapping[str, Shape | None],
    can_fuse_on: CanFuseOn,
    encoder: Encoder,
    site: CallSite,
    partial: PartialShape,
) -> tuple[GraphView, Outline]:
    """Outline a function after its divisions of rows were replaced by nodes.

    A division stays a conditional if its update cannot be fused: the function is then outlined
    again without replacing that division.

    Args:
      view: of the function.
      shapes: of its tensors and, by argument, of its variables, as far as they are known.
      can_fuse_on: decides which assignments may be fused, by device and variable.
      encoder: encodes clusters.
      site: how the function is called.
      partial: shapes of tensors, with None for unknown sizes.

    Returns:
      The function that was outlined, and its outline.
    """
    found = list(divisions(view, shapes, site.body))
    while found:
        one = replace_divisions(view, shapes, partial, found).without_dead(live)
        if isinstance(can_fuse_on, ArgumentDevices):
            one.view.device_of = functools.partial(can_fuse_on.of_node, one.view)
        result = outline(one.view, one.shapes, can_fuse_on, encoder, site, one.partial)
        function = result.function or one.view.function
        left = {node.name for node in function.node_def if node.op == JOIN}
        if not left:
            return one.view, result
        found = [division for division in found if f"{division.node}/joined" not in left]
    return view, outline(view, shapes, can_fuse_on, encoder, site, partial)
