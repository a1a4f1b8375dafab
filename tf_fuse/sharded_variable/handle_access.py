# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make a variable whole before its handle is given out; see `state.py`."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from tf_fuse._tensorflow.variables import resource_variable
from tf_fuse.sharded_variable.named_variables import aside


class ShardKeeper(Protocol):
    """Who knows where the value of a variable is: `state.ShardGroups`."""

    def access(self, handle: Any, who: str = "") -> Any:
        """Return a handle of the whole variable, to be used by the program's own code."""

    def using(
        self, handles: Sequence[Any], who: str, is_short: bool
    ) -> contextlib.AbstractContextManager[Any]:
        """Keep variables whole while a function uses their handles."""


# By id of a handle whose variable may be sharded, its keeper. Looked at whenever a handle is used.
states: dict[int, ShardKeeper] = {}
# Copies of them that were given out, by their ids.
_copies: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def copy_of(handle: Any) -> Any:
    """Another handle of the same variable."""
    from tensorflow.python.ops import gen_array_ops

    with aside(handle.device):
        copy = gen_array_ops.identity(handle)
    resource_variable.set_handle_data(copy, resource_variable.handle_data(handle))
    copy._tf_fuse_copy_of = handle
    _copies[id(copy)] = copy
    return copy


def use(handle: Any, who: str = "") -> Any:
    """Make a variable whole before its handle is given out.

    Args:
      handle: of the variable.
      who: as of `ShardGroups.whole`.

    Returns:
      What to give out.
    """
    from tensorflow.python.eager import context

    state = states.get(id(handle))
    # A graph that is being made is not run yet; when it is, the handle is among its inputs.
    if state is None or not context.executing_eagerly():
        return handle
    return state.access(handle, who)


def using(
    tensors: Iterable[Any], who: str, is_short: Callable[[], bool]
) -> contextlib.AbstractContextManager[Any]:
    """For a function that gets tensors: variables whose handles they are have their values in it.

    Args:
      tensors: that the function gets.
      who: as of `ShardGroups.whole`.
      is_short: as of `ShardGroups.using`; asked where it matters.
    """
    found: dict[ShardKeeper, list[Any]] = {}
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
    """Tensors, with the own handle of a variable in place of each copy."""
    if not _copies:
        return tensors
    return [getattr(tensor, "_tf_fuse_copy_of", tensor) for tensor in tensors]


def is_sharded_here(handle: Any) -> bool:
    """Return whether a variable may be in shards, given its own handle."""
    return id(handle) in states


def is_any_sharded() -> bool:
    """Return whether any variable may be in shards."""
    return bool(states)


def watch_handles() -> None:
    """Make variables call `use` before they give out their handles; once per process."""
    resource_variable.watch_handles(lambda handle: use(handle) if states else handle)
