# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the limits of a search, and its answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tf_fuse.layout.optimize.methods import pareto
from tf_fuse.layout.optimize.methods.order import MAX_TABLE_ENTRIES
from tf_fuse.layout.types.errors import LayoutError

# Methods.
ELIMINATION = "elimination"
FRONTIERS = "elimination with frontiers"
PRICES = "elimination with prices"
PROGRAM = "integer program"
MESSAGES = "messages"
NEIGHBOURHOODS = "neighbourhoods"
KNOWN = "known before"

# See `Limits.max_program_columns`.
OF_CORE = 10
LAST_COLUMNS = 500_000


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a search.

    All but the first are counts, so that the result depends on the problem alone.

    Attributes:
      time_limit_seconds: after which the search ends with the best choice that it has; looked at
        between steps. None for no such limit. With one, what is found depends on how fast the
        machine is; a longer one never gives a dearer choice.
      max_table_entries: of an elimination's largest table; an integer program beyond.
      max_frontier_entries: likewise, of a table with frontiers.
      max_program_columns: of an integer program with a limit of memory. One without is easy, and
        may have ten times as many; where no choice that fits is known otherwise, 500,000.
      max_program_nodes: of an integer program's branch and bound.
    """

    time_limit_seconds: float | None = None
    max_table_entries: int = MAX_TABLE_ENTRIES
    max_frontier_entries: int = pareto.MAX_ENTRIES
    max_program_columns: int = 50_000
    max_program_nodes: int = 100

    def __post_init__(self) -> None:
        """Check all.

        Raises:
          LayoutError: a number is not above 0.
        """
        for name, value in dataclasses.asdict(self).items():
            if value is None and name == "time_limit_seconds":
                continue
            if value is None or not value > 0:
                raise LayoutError(f"{name} is above 0, got {value!r}")


class Deadline:
    """The end of a search, by its time limit."""

    def __init__(self, seconds: float | None, clock: Callable[[], float]):
        """Begin now.

        Args:
          seconds: the time limit; None for none.
          clock: seconds.
        """
        self._clock = clock
        self._end = None if seconds is None else clock() + seconds

    def left(self) -> float | None:
        """Return the seconds left; None without a time limit."""
        return None if self._end is None else max(0.0, self._end - self._clock())

    def is_over(self) -> bool:
        """Return whether no time is left."""
        return self.left() == 0.0


@dataclasses.dataclass(frozen=True)
class Solution:
    """An answer.

    Attributes:
      choice: strategies by number of the operation; by the numbers of the tables that were solved.
      cost: picoseconds.
      bound: no choice that fits costs less; picoseconds. Equal to `cost` where that is proven.
      peak: bytes of a device at the worst time point.
      method: "elimination", "elimination with frontiers", "elimination with prices", "integer
        program", "messages", "neighbourhoods"; or "known before", of a choice that the caller gave.
      computed: eliminations that were computed.
      reused: eliminations whose result was known from an equal one, as of a repeated layer.
      notes: why a method before it did not do.
    """

    choice: tuple[int, ...]
    cost: int
    bound: int
    peak: int
    method: str
    computed: int = 0
    reused: int = 0
    notes: tuple[str, ...] = ()

    @property
    def gap(self) -> int:
        """How many picoseconds the best choice may be cheaper at most."""
        return self.cost - self.bound
