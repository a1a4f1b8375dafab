# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define operations and their tensors, independent of TensorFlow's graphs.

An operation's kind is the name of TensorFlow's op. What only says how it works, such as the axes of
a reduction, is an attribute, also where TensorFlow has an input for it.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.mesh import problem_of_size

# Bytes of an element, by TensorFlow's names of types.
ITEM_BYTES: Final[Mapping[str, int]] = {
    "bfloat16": 2, "bool": 1, "complex128": 16, "complex64": 8, "float16": 2, "float32": 4,
    "float64": 8, "half": 2, "int16": 2, "int32": 4, "int64": 8, "int8": 1, "uint16": 2,
    "uint32": 4, "uint64": 8, "uint8": 1,
}  # fmt: skip
# The attribute of an `Identity` whose tensor must have a layout, which is its value as text.
LAYOUT_MARK: Final = "layout"
# The attribute of an operation with numbers of rows, if the last ones may mean nothing.
DISTINCT_ROWS: Final = "distinct_rows"
# Before the type of the elements of a list of tensors, which counts them in its shape.
LIST_OF: Final = "list of "
_WITH_GRADIENT = ("bfloat16", "complex", "float", "half")


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor of a graph.

    Attributes:
      name: by which operations are connected.
      shape: of the whole tensor.
      dtype: TensorFlow's name of it.
      parameter: whether it is a variable's value: it is held all the time, and nothing waits for
        its gradient but the update.
      constant: whether nothing asks for its gradient: it depends on no variable that is trained.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    parameter: bool = False
    constant: bool = False

    def __post_init__(self) -> None:
        """Check shape and type.

        Raises:
          LayoutError: a size is below 1, or the type is not known.
        """
        problems = [
            problem_of_size(f"tensor {self.name!r}: dimension {i}", size)
            for i, size in enumerate(self.shape)
        ]
        if self.dtype.removeprefix(LIST_OF) not in ITEM_BYTES:
            problems.append(
                f"tensor {self.name!r}: type {self.dtype!r} has no known size; there are: "
                f"{', '.join(sorted(ITEM_BYTES))}"
            )
        raise_if([one for one in problems if one])
        object.__setattr__(self, "shape", tuple(map(operator.index, self.shape)))

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return ITEM_BYTES[self.dtype.removeprefix(LIST_OF)]

    @property
    def is_list(self) -> bool:
        """Whether it is a list of tensors, which nothing brings into another layout."""
        return self.dtype.startswith(LIST_OF)

    @property
    def bytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * self.item_bytes

    @property
    def is_logical(self) -> bool:
        """Whether its elements are truth values."""
        return self.dtype.removeprefix(LIST_OF) == "bool"

    @property
    def is_real(self) -> bool:
        """Whether its type is one that gradients have."""
        return self.dtype.startswith(_WITH_GRADIENT)

    @property
    def has_gradient(self) -> bool:
        """Whether gradients go back to it."""
        return self.is_real and not self.constant


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation of a graph.

    Attributes:
      name: of its own.
      kind: the name of TensorFlow's op, as "MatMul".
      inputs: tensors it reads, without those that became attributes.
      outputs: tensors it makes.
      attributes: (name, value), sorted; a mapping will do. Lists become tuples.
    """

    name: str
    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attributes: tuple[tuple[str, Any], ...]

    def __init__(
        self,
        name: str,
        kind: str,
        inputs: Iterable[Tensor],
        outputs: Iterable[Tensor],
        attributes: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
    ):
        """Keep them.

        Raises:
          LayoutError: the value of an attribute cannot be hashed.
        """
        pairs = attributes.items() if isinstance(attributes, Mapping) else attributes
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "inputs", tuple(inputs))
        object.__setattr__(self, "outputs", tuple(outputs))
        kept = sorted(((key, _hashable(value)) for key, value in pairs), key=lambda one: one[0])
        object.__setattr__(self, "attributes", tuple(kept))
        raise_if([
            f"{self}: attribute {key!r} is {value!r}, which cannot be hashed; give a number, a "
            "string, or a list of these"
            for key, value in kept
            if not isinstance(value, Hashable) or _is_odd(value)
        ])  # fmt: skip

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute, or the default."""
        return dict(self.attributes).get(name, default)

    def required(self, name: str) -> Any:
        """Return the value of an attribute.

        Raises:
          LayoutError: there is none.
        """
        value = self.attribute(name)
        if value is None:
            known = ", ".join(key for key, _ in self.attributes) or "none"
            raise LayoutError(f"{self}: attribute {name!r} is missing; there are: {known}")
        return value

    @cached_property
    def nameless(self) -> Operation:
        """The same without names: what its strategies depend on."""
        return Operation(
            "",
            self.kind,
            [dataclasses.replace(one, name="") for one in self.inputs],
            [dataclasses.replace(one, name="") for one in self.outputs],
            self.attributes,
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


def check_graph(operations: Sequence[Operation]) -> None:
    """Check that operations are in an order in which they can run.

    Tensors that no operation makes come from outside.

    Raises:
      LayoutError: two have the same name, or make the same tensor; a tensor is read before it is
        made, or as another one than it was made. All that are found are named.
    """
    problems = []
    makers: dict[str, str] = {}
    known: dict[str, tuple[str, Tensor]] = {}
    all_made = {tensor.name: one.name for one in operations for tensor in one.outputs}
    names = collections.Counter(one.name for one in operations)
    problems += [
        f"{count} operations have the name {name!r}; give each a name of its own"
        for name, count in sorted(names.items())
        if count > 1
    ]
    for one in operations:
        for tensor in one.inputs:
            if tensor.name in all_made and tensor.name not in makers:
                problems.append(
                    f"{one} reads tensor {tensor.name!r}, which {all_made[tensor.name]!r} makes "
                    "only after it; sort the operations, each after those that it reads from"
                )
            who, first = known.setdefault(tensor.name, (one.name, tensor))
            if first != tensor:
                problems.append(
                    f"tensor {tensor.name!r} is {_words(first)} at {who!r} and {_words(tensor)} at "
                    f"{one.name!r}; a name is for one tensor"
                )
        for tensor in one.outputs:
            if tensor.name in makers:
                problems.append(
                    f"tensor {tensor.name!r} is made by {makers[tensor.name]!r} and by "
                    f"{one.name!r}; give one of them another name"
                )
            makers.setdefault(tensor.name, one.name)
            known.setdefault(tensor.name, (one.name, tensor))
    raise_if(problems)


def _words(tensor: Tensor) -> str:
    return f"{'parameter ' if tensor.parameter else ''}{tensor.dtype}{list(tensor.shape)}"


def _hashable(value: Any) -> Any:
    if hasattr(value, "tolist"):  # NumPy's arrays and numbers.
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(value))
    return value


def _is_odd(value: Any) -> bool:
    """Return whether a tuple has something that cannot be hashed."""
    return isinstance(value, tuple) and any(
        not isinstance(one, Hashable) or _is_odd(one) for one in value
    )
