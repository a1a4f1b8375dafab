# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the layout of one tensor on a mesh, which all notations convert to and from."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Sequence
from functools import cached_property

from tf_fuse.layout.types.errors import raise_if
from tf_fuse.layout.types.mesh import Mesh, axes_of, check_mesh, problem_of_size, unknown_axes


@dataclasses.dataclass(frozen=True)
class TensorLayout:
    """Which slice of a tensor each device of a mesh holds.

    Along each axis of the mesh, a tensor is either split (S), or the same on all devices (B), or
    partial (P): the tensor is the sum of what they hold. An axis that is in none of `splits` and
    not in `partial` is B.

    Attributes:
      mesh: the devices.
      shape: of the whole tensor.
      splits: for each dimension the axes that split it, the one with the largest slices first. A
        slice's number along the dimension is that of the device in these axes, in row-major order.
      partial: axes along which what devices hold must be added up; in the mesh's order.
    """

    mesh: Mesh
    shape: tuple[int, ...]
    splits: tuple[tuple[str, ...], ...]
    partial: tuple[str, ...] = ()

    def __init__(
        self,
        mesh: Mesh,
        shape: Sequence[int],
        splits: str | Iterable[str | Iterable[str] | None] | None = None,
        partial: str | Iterable[str] = (),
    ):
        """Check and keep a layout; without `splits` nothing is split.

        Text is the name of one axis, and None stands for none.

        Raises:
          LayoutError: an axis is not in the mesh, or is used twice; a size is not a multiple of the
            number of its slices; the numbers of dimensions differ. All that are found are named.
        """
        check_mesh(mesh)
        sizes = [problem_of_size(f"dimension {i}", size) for i, size in enumerate(shape)]
        raise_if([one for one in sizes if one])
        shape = tuple(operator.index(size) for size in shape)
        if splits is None:
            splits = ((),) * len(shape)
        axes = tuple(axes_of(one) for one in ((splits,) if isinstance(splits, str) else splits))
        sums = sorted(set(axes_of(partial)))
        raise_if(_problems(mesh, shape, axes, sums))
        object.__setattr__(self, "mesh", mesh)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "splits", axes)
        object.__setattr__(self, "partial", tuple(sorted(sums, key=mesh.index)))

    @property
    def rank(self) -> int:
        """Number of dimensions of the tensor."""
        return len(self.shape)

    @cached_property
    def replicated(self) -> tuple[str, ...]:
        """Axes along which all devices hold the same."""
        used = {*self.partial, *(axis for axes in self.splits for axis in axes)}
        return tuple(axis for axis in self.mesh.axes if axis not in used)

    @cached_property
    def slices(self) -> tuple[int, ...]:
        """Into how many slices each dimension is cut."""
        return tuple(math.prod(map(self.mesh.size_of, axes)) for axes in self.splits)

    @cached_property
    def slice_shape(self) -> tuple[int, ...]:
        """Shape of what each device holds."""
        return tuple(size // count for size, count in zip(self.shape, self.slices, strict=True))

    def bytes_per_device(self, item_bytes: int) -> int:
        """Return how many bytes each device holds.

        Args:
          item_bytes: of one element.
        """
        return math.prod(self.slice_shape) * item_bytes

    def slice_of(self, device: int) -> tuple[slice, ...]:
        """Return the slice of the whole tensor that a device holds, or holds a term of.

        Raises:
          LayoutError: there is no such device.
        """
        at = dict(zip(self.mesh.axes, self.mesh.coordinates(device), strict=True))
        found = []
        for axes, length in zip(self.splits, self.slice_shape, strict=True):
            number = 0
            for axis in axes:
                number = number * self.mesh.size_of(axis) + at[axis]
            found.append(slice(number * length, (number + 1) * length))
        return tuple(found)

    def term_of(self, device: int) -> tuple[int, ...]:
        """Return which term of the sum a device holds: its coordinates in the partial axes."""
        at = self.mesh.coordinates(device)
        return tuple(at[self.mesh.index(axis)] for axis in self.partial)

    def holders(self) -> dict[tuple[tuple[int, int], ...], list[int]]:
        """Return the devices that hold each slice, or a term of it.

        Returns:
          By (begin, end) along each dimension, in the tensor's order, the devices in theirs.
        """
        found: dict[tuple[tuple[int, int], ...], list[int]] = {}
        for device in range(self.mesh.size):
            key = tuple((one.start, one.stop) for one in self.slice_of(device))
            found.setdefault(key, []).append(device)
        return dict(sorted(found.items()))

    def __str__(self) -> str:
        dims = [f"{size}/{'+'.join(axes)}" if axes else str(size)
                for size, axes in zip(self.shape, self.splits, strict=True)]  # fmt: skip
        sums = f" sum over {', '.join(self.partial)}" if self.partial else ""
        return f"[{', '.join(dims)}]{sums} on {self.mesh}"


def without_single_axes(layout: TensorLayout) -> TensorLayout:
    """Return a layout as plans have it: axes of one device split nothing."""
    several = {axis for axis, size in layout.mesh.dims if size > 1}
    splits = [[axis for axis in axes if axis in several] for axes in layout.splits]
    partial = [axis for axis in layout.partial if axis in several]
    return TensorLayout(layout.mesh, layout.shape, splits, partial)


def _problems(
    mesh: Mesh, shape: Sequence[int], splits: Sequence[Sequence[str]], partial: Sequence[str]
) -> list[str]:
    """Return all that is wrong with a layout."""
    if len(splits) != len(shape):
        return [
            f"the tensor has {len(shape)} dimensions {tuple(shape)}, but splits are given for "
            f"{len(splits)}; give one for each, empty where it is not split"
        ]
    used = [*partial, *(axis for axes in splits for axis in axes)]
    problems = unknown_axes(used, mesh)
    for axis in sorted({axis for axis in used if used.count(axis) > 1}):
        where = ["partial"] if axis in partial else []
        where += [f"dimension {i}" for i, axes in enumerate(splits) for one in axes if one == axis]
        problems.append(
            f"axis {axis!r} is used {used.count(axis)} times, by {', '.join(where)}; an axis "
            "splits one dimension once or is partial, so keep one of them"
        )
    for i, (size, axes) in enumerate(zip(shape, splits, strict=True)):
        count = math.prod(mesh.size_of(axis) for axis in axes if axis in mesh.axes)
        if size % count:
            problems.append(
                f"dimension {i} has {size} elements, which is not a multiple of the {count} slices "
                f"over {', '.join(map(repr, axes))}; pad it to {-(-size // count) * count}, or "
                "split it over fewer devices"
            )
    return problems
