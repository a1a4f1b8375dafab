# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Exchange axes of a mesh of the same size: which device receives what from which.

If axis y takes the place of axis x in a layout, a device needs what the device has whose coordinate
along x is its own along y. So each device sends its whole slice to one other, or keeps it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final

# On more axes only pairs change places in a step: there would be too many permutations.
_AXES_WITH_ALL: Final = 3


@functools.cache
def of_sizes(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the permutations of axes that keep sizes; the identity is left out.

    Args:
      sizes: of the mesh's axes.

    Returns:
      For each of them, by axis, the axis that takes its place.
    """
    axes = range(len(sizes))
    found = []
    if len(sizes) <= _AXES_WITH_ALL:
        found = list(itertools.permutations(axes))[1:]
    else:
        for one, other in itertools.combinations(axes, 2):
            found.append(tuple({one: other, other: one}.get(axis, axis) for axis in axes))
    return tuple(
        one
        for one in found
        if all(a == b or sizes[a] == sizes[b] > 1 for a, b in zip(axes, one, strict=True))
    )


def between(
    before: Sequence[tuple[int, ...]], after: Sequence[tuple[int, ...]], axes: int
) -> tuple[int, ...]:
    """Return the permutation that leads from splits to others, and moves the fewest slices.

    Args:
      before: for each dimension the axes that split it.
      after: as many axes of the same sizes in each dimension.
      axes: number of all axes.
    """
    found = {
        a: b for old, new in zip(before, after, strict=True) for a, b in zip(old, new, strict=True)
    }
    # An axis that splits nothing stays, or takes the place that the axes before it have left.
    back = {b: a for a, b in found.items()}
    for axis in range(axes):
        if axis not in found:
            first = axis
            while first in back:
                first = back[first]
            found[axis] = first
    return tuple(found[axis] for axis in range(axes))


def moved_devices(permutation: Sequence[int], sizes: Sequence[int]) -> int:
    """Return how many devices of a mesh receive another one's slice."""
    return math.prod(sizes) - math.prod(sizes[min(one)] for one in _cycles(permutation))


def sources(permutation: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Return, for each device, the one that it receives from; itself where nothing moves."""
    found = []
    for at in itertools.product(*map(range, sizes)):
        device = 0
        for axis, size in enumerate(sizes):
            device = device * size + at[permutation[axis]]
        found.append(device)
    return found


def cycles_of(receives_from: Mapping[int, int]) -> list[tuple[int, ...]]:
    """Return the devices that exchange slices with each other, ascending in each cycle."""
    order = sorted(receives_from)
    places = [order.index(receives_from[device]) for device in order]
    return [tuple(sorted(order[place] for place in one)) for one in _cycles(places) if len(one) > 1]


def _cycles(permutation: Sequence[int]) -> list[list[int]]:
    found: list[list[int]] = []
    seen: set[int] = set()
    for begin in range(len(permutation)):
        cycle = []
        at = begin
        while at not in seen:
            seen.add(at)
            cycle.append(at)
            at = permutation[at]
        if cycle:
            found.append(cycle)
    return found
