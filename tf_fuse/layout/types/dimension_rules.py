# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define named dimensions, and the rules that lay them over a mesh.

"Mesh-TensorFlow: Deep Learning for Supercomputers" (Shazeer et al., 2018), section 3: a layout is a
partial map from names of dimensions to axes of the mesh, and holds for all tensors alike.
"""

from __future__ import annotations

import collections
import dataclasses
import operator
from collections.abc import Iterable, Mapping, Sequence

from tf_fuse.layout.types.errors import raise_if
from tf_fuse.layout.types.mesh import (
    Mesh,
    check_mesh,
    pairs_of,
    pairs_of_text,
    problem_of_name,
    problem_of_size,
    unknown_axes,
)
from tf_fuse.layout.types.tensor_layout import TensorLayout


@dataclasses.dataclass(frozen=True, order=True)
class Dimension:
    """A dimension of tensors, known by its name wherever it occurs.

    Attributes:
      name: without spaces, colons and semicolons.
      size: number of elements along it, 1 or more.
    """

    name: str
    size: int

    def __post_init__(self) -> None:
        """Check both.

        Raises:
          LayoutError: the name is not valid, or the size is below 1.
        """
        name = problem_of_name("dimension", self.name)
        size = problem_of_size(f"dimension {self.name!r}", self.size)
        raise_if([one for one in (name, size) if one])
        object.__setattr__(self, "size", operator.index(self.size))

    def __str__(self) -> str:
        return f"{self.name}:{self.size}"


@dataclasses.dataclass(frozen=True)
class LayoutRules:
    """Which dimension is split over which axis of the mesh; others are not split.

    Attributes:
      rules: (name of a dimension, name of an axis), sorted. A mapping will do. Two dimensions may
        be split over one axis as long as no tensor has both.
    """

    rules: tuple[tuple[str, str], ...]

    def __init__(self, rules: Mapping[str, str] | Iterable[tuple[str, str]] = ()):
        """Take the rules.

        Raises:
          LayoutError: a name is not valid, a dimension has two rules, or a rule is not a pair.
        """
        pairs = pairs_of("rules", rules, "layout.LayoutRules.from_text")
        problems = [problem_of_name("dimension", name) for name, _ in pairs]
        problems += [problem_of_name(f"axis of {name!r}:", axis) for name, axis in pairs]
        by_name = collections.defaultdict(list)
        for name, axis in pairs:
            by_name[name].append(axis)
        problems += [
            f"dimension {name!r} has {len(axes)} rules, for the axes {', '.join(map(str, axes))}; "
            "keep one of them"
            for name, axes in by_name.items()
            if len(axes) > 1
        ]
        raise_if([one for one in problems if one])
        object.__setattr__(self, "rules", tuple(sorted(pairs)))

    @classmethod
    def from_text(cls, text: str) -> LayoutRules:
        """Read `batch:rows;hidden:cols`, as Mesh-TensorFlow's `convert_to_layout_rules` does.

        Raises:
          LayoutError: it is not of that form, or a dimension has two rules.
        """
        return cls(pairs_of_text("rule", text))

    def axis_of(self, dimension: str) -> str | None:
        """Return the axis over which a dimension is split; None where it is not."""
        return dict(self.rules).get(dimension)

    def layout(self, dimensions: Sequence[Dimension], mesh: Mesh) -> TensorLayout:
        """Return the layout of one tensor: these rules, restricted to its dimensions.

        Args:
          dimensions: of the tensor.
          mesh: the devices.

        Raises:
          LayoutError: as of `layouts`, except that rules for other dimensions are allowed.
        """
        check_mesh(mesh)
        raise_if(_no_dimensions("", dimensions))
        raise_if([*self._unknown_axes(mesh), *self._problems("", dimensions, mesh)])
        return self._restricted(dimensions, mesh)

    def layouts(
        self, tensors: Mapping[str, Sequence[Dimension]], mesh: Mesh
    ) -> dict[str, TensorLayout]:
        """Return the layouts of the tensors of a model.

        Args:
          tensors: the dimensions of each, by its name.
          mesh: the devices.

        Returns:
          A layout for each tensor.

        Raises:
          LayoutError: an axis is not in the mesh; a rule is for a dimension that no tensor has; a
            dimension has two sizes; a tensor has two dimensions on one axis, or one twice; a size
            is not a multiple of its axis's. All that are found are named.
        """
        check_mesh(mesh)
        raise_if([
            problem
            for name in sorted(tensors)
            for problem in _no_dimensions(f"tensor {name!r}: ", tensors[name])
        ])  # fmt: skip
        problems = [*self._unknown_axes(mesh), *self._unused(tensors), *disagreeing(tensors)]
        for name in sorted(tensors):
            problems += self._problems(f"tensor {name!r}: ", tensors[name], mesh)
        raise_if(problems)
        return {name: self._restricted(dims, mesh) for name, dims in tensors.items()}

    def _restricted(self, dimensions: Sequence[Dimension], mesh: Mesh) -> TensorLayout:
        axes = [self.axis_of(one.name) for one in dimensions]
        splits = [() if axis is None else (axis,) for axis in axes]
        return TensorLayout(mesh, [one.size for one in dimensions], splits)

    def _unknown_axes(self, mesh: Mesh) -> list[str]:
        return [
            problem
            for name, axis in self.rules
            for problem in unknown_axes([axis], mesh, f"rule {name}:{axis}: ")
        ]

    def _unused(self, tensors: Mapping[str, Sequence[Dimension]]) -> list[str]:
        known = sorted({one.name for dims in tensors.values() for one in dims})
        return [
            f"rule {name}:{axis}: no tensor has a dimension {name!r}; there are: "
            f"{', '.join(known) or 'none'}"
            for name, axis in self.rules
            if name not in known
        ]

    def _problems(self, who: str, dimensions: Sequence[Dimension], mesh: Mesh) -> list[str]:
        problems = []
        names = [one.name for one in dimensions]
        for name in sorted({name for name in names if names.count(name) > 1}):
            problems.append(
                f"{who}dimension {name!r} is there {names.count(name)} times; a tensor has a "
                "dimension once, so give the others names of their own"
            )
        by_axis = collections.defaultdict(set)
        for one in dimensions:
            axis = self.axis_of(one.name)
            if axis is None or axis not in mesh.axes:
                continue
            by_axis[axis].add(one.name)
            if one.size % mesh.size_of(axis):
                problems.append(
                    f"{who}dimension {one.name!r} has {one.size} elements, which is not a "
                    f"multiple of the {mesh.size_of(axis)} devices of axis {axis!r}; pad it to "
                    f"{-(-one.size // mesh.size_of(axis)) * mesh.size_of(axis)}, or leave out "
                    f"the rule {one.name}:{axis}"
                )
        for axis, both in sorted(by_axis.items()):
            if len(both) > 1:
                problems.append(
                    f"{who}dimensions {', '.join(map(repr, sorted(both)))} are all on axis "
                    f"{axis!r}; keep the rule of one of them, or name a dimension otherwise here"
                )
        return problems

    def __str__(self) -> str:
        return ";".join(f"{name}:{axis}" for name, axis in self.rules)


def _no_dimensions(who: str, dimensions: Iterable[object]) -> list[str]:
    return [
        f"{who}give a layout.Dimension for each dimension, got {one!r}"
        for one in dimensions
        if not isinstance(one, Dimension)
    ]


def disagreeing(tensors: Mapping[str, Sequence[Dimension]]) -> list[str]:
    """Return a problem for each dimension that has two sizes."""
    found: dict[str, dict[int, list[str]]] = {}
    for tensor in sorted(tensors):
        for one in dict.fromkeys(tensors[tensor]):
            found.setdefault(one.name, {}).setdefault(one.size, []).append(tensor)
    return [
        f"dimension {name!r} has {len(sizes)} sizes: "
        + ", ".join(f"{size} in {', '.join(who)}" for size, who in sorted(sizes.items()))
        + "; give it one size, or give those of another size another name"
        for name, sizes in sorted(found.items())
        if len(sizes) > 1
    ]
