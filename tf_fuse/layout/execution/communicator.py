# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the devices of a mesh tell each other, in the graph of a `tf.function`.

Where all members of a group are in this process, they read each other's tensors: the runtime brings
them over. An all-reduce is then a sum on the group's first device, in the order of the members, and
what it made is read by the others: (p - 1) V there and (p - 1) V back, as many bytes as the ring
has, and the same bits on all devices in each run. Between processes TensorFlow's collectives are
used.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tf_fuse.layout.execution.devices import Devices
from tf_fuse.layout.execution.rings import Rings

# By number of a device of this process, what it holds: a tensor, or several.
Held = Mapping[int, Any]

_REDUCE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "max": tf.maximum,
    "min": tf.minimum,
    "prod": tf.multiply,
    "sum": tf.add,
}
_LOGICAL: Final = {"max": tf.logical_or, "min": tf.logical_and}


class Communicator:
    """Between the devices of a mesh. All processes have to call the same in the same order."""

    def __init__(self, devices: Devices, rings: Rings | None):
        """Keeps them.

        Args:
          devices: of the mesh.
          rings: collectives between processes; None where there is one process.
        """
        self.devices = devices
        self._rings = rings

    def members(self, axes: Sequence[str]) -> int:
        """Number of devices in a group over some axes."""
        return functools.reduce(lambda n, axis: n * self.devices.mesh.size_of(axis), axes, 1)

    def place(self, device: int, axes: Sequence[str]) -> int:
        """Which member of its group a device is."""
        mesh = self.devices.mesh
        at = dict(zip(mesh.axes, mesh.coordinates(device), strict=True))
        return functools.reduce(lambda n, axis: n * mesh.size_of(axis) + at[axis], axes, 0)

    def each(self, held: Held, function: Callable[[int, Any], Any]) -> dict[int, Any]:
        """What each device of this process makes of what it holds, on that device."""
        found = {}
        for device, one in held.items():
            with tf.device(self.devices.names[device]):
                found[device] = function(device, one)
        return found

    def of_first(self, value: Any) -> Any:
        """A value of the process that has the first device; in one process the value."""
        return value if self._rings is None else self._rings.of_first(value)

    def all_reduce(self, held: Held, axes: Sequence[str], reduction: str) -> dict[int, Any]:
        """The sum of what the devices of each group hold, or another reduction of it."""
        found = {}
        for group in self._groups(axes):
            if len(group) == 1:
                made = {group[0]: held[group[0]]}
            elif self._is_here(group):
                made = self._reduce_here(group, held, reduction)
            else:
                made = self._ring().all_reduce(group, self._own(group, held), reduction)
            found.update(made)
        return found

    def all_gather(self, held: Held, axes: Sequence[str]) -> dict[int, list[Any]]:
        """What the members of a device's group hold, in their order."""
        found: dict[int, list[Any]] = {}
        for group in self._groups(axes):
            if self._is_here(group):
                found.update({device: [held[one] for one in group] for device in group})
            else:
                found.update(self._ring().all_gather(group, self._own(group, held)))
        return found

    def exchange(self, held: Held, axes: Sequence[str]) -> dict[int, list[Any]]:
        """What the members of a device's group have for it, in their order.

        Args:
          held: a tensor for each member of the device's group, all of one shape.
          axes: whose devices form the groups.
        """
        found: dict[int, list[Any]] = {}
        for group in self._groups(axes):
            if self._is_here(group):
                found.update({
                    device: [held[one][i] for one in group] for i, device in enumerate(group)
                })  # fmt: skip
            else:
                found.update(self._ring().all_to_all(group, self._own(group, held)))
        return found

    def _reduce_here(self, group: Sequence[int], held: Held, reduction: str) -> dict[int, Any]:
        with tf.device(self.devices.names[group[0]]):
            terms = [held[one] for one in group]
            if reduction == "sum":
                made = tf.add_n(terms)
            else:
                by_type = _LOGICAL if terms[0].dtype == tf.bool else _REDUCE
                made = functools.reduce(by_type[reduction], terms)
        # A relay on each device, so that what it made is brought there once for all readers.
        return self.each(dict.fromkeys(group, made), lambda _, one: tf.identity(one))

    def _groups(self, axes: Sequence[str]) -> list[list[int]]:
        """The groups with a device of this process."""
        mine = set(self.devices.local)
        return [one for one in self.devices.mesh.groups(axes) if not mine.isdisjoint(one)]

    def _is_here(self, group: Sequence[int]) -> bool:
        return all(one in self.devices.names for one in group)

    def _own(self, group: Sequence[int], held: Held) -> dict[int, Any]:
        return {one: held[one] for one in group if one in self.devices.names}

    def _ring(self) -> Rings:
        assert self._rings is not None
        return self._rings
