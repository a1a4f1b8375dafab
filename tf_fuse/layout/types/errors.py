# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the error for layouts that are not possible."""

from __future__ import annotations

from collections.abc import Sequence


class LayoutError(ValueError):
    """A layout, or a conversion of one, that cannot be.

    Attributes:
      problems: one sentence for each thing that is wrong, with what to change; sorted.
    """

    def __init__(self, problems: str | Sequence[str]):
        """Take one problem, or all that were found."""
        found = [problems] if isinstance(problems, str) else sorted(problems)
        self.problems = tuple(found)
        super().__init__(found[0] if len(found) == 1 else "\n".join(f"- {one}" for one in found))


def raise_if(problems: Sequence[str]) -> None:
    """Raise one error for all problems, if there are any."""
    if problems:
        raise LayoutError(problems)
