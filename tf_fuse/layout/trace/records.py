# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define what a trace records of tensors and operations, and check that it can be planned."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeGuard

import tensorflow as tf
from tensorflow.python.ops import handle_data_util

from tf_fuse.layout.trace.effects import Effect
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.operation import ITEM_BYTES, LIST_OF, Tensor

_planning = threading.local()

# Operations that make numbers of a shape.
_SIZES: Final = ("Shape", "ShapeN", "Size")
# How many problems an error lists.
_LISTED: Final = 8


class Made(NamedTuple):
    """A tensor, before it is known whether it is needed.

    Attributes:
      shape: None, or with None where it is not known.
      dtype: TensorFlow's name of it.
      parameter: whether it is a variable.
      constant: whether it is one that is not trained.
    """

    shape: Sequence[int | None] | None
    dtype: str
    parameter: bool = False
    constant: bool = False


class Record(NamedTuple):
    """An operation, by names of its tensors.

    Attributes:
      name: of its own.
      kind: as rules have it.
      inputs: that are not attributes.
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
    """The graph, constants and variables of a traced function, from which a plan runs it.

    Attributes:
      concrete: the `tf.ConcreteFunction`.
      origins: by name of an operation; none of sources and of what stands for itself.
      constants: values of constants, by name: arrays, or tensors that the function captured.
      feeds: for each tensor that the concrete function is fed, its name.
      returned: for each tensor that it returns, its name; None for a result that is not a tensor.
      variables: by name.
      effects: what runs beside the plan, in its order.
    """

    concrete: Any
    origins: Mapping[str, Origin]
    constants: Mapping[str, Any]
    feeds: tuple[str, ...]
    returned: tuple[str | None, ...]
    variables: Mapping[str, Any]
    effects: tuple[Effect, ...] = ()

    def check_variables(self, used: Iterable[str]) -> None:
        """Check that variables are known by more than their handles.

        Raises:
          LayoutError: others are used; the error says what to write.
        """
        graph = self.concrete.graph
        missing = set(used) - set(self.variables)
        of_handles = missing & {inner.op.name for _, inner in graph.captures}
        remedies = (
            (
                of_handles,
                "by their handles alone",
                "read each by a method in it, too, as by variable.read_value()",
            ),
            (
                missing - of_handles,
                "that it does not capture",
                "capture tf.Variables, do not make them in it or pass them as arguments",
            ),
        )
        raise_if(
            [
                f"{graph.name!r} uses variables {how}: {', '.join(sorted(names))}; {remedy}"
                for names, how, remedy in remedies
                if names
            ]
        )


def concrete_function(
    function: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> Any:
    """Return the concrete function of what `trace` takes.

    Raises:
      LayoutError: it is not a function, or cannot be traced with these arguments.
    """
    if hasattr(function, "graph") and hasattr(function, "captured_inputs"):
        return function
    if not callable(function):
        raise LayoutError(
            f"a function is planned, got {function!r}; give a tf.function, or a callable"
        )
    if not hasattr(function, "get_concrete_function"):
        function = tf.function(function)
    try:
        return function.get_concrete_function(*args, **(kwargs or {}))
    except LayoutError:
        raise
    except (TypeError, ValueError) as error:
        raise LayoutError(
            f"{getattr(function, '__name__', function)!r} cannot be traced: {error}; give its "
            "arguments as tf.TensorSpec in args, or an input_signature to its tf.function"
        ) from error
    except Exception as error:
        # AutoGraph raises an error of its own in place of those that have a constructor.
        if isinstance(error.__context__, LayoutError):
            raise error.__context__ from None
        raise


@contextlib.contextmanager
def for_a_plan() -> Iterator[None]:
    """Mark the functions traced in this context as traced for a plan."""
    before = tracing_for_a_plan()
    _planning.now = True
    try:
        yield
    finally:
        _planning.now = before


def tracing_for_a_plan() -> bool:
    """Return whether a function is traced to be planned."""
    return bool(getattr(_planning, "now", False))


def needed_of(records: Sequence[Record], wanted: Iterable[str]) -> list[Record]:
    """Return the records that make some tensors, and what these are made of, in their order."""
    needed = set(wanted)
    kept = []
    for one in reversed(records):
        if not needed.isdisjoint(one.outputs):
            needed.update(one.inputs)
            kept.append(one)
    return kept[::-1]


def can_be_planned(made: Made) -> bool:
    """Return whether a tensor is one of numbers, of a shape that is known, with elements."""
    return (
        made.dtype.removeprefix(LIST_OF) in ITEM_BYTES
        and is_whole(made.shape)
        and 0 not in made.shape
    )


def composites(concrete: Any) -> dict[str, str]:
    """Return, by names of a function's inputs, the types of sparse and ragged ones."""
    given = tf.nest.flatten(getattr(concrete, "structured_input_signature", None))
    kinds = []
    for one in given:
        if isinstance(one, tf.TypeSpec):
            kind = "" if isinstance(one, tf.TensorSpec) else one.value_type.__name__
            kinds += [kind] * len(tf.nest.flatten(one, expand_composites=True))
    both = zip(concrete.graph.inputs, kinds, strict=False)
    return {one.op.name: kind for one, kind in both if kind}


def check_shapes(
    records: Sequence[Record], tensors: Mapping[str, Made], kinds: Mapping[str, str]
) -> None:
    """Check that shapes are known; report where they are lost, and not all that follow.

    Args:
      records: of the function.
      tensors: by name.
      kinds: of `composites`.

    Raises:
      LayoutError: one is not.
    """
    problems = []
    # Sizes of tensors whose shapes are lost, and numbers computed of these.
    sizes: set[str] = set()
    for one in records:
        lost = [name for name in one.outputs if not is_whole(tensors[name].shape)]
        follows = not all(is_whole(tensors[name].shape) for name in one.inputs)
        if not sizes.isdisjoint(one.inputs) or (follows and one.kind in _SIZES):
            sizes.update(one for one in one.outputs if "int" in tensors[one].dtype)
            follows = True
        if not lost or follows:
            continue
        shape = tensors[lost[0]].shape
        words = "an unknown shape" if shape is None else f"shape {list(shape)}"
        if one.name in kinds:
            problems.append(
                f"input {one.name!r} is of a {kinds[one.name]}, and plans are for dense tensors of "
                "whole shapes; make it dense before the function"
            )
        elif one.kind == "Placeholder":
            problems.append(
                f"input {one.name!r} has {words}; a plan needs whole shapes: give it as a "
                "tf.TensorSpec with all sizes in args or in the function's input_signature"
            )
        else:
            problems.append(
                f"tensor {lost[0]!r} of {one.kind} {one.name!r} has {words}, which is not "
                f"known before the function runs; a plan needs whole shapes: {_remedy(one.kind)}"
            )
    raise_if(_first(problems))


def _remedy(kind: str) -> str:
    """Return what to do without an operation that makes tensors of unknown shapes."""
    if kind == "Unique":
        return (
            "if an optimizer makes it of a table's gradient, give it "
            "tf.convert_to_tensor(gradient); else keep it out of the function"
        )
    return (
        "keep it and what depends on it out of the function, or mask by tf.where with three "
        "arguments"
    )


def checked(records: Sequence[Record], tensors: Mapping[str, Made]) -> dict[str, Tensor]:
    """Return the tensors by name; all shapes are known.

    Raises:
      LayoutError: one has no elements, or a type of unknown size; only where that begins.
    """
    problems: list[str] = []
    found: dict[str, Tensor] = {}
    for record in records:
        for name in record.outputs:
            shape, dtype, *kinds = tensors[name]
            assert is_whole(shape)
            try:
                found[name] = Tensor(name, tuple(map(int, shape)), dtype, *kinds)
            except LayoutError as error:
                if all(one in found for one in record.inputs):
                    problems += _of_tensor(record, name, tensors[name]) or error.problems
    raise_if(_first(problems))
    return found


def _of_tensor(record: Record, name: str, made: Made) -> list[str]:
    """Return what is wrong with a tensor, in words for who wrote the function."""
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
    """Return the shape and type of a `tf.Tensor`."""
    if tensor.dtype == tf.variant:  # Lists of loops: of no size, but who makes one comes first.
        return Made([], "int8")
    return Made(dims_of(tensor.shape), tensor.dtype.base_dtype.name)


def list_elements(tensor: Any) -> Made | None:
    """Return the elements of a list of tensors, if it is one and they are known."""
    data = handle_data_util.get_handle_data(tensor) if tensor.dtype == tf.variant else None
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    (elements,) = data.shape_and_type
    kind = tf.as_dtype(elements.dtype)
    if kind == tf.variant or elements.shape.unknown_rank:
        return None
    return Made(dims_of(tf.TensorShape(elements.shape)), kind.base_dtype.name)


def dims_of(shape: Any) -> list[int | None] | None:
    """Return the sizes of a `tf.TensorShape`; None of an unknown rank."""
    return None if shape.rank is None else shape.as_list()


def is_whole(shape: Sequence[int | None] | None) -> TypeGuard[Sequence[int]]:
    """Return whether all sizes are known."""
    return shape is not None and None not in shape


def _first(problems: Sequence[str]) -> list[str]:
    more = len(problems) - _LISTED
    return [*problems[:_LISTED], *([f"and {more} more of these"] if more > 0 else [])]


def in_order(graph: Any) -> list[Any]:
    """Return the operations of a graph, each after what it needs; otherwise as created.

    The gradient of a loop adds inputs to the loop that are created after it.
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
