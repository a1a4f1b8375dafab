# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The best of all choices, one after the other: what searches are compared with."""

from __future__ import annotations

import itertools
import math

from tf_fuse.layout.errors import LayoutError
from tf_fuse.layout.optimize.tables import INFINITE, Tables

MAX_CHOICES = 2_000_000


def best(tables: Tables) -> tuple[int, int, tuple[int, ...]] | None:
    """The cheapest choice within the limit, of equal ones that with the lowest peak.

    Returns:
      (picoseconds, bytes at the peak, strategies); None if no choice fits.

    Raises:
      LayoutError: there are more choices than `MAX_CHOICES`.
    """
    found = [
        (tables.cost_of(choice), tables.peak_of(choice), choice)
        for choice in _choices(tables)
        if tables.fits(choice)
    ]
    return min(found, default=None)


def least_memory(tables: Tables) -> int | None:
    """The lowest peak of all choices that can be; None if none can.

    Raises:
      LayoutError: as of `best`.
    """
    return min(
        (
            tables.peak_of(choice)
            for choice in _choices(tables)
            if tables.cost_of(choice) < INFINITE
        ),
        default=None,
    )


def count(tables: Tables) -> int:
    """Number of choices."""
    return math.prod(tables.sizes)


def _choices(tables: Tables) -> itertools.product:
    if count(tables) > MAX_CHOICES:
        raise LayoutError(
            f"there are {count(tables)} choices, and brute force takes {MAX_CHOICES} at most; "
            "take a smaller problem, or search"
        )
    return itertools.product(*map(range, tables.sizes))
