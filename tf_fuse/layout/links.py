# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What messages and bytes cost along the axes of a mesh."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from tf_fuse.layout.errors import LayoutError, raise_if
from tf_fuse.layout.mesh import Mesh, unknown_axes


@dataclasses.dataclass(frozen=True)
class Link:
    """What connects the devices along one axis of a mesh (the alpha-beta model).

    Attributes:
      seconds_per_message: alpha, for one message, however short.
      seconds_per_byte: beta, for each byte that a device receives.
    """

    seconds_per_message: float
    seconds_per_byte: float

    def __post_init__(self) -> None:
        """Checks both.

        Raises:
          LayoutError: one is negative, or no finite number.
        """
        raise_if([
            f"{name} is a finite number, 0 or more, got {value!r}"
            for name, value in dataclasses.asdict(self).items()
            if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0)
        ])  # fmt: skip

    def seconds(self, received_bytes: float, messages: int) -> float:
        """Time for what one device receives."""
        return self.seconds_per_message * messages + self.seconds_per_byte * received_bytes


def slowest(links: Iterable[Link]) -> Link:
    """The link of a group over several axes: each term is the worst one's."""
    found = list(links)
    if len(found) == 1:
        return found[0]
    both = [(one.seconds_per_message, one.seconds_per_byte) for one in found]
    return Link(max(one for one, _ in both), max(one for _, one in both))


def of_mesh(mesh: Mesh, links: Mapping[str, Link]) -> tuple[Link, ...]:
    """The links in the order of the mesh's axes.

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
