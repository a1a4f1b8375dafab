# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Dimensions that several axes split, as several dimensions.

Where the axes x and y split a dimension of 12 elements, 2 and 3 ways, the tensor is one of the
dimensions 2, 3 and 2, of which x splits the first and y the second: what a device holds is the
same. There x can be gathered or moved before y, which leaves slices of the whole dimension that are
strided. MindSpore's redistribution unifies the shapes of two layouts like this.
"""

from __future__ import annotations

import math

from tf_fuse.layout.tensor_layout import TensorLayout


def factored(source: TensorLayout, target: TensorLayout) -> tuple[TensorLayout, TensorLayout]:
    """Two layouts of one tensor on one mesh, with dimensions cut into factors.

    A dimension is cut if several axes split it in one of the layouts, and if those of the other
    layout split it into the same numbers of slices, one after the other, as far as they go.

    Returns:
      Both, of the same new shape; pieces of a device are those of the old shape, reshaped.
    """
    shape: list[int] = []
    before: list[tuple[str, ...]] = []
    after: list[tuple[str, ...]] = []
    for size, old, new in zip(source.shape, source.splits, target.splits, strict=True):
        counts = nested(source, old, new)
        if not counts:
            shape.append(size)
            before.append(old)
            after.append(new)
            continue
        shape += [*counts, size // math.prod(counts)]
        for splits, axes in ((before, old), (after, new)):
            splits += [(axis,) for axis in axes] + [()] * (len(counts) + 1 - len(axes))
    return (
        TensorLayout(source.mesh, shape, before, source.partial),
        TensorLayout(source.mesh, shape, after, target.partial),
    )


def nested(layout: TensorLayout, old: tuple[str, ...], new: tuple[str, ...]) -> list[int] | None:
    """The factors into which the axes of two layouts cut a dimension.

    Args:
      layout: any of the mesh.
      old: the axes of one of the layouts.
      new: those of the other one.

    Returns:
      Sizes, empty if neither layout has several; None if the slices do not nest, as of 2 and 3.
    """
    if len(old) < 2 and len(new) < 2:
        return []
    longer, shorter = (old, new) if len(old) >= len(new) else (new, old)
    size = layout.mesh.size_of
    if any(size(a) != size(b) for a, b in zip(longer, shorter, strict=False)):
        return None
    return [size(axis) for axis in longer]
