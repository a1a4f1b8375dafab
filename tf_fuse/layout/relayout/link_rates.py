# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define what messages and bytes cost along the axes of a mesh."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.mesh import Mesh, unknown_axes


@dataclasses.dataclass(frozen=True)
class Link:
    """The link between the devices along one axis of a mesh (the alpha-beta model).

    Attributes:
      seconds_per_message: alpha, for one message, however short.
      seconds_per_byte: beta, for each byte that a device receives.
      seconds_per_operation: for each operation that a device runs to cut what it sends and to put
        together what it received, however small.
      seconds_per_touched_byte: for each byte that these operations read or write.
    """

    seconds_per_message: float
    seconds_per_byte: float
    seconds_per_operation: float = 0.0
    seconds_per_touched_byte: float = 0.0

    def __post_init__(self) -> None:
        """Check them.

        Raises:
          LayoutError: one is negative, or no finite number.
        """
        raise_if([
            f"{name} is a finite number, 0 or more, got {value!r}"
            for name, value in dataclasses.asdict(self).items()
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0)
        ])  # fmt: skip

    def seconds(
        self,
        received_bytes: float,
        messages: int,
        operations: int = 0,
        touched_bytes: float = 0.0,
    ) -> float:
        """Return the seconds of what one device receives and does."""
        return (
            self.seconds_per_message * messages
            + self.seconds_per_byte * received_bytes
            + self.seconds_per_operation * operations
            + self.seconds_per_touched_byte * touched_bytes
        )


def slowest(links: Iterable[Link]) -> Link:
    """Return the link of a group over several axes: each term is the worst one's."""
    found = list(links)
    if len(found) == 1:
        return found[0]
    rates = zip(*map(dataclasses.astuple, found), strict=True)
    return Link(*map(max, rates))


def of_mesh(mesh: Mesh, links: Mapping[str, Link]) -> tuple[Link, ...]:
    """Return the links in the order of the mesh's axes.

    Raises:
      LayoutError: an axis has none, or a link is for none of the axes.
    """
    problems = unknown_axes(links, mesh, "link: ")
    missing = [axis for axis in mesh.axes if axis not in links]
    if missing:
        problems.append(
            f"axes {', '.join(map(repr, missing))} of mesh {str(mesh)!r} have no link; give one "
            "for each axis, or none at all to count bytes first and messages second"
        )
    raise_if(problems)
    for axis, link in links.items():
        if not isinstance(link, Link):
            raise LayoutError(f"the link of axis {axis!r} is a Link, got {link!r}")
    return tuple(links[axis] for axis in mesh.axes)
