# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Exchange tensors between the devices of a mesh, in the graph of a `tf.function`.

If all members of a group are in this process, they read each other's tensors, which the runtime
copies. An all-reduce is then a sum on the group's first device, in the members' order, that the
others read: (p - 1) V there and (p - 1) V back, as many bytes as a ring, and the same bits on all
devices in each run. Groups over several processes use TensorFlow's collectives.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tf_fuse.layout.execution.communication import neighbours
from tf_fuse.layout.execution.communication.carried_types import as_integers
from tf_fuse.layout.execution.communication.process_collectives import ProcessCollectives
from tf_fuse.layout.execution.communication.sums import total
from tf_fuse.layout.execution.devices import Devices

# A tensor, or several, by the number of the local device that holds them.
PerDevice = Mapping[int, Any]

_REDUCE: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "max": tf.maximum,
    "min": tf.minimum,
    "prod": tf.multiply,
    "sum": tf.add,
}
_LOGICAL: Final = {"max": tf.logical_or, "min": tf.logical_and}


class Communicator:
    """Between the devices of a mesh. All processes have to call the same in the same order."""

    def __init__(self, devices: Devices, rings: ProcessCollectives | None):
        """Keep them.

        Args:
          devices: of the mesh.
          rings: collectives between processes; None where there is one process.
        """
        self.devices = devices
        self._rings = rings

    @property
    def processes(self) -> Sequence[tuple[int, ...]]:
        """The devices of each process."""
        return [self.devices.local] if self._rings is None else self._rings.processes

    def members(self, axes: Sequence[str]) -> int:
        """Return the number of devices in a group over some axes."""
        return functools.reduce(lambda n, axis: n * self.devices.mesh.size_of(axis), axes, 1)

    def place(self, device: int, axes: Sequence[str]) -> int:
        """Return the device's rank in its group."""
        mesh = self.devices.mesh
        at = dict(zip(mesh.axes, mesh.coordinates(device), strict=True))
        return functools.reduce(lambda n, axis: n * mesh.size_of(axis) + at[axis], axes, 0)

    def each(self, held: PerDevice, function: Callable[[int, Any], Any]) -> dict[int, Any]:
        """Apply a function to each local device's tensor, on that device."""
        found = {}
        for device, one in held.items():
            with tf.device(self.devices.names[device]):
                found[device] = function(device, one)
        return found

    def of_first(self, value: Any) -> Any:
        """Return a value of the process that has the first device; in one process the value."""
        return value if self._rings is None else self._rings.of_first(value)

    def of_group_first(
        self, made: PerDevice, axes: Sequence[str], shape: Sequence[int], dtype: Any
    ) -> dict[int, Any]:
        """Return, for each device, the bits that the first one of its group holds.

        Args:
          made: what this process's devices that are the first of their groups hold.
          axes: whose devices form the groups.
          shape: of what they hold.
          dtype: likewise.
        """
        key = self._key()
        found: dict[int, Any] = {}
        crossing = []
        for group in self._groups(axes):
            if self._is_here(group):
                found.update(dict.fromkeys(group, made[group[0]]))
            else:
                crossing.append(group)

        @tf.function(autograph=False)
        def add() -> dict[int, Any]:
            sums = {}
            for group in crossing:
                held = {}
                for device in self._own(group, self.devices.names):
                    with tf.device(self.devices.names[device]):
                        own = made[device] if device == group[0] else tf.zeros(shape, dtype)
                        held[device], back = as_integers(own)
                summed = self._ring().all_reduce(group, held, "sum", key)
                for device, one in summed.items():
                    with tf.device(self.devices.names[device]):
                        sums[device] = back(one)
            return sums

        return {**found, **add()} if crossing else found

    @contextlib.contextmanager
    def fails_in_all(self, what: str) -> Iterator[None]:
        """Run what all processes run; if it fails in some of them, end it in the others too."""
        try:
            yield
        except Exception as error:
            if self._rings is not None:
                number = self.processes.index(self.devices.local)
                self._rings.barriers.end_failed(what, number, error)
            raise

    def begin_call(self) -> None:
        """Count a call that all processes make in the same order."""
        if self._rings is not None:
            self._rings.barriers.begin_call()

    def barrier(self, to_do: str) -> None:
        """Wait until all processes are here, so that the collectives after it cannot wait forever.

        Args:
          to_do: what it is for.

        Raises:
          LayoutError: one has not come in time.
        """
        if self._rings is not None:
            self._rings.barriers.wait(to_do)

    def all_processes(self, number: int) -> list[int]:
        """Return the numbers that all processes give, in their order."""
        if self._rings is None:
            return [number]
        own = len(self.devices.names)
        return self._rings.numbers(number)[::own]

    def all_reduce(self, held: PerDevice, axes: Sequence[str], reduction: str) -> dict[int, Any]:
        """Return the sum of what the devices of each group hold, or another reduction of it."""
        found = {}
        key = self._key()
        for group in self._groups(axes):
            if len(group) == 1:
                made = {group[0]: held[group[0]]}
            elif self._is_here(group):
                made = self._reduce_here(group, held, reduction)
            else:
                made = self._ring().all_reduce(group, self._own(group, held), reduction, key)
            found.update(made)
        return found

    def all_gather(self, held: PerDevice, axes: Sequence[str], dimension: int) -> dict[int, Any]:
        """Return the tensors of each group's members, one after the other along a dimension."""
        found: dict[int, Any] = {}
        key = self._key()
        for group in self._groups(axes):
            if self._is_here(group):
                parts = [held[one] for one in group]
                both = self.each(
                    dict.fromkeys(group, parts), lambda _, some: tf.concat(some, dimension)
                )
                found.update(both)
            else:
                own = self._own(group, held)
                found.update(self._ring().all_gather(group, own, dimension, key))
        return found

    def reduce_scatter(
        self, held: PerDevice, axes: Sequence[str], dimension: int
    ) -> dict[int, Any]:
        """Return each device's part of its group's sum, cut along a dimension in their order."""
        found: dict[int, Any] = {}
        key = self._key()
        for group in self._groups(axes):
            if self._is_here(group):
                found.update(self._reduce_scatter_here(group, held, dimension))
            else:
                own = self._own(group, held)
                found.update(self._ring().reduce_scatter(group, own, dimension, key))
        return found

    def permute(
        self, held: PerDevice, axes: Sequence[str], sources: Sequence[int]
    ) -> dict[int, Any]:
        """Return, for each device, what another one holds.

        Args:
          held: a tensor for each device.
          axes: whose devices form the groups, in which they exchange.
          sources: by device, from which one it receives.
        """
        found: dict[int, Any] = {}
        key = self._key()
        for group in self._groups(axes):
            if self._is_here(group):
                taken = {device: held[sources[device]] for device in group}
                found.update(self.each(taken, lambda _, one: tf.identity(one)))
            else:
                own = self._own(group, held)
                given = {device: sources[device] for device in group}
                found.update(self._ring().permute(group, own, given, key))
        return found

    def exchange(self, held: PerDevice, axes: Sequence[str]) -> dict[int, list[Any]]:
        """Return, for each device, the tensors that its group's members send it, in their order.

        Args:
          held: a tensor for each member of the device's group, all of one shape.
          axes: whose devices form the groups.
        """
        found: dict[int, list[Any]] = {}
        key = self._key()
        for group in self._groups(axes):
            if self._is_here(group):
                found.update({
                    device: [held[one][i] for one in group] for i, device in enumerate(group)
                })  # fmt: skip
            else:
                found.update(self._ring().all_to_all(group, self._own(group, held), key))
        return found

    def neighbours(
        self, held: PerDevice, axes: Sequence[str], dimension: int,
        borders: Sequence[tuple[int, int]],
    ) -> dict[int, tuple[Any, Any]]:  # fmt: skip
        """Return, for each device, rows of the one before it in its group, and of the one after.

        Args:
          held: a tensor for each device.
          axes: whose devices form the groups.
          dimension: of the rows.
          borders: for each place in a group, how many rows it gets of the one before and after it;
            or None for none.
        """
        groups = self.devices.mesh.groups(axes)
        pairs = [
            (pair, (borders[i + 1][0], borders[i][1]))
            for group in groups
            for i, pair in enumerate(itertools.pairwise(group))
        ]
        key = self._key()
        found: dict[int, list[Any]] = {device: [None, None] for device in held}
        for pair, counts in pairs:
            own = [one for one in pair if one in held]
            if not any(counts) or not own:
                continue
            sent = {}
            for device in own:
                with tf.device(self.devices.names[device]):
                    count = counts[pair.index(device)]
                    sent[device] = _rows(held[device], dimension, count, device == pair[0])
            for device in own:
                place = pair.index(device)
                shape = held[device].shape.as_list()
                shape[dimension] = counts[1 - place]
                if len(own) == 2:
                    got = sent[pair[1 - place]]
                else:
                    with tf.device(self.devices.names[device]):
                        got = neighbours.swap(self._ring(), pair, device, sent[device], shape, key)
                if shape[dimension]:
                    found[device][1 - place] = got
        return {device: (before, after) for device, (before, after) in found.items()}

    def _reduce_scatter_here(
        self, group: Sequence[int], held: PerDevice, dimension: int
    ) -> dict[int, Any]:
        own = {one: held[one] for one in group}
        parts = self.each(own, lambda _, one: tf.split(one, len(group), dimension))
        terms = {device: [parts[one][i] for one in group] for i, device in enumerate(group)}
        return self.each(terms, lambda _, some: total(some))

    def _reduce_here(self, group: Sequence[int], held: PerDevice, reduction: str) -> dict[int, Any]:
        with tf.device(self.devices.names[group[0]]):
            terms = [held[one] for one in group]
            if reduction == "sum":
                made = total(terms)
            else:
                by_type = _LOGICAL if terms[0].dtype == tf.bool else _REDUCE
                made = functools.reduce(by_type[reduction], terms)
        # An identity on each device, so that the result travels there once for all readers.
        return self.each(dict.fromkeys(group, made), lambda _, one: tf.identity(one))

    def _groups(self, axes: Sequence[str]) -> list[list[int]]:
        """Return the groups with a device of this process."""
        mine = set(self.devices.local)
        return [one for one in self.devices.mesh.groups(axes) if not mine.isdisjoint(one)]

    def _is_here(self, group: Sequence[int]) -> bool:
        return all(one in self.devices.names for one in group)

    def _own(self, group: Sequence[int], held: PerDevice) -> dict[int, Any]:
        return {one: held[one] for one in group if one in self.devices.names}

    def _key(self) -> int:
        """Take a key, also where no group reaches another process: one of another may do so."""
        return 0 if self._rings is None else self._rings.key()

    def _ring(self) -> ProcessCollectives:
        assert self._rings is not None
        return self._rings


def _rows(tensor: Any, dimension: int, count: int, last: bool) -> Any:
    """Return the last rows of a tensor, or the first ones."""
    shape = tensor.shape.as_list()
    begin = [0] * len(shape)
    begin[dimension] = shape[dimension] - count if last else 0
    shape[dimension] = count
    return tf.slice(tensor, begin, shape)
