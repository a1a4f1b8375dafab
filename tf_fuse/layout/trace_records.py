# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a trace records of tensors and operations, and whether they can be planned."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeGuard

import tensorflow as tf

from tf_fuse.layout.errors import LayoutError, raise_if
from tf_fuse.layout.operation import Tensor

_planning = threading.local()

# Of more problems an error tells the first ones.
_TOLD: Final = 8


class Made(NamedTuple):
    """A tensor, before it is known whether it is needed.

    Attributes:
      shape: None, or with None where it is not known.
      dtype: TensorFlow's name of it.
      parameter: whether it is a variable.
    """

    shape: Sequence[int | None] | None
    dtype: str
    parameter: bool = False


class Record(NamedTuple):
    """An operation, by names of its tensors.

    Attributes:
      name: of its own.
      kind: as rules have it.
      inputs: that are no attributes.
      outputs: and the variables that it writes.
      attributes: as rules have them.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


class Origin(NamedTuple):
    """The operation of TensorFlow's graph that a record is of.

    Attributes:
      operation: a `tf.Operation`.
      numbers: which of its inputs the record's inputs are.
      constants: the values of other inputs by their numbers, where they are known.
      handles: the variables of inputs that are handles, by their numbers.
      written: the variables that it may write; their values are its last outputs.
    """

    operation: Any
    numbers: tuple[int, ...]
    constants: Mapping[int, Any]
    handles: Mapping[int, str]
    written: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Sources:
    """What a traced function was made of, so that it can be run in another way.

    Attributes:
      concrete: the `tf.ConcreteFunction`.
      origins: by name of an operation; none of sources and of what stands for itself.
      constants: values of constants, by name: arrays, or tensors that the function captured.
      feeds: for each tensor that the concrete function is fed, its name.
      returned: for each tensor that it returns, its name; None of what is no tensor here.
      variables: by name.
    """

    concrete: Any
    origins: Mapping[str, Origin]
    constants: Mapping[str, Any]
    feeds: tuple[str, ...]
    returned: tuple[str | None, ...]
    variables: Mapping[str, Any]


@contextlib.contextmanager
def for_a_plan() -> Iterator[None]:
    """Says that functions are traced to be planned, and not to be run as they are."""
    before = tracing_for_a_plan()
    _planning.now = True
    try:
        yield
    finally:
        _planning.now = before


def tracing_for_a_plan() -> bool:
    """Whether a function is traced to be planned."""
    return bool(getattr(_planning, "now", False))


def check_shapes(records: Sequence[Record], tensors: Mapping[str, Made]) -> None:
    """Checks that shapes are known; names where they are lost, not all behind.

    Raises:
      LayoutError: one is not.
    """
    problems = []
    for one in records:
        lost = [name for name in one.outputs if not is_whole(tensors[name].shape)]
        if not lost or not all(is_whole(tensors[name].shape) for name in one.inputs):
            continue
        shape = tensors[lost[0]].shape
        words = "an unknown shape" if shape is None else f"shape {list(shape)}"
        if one.kind == "Placeholder":
            problems.append(
                f"input {one.name!r} has {words}; a plan needs whole shapes: give it as a "
                "tf.TensorSpec with all sizes in args or in the function's input_signature"
            )
        else:
            problems.append(
                f"tensor {lost[0]!r} of {one.kind} {one.name!r} has {words}, which is not "
                "known before the function runs; a plan needs whole shapes: keep it and what "
                "depends on it out of the function, or mask by tf.where with three arguments"
            )
    raise_if(_first(problems))


def checked(records: Sequence[Record], tensors: Mapping[str, Made]) -> dict[str, Tensor]:
    """Tensors, by name; all shapes are known.

    Raises:
      LayoutError: one has no elements, or a type of no known size; where it begins, not all behind.
    """
    problems: list[str] = []
    found: dict[str, Tensor] = {}
    for record in records:
        for name in record.outputs:
            shape, dtype, parameter = tensors[name]
            assert is_whole(shape)
            try:
                found[name] = Tensor(name, tuple(map(int, shape)), dtype, parameter)
            except LayoutError as error:
                if all(one in found for one in record.inputs):
                    problems += _of_tensor(record, name, tensors[name]) or error.problems
    raise_if(_first(problems))
    return found


def _of_tensor(record: Record, name: str, made: Made) -> list[str]:
    """What is wrong with a tensor, in words of who wrote the function."""
    kinds = {"Placeholder": "input", "Variable": "variable", "Const": "constant"}
    who = f"{kinds[record.kind]} {name!r}" if record.kind in kinds else f"tensor {name!r}"
    of = "" if record.kind in kinds else f" of {record.kind} {record.name!r}"
    if made.dtype in ("string", "resource"):
        return [
            f"{who}{of} is of type {made.dtype!r}, and plans are for numbers; do what is done with "
            "it outside of the function, and feed it numbers"
        ]
    if made.shape is not None and 0 in made.shape:
        return [
            f"{who}{of} has shape {list(made.shape)}, and so no elements, and a plan is for "
            "tensors that have some; leave empty batches out, and keep empty tensors outside of "
            "the function"
        ]
    return []


def made_of(tensor: Any) -> Made:
    """What is known of a `tf.Tensor`."""
    if tensor.dtype == tf.variant:  # Lists of loops: of no size, but who makes one comes first.
        return Made([], "int8")
    return Made(dims_of(tensor.shape), tensor.dtype.base_dtype.name)


def dims_of(shape: Any) -> list[int | None] | None:
    """The sizes of a `tf.TensorShape`; None of an unknown rank."""
    return None if shape.rank is None else shape.as_list()


def is_whole(shape: Sequence[int | None] | None) -> TypeGuard[Sequence[int]]:
    """Whether all sizes are known."""
    return shape is not None and None not in shape


def _first(problems: Sequence[str]) -> list[str]:
    more = len(problems) - _TOLD
    return [*problems[:_TOLD], *([f"and {more} more of these"] if more > 0 else [])]


def in_order(graph: Any) -> list[Any]:
    """The operations of a graph, each behind what it needs; otherwise as they were made.

    The gradient of a loop gives the loop inputs that are made after it.
    """
    found: dict[str, Any] = {}
    for operation in graph.get_operations():
        waiting = [operation]
        while waiting:
            one = waiting[-1]
            needed = [*(each.op for each in one.inputs), *one.control_inputs]
            missing = [each for each in needed if each.name not in found]
            if missing:
                waiting += missing
            else:
                found[waiting.pop().name] = one
    return list(found.values())
