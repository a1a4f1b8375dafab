# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Compute which rows of its neighbours a device needs where the rows of an image are split.

Each device has an equal part of the image's rows, and an equal part of the windows over them. Its
own windows cover rows of its neighbours, and windows of its neighbours cover its own rows. What it
needs of the neighbours is its *halo*. Columns are rows here, too.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Final, NamedTuple

# What a device needs along a dimension: the rows that its own windows cover; the windows that cover
# its own rows; the rows that those windows cover.
ROWS: Final = "rows"
WINDOWS: Final = "windows"
AROUND: Final = "rows around"


@dataclasses.dataclass(frozen=True)
class Windows:
    """The windows of a convolution or pooling along one dimension.

    Attributes:
      rows: of the image.
      count: of windows.
      length: rows from the first to the last one of a window.
      stride: rows from one window to the next.
      padding: rows before the image at which the first window begins.
    """

    rows: int
    count: int
    length: int
    stride: int
    padding: int

    def covered(self, first: int, last: int) -> tuple[int, int]:
        """Return (begin, end) of the rows of windows from one to before another; with padding."""
        begin = first * self.stride - self.padding
        return begin, (last - 1) * self.stride - self.padding + self.length

    def touching(self, begin: int, end: int) -> tuple[int, int]:
        """Return (first, one after the last) of the windows that cover any of some rows."""
        first = (begin + self.padding - self.length) // self.stride + 1
        last = -(-(end + self.padding) // self.stride)
        return max(0, first), min(self.count, last)


class Part(NamedTuple):
    """One device's part of a dimension.

    Attributes:
      own_begin: where what it has begins.
      own_end: where that ends.
      begin: where what it needs begins.
      end: where that ends.
    """

    own_begin: int
    own_end: int
    begin: int
    end: int

    @property
    def before(self) -> int:
        """Rows that it needs of the device before it."""
        return max(0, self.own_begin - self.begin)

    @property
    def after(self) -> int:
        """Rows that it needs of the device after it."""
        return max(0, self.end - self.own_end)


@functools.lru_cache(maxsize=4096)
def parts_of(windows: Windows, need: str, count: int) -> tuple[Part, ...] | None:
    """Return all parts of a dimension.

    Args:
      windows: over the image.
      need: `ROWS` or `AROUND`, of rows; `WINDOWS`, of windows.
      count: of the parts; of one, all is needed.

    Returns:
      None if a device needs more than its two neighbours have, or nothing.
    """
    size = windows.count if need == WINDOWS else windows.rows
    if count == 1:
        return (Part(0, size, 0, size),)
    rows, own_windows = windows.rows // count, windows.count // count
    own = size // count
    found = []
    for i in range(count):
        first, last = i * own_windows, (i + 1) * own_windows
        if need != ROWS:
            first, last = windows.touching(i * rows, (i + 1) * rows)
        if last <= first:
            return None
        begin, end = first, last
        if need != WINDOWS:
            begin, end = windows.covered(first, last)
            begin, end = max(0, begin), min(size, end)
        part = Part(i * own, (i + 1) * own, begin, end)
        if end <= begin or part.before > own or part.after > own:
            return None
        found.append(part)
    return tuple(found)
