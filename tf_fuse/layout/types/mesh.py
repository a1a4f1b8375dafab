# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define meshes of devices: named axes, as in Mesh-TensorFlow."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

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


def axes_of(given: str | Iterable[str] | None) -> tuple[str, ...]:
    """Return names of axes; text is the name of one, and None stands for none."""
    return () if given is None else (given,) if isinstance(given, str) else tuple(given)


def pairs_of(kind: str, given: object, reader: str) -> list[tuple]:
    """Return the pairs of a mapping, or of a list of pairs.

    Args:
      kind: for errors.
      given: the pairs.
      reader: the function that reads text, for errors.

    Raises:
      LayoutError: it is text, or has something that is not a pair.
    """
    if isinstance(given, str):
        raise LayoutError(
            f"{kind}: give a mapping or pairs, got the text {given!r}; write {reader}({given!r})"
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
      dims: (name, size) of each axis.
    """

    dims: tuple[tuple[str, int], ...]

    def __init__(
        self,
        dims: Mapping[str, int] | Iterable[tuple[str, int]] | Sequence[int],
        names: str | Iterable[str] | None = None,
    ):
        """Name the axes.

        Args:
          dims: a mapping from names to sizes, or pairs; or sizes alone, as (2, 4).
          names: of the axes, if `dims` has sizes alone, as ("x", "y"); text is one name.

        Raises:
          LayoutError: a name is not valid, is there twice or is missing; or a size is below 1.
        """
        pairs = _named(dims, names)
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

    def groups(self, axes: str | Iterable[str]) -> list[list[int]]:
        """Return the devices of each group over some axes, in row-major order of these.

        Raises:
          LayoutError: there is no such axis.
        """
        last = list(map(self.index, axes_of(axes)))
        found: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
        for device in range(self.size):
            at = self.coordinates(device)
            key = tuple(one for i, one in enumerate(at) if i not in last)
            found.setdefault(key, []).append((tuple(at[i] for i in last), device))
        return [[device for _, device in sorted(mine)] for mine in found.values()]

    def __str__(self) -> str:
        return ";".join(f"{name}:{size}" for name, size in self.dims)


def _named(dims: Any, names: str | Iterable[str] | None) -> list[tuple]:
    """Return (name, size) of each axis."""
    reader = "layout.Mesh.from_text"
    if isinstance(dims, str):
        return pairs_of("mesh", dims, reader)
    given = dims if isinstance(dims, Mapping) else list(dims) if _iterable(dims) else [dims]
    has_pairs = isinstance(given, Mapping) or any(
        isinstance(one, Sequence) and not isinstance(one, str) for one in given
    )
    if names is None:
        if given and not has_pairs and not any(isinstance(one, str) for one in given):
            raise LayoutError(
                f"mesh {dims!r} has sizes without names; name each axis, as layout.Mesh("
                f"{tuple(given)!r}, {tuple(f'axis{i}' for i in range(len(given)))!r})"
            )
        return pairs_of("mesh", given, reader)
    sizes, axes = list(given), axes_of(names)
    if has_pairs:
        raise LayoutError(
            f"mesh: the axes of {dims!r} have names, and names are {names!r}; give them once"
        )
    if len(sizes) != len(axes):
        raise LayoutError(
            f"mesh: {tuple(sizes)!r} has {len(sizes)} sizes, and there are {len(axes)} names "
            f"{axes!r}; give a name for each axis"
        )
    return list(zip(axes, sizes, strict=True))


def _iterable(given: object) -> bool:
    return isinstance(given, Iterable)


def check_mesh(given: object) -> None:
    """Raise a LayoutError, with what to write instead, if it is not a `Mesh`."""
    if isinstance(given, Mesh):
        return
    if isinstance(given, str):
        way = f"layout.Mesh.from_text({given!r})"
    elif isinstance(given, Mapping):
        way = f"layout.Mesh({dict(given)!r})"
    else:
        # Of JAX and Keras, PyTorch, and DTensor.
        names = next(
            (
                tuple(found)
                for name in ("axis_names", "mesh_dim_names", "dim_names")
                if (found := getattr(given, name, None))
            ),
            ("x", "y"),
        )
        shape = getattr(given, "shape", None)
        shape = shape() if callable(shape) else shape
        shape = shape.values() if isinstance(shape, Mapping) else shape
        sizes = tuple(shape) if isinstance(shape, Iterable) else (2, 4)
        way = f"layout.Mesh({tuple(map(int, sizes))!r}, {names!r})"
    raise LayoutError(f"a layout.Mesh is needed, got {given!r}; write {way}")


def unknown_axes(names: Iterable[str], mesh: Mesh, who: str = "") -> list[str]:
    """Return a problem for each name that is not an axis of a mesh, once."""
    known = ", ".join(mesh.axes) or "none"
    return [
        f"{who}axis {name!r} is not in mesh {str(mesh)!r}; its axes are: {known}"
        for name in sorted(set(names) - set(mesh.axes))
    ]
