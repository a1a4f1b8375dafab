# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read and write layouts as JAX and PyTorch do.

* A spec (JAX's `PartitionSpec`, Keras's `TensorLayout`) has an entry for each dimension of a
  tensor: the axis that splits it, several axes as a tuple, or None. Dimensions after the last entry
  are not split.
* Placements (PyTorch's DTensor) have an entry for each axis of the mesh: `Shard(dim)`,
  `Replicate()` or `Partial()`.

What other packages have made is recognised by its attributes; none of them is imported.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.mesh import Mesh, axes_of, check_mesh
from tf_fuse.layout.types.tensor_layout import TensorLayout


@dataclasses.dataclass(frozen=True)
class Shard:
    """An axis of the mesh splits a dimension of the tensor.

    Attributes:
      dim: number of the dimension; negative ones count from the last.
    """

    dim: int

    def __post_init__(self) -> None:
        """Check the number.

        Raises:
          LayoutError: it is not whole.
        """
        try:
            object.__setattr__(self, "dim", operator.index(self.dim))
        except TypeError:
            raise LayoutError(
                f"Shard takes the number of a dimension, got {self.dim!r}; write Shard(0)"
            ) from None


@dataclasses.dataclass(frozen=True)
class Replicate:
    """All devices along an axis of the mesh hold the same."""


@dataclasses.dataclass(frozen=True)
class Partial:
    """The tensor is the sum of what the devices along an axis of the mesh hold."""


Placement = Shard | Replicate | Partial
Spec = str | Sequence[str | Iterable[str] | None]
# What `layout_from` reads.
Given = Any


class Entries(NamedTuple):
    """A spec or placements, without a mesh and a tensor.

    Attributes:
      of_axes: whether the entries are placements.
      entries: axes of each dimension, or a placement for each axis.
    """

    of_axes: bool
    entries: tuple[Any, ...]

    def __str__(self) -> str:
        if self.of_axes:
            return f"({', '.join(map(str, self.entries))})"
        words = [None if not one else one[0] if len(one) == 1 else one for one in self.entries]
        return str(tuple(words))


def from_spec(mesh: Mesh, shape: Sequence[int], spec: Spec) -> TensorLayout:
    """Read JAX's notation.

    Args:
      mesh: the devices.
      shape: of the whole tensor.
      spec: for each dimension the axis that splits it, a tuple of axes (the one with the largest
        slices first), or None; fewer entries will do. Text is one entry.

    Raises:
      LayoutError: an axis is unknown or used twice, there are more entries than dimensions, or a
        size is not a multiple of the number of slices.
    """
    given = entries_of(spec)
    if given.of_axes:
        raise LayoutError(f"{given} has placements; read them by layout.from_placements")
    return _layout(mesh, shape, given)


def to_spec(layout: TensorLayout) -> tuple[str | tuple[str, ...] | None, ...]:
    """Write a layout as JAX does, with an entry for each dimension.

    Raises:
      LayoutError: the layout is partial.
    """
    if layout.partial:
        raise LayoutError(
            f"specs have no partial sums, and this layout is partial over "
            f"{', '.join(map(repr, layout.partial))}; all-reduce or reduce-scatter it first"
        )
    return tuple(axes[0] if len(axes) == 1 else axes or None for axes in layout.splits)


def from_placements(
    mesh: Mesh, shape: Sequence[int], placements: Placement | Sequence[Placement]
) -> TensorLayout:
    """Read PyTorch's notation.

    Args:
      mesh: the devices.
      shape: of the whole tensor.
      placements: for each axis of the mesh `Shard(dim)`, `Replicate()` or `Partial()`, of this
        package or of PyTorch.

    Raises:
      LayoutError: there is not one for each axis, a dimension does not exist, or a size is not a
        multiple of the number of slices.
    """
    given = entries_of(placements)
    if not given.of_axes and given.entries:
        raise LayoutError(f"{given} is a spec; read it by layout.from_spec")
    return _layout(mesh, shape, Entries(True, given.entries))


def to_placements(layout: TensorLayout) -> tuple[Placement, ...]:
    """Write a layout as PyTorch does, with an entry for each axis of the mesh.

    Raises:
      LayoutError: the axes that split a dimension are not in the mesh's order.
    """
    found: dict[str, Placement] = dict.fromkeys(layout.mesh.axes, Replicate())
    found |= dict.fromkeys(layout.partial, Partial())
    for i, axes in enumerate(layout.splits):
        if list(axes) != sorted(axes, key=layout.mesh.index):
            raise LayoutError(
                f"dimension {i} is split over {', '.join(axes)}, in this order; placements mean "
                "the mesh's order: relayout to that, or use a mesh with its axes in the other order"
            )
        found |= dict.fromkeys(axes, Shard(i))
    return tuple(found[axis] for axis in layout.mesh.axes)


def layout_from(mesh: Mesh, shape: Sequence[int], given: Given) -> TensorLayout:
    """Return the layout that a spec, placements or a `TensorLayout` say.

    Raises:
      LayoutError: as of `from_spec` and `from_placements`; or a layout is of another mesh or shape.
    """
    if not isinstance(given, TensorLayout):
        return _layout(mesh, shape, entries_of(given))
    check_mesh(mesh)
    raise_if(
        [
            f"the layout is for {what} {theirs}, and here is {what} {mine}; give one for this"
            for what, theirs, mine in (
                ("mesh", str(given.mesh), str(mesh)),
                ("shape", list(given.shape), list(shape)),
            )
            if theirs != mine
        ]
    )
    return given


def entries_of(given: Given) -> Entries:
    """Return the entries of a spec or of placements, of this or another package.

    Raises:
      LayoutError: it is neither.
    """
    if isinstance(given, TensorLayout):
        raise LayoutError(f"{given} is a TensorLayout already; give a spec or placements")
    if isinstance(given, Mapping) or given is None:
        raise _neither(given)
    if hasattr(given, "spec"):  # JAX's NamedSharding.
        given = given.spec
    elif hasattr(given, "axes") and hasattr(given, "device_mesh"):  # Keras's TensorLayout.
        given = given.axes
    if isinstance(given, str) or _is_placement(given):
        given = (given,)
    if not isinstance(given, Iterable):
        raise _neither(given)
    parts = tuple(given)
    kinds = {_is_placement(one) for one in parts if one is not None}
    if True not in kinds:
        return Entries(False, tuple(_axes(i, one) for i, one in enumerate(parts)))
    if None in parts or False in kinds:
        raise LayoutError(
            f"{parts!r} has placements and names of axes; give a spec, as ('x', None), or "
            "placements, as (Shard(0), Replicate())"
        )
    return Entries(True, tuple(map(_placement, parts)))


def _neither(given: object) -> LayoutError:
    return LayoutError(
        f"a layout is a spec, as ('x', None), or placements, as (Shard(0), Replicate()), got "
        f"{given!r}"
    )


def _axes(number: int, entry: Any) -> tuple[str, ...]:
    try:
        found = axes_of(entry)
    except TypeError:
        found = (entry,)
    if not all(isinstance(one, str) for one in found):
        raise LayoutError(
            f"spec, dimension {number}: give an axis's name, a tuple of names, or None, got "
            f"{entry!r}"
        )
    return found


def _is_placement(one: Any) -> bool:
    return isinstance(one, Placement) or (hasattr(one, "is_shard") and hasattr(one, "is_partial"))


def _placement(one: Any) -> Placement:
    """Return a placement of this package; PyTorch's have methods that say what they are."""
    if isinstance(one, Placement):
        return one
    if type(one).__name__ == "Shard":
        return Shard(one.dim)
    if one.is_replicate():
        return Replicate()
    if one.is_partial() and getattr(one, "reduce_op", "sum") == "sum":
        return Partial()
    raise LayoutError(
        f"placement {one!r}: there are Shard(dim), Replicate(), and Partial() of a sum; relayout "
        "to one of these first"
    )


def _layout(mesh: Mesh, shape: Sequence[int], given: Entries) -> TensorLayout:
    check_mesh(mesh)
    shape = tuple(shape)
    if not given.of_axes:
        if len(given.entries) > len(shape):
            raise LayoutError(
                f"spec {given} has {len(given.entries)} entries, and the tensor has {len(shape)} "
                f"dimensions {shape}; give an axis's name, a tuple of names, or None for each "
                "dimension"
            )
        left = ((),) * (len(shape) - len(given.entries))
        return TensorLayout(mesh, shape, given.entries + left)
    if len(given.entries) != len(mesh.axes):
        raise LayoutError(
            f"mesh {str(mesh)!r} has {len(mesh.axes)} axes, and there are {len(given.entries)} "
            f"placements {given}; give Shard(dim), Replicate() or Partial() for each axis"
        )
    splits: list[list[str]] = [[] for _ in shape]
    partial, problems = [], []
    for axis, one in zip(mesh.axes, given.entries, strict=True):
        if isinstance(one, Partial):
            partial.append(axis)
        elif isinstance(one, Shard):
            if -len(shape) <= one.dim < len(shape):
                splits[one.dim].append(axis)
            else:
                problems.append(
                    f"axis {axis!r}: {one} is for a dimension that a tensor of shape {shape} does "
                    f"not have; there are {len(shape)} dimensions, from 0"
                )
    raise_if(problems)
    return TensorLayout(mesh, shape, splits, partial)
