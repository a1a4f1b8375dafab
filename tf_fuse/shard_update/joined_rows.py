# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Updates on servers in which Keras 3 divides rows by a whole table; see `division.py`."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.cones import IsHere
from tf_fuse.shard_update.division import divisions, joined
from tf_fuse.shard_update.graph_view import GraphView
from tf_fuse.shard_update.origins import Site, live
from tf_fuse.shard_update.outline import Maker, Outline, outline
from tf_fuse.shard_update.places import Places
from tf_fuse.shard_update.rows import JOIN, PartialShape


def outline_with_rows(
    view: GraphView,
    shapes: Mapping[str, Shape | None],
    is_here: IsHere,
    maker: Maker,
    site: Site,
    partial: PartialShape,
) -> tuple[GraphView, Outline]:
    """As `outline`, with updates in whose middle is a quotient of rows.

    Quotients whose update cannot be one operation stay the conditionals that they are.

    Returns:
      The function that was outlined, which has others in the place of conditionals; the outline.
    """
    found = list(divisions(view, shapes, site.body))
    while found:
        one = joined(view, shapes, partial, found).without_dead(live)
        if isinstance(is_here, Places):
            one.view.place_of = functools.partial(is_here.of_node, one.view)
        result = outline(one.view, one.shapes, is_here, maker, site, one.partial)
        function = result.function or one.view.function
        left = {node.name for node in function.node_def if node.op == JOIN}
        if not left:
            return one.view, result
        found = [division for division in found if f"{division.node}/joined" not in left]
    return view, outline(view, shapes, is_here, maker, site, partial)
