# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Replace members of TensorFlow and Keras, remember the originals, and put them back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tf_fuse._tensorflow.members import ABSENT, Member


@dataclass(frozen=True)
class Replacement:
    """A member that is replaced.

    Attributes:
      member: its description.
      owner: the class, module or object that has it.
      original: what `vars(owner)` had; `ABSENT` if nothing.
      item: that was appended to the original, which is a list; `ABSENT` if it is another member.
    """

    member: Member
    owner: Any
    original: Any
    item: Any = ABSENT

    def is_undone(self) -> bool:
        """Return whether the owner has the original."""
        found = vars(self.owner).get(self.member.name, ABSENT)
        is_clean = self.item is ABSENT or self.item not in self.original
        return found is self.original and is_clean

    def undo(self) -> None:
        """Give the owner the original."""
        if self.item is not ABSENT and self.item in self.original:
            self.original.remove(self.item)
        if self.is_undone():
            return
        if self.original is ABSENT:
            delattr(self.owner, self.member.name)
        else:
            setattr(self.owner, self.member.name, self.original)


_lock = threading.RLock()
# By id of the owner and name: a class may compare by value.
_replaced: dict[tuple[int, str], Replacement] = {}
_is_uninstalled = False


def is_uninstalled() -> bool:
    """Return whether `uninstall` has been called: nothing is replaced any more."""
    return _is_uninstalled


def replacements() -> list[Replacement]:
    """Return all members that were replaced, also after `uninstall`."""
    with _lock:
        return list(_replaced.values())


def is_replaced(member: Member) -> bool:
    """Return whether a member is replaced."""
    return (id(member.resolve()), member.name) in _replaced


def problem(member: Member) -> str | None:
    """Return what differs from the shape that is relied on, in the original; or None."""
    try:
        found = _replaced.get((id(member.resolve()), member.name))
    except (AttributeError, ImportError):
        found = None
    return member.problem() if found is None else member.problem(found.original)


def replace(member: Member, new: Any, owner: Any = None) -> None:
    """Replace a member; the first original is remembered. Nothing after `uninstall`.

    Args:
      member: to replace.
      new: the value.
      owner: an object, for a member of that object alone; None for the member's class or module.
    """
    with _lock:
        if _is_uninstalled:
            return
        owner = member.resolve() if owner is None else owner
        key = id(owner), member.name
        if key not in _replaced:
            _replaced[key] = Replacement(member, owner, vars(owner).get(member.name, ABSENT))
        setattr(owner, member.name, new)


def append(member: Member, item: Any) -> None:
    """Append an item to a list, once per process; `uninstall` takes it out again."""
    with _lock:
        if _is_uninstalled:
            return
        owner = member.resolve()
        items = getattr(owner, member.name)
        if is_replaced(member):
            return
        items.append(item)
        _replaced[id(owner), member.name] = Replacement(member, owner, items, item)


def uninstall() -> None:
    """Put all originals back; nothing is replaced afterwards."""
    global _is_uninstalled
    with _lock:
        _is_uninstalled = True
        for found in reversed(_replaced.values()):
            found.undo()


def extend(member: Member, method: Callable[..., Any]) -> Any:
    """Replace a function by one that gives the present function to another one.

    Args:
      member: the function, or a method of a class.
      method: gets the present function, and then what that gets.

    Returns:
      The new function.
    """
    stock = getattr(member.resolve(), member.name)

    def extended(*args: Any, **kwargs: Any) -> Any:
        return method(stock, *args, **kwargs)

    extended.__doc__ = stock.__doc__
    extended.__name__ = member.name
    extended.__wrapped__ = stock  # type: ignore[attr-defined]
    replace(member, extended)
    return extended


def extend_init(member: Member, see: Callable[[Any], None]) -> None:
    """Replace the `__init__` of a class by one that also calls a function, once per process.

    Args:
      member: the `__init__`.
      see: gets each object when it has been made.
    """
    if is_replaced(member):
        return
    stock = member.resolve().__init__

    def init(self: Any, *args: Any, **more: Any) -> None:
        stock(self, *args, **more)
        see(self)

    init.__doc__ = stock.__doc__
    init.__wrapped__ = stock  # type: ignore[attr-defined]
    replace(member, init)
