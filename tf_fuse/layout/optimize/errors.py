# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the errors of a search that finds no plan."""

from __future__ import annotations

from tf_fuse.layout.types.errors import LayoutError


class NoChoiceError(LayoutError):
    """No choice of strategies can be: not all tensors can be laid out as they are needed."""


class MemoryLimitError(LayoutError):
    """No choice fits.

    Attributes:
      least_bytes: the least memory of a device that any choice needs.
      limit_bytes: what it has.
      proven: False if `least_bytes` is only a bound: no choice needs less.
    """

    def __init__(self, least_bytes: int, limit_bytes: int, proven: bool = True, holders: str = ""):
        """Take both numbers.

        Args:
          least_bytes: the least memory of a device that any choice needs.
          limit_bytes: the memory limit.
          proven: whether a choice with `least_bytes` is known.
          holders: who holds the most in it, for the text.
        """
        self.least_bytes = least_bytes
        self.limit_bytes = limit_bytes
        self.proven = proven
        super().__init__(
            f"no plan fits into memory_limit_bytes={limit_bytes:,}: the least that any plan "
            f"needs is {'' if proven else 'at least '}{least_bytes:,} bytes per device, "
            f"{least_bytes - limit_bytes:,} more{holders}; raise the limit, use more devices, or "
            "offer strategies that split more"
        )


class SearchLimitError(LayoutError):
    """The search came to its limits before it found a choice that fits."""
