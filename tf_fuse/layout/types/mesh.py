# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define meshes of devices: named axes, as in Mesh-TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from tf_fuse.layout.types.errors import LayoutError, raise_if

# Separators of names in the text forms of meshes and rules.
_SEPARATORS = ":;,()"


def problem_of_name(kind: str, name: object) -> str | None:
    """Return why `text` is not a valid name, or None if it is valid."""
    if isinstance(name, str) and name and not any(c in _SEPARATORS or c.isspace() for c in name):
        return None
    return (
        f"{kind} {name!r}: a name is a string of one character or more, without spaces and any of "
        f"{_SEPARATORS}; choose another"
    )


def problem_of_names(kind: str, names: object) -> str | None:
    """Return why `names` is not a sequence of names, or None if it is; text is not."""
    if not isinstance(names, str):
        return None
    return f"{kind}: give a sequence of names, got the text {names!r}; write [{names!r}] for one"


def check_names(kind: str, names: object) -> None:
    """Raise a LayoutError if `names` is text instead of a sequence of names."""
    problem = problem_of_names(kind, names)
    if problem:
        raise LayoutError(problem)


def pairs_of(kind: str, given: object) -> list[tuple]:
    """Return the pairs of a mapping, or of a list of pairs.

    Raises:
      LayoutError: it is text, or has something that is not a pair.
    """
    if isinstance(given, str):
        raise LayoutError(
            f"{kind}: give a mapping or pairs, got the text {given!r}; read it by from_text"
        )
    pairs = list(given.items() if isinstance(given, Mapping) else given)  # type: ignore[call-overload]
    raise_if([
        f"{kind}: give a mapping or pairs, got {one!r}, which is not a pair"
        for one in pairs
        if isinstance(one, str) or not isinstance(one, Sequence) or len(one) != 2
    ])  # fmt: skip
    return [(one[0], one[1]) for one in pairs]


def problem_of_size(kind: str, size: object) -> str | None:
    """Return why `size` is not a valid size, or None if it is valid."""
    try:
        good = not isinstance(size, bool) and operator.index(size) >= 1  # type: ignore[arg-type]
    except TypeError:
        good = False
    return None if good else f"{kind}: a size is a whole number, 1 or more, got {size!r}"


def pairs_of_text(kind: str, text: str) -> list[tuple[str, str]]:
    """Read `a:b;c:d`, the text form of meshes and rules; empty parts are left out.

    Raises:
      LayoutError: a part is not two words with a colon between them.
    """
    parts = [part.strip() for part in text.split(";") if part.strip()]
    words = [[word.strip() for word in part.split(":")] for part in parts]
    raise_if([
        f"{kind} {part!r} of {text!r}: write name:value, with a semicolon between two of them"
        for part, both in zip(parts, words, strict=True)
        if len(both) != 2 or not all(both)
    ])  # fmt: skip
    return [(both[0], both[1]) for both in words]


@dataclasses.dataclass(frozen=True)
class Mesh:
    """An n-dimensional array of devices, whose axes have names.

    Device d, counted from 0, lies where d is in the array in row-major order: the last axis is the
    one that runs fastest. That is the order of `tf.experimental.dtensor`, of MindSpore's device
    matrix and of OneFlow's hierarchy.

    Attributes:
      dims: (name, size) of each axis. A mapping from names to sizes will do.
    """

    dims: tuple[tuple[str, int], ...]

    def __init__(self, dims: Mapping[str, int] | Iterable[tuple[str, int]]):
        """Name the axes.

        Raises:
          LayoutError: a name is not valid, or is there twice; or a size is below 1.
        """
        pairs = pairs_of("mesh", dims)
        names = [name for name, _ in pairs]
        problems = [problem_of_name("axis", name) for name in names]
        problems += [problem_of_size(f"axis {name!r}", size) for name, size in pairs]
        problems += [
            f"axis {name!r} is there {names.count(name)} times; give each axis a name of its own"
            for name in sorted({name for name in names if names.count(name) > 1})
        ]
        raise_if([one for one in problems if one])
        pairs = [(name, operator.index(size)) for name, size in pairs]
        object.__setattr__(self, "dims", tuple(pairs))

    @classmethod
    def from_text(cls, text: str) -> Mesh:
        """Read `rows:2;cols:4`.

        Raises:
          LayoutError: it is not of that form, or no mesh.
        """
        pairs = pairs_of_text("axis", text)
        raise_if([
            f"axis {name!r} of {text!r}: its size is a whole number, got {size!r}"
            for name, size in pairs
            if not size.isdecimal()
        ])  # fmt: skip
        return cls([(name, int(size)) for name, size in pairs])

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Name of the axes."""
        return tuple(name for name, _ in self.dims)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(size for _, size in self.dims)

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.shape)

    def index(self, axis: str) -> int:
        """Return the place of an axis, from 0.

        Raises:
          LayoutError: there is none of this name.
        """
        if axis not in self.axes:
            raise LayoutError(unknown_axes([axis], self)[0])
        return self.axes.index(axis)

    def size_of(self, axis: str) -> int:
        """Return the number of devices along an axis.

        Raises:
          LayoutError: there is none of this name.
        """
        return self.shape[self.index(axis)]

    def coordinates(self, device: int) -> tuple[int, ...]:
        """Return the coordinates of a device, one number per axis.

        Raises:
          LayoutError: there is no such device.
        """
        if not 0 <= device < self.size:
            raise LayoutError(f"device {device}: mesh {self} has devices 0 to {self.size - 1}")
        found = []
        for size in reversed(self.shape):
            device, at = divmod(device, size)
            found.append(at)
        return tuple(reversed(found))

    def groups(self, axes: Iterable[str]) -> list[list[int]]:
        """Return the devices of each group over some axes, in row-major order of these.

        Raises:
          LayoutError: there is no such axis, or `axes` is text.
        """
        check_names("axes", axes)
        last = list(map(self.index, axes))
        found: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
        for device in range(self.size):
            at = self.coordinates(device)
            key = tuple(one for i, one in enumerate(at) if i not in last)
            found.setdefault(key, []).append((tuple(at[i] for i in last), device))
        return [[device for _, device in sorted(mine)] for mine in found.values()]

    def __str__(self) -> str:
        return ";".join(f"{name}:{size}" for name, size in self.dims)


def unknown_axes(names: Iterable[str], mesh: Mesh, who: str = "") -> list[str]:
    """Return a problem for each name that is not an axis of a mesh, once."""
    known = ", ".join(mesh.axes) or "none"
    return [
        f"{who}axis {name!r} is not in mesh {str(mesh)!r}; its axes are: {known}"
        for name in sorted(set(names) - set(mesh.axes))
    ]
