# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read variables of Keras 3 on TensorFlow, and change their class."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_fuse._tensorflow import feature_names
from tf_fuse._tensorflow.members import ON_OBJECTS, Exists, Member, Stored

_MODULE = "keras.src.backend.tensorflow.core"
_VERSIONS = "Keras 3"
_SAVEABLES = "_gather_saveables_for_checkpoint"
# Class of Keras's variables to the one of those that say what is saved of them.
_saving_classes: dict[type, type] = {}
MEMBERS = (
    Member(
        _MODULE + ":Variable",
        "_value",
        Stored(),
        "is TensorFlow's variable; a metric's holds a tensor while a step of `fit` is traced",
        (
            feature_names.KERAS_IN_PIECES,
            feature_names.LAYOUT,
            feature_names.KERAS_FIT,
            feature_names.COMPRESSION,
        ),
        ON_OBJECTS,
        _VERSIONS,
    ),
    Member(
        _MODULE + ":Variable",
        "_shape",
        Stored(),
        "is the shape, which the initializer does not give to TensorFlow",
        (feature_names.PLACEMENT,),
        versions=_VERSIONS,
    ),
    Member(
        _MODULE + ":Variable",
        "__class__",
        Exists(),
        "A variable in pieces becomes one of a subclass that saves slices.",
        (feature_names.KERAS_IN_PIECES,),
        ON_OBJECTS,
        _VERSIONS,
    ),
)


def value_of(variable: Any) -> Any:
    """Return TensorFlow's variable inside a variable of Keras 3; any other object unchanged."""
    cls = getattr(sys.modules.get(_MODULE), "Variable", None)
    if cls is None or not isinstance(variable, cls):
        return variable
    return variable._value  # (`value` casts, where Keras's scopes say so.)


def is_loaded() -> bool:
    """Return whether there can be variables of Keras 3."""
    return _MODULE in sys.modules


def known_of(objects: Sequence[Any]) -> Iterator[tuple[str, bool, Any]]:
    """Find the variables of Keras 3: the path of each, if it is trained, and what is inside."""
    cls = getattr(sys.modules.get(_MODULE), "Variable", None)
    if cls is not None:
        for one in instances(objects, cls):
            yield one.path, one.trainable, one._value


def instances(objects: Sequence[Any], cls: type) -> Iterator[Any]:
    """Find the instances of a class among hundreds of thousands of objects."""
    # (`isinstance` would ask proxies for their class, and each object takes a lookup only.)
    kinds = {id(type(one)): type(one) for one in objects}
    wanted = {key for key, kind in kinds.items() if issubclass(kind, cls)}
    return (one for one in objects if id(type(one)) in wanted)


def set_value(variable: Any, value: Any) -> None:
    """Let a variable of Keras 3 hold another variable of TensorFlow, or a tensor of a graph."""
    variable._value = value


def inner(variable: Any) -> Any:
    """Return what a Keras variable of any backend holds; any other object unchanged."""
    return getattr(variable, "_value", variable)


def shape_of(owner: Any) -> tuple[int, ...] | None:
    """Return the shape that a variable has noted; None if it has none yet."""
    shape = getattr(owner, "_shape", None)
    return tuple(shape) if isinstance(shape, (list, tuple)) else None


def save_as(variable: Any, saveables: Callable[[Any], Any]) -> None:
    """Make a variable one of a subclass that says what a checkpoint has of it.

    Args:
      variable: of Keras 3.
      saveables: gets the variable; the same function for all of a class.
    """
    cls = type(variable)
    if _SAVEABLES not in vars(cls):
        # (If two threads create a class at once, either one will do.)
        made = type(cls.__name__, (cls,), {_SAVEABLES: lambda self: saveables(self)})
        variable.__class__ = _saving_classes.setdefault(cls, made)


def initial_shape(initial_value: Any) -> tuple[int, ...] | None:
    """Return the shape of a variable of Keras 3, which TensorFlow does not get.

    Args:
      initial_value: what Keras gives to TensorFlow: a function that returns the value.

    Returns:
      The shape; None for a function that is not Keras's.
    """
    if not (getattr(initial_value, "__module__", None) or "").startswith("keras."):
        return None
    return shape_of(enclosed(initial_value).get("self"))


def enclosed(function: Any) -> dict[str, Any]:
    """Return what a function of Keras refers to, by name."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = zip(names, getattr(function, "__closure__", None) or (), strict=False)
    return {name: cell.cell_contents for name, cell in cells}
