# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Convert tensor layouts to the notations of three systems, and back.

* Named rules: Mesh-TensorFlow (Shazeer et al., 2018); see `LayoutRules`.
* (device_matrix, tensor_map, tensor_shape): MindSpore's auto parallel. `tensor_map[i]` is the axis
  that splits dimension i, counted from the right; -1 where none does.
* S(i), B and P for each axis of the mesh: "OneFlow: Redesign the Distributed Deep Learning
  Framework from Scratch" (Yuan et al., 2021), section 3.1.

Each can say things that another cannot; a conversion is exact, or an error that says why not.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from tf_fuse.layout.types.dimension_rules import Dimension, LayoutRules
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.mesh import Mesh, axes_of, check_mesh, check_names
from tf_fuse.layout.types.tensor_layout import TensorLayout

_SPLIT = re.compile(r"S(?:\((\d+)\)|(\d+))")


@dataclasses.dataclass(frozen=True)
class MindSporeLayout:
    """A tensor's layout as MindSpore writes it.

    Attributes:
      device_matrix: sizes of the mesh's axes; the last one runs fastest.
      tensor_map: for each dimension the axis that splits it, counted from the right, from 0; -1 for
        none; several, the one with the largest slices first, as a tuple (as `mindspore.Layout`).
      tensor_shape: of the whole tensor.
    """

    device_matrix: tuple[int, ...]
    tensor_map: tuple[int | tuple[int, ...], ...]
    tensor_shape: tuple[int, ...]


def to_mindspore(layout: TensorLayout) -> MindSporeLayout:
    """Write a layout as MindSpore does; names of axes are lost.

    Raises:
      LayoutError: the layout is partial.
    """
    if layout.partial:
        raise LayoutError(
            f"MindSpore's layouts have no partial sums, and this one is partial over "
            f"{', '.join(map(repr, layout.partial))}; all-reduce or reduce-scatter it first"
        )
    last = len(layout.mesh.axes) - 1
    entries: list[int | tuple[int, ...]] = []
    for axes in layout.splits:
        numbers = tuple(last - layout.mesh.index(axis) for axis in axes)
        entries.append(numbers if len(numbers) > 1 else numbers[0] if numbers else -1)
    return MindSporeLayout(layout.mesh.shape, tuple(entries), layout.shape)


def from_mindspore(
    layout: MindSporeLayout, axes: str | Sequence[str] | None = None
) -> TensorLayout:
    """Read MindSpore's notation.

    Args:
      layout: to be read.
      axes: names for the axes of the device matrix; axis0, axis1 and so on, from the left, if None.

    Raises:
      LayoutError: an axis is not in the device matrix, or used twice; numbers do not fit.
    """
    count = len(layout.device_matrix)
    names = [f"axis{i}" for i in range(count)] if axes is None else list(axes_of(axes))
    if len(names) != count:
        raise LayoutError(f"device_matrix {layout.device_matrix} has {count} axes, got {names}")
    entries = [one if isinstance(one, tuple) else () if one == -1 else (one,)
               for one in layout.tensor_map]  # fmt: skip
    raise_if([
        f"tensor_map {layout.tensor_map}: entry {number} of dimension {i} is not an axis of "
        f"device_matrix {layout.device_matrix}; axes are counted from the right, 0 to {count - 1}, "
        "and -1 is for none"
        for i, numbers in enumerate(entries)
        for number in numbers
        if not 0 <= number < count
    ])  # fmt: skip
    mesh = Mesh(zip(names, layout.device_matrix, strict=True))
    splits = [[names[count - 1 - number] for number in numbers] for numbers in entries]
    return TensorLayout(mesh, layout.tensor_shape, splits)


def to_sbp(layout: TensorLayout) -> tuple[str, ...]:
    """Write a layout as OneFlow does: S(i), B or P for each axis of the mesh.

    Raises:
      LayoutError: the axes that split a dimension are not in the mesh's order.
    """
    problems = []
    letters = dict.fromkeys(layout.mesh.axes, "B") | dict.fromkeys(layout.partial, "P")
    for i, axes in enumerate(layout.splits):
        ordered = sorted(axes, key=layout.mesh.index)
        if list(axes) != ordered:
            problems.append(
                f"dimension {i} is split over {', '.join(axes)}, in this order; signatures of "
                f"OneFlow mean the mesh's order, {', '.join(ordered)}: relayout to that, or use a "
                "mesh with its axes in the other order"
            )
        letters |= dict.fromkeys(axes, f"S({i})")
    raise_if(problems)
    return tuple(letters[axis] for axis in layout.mesh.axes)


def from_sbp(mesh: Mesh, shape: Sequence[int], signature: str | Sequence[str]) -> TensorLayout:
    """Read OneFlow's notation.

    Args:
      mesh: the devices.
      shape: of the whole tensor.
      signature: for each axis of the mesh "S(i)", "B" or "P"; as one text "(S(0), B)".

    Raises:
      LayoutError: a signature is not valid, an axis has none, or numbers do not fit.
    """
    check_mesh(mesh)
    if isinstance(signature, str):
        text = signature.strip()
        inner = text[1:-1] if text.startswith("(") and text.endswith(")") else text
        signature = [one.strip() for one in inner.split(",")] if inner.strip() else []
    if len(signature) != len(mesh.axes):
        raise LayoutError(
            f"mesh {str(mesh)!r} has {len(mesh.axes)} axes, but there are {len(signature)} "
            f"signatures, ({', '.join(signature)}); give S(i), B or P for each axis"
        )
    splits: list[list[str]] = [[] for _ in shape]
    problems = []
    partial = []
    for axis, letter in zip(mesh.axes, signature, strict=True):
        split = _SPLIT.fullmatch(letter)
        if letter == "P":
            partial.append(axis)
        elif split and int(split[1] or split[2]) < len(splits):
            splits[int(split[1] or split[2])].append(axis)
        elif letter != "B":
            most = f"S({len(splits) - 1})" if splits else "none, as the tensor has no dimension"
            problems.append(
                f"axis {axis!r}: {letter!r} is not a signature of a tensor with {len(splits)} "
                f"dimensions; there are B, P and S(0) to {most}"
            )
    raise_if(problems)
    return TensorLayout(mesh, shape, splits, partial)


def to_rules(layout: TensorLayout, names: Sequence[str]) -> LayoutRules:
    """Write a layout as rules for named dimensions.

    Args:
      layout: to be written.
      names: of its dimensions.

    Raises:
      LayoutError: the layout is partial, or a dimension is split over several axes; a name is
        there twice, or there is not one for each dimension.
    """
    check_names("names", names)
    problems = []
    if len(names) != layout.rank:
        raise LayoutError(f"{layout.rank} dimensions {layout.shape}, but names {list(names)}")
    if layout.partial:
        problems.append(
            f"rules have no partial sums, and this layout is partial over "
            f"{', '.join(map(repr, layout.partial))}; all-reduce or reduce-scatter it first"
        )
    for name, axes in zip(names, layout.splits, strict=True):
        if len(axes) > 1:
            problems.append(
                f"dimension {name!r} is split over {', '.join(map(repr, axes))}, and a rule has "
                "one axis; use a mesh in which they are one"
            )
    rules = LayoutRules({name: axes[0] for name, axes in zip(names, layout.splits, strict=True)
                         if len(axes) == 1})  # fmt: skip
    raise_if(problems)
    # The rules give the layout, or an error about the names.
    rules.layout([Dimension(*one) for one in zip(names, layout.shape, strict=True)], layout.mesh)
    return rules
