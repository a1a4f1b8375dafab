# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Propagate names of dimensions from a few tensors to all others of a graph.

    names = propagate(operations, {"x": ("batch", None), "hidden/kernel": (None, "hidden")})
    names.layout("y", LayoutRules.from_text("batch:rows;hidden:cols"), mesh)

A name goes wherever operators' rules say that a dimension is the same range, in both directions: to
what is made of a tensor, and to what it is made of and together with. Mesh-TensorFlow (Shazeer et
al., 2018) has all dimensions named by the user.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tf_fuse.layout.operators import rule_of
from tf_fuse.layout.types.dimension_rules import Dimension, LayoutRules
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.mesh import Mesh, check_names, problem_of_name, problem_of_names
from tf_fuse.layout.types.operation import Operation, Tensor, check_graph
from tf_fuse.layout.types.tensor_layout import TensorLayout

Annotation = Sequence[str | Dimension | None]


class _TensorDimension(NamedTuple):
    """A dimension of a tensor.

    Attributes:
      tensor: its name.
      dimension: its number.
      read: whether it is as readers have it; differs for tensors that are renamed.
    """

    tensor: str
    dimension: int
    read: bool

    def __str__(self) -> str:
        return f"{self.tensor}[{self.dimension}]"


@dataclasses.dataclass(frozen=True)
class NamedTensors:
    """The names of dimensions of all tensors of a graph.

    Attributes:
      made: for each tensor the name of each dimension, as its maker has it; None where none came.
      read: the same as readers have it; other than `made` for tensors that are renamed.
      shapes: of the tensors.
    """

    made: Mapping[str, tuple[str | None, ...]]
    read: Mapping[str, tuple[str | None, ...]]
    shapes: Mapping[str, tuple[int, ...]]

    def sizes(self) -> dict[str, int]:
        """Return the size of each named dimension, by its name, sorted."""
        found = {
            name: size
            for names in (self.made, self.read)
            for tensor, dims in names.items()
            for name, size in zip(dims, self.shapes[tensor], strict=True)
            if name is not None
        }
        return {name: found[name] for name in sorted(found)}

    def layout(
        self, tensor: str, rules: LayoutRules, mesh: Mesh, read: bool = False
    ) -> TensorLayout:
        """Return the layout that rules give to a tensor; dimensions without a name stay whole.

        Args:
          tensor: its name.
          rules: for dimensions.
          mesh: the devices.
          read: as readers have it.

        Raises:
          LayoutError: there is no such tensor; or as of `LayoutRules.layout`.
        """
        names = (self.read if read else self.made).get(tensor)
        if names is None:
            raise LayoutError(f"tensor {tensor!r} is not in the graph: {_known(self.made)}")
        shape = self.shapes[tensor]
        dims = [
            Dimension(name, size)
            for name, size in zip(names, shape, strict=True)
            if name is not None
        ]
        checked = iter(rules.layout(dims, mesh).splits)
        return TensorLayout(mesh, shape, [() if name is None else next(checked) for name in names])


def propagate(
    operations: Sequence[Operation],
    annotations: Mapping[str, Annotation],
    renamed: Iterable[str] = (),
) -> NamedTensors:
    """Give names to the dimensions of all tensors that a few annotations reach.

    Args:
      operations: the graph.
      annotations: for some tensors, a name for each dimension: text, a `Dimension` whose size is
        checked, or None for what others say.
      renamed: tensors at which names end: their annotations are for readers only, and the maker's
        names do not come through. A tensor has a dimension once, so where one meets itself, as a
        sequence in self-attention, one of the two gets another name so.

    Returns:
      The names.

    Raises:
      LayoutError: an annotation is for no tensor, or does not fit it; two names meet in one
        dimension, or one name in two dimensions of a tensor or with two sizes: with the paths of
        both.
    """
    check_graph(operations)
    check_names("renamed", renamed)
    tensors = {
        one.name: one for operation in operations for one in (*operation.inputs, *operation.outputs)
    }
    cut = set(renamed)
    _check_annotations(tensors, annotations, cut)
    walk = _Walk(_edges(operations, cut))
    for tensor in sorted(annotations):
        for i, one in enumerate(annotations[tensor]):
            if one is not None:
                name = one.name if isinstance(one, Dimension) else one
                walk.start(_TensorDimension(tensor, i, tensor in cut), name)
    walk.run()
    raise_if([*walk.conflicts.values(), *_twice(tensors, walk, cut), *_sizes(tensors, walk)])
    shapes = {name: tensors[name].shape for name in sorted(tensors)}
    made, read = (
        {
            name: tuple(
                walk.name(_TensorDimension(name, i, side and name in cut))
                for i in range(len(shape))
            )
            for name, shape in shapes.items()
        }
        for side in (False, True)
    )
    return NamedTensors(made, read, shapes)


class _Walk:
    """Name on their way, the nearest places first."""

    def __init__(self, edges: Mapping[_TensorDimension, Sequence[tuple[_TensorDimension, str]]]):
        self._edges = edges
        self._names: dict[_TensorDimension, str] = {}
        self._came: dict[_TensorDimension, tuple[_TensorDimension, str]] = {}
        self._waiting: collections.deque[_TensorDimension] = collections.deque()
        # By the annotations whose names meet; they meet in many places, and one is reported.
        self.conflicts: dict[tuple[_TensorDimension, _TensorDimension], str] = {}

    @property
    def places(self) -> list[_TensorDimension]:
        """All that have a name, sorted."""
        return sorted(self._names)

    def name(self, place: _TensorDimension) -> str | None:
        """Return the name that came to a place."""
        return self._names.get(place)

    def start(self, place: _TensorDimension, name: str) -> None:
        """Put an annotated name at a place."""
        self._names[place] = name
        self._waiting.append(place)

    def run(self) -> None:
        """Propagate all names to all places that they reach."""
        while self._waiting:
            place = self._waiting.popleft()
            for other, by in self._edges.get(place, ()):
                if other not in self._names:
                    self._names[other] = self._names[place]
                    self._came[other] = place, by
                    self._waiting.append(other)
                elif self._names[other] != self._names[place]:
                    self._conflict(place, other, by)

    def path(self, place: _TensorDimension) -> str:
        """Return how a name came to a place: its origin, and the operations between."""
        words = [str(place)]
        while place in self._came:
            place, by = self._came[place]
            words.append(f"{place} -> {by}")
        return " -> ".join(reversed(words))

    def _conflict(self, place: _TensorDimension, other: _TensorDimension, by: str) -> None:
        first, second = sorted((self._origin(place), self._origin(other)))
        self.conflicts.setdefault(
            (first, second),
            f"dimension {other.dimension} of tensor {other.tensor!r} is {self._names[other]!r} by "
            f"{self.path(other)}, and {self._names[place]!r} by {self.path(place)} -> {by} -> "
            f"{other}; give both the same name, or rename a tensor on one of the paths",
        )

    def _origin(self, place: _TensorDimension) -> _TensorDimension:
        while place in self._came:
            place = self._came[place][0]
        return place


def _edges(
    operations: Iterable[Operation], cut: set[str]
) -> dict[_TensorDimension, list[tuple[_TensorDimension, str]]]:
    """Return which dimensions are the same range, and by which operation."""
    found: dict[_TensorDimension, list[tuple[_TensorDimension, str]]] = {}
    for one in operations:
        for places in _ranges(one, cut):
            for place in places:
                # In the operation's order, so that paths are always the same.
                found.setdefault(place, []).extend(
                    (other, str(one)) for other in places if other != place
                )
    return found


def _ranges(operation: Operation, cut: set[str]) -> Iterator[list[_TensorDimension]]:
    """Yield, for each factor of an operation, the dimensions that are this factor alone."""
    rule = rule_of(operation)
    by_factor: dict[str, list[_TensorDimension]] = {}
    for tensors, all_dims, read in (
        (operation.inputs, rule.inputs, True),
        (operation.outputs, rule.outputs, False),
    ):
        for tensor, dims in zip(tensors, all_dims, strict=True):
            for i, factors in enumerate(dims):
                if len(factors) == 1:
                    place = _TensorDimension(tensor.name, i, read and tensor.name in cut)
                    by_factor.setdefault(factors[0], []).append(place)
    yield from by_factor.values()


def _check_annotations(
    tensors: Mapping[str, Tensor], annotations: Mapping[str, Annotation], cut: set[str]
) -> None:
    problems = [
        f"{what} is for tensor {name!r}, which is not in the graph: {_known(tensors)}"
        for what, names in (("an annotation", annotations), ("a rename", cut))
        for name in sorted(set(names) - set(tensors))
    ]
    problems += [
        f"tensor {name!r} is renamed, and has no annotation with the new names"
        for name in sorted(cut & set(tensors) - set(annotations))
    ]
    for name in sorted(set(annotations) & set(tensors)):
        shape, given = tensors[name].shape, annotations[name]
        text = problem_of_names(f"tensor {name!r}: dimensions", given)
        if text:
            problems.append(text)
            continue
        if len(given) != len(shape):
            problems.append(
                f"tensor {name!r} has {len(shape)} dimensions {list(shape)}, and its annotation "
                f"{len(given)}; give a name for each, or None"
            )
            continue
        for i, (one, size) in enumerate(zip(given, shape, strict=True)):
            if isinstance(one, Dimension) and one.size != size:
                problems.append(
                    f"tensor {name!r}: dimension {i} has {size} elements, and is named "
                    f"{one.name!r} with {one.size}; make them equal"
                )
            elif one is not None and not isinstance(one, Dimension):
                problem = problem_of_name(f"tensor {name!r}: dimension", one)
                problems += [problem] if problem else []
    raise_if(problems)


def _twice(tensors: Mapping[str, Tensor], walk: _Walk, cut: set[str]) -> Iterator[str]:
    """Return a problem for each tensor that has a name twice; of those of the same names, one."""
    reported = set()
    for tensor in sorted(tensors):
        for read in (False, True) if tensor in cut else (False,):
            first: dict[str, _TensorDimension] = {}
            for i in range(len(tensors[tensor].shape)):
                place = _TensorDimension(tensor, i, read)
                name = walk.name(place)
                if name is None or first.setdefault(name, place) == place or name in reported:
                    continue
                reported.add(name)
                yield (
                    f"tensor {tensor!r} has dimension {name!r} twice: by "
                    f"{walk.path(first[name])}, and by {walk.path(place)}; rename a tensor on one "
                    "of the paths"
                )


def _sizes(tensors: Mapping[str, Tensor], walk: _Walk) -> Iterator[str]:
    """Return a problem for each name that stands for two sizes."""
    first: dict[str, _TensorDimension] = {}
    reported = set()
    for place in walk.places:
        name = walk.name(place)
        assert name is not None
        other = first.setdefault(name, place)
        sizes = [tensors[one.tensor].shape[one.dimension] for one in (other, place)]
        if sizes[0] != sizes[1] and name not in reported:
            reported.add(name)
            yield (
                f"dimension {name!r} has {sizes[0]} elements by {walk.path(other)}, and "
                f"{sizes[1]} by {walk.path(place)}; give one of them another name"
            )


def _known(names: Iterable[str], most: int = 12) -> str:
    """Return names for an error; the first ones of many."""
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return f"it has {', '.join(ordered[:most]) or 'none'}{more}"
