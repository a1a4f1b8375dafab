# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which batches of its dataset a worker has used: calls of one worker may end in any order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Used:
    """Numbers of batches.

    Attributes:
      first: all batches before that number are used.
      others: used, too, after that number.
    """

    def __init__(self, first: int = 0, others: Iterable[int] = ()):
        self.first = first
        self.others = set(others)

    def __len__(self) -> int:
        return self.first + len(self.others)

    def add(self, numbers: Sequence[int]) -> None:
        """Add the batches that a call has used."""
        self.others.update(one for one in numbers if one >= self.first)
        while self.first in self.others:
            self.others.remove(self.first)
            self.first += 1

    def copy(self) -> Used:
        """Return a copy."""
        return Used(self.first, self.others)
