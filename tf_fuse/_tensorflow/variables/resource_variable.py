# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Extend `BaseResourceVariable`, so that it asks us before it gives out its handle."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tf_fuse._tensorflow import feature_names, monkey_patch
from tf_fuse._tensorflow.members import (
    AT_FIRST_USE,
    ON_OBJECTS,
    Absent,
    Exists,
    Member,
    Stored,
    Takes,
)

_MODULE = "tensorflow.python.ops.resource_variable_ops"
_CLASS = f"{_MODULE}:BaseResourceVariable"
_HANDLE = Member(
    _CLASS,
    "_handle",
    Absent(),
    "A variable whose value is in parts puts it together before it gives out its handle.",
    (feature_names.WEIGHT_UPDATES,),
    AT_FIRST_USE,
)
_LAID_OUT = (feature_names.LAYOUT,)
_OVERRIDDEN = "A variable in slices on devices has it in another way."
MEMBERS = (
    _HANDLE,
    Member(
        "tensorflow.python.framework.ops:EagerTensor",
        "_handle_data",
        Exists(),
        "is the shape and type of the value that a handle refers to",
        (feature_names.HANDLE_PACKING, feature_names.WEIGHT_UPDATES),
        ON_OBJECTS,
    ),
    Member(
        f"{_MODULE}:ResourceVariable",
        "__class__",
        Exists(),
        "A variable that is laid out becomes one of a subclass, until it is released.",
        _LAID_OUT,
        ON_OBJECTS,
    ),
    Member(_CLASS, "_unique_id", Stored(), "identifies a variable", (feature_names.PLACEMENT,)),
    *(
        Member(_CLASS, name, Takes("self", *parameters), _OVERRIDDEN, _LAID_OUT, ON_OBJECTS)
        for name, *parameters in (
            ("_read_variable_op", "no_copy"),
            ("sparse_read", "indices", "name"),
            ("assign", "value", "use_locking", "name", "read_value"),
            ("assign_add", "delta", "use_locking", "name", "read_value"),
            ("assign_sub", "delta", "use_locking", "name", "read_value"),
            ("gather_nd", "indices", "name"),
            ("is_initialized", "name"),
            ("_serialize_to_tensors",),
            ("_restore_from_tensors", "restored_tensors"),
        )
    ),
    Member(
        _MODULE,
        "eager_safe_variable_handle",
        Takes("initial_value", "shape", "shared_name", "name", "graph_mode"),
        "to make a handle for a value that was put together",
        _LAID_OUT,
    ),
    Member(
        _MODULE,
        "variable_accessed",
        Takes("variable"),
        "to tell tapes that a variable was read",
        _LAID_OUT,
    ),
)


class _Handle:
    """`_handle` of TensorFlow's variables, which its C++ code reads as well."""

    def __init__(self, give: Callable[[Any], Any]):
        self._give = give

    def __get__(self, variable: Any, owner: Any = None) -> Any:
        if variable is None:
            return self
        try:
            handle = variable.__dict__["_handle"]
        except KeyError:
            raise AttributeError(
                f"{type(variable).__name__!r} object has no attribute '_handle'"
            ) from None
        return self._give(handle)

    def __set__(self, variable: Any, handle: Any) -> None:
        variable.__dict__["_handle"] = handle

    def __delete__(self, variable: Any) -> None:
        variable.__dict__.pop("_handle", None)


def watch_handles(give: Callable[[Any], Any]) -> None:
    """Make variables ask before they give out their handles, once per process.

    Args:
      give: gets a handle, and returns what to give out.
    """
    if not monkey_patch.is_replaced(_HANDLE):
        monkey_patch.replace(_HANDLE, _Handle(give))


def own_handle(variable: Any) -> Any:
    """Return the handle of a variable without asking; None for other objects."""
    return getattr(variable, "__dict__", {}).get("_handle")


def handle_data(handle: Any) -> Any:
    """Return what TensorFlow knows of the value that a handle refers to; None if nothing."""
    return getattr(handle, "_handle_data", None)


def set_handle_data(handle: Any, data: Any) -> None:
    """Note on a handle what the value is that it refers to."""
    handle._handle_data = data


def unique_id(variable: Any) -> str:
    """Return what a variable is found by, whatever it is wrapped in; "" for other objects."""
    return str(getattr(variable, "_unique_id", ""))


def set_class(variable: Any, cls: type) -> None:
    """Make a variable one of another class, which has the same attributes."""
    variable.__class__ = cls


@contextlib.contextmanager
def named_devices(variables: Sequence[Any], devices: Sequence[str]) -> Iterator[None]:
    """Let each variable name another device as its own, for programs that ask for it."""
    classes = [type(variable) for variable in variables]
    for variable, kind, device in zip(variables, classes, devices, strict=True):
        variable.__class__ = _with_device(kind, device)
    try:
        yield
    finally:
        for own, variable in zip(classes, variables, strict=True):
            variable.__class__ = own


def _with_device(kind: type, device: str) -> type:
    return type(kind.__name__, (kind,), {"device": property(lambda _: device)})
