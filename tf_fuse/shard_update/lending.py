# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gives out the handles of variables that may be in parts; see `state.py`."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tf_fuse.shard_update.named import aside

if TYPE_CHECKING:
    from tf_fuse.shard_update.state import State

# By id of a handle whose variable may be in parts, what knows it. Looked at whenever a handle is
# used.
states: dict[int, State] = {}
# Copies of them that are on loan, by their ids.
_copies: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def copy_of(handle: Any) -> Any:
    """Another handle of the same variable."""
    from tensorflow.python.ops import gen_array_ops

    with aside(handle.device):
        copy = gen_array_ops.identity(handle)
    copy._handle_data = handle._handle_data
    copy._tf_fuse_copy_of = handle
    _copies[id(copy)] = copy
    return copy


def use(handle: Any, who: str = "") -> Any:
    """Sees to it that a variable has its value before its handle is given out.

    Args:
      handle: of the variable.
      who: as of `State.whole`.

    Returns:
      What to give out.
    """
    from tensorflow.python.eager import context

    state = states.get(id(handle))
    # A graph that is being made is not run yet; when it is, the handle is among its inputs.
    if state is None or not context.executing_eagerly():
        return handle
    return state.lend(handle, who)


def using(
    tensors: Iterable[Any], who: str, is_short: Callable[[], bool]
) -> contextlib.AbstractContextManager[Any]:
    """For a function that gets tensors: variables whose handles they are have their values in it.

    Args:
      tensors: that the function gets.
      who: as of `State.whole`.
      is_short: as of `State.using`; asked where it matters.
    """
    found: dict[State, list[Any]] = {}
    for tensor in tensors:
        if (state := states.get(id(tensor))) is not None:
            found.setdefault(state, []).append(tensor)
    if not found:
        return contextlib.nullcontext()
    with contextlib.ExitStack() as stack:
        for state, handles in found.items():
            stack.enter_context(state.using(handles, who, is_short()))
        return stack.pop_all()


def originals(tensors: Sequence[Any]) -> Sequence[Any]:
    """Tensors, with the handles that copies on loan are of."""
    if not _copies:
        return tensors
    return [getattr(tensor, "_tf_fuse_copy_of", tensor) for tensor in tensors]


def is_cut(handle: Any) -> bool:
    """Whether a variable may be in parts, given its own handle."""
    return id(handle) in states


def is_any_cut() -> bool:
    """Whether any variable may be in parts."""
    return bool(states)


class _Handle:
    """`_handle` of TensorFlow's variables, which its C++ code reads as well."""

    def __get__(self, variable: Any, owner: Any = None) -> Any:
        if variable is None:
            return self
        try:
            handle = variable.__dict__["_handle"]
        except KeyError:
            raise AttributeError(
                f"{type(variable).__name__!r} object has no attribute '_handle'"
            ) from None
        return use(handle) if states else handle

    def __set__(self, variable: Any, handle: Any) -> None:
        variable.__dict__["_handle"] = handle

    def __delete__(self, variable: Any) -> None:
        variable.__dict__.pop("_handle", None)


def watch_handles() -> None:
    """Has variables ask `use` before they give out their handles; once per process."""
    from tensorflow.python.ops import resource_variable_ops

    cls = resource_variable_ops.BaseResourceVariable
    if not isinstance(cls.__dict__.get("_handle"), _Handle):
        cls._handle = _Handle()
