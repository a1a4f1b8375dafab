# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Count what neighbours send each other within an operation whose height or width is split.

Rows are exchanged first. The columns after them are those of the rows that a device needs, so that
corners come with them and nobody needs a diagonal neighbour.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tf_fuse.layout.operators.halo import parts_of
from tf_fuse.layout.operators.rule import Halo


@dataclasses.dataclass(frozen=True)
class InnerHalo:
    """An exchange of rows between neighbours within an operation.

    Attributes:
      axes: whose devices form the groups; neighbours follow one another in a group.
      borders: for each place in a group, (rows that it needs of the device before it, rows that it
        needs of the one after it).
      received_bytes: by all devices together.
      awaited_bytes: by the device that receives the most.
      messages: that it receives.
      joined_bytes: of its rows, with those that it received.
    """

    axes: tuple[str, ...]
    borders: tuple[tuple[int, int], ...]
    received_bytes: int
    awaited_bytes: int
    messages: int
    joined_bytes: int

    def __str__(self) -> str:
        return f"halo exchange of {self.received_bytes} bytes over {'+'.join(self.axes)}"


def inner_halos(
    halo: Halo, axes: Mapping[str, tuple[str, ...]], counts: Mapping[str, int], pixel_bytes: int,
    devices: int,
) -> list[InnerHalo] | None:  # fmt: skip
    """Return the exchanges of an image, of its rows and then of its columns.

    Args:
      halo: of the image.
      axes: that split a factor, by its name.
      counts: into how many parts they do.
      pixel_bytes: of a device's part of a pixel of all images.
      devices: of the mesh.

    Returns:
      None if a device would need more than its two neighbours have.
    """
    sides = [
        parts_of(windows, halo.need, counts.get(factor, 1))
        for factor, windows in zip(halo.factors, halo.windows, strict=True)
    ]
    rows, columns = sides
    if rows is None or columns is None:
        return None
    found = []
    for at, mine in enumerate((rows, columns)):
        if not any(one.before or one.after for one in mine):
            continue
        if at == 0:
            across = [one.own_end - one.own_begin for one in columns]
        else:
            across = [one.end - one.begin for one in rows]
        moved = [one.before + one.after for one in mine]
        longest = max(one.own_end - one.own_begin + n for one, n in zip(mine, moved, strict=True))
        groups = devices // (len(rows) * len(columns))
        found.append(
            InnerHalo(
                axes[halo.factors[at]],
                tuple((one.before, one.after) for one in mine),
                pixel_bytes * sum(moved) * sum(across) * groups,
                pixel_bytes * max(moved) * max(across),
                max((one.before > 0) + (one.after > 0) for one in mine),
                pixel_bytes * longest * max(across),
            )
        )
    return found
