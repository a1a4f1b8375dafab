# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define what messages and bytes cost in the groups of a mesh's devices.

Links are given for each axis of the mesh, or by `Hosts`: then they follow from where the devices of
a group are. All groups over the same axes communicate at the same time. If they cross the border of
a host, they share its network card:

* An all-gather, reduce-scatter or all-reduce is a ring, which visits the devices of one host one
  after another, so it enters each host once. Its slowest link sets its pace. With r rings through
  one card, each has 1/r of the card.
* In an all-to-all each device receives an equal block from every other one, so the card carries
  what all devices of its host receive from other hosts.

For example, rows are hosts and columns their devices: a ring over the rows has 1/columns of a card,
one over both axes has a card alone.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.mesh import Mesh, problem_of_size, unknown_axes

# Meshes have few axes, and a search few meshes.
_KEPT_GROUPS = 4096


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


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Where the devices of a mesh are, and what connects them.

    Devices 0 to `devices_per_host` - 1 of the mesh are on the first host, and so on.

    Attributes:
      devices_per_host: their number; the last host may have fewer.
      inside: the link between two devices of a host.
      between: the network card of a host, which all its devices share.
    """

    devices_per_host: int
    inside: Link
    between: Link

    def __post_init__(self) -> None:
        """Check them.

        Raises:
          LayoutError: the number is not whole or below 1, or a link is not a `Link`.
        """
        problems = [problem_of_size("devices_per_host", self.devices_per_host)]
        problems += [
            f"{name} is a Link, got {link!r}"
            for name, link in (("inside", self.inside), ("between", self.between))
            if not isinstance(link, Link)
        ]
        raise_if([one for one in problems if one])
        object.__setattr__(self, "devices_per_host", operator.index(self.devices_per_host))


Links = Mapping[str, Link] | Iterable[tuple[str, Link]] | Hosts
"""The link of each axis, or where the devices are."""


@dataclasses.dataclass(frozen=True)
class GroupLinks:
    """The links of all groups of a mesh's devices.

    Attributes:
      mesh: the devices.
      links: of each axis, in the mesh's order; or where the devices are.
    """

    mesh: Mesh
    links: tuple[Link, ...] | Hosts

    def of(self, axes: Sequence[int], exchange: bool = False) -> Link:
        """Return the link by which a device receives while all groups over some axes communicate.

        Args:
          axes: numbers of the axes; one or more.
          exchange: whether it is an all-to-all, and not a ring.
        """
        if isinstance(self.links, Hosts):
            return _on_hosts(self.mesh.shape, self.links, tuple(sorted(axes)), exchange)
        return slowest(self.links[axis] for axis in axes)


def slowest(links: Iterable[Link]) -> Link:
    """Return the link of a group over several axes: each term is the worst one's."""
    found = list(links)
    if len(found) == 1:
        return found[0]
    rates = zip(*map(dataclasses.astuple, found), strict=True)
    return Link(*map(max, rates))


@functools.lru_cache(maxsize=_KEPT_GROUPS)
def _on_hosts(shape: tuple[int, ...], hosts: Hosts, axes: tuple[int, ...], exchange: bool) -> Link:
    """Return the link of the groups over some axes, by which the busiest card carries."""
    mesh = Mesh([(f"axis{i}", size) for i, size in enumerate(shape)])
    groups = [
        Counter(device // hosts.devices_per_host for device in group)
        for group in mesh.groups([mesh.axes[axis] for axis in axes])
    ]
    others = math.prod(shape[axis] for axis in axes) - 1
    together = max(max(one.values()) for one in groups)
    if all(len(one) == 1 for one in groups):
        return hosts.inside
    carried: Counter[int] = Counter()
    for one in groups:
        for host, here in one.items():
            # Of what one device receives: in a ring one of them receives from another host, and in
            # an all-to-all each does, from all that are not here.
            if len(one) > 1:
                carried[host] += here * (others + 1 - here) if exchange else others
    shared = max(carried.values()) / others
    inside, between = hosts.inside, hosts.between
    card = dataclasses.replace(between, seconds_per_byte=between.seconds_per_byte * shared)
    if together == 1:
        return card
    if not exchange:
        return slowest([inside, card])
    messages = [
        (here - 1) * inside.seconds_per_message + (others + 1 - here) * between.seconds_per_message
        for one in groups
        for here in one.values()
    ]
    near = (together - 1) / others
    return dataclasses.replace(
        slowest([inside, card]),
        seconds_per_message=max(messages) / others,
        seconds_per_byte=max(near * inside.seconds_per_byte, card.seconds_per_byte),
    )


def of_mesh(mesh: Mesh, links: Links) -> GroupLinks:
    """Return the links of a mesh's groups.

    Raises:
      LayoutError: an axis has none, or a link is for none of the axes.
    """
    if isinstance(links, Hosts):
        return GroupLinks(mesh, links)
    by_axis = dict(links)
    problems = unknown_axes(by_axis, mesh, "link: ")
    missing = [axis for axis in mesh.axes if axis not in by_axis]
    if missing:
        problems.append(
            f"axes {', '.join(map(repr, missing))} of mesh {str(mesh)!r} have no link; give one "
            "for each axis, or none at all to count bytes first and messages second"
        )
    raise_if(problems)
    for axis, link in by_axis.items():
        if not isinstance(link, Link):
            raise LayoutError(f"the link of axis {axis!r} is a Link, got {link!r}")
    return GroupLinks(mesh, tuple(by_axis[axis] for axis in mesh.axes))
