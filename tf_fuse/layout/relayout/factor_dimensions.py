# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cut dimensions that several axes split into several dimensions.

Where the axes x and y split a dimension of 12 elements, 2 and 3 ways, the tensor gets the
dimensions 2, 3 and 2 instead: x splits the first and y the second, and each device holds the same
elements. Then x can be gathered or moved before y, which leaves strided slices of the whole
dimension. MindSpore's redistribution unifies the shapes of two layouts like this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from tf_fuse.layout.types.tensor_layout import TensorLayout

# An axis: its name, or its number.
_Axis = TypeVar("_Axis")
_Splits = Sequence[tuple[_Axis, ...]]


def factored(source: TensorLayout, target: TensorLayout) -> tuple[TensorLayout, TensorLayout]:
    """Return two layouts of one tensor on one mesh, with dimensions cut into factors.

    A dimension is cut if several axes split it in one of the layouts, and if those of the other
    layout split it into the same numbers of slices, one after the other, as far as they go.

    Returns:
      Both, of the same new shape; pieces of a device are those of the old shape, reshaped.
    """
    size_of = source.mesh.size_of
    shape, before, after = cut(source.shape, source.splits, target.splits, size_of)
    return (
        TensorLayout(source.mesh, shape, before, source.partial),
        TensorLayout(source.mesh, shape, after, target.partial),
    )


def cut(
    shape: Sequence[int],
    first: _Splits[_Axis],
    last: _Splits[_Axis],
    size_of: Callable[[_Axis], int],
) -> tuple[tuple[int, ...], tuple[tuple[_Axis, ...], ...], tuple[tuple[_Axis, ...], ...]]:
    """Cut as `factored` does, given the axes that split each dimension in two layouts.

    Args:
      shape: of the tensor.
      first: for each dimension the axes that split it in one layout.
      last: in the other one.
      size_of: number of devices along an axis.

    Returns:
      The new shape, and the axes in both layouts.
    """
    sizes: list[int] = []
    before: list[tuple[_Axis, ...]] = []
    after: list[tuple[_Axis, ...]] = []
    for size, old, new in zip(shape, first, last, strict=True):
        counts = nested(old, new, size_of)
        if not counts:
            sizes.append(size)
            before.append(old)
            after.append(new)
            continue
        sizes += [*counts, size // math.prod(counts)]
        for splits, axes in ((before, old), (after, new)):
            splits += [(axis,) for axis in axes] + [()] * (len(counts) + 1 - len(axes))
    return tuple(sizes), tuple(before), tuple(after)


def nested(
    old: tuple[_Axis, ...], new: tuple[_Axis, ...], size_of: Callable[[_Axis], int]
) -> list[int] | None:
    """Return the factors into which the axes of two layouts cut a dimension.

    Args:
      old: the axes of one of the layouts.
      new: those of the other one.
      size_of: number of devices along an axis.

    Returns:
      Sizes, empty if neither layout has several; None if the slices do not nest, as of 2 and 3.
    """
    if len(old) < 2 and len(new) < 2:
        return []
    longer, shorter = (old, new) if len(old) >= len(new) else (new, old)
    if any(size_of(a) != size_of(b) for a, b in zip(longer, shorter, strict=False)):
        return None
    return [size_of(axis) for axis in longer]
