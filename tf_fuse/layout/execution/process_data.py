# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Feed each process its own part of a batch.

The parts, in the order of the processes, are the batch: process `shard_id` of `num_shards` has its
share of consecutive rows. That is a layout, too: the leading axes of the mesh, over which the
processes lie, split the batch's dimension. Where a plan has an input otherwise, a relayout follows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import tensorflow as tf

from tf_fuse.layout.execution.communication.communicator import Communicator
from tf_fuse.layout.execution.devices import Devices
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.tensor_layout import TensorLayout

# What processes exchange before a batch, in place of the number of what they feed.
_ENDED: Final = 0
_FAILED: Final = 1
_UNKNOWN: Final = int(tf.data.UNKNOWN_CARDINALITY)


class ProcessParts:
    """The parts of the processes of a mesh.

    Attributes:
      num_shards: number of the processes.
      shard_id: which of them this one is.
    """

    def __init__(self, communicator: Communicator):
        """Give each process a number.

        Raises:
          LayoutError: this process's devices are not next to each other in the mesh.
        """
        self._communicator = communicator
        devices = communicator.devices
        own = len(devices.names)
        self.num_shards = devices.mesh.size // own
        self.shard_id = devices.first // own
        if devices.local != tuple(range(devices.first, devices.first + own)):
            raise LayoutError(
                f"this process has devices {', '.join(map(str, devices.local))} of mesh "
                f"{str(devices.mesh)!r}, and parts of a batch are for processes whose devices are "
                "next to each other; feed the whole batch in each, without data_per_process"
            )

    @property
    def devices(self) -> Devices:
        """Of the mesh."""
        return self._communicator.devices

    def part_shape(self, shape: Sequence[int], batch: int | None) -> tuple[int, ...]:
        """Return the shape of a process's part of a tensor; without a batch it is fed whole."""
        return tuple(
            size // self.num_shards if i == batch else size for i, size in enumerate(shape)
        )

    def whole_shape(self, shape: Sequence[int], batch: int | None) -> tuple[int, ...]:
        """Return the shape of the whole tensor, from that of a process's part."""
        return tuple(size * self.num_shards if i == batch else size for i, size in enumerate(shape))

    def layout(self, name: str, shape: Sequence[int], batch: int) -> TensorLayout:
        """Return the layout that the parts are: the axes over which the processes lie split them.

        Raises:
          LayoutError: the batch cannot be split so.
        """
        mesh = self.devices.mesh
        axes: list[str] = []
        count = 1
        for axis, size in mesh.dims:
            if count % self.num_shards == 0:
                break
            count *= size
            axes += [axis] if size > 1 else []
        if shape[batch] % count:
            raise LayoutError(
                f"input {name!r} has a batch of {shape[batch]}, and with data_per_process it is "
                f"split into {count} parts for {self.num_shards} processes of mesh {str(mesh)!r}; "
                f"pad it to {-(-shape[batch] // count) * count}, or feed the whole batch in each"
            )
        return TensorLayout(mesh, shape, [axes if i == batch else () for i in range(len(shape))])

    def cut(self, part: Any, layout: TensorLayout, batch: int) -> dict[int, Any]:
        """Return what this process's devices hold of a tensor in that layout, from its part."""
        begin = self.shard_id * (layout.shape[batch] // self.num_shards)
        found = {}
        for device in self.devices.local:
            at = list(layout.slice_of(device))
            at[batch] = slice(at[batch].start - begin, at[batch].stop - begin)
            found[device] = part[tuple(at)]
        return found

    def of(self, data: Any, batches: Sequence[int | None] | None = None) -> Any:
        """Return this process's parts of some data.

        Args:
          data: a `tf.data.Dataset` of whole batches, the same in all processes; or a callable that
            takes num_shards and shard_id, and returns this process's parts, as a dataset.
          batches: the batch dimension of each tensor of an element; 0 of all by default.

        Raises:
          LayoutError: it is neither, or the processes' datasets have other numbers of batches.
        """
        if isinstance(data, tf.data.Dataset):
            return data.map(lambda *some: self._rows(some, batches))
        if callable(data):
            own = data(self.num_shards, self.shard_id)
            self._check_count(own)
            return own
        raise LayoutError(
            f"data is a tf.data.Dataset of whole batches, or a function of num_shards and shard_id "
            f"that returns one of this process's parts, got {data!r}"
        )

    def _check_count(self, own: Any) -> None:
        """Compare the numbers of batches, where datasets know them, since Keras counts by them."""
        known = int(own.cardinality()) if isinstance(own, tf.data.Dataset) else _UNKNOWN
        all_ = self._exchanged(known)
        if len(set(all_)) > 1 and _UNKNOWN not in all_:
            words = ", ".join(f"{one} in process {i}" for i, one in enumerate(all_))
            raise LayoutError(
                f"the processes' datasets have other numbers of batches: {words}; give all of them "
                "the same number, as by take or repeat"
            )

    def _rows(self, element: tuple[Any, ...], batches: Sequence[int | None] | None) -> Any:
        flat = tf.nest.flatten(element)
        dims = batches if batches is not None else [0 if t.shape.rank else None for t in flat]
        if len(dims) != len(flat):
            raise LayoutError(
                f"an element of the dataset has {len(flat)} tensors, and the function takes "
                f"{len(dims)}; give a dataset of its arguments"
            )
        cut = [
            one if at is None else self._own_rows(one, at)
            for one, at in zip(flat, dims, strict=True)
        ]
        made = tf.nest.pack_sequence_as(element, cut)
        return made[0] if len(element) == 1 else made

    def _own_rows(self, tensor: Any, batch: int) -> Any:
        rows = tf.shape(tensor)[batch]
        whole = tf.debugging.assert_equal(
            rows % self.num_shards, 0,
            f"a batch is not a multiple of the {self.num_shards} processes that feed its parts; "
            "drop the remainder of the dataset, or pad it",
        )  # fmt: skip
        with tf.control_dependencies([whole] if whole is not None else []):
            own = rows // self.num_shards
        begin = [0] * batch + [self.shard_id * own]
        size = [-1] * batch + [own]
        rest = tensor.shape.rank - batch - 1
        found = tf.slice(tensor, begin + [0] * rest, size + [-1] * rest)
        known = tensor.shape.as_list()
        known[batch] = None if known[batch] is None else known[batch] // self.num_shards
        return tf.ensure_shape(found, known)

    def together(self, data: Iterator[Any], what: str, key: Any = str) -> Iterator[Any]:
        """Return the elements of each process's data, as long as all have one.

        A process whose data has ended does not run the step in which the others would wait for it.
        So before each element the processes exchange what they have.

        Args:
          data: of this process.
          what: it is for, for errors.
          key: returns what of an element must be the same in all processes.

        Raises:
          LayoutError: some have an element and others have none, or another one.
        """
        count = 0
        while True:
            element, mine, failure = None, _ENDED, None
            try:
                element = next(data)
                mine = _number(f"{what} {count} {key(element)}")
            except StopIteration:
                pass
            except Exception as error:
                failure, mine = error, _FAILED
            all_ = self._exchanged(mine)
            if failure is not None:
                raise failure
            if set(all_) == {_ENDED}:
                return
            raise_if(self._different(all_, what, count))
            count += 1
            yield element

    def _exchanged(self, mine: int) -> list[int]:
        if self.num_shards == 1:
            return [mine]
        self._communicator.barrier("feed a batch")
        return self._communicator.all_processes(mine)

    def _different(self, all_: Sequence[int], what: str, count: int) -> list[str]:
        if len(set(all_)) == 1:
            return []

        def which(number: int) -> str:
            return ", ".join(str(i) for i, one in enumerate(all_) if one == number)

        if _FAILED in all_:
            return [f"process {which(_FAILED)} failed to read batch {count} of {what}"]
        if _ENDED in all_:
            return [
                f"process {which(_ENDED)} has no batch {count} of {what}, and others have; give "
                "all processes the same number of batches"
            ]
        return [
            f"the processes feed other shapes, or for other steps, as batch {count} of {what}; "
            "give all of them parts of one size, in the same order"
        ]


def _number(text: str) -> int:
    return max(2, int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big"))


def shapes_of(element: Any) -> str:
    """Return shapes and types of an element of a dataset."""
    flat = [tf.convert_to_tensor(one) for one in tf.nest.flatten(element)]
    return str([(one.dtype.name, one.shape.as_list()) for one in flat])


def batches_of(names: Sequence[str], batch: Mapping[str, int | None]) -> list[int | None]:
    """Return the batch dimension of each tensor that a function is fed."""
    return [batch.get(name) for name in names]
