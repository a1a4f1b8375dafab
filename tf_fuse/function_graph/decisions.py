# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Keep what a pass decided about each function, by the function's name."""

from __future__ import annotations

import itertools
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Decided(Generic[_T]):
    """What a pass decided about each function, as long as the function exists.

    Thread-safe without a lock: the garbage collector removes functions on any thread, and in the
    middle of anything.
    """

    def __init__(self) -> None:
        self._of: dict[str, dict[str, tuple[int, _T]]] = {}
        self._numbers = itertools.count()

    def add(self, function: str, decision: _T, rewritten: str = "") -> None:
        """Add what was decided about a function.

        Args:
          function: its name.
          decision: it takes the place of an earlier one about the same rewritten.
          rewritten: the name of the function to call instead, where there may be several.
        """
        self._of.setdefault(function, {})[rewritten] = next(self._numbers), decision

    def of(self, function: str) -> list[_T]:
        """Return what was decided about one function."""
        return [decision for _, decision in self._of.get(function, {}).copy().values()]

    def all(self) -> list[_T]:
        """Return what was decided, in that order."""
        # (A copy is made at once; what iterates may be interrupted by `forget`.)
        found = [one for of in self._of.copy().values() for one in of.copy().values()]
        return [decision for _, decision in sorted(found, key=lambda one: one[0])]

    def forget(self, function: str) -> None:
        """Drop what was decided about a function that is gone."""
        self._of.pop(function, None)
