# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Factor two meshes into one that refines both.

MindSpore does this to the device matrices of two layouts before it infers how to get from one to
the other. Device d is the same in all of them, so only the grouping of its coordinates changes.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

from tf_fuse.layout.types.errors import LayoutError
from tf_fuse.layout.types.mesh import Mesh
from tf_fuse.layout.types.tensor_layout import TensorLayout


@dataclasses.dataclass(frozen=True)
class Refinement:
    """A mesh whose axes are factors of those of two others.

    Attributes:
      mesh: the common one. An axis has the name of the first mesh's axis that it is, or the name
        with a number after it for a factor of it.
      first: for each axis of the first mesh its factors, the slowest first.
      second: the same of the second mesh.
    """

    mesh: Mesh
    first: Mapping[str, tuple[str, ...]]
    second: Mapping[str, tuple[str, ...]]


def refine(first: Mesh, second: Mesh) -> Refinement:
    """Factor two meshes of the same devices into the coarsest mesh that refines both.

    Axes of size 1 vanish.

    Raises:
      LayoutError: the numbers of devices differ, or there is no such mesh, as of 2 x 3 and 3 x 2.
    """
    if first.size != second.size:
        raise LayoutError(
            f"mesh {str(first)!r} has {first.size} devices and mesh {str(second)!r} has "
            f"{second.size}; a relayout keeps the devices"
        )
    # The number of devices after each border between axes, the largest first.
    borders = sorted({*_borders(first), *_borders(second)}, reverse=True)
    pairs = list(itertools.pairwise(borders))
    if any(upper % lower for upper, lower in pairs):
        raise LayoutError(
            f"meshes {str(first)!r} and {str(second)!r} have no common refinement: their axes end "
            f"at {', '.join(map(str, borders))} devices, and each number must divide the one "
            "before; relayout to a mesh with axes in another order, or to a replicated tensor"
        )
    names = _names(first, pairs)
    mesh = Mesh((name, upper // lower) for name, (upper, lower) in zip(names, pairs, strict=True))
    return Refinement(mesh, _factors(first, names, pairs), _factors(second, names, pairs))


def refined(
    layout: TensorLayout, mesh: Mesh, factors: Mapping[str, tuple[str, ...]]
) -> TensorLayout:
    """Return the same layout on a finer mesh.

    Args:
      layout: on the coarse mesh.
      mesh: the finer one.
      factors: for each axis of the coarse mesh those of the finer one, the slowest first.
    """
    splits = [[fine for axis in axes for fine in factors[axis]] for axes in layout.splits]
    partial = [fine for axis in layout.partial for fine in factors[axis]]
    return TensorLayout(mesh, layout.shape, splits, partial)


def _borders(mesh: Mesh) -> list[int]:
    found = [1]
    for size in reversed(mesh.shape):
        found.append(found[-1] * size)
    return found


def _between(mesh: Mesh) -> list[tuple[str, int, int]]:
    """Return, for each axis, the device counts at its two borders."""
    borders = _borders(mesh)[::-1]
    return [(axis, borders[i], borders[i + 1]) for i, axis in enumerate(mesh.axes)]


def _names(mesh: Mesh, pairs: list[tuple[int, int]]) -> list[str]:
    names: list[str] = []
    for axis, upper, lower in _between(mesh):
        parts = [pair for pair in pairs if upper >= pair[0] and pair[1] >= lower]
        names += [axis] if len(parts) == 1 else [f"{axis}.{i}" for i in range(len(parts))]
    return names


def _factors(
    mesh: Mesh, names: list[str], pairs: list[tuple[int, int]]
) -> dict[str, tuple[str, ...]]:
    return {
        axis: tuple(
            name
            for name, pair in zip(names, pairs, strict=True)
            if upper >= pair[0] and pair[1] >= lower
        )
        for axis, upper, lower in _between(mesh)
    }
