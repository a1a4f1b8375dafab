# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The slots that one function cuts, and where their values are.

Section 4.2 of Xu et al. (2020) has three programs: shard, step, unshard. Between the first and the
last, a slot's value is in parts, one on each replica, and the variable that the program knows has
none (`TfFuse>ReleaseVariable`).

Any replica may put the values together alone, by reading the others' parts from their servers. They
are of its own last step: a replica that is not in a step keeps all others from finishing the next
one, and what they wrote in the last one was written before it ended (the gather of the new weights
waits for it). But another one may have put its values together too, and cut them again, changed
perhaps, for the step that it now waits in. So it keeps what it had (`@version`) until that step has
ended, and says so beforehand (`overwritten`).
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tf_fuse.shard_update.cluster import Reader
from tf_fuse.shard_update.named import Named, aside
from tf_fuse.shard_update.rewrite import Slot, window

# Values that are put together at once.
_CHUNK_BYTES = 256 << 20


# Who had values put together; of more, no names are kept.
_MOST_NAMES = 100
_OTHERS = "others"


@dataclass
class Joins:
    """How often the values of a bundle were put together.

    Attributes:
      count: how often.
      bytes: that were read from other replicas.
      seconds: that it took.
      by: how often for whom.
    """

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0
    by: Counter[str] = field(default_factory=Counter)

    def add(self, who: str, size: int, seconds: float) -> None:
        """Counts one."""
        self.count += 1
        self.bytes += size
        self.seconds += seconds
        self.by[who if who in self.by or len(self.by) < _MOST_NAMES else _OTHERS] += 1

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "count": self.count,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "by": dict(self.by),
        }


class Bundle:
    """Slots whose parts are made, used and put together at once.

    Attributes:
      number: the same on all replicas.
      slots: what the function cuts.
      key: of which variables it is, and how they are cut.
      version: how many steps have ended.
      is_parted: whether the values are in the parts.
      joins: how often they were put together.
    """

    def __init__(
        self, number: int, slots: Sequence[Slot], handles: Sequence[Any], rank: int, reader: Reader
    ):
        """Makes the parts, without values.

        Args:
          number: the same on all replicas.
          slots: in the same order on all replicas.
          handles: of the variables.
          rank: of this replica.
          reader: of all replicas.
        """
        self.number, self.slots = number, tuple(slots)
        self.key = key_of(slots, handles)
        self.version = 0
        self.is_parted = False
        self.joins = Joins()
        self._rank, self._reader = rank, reader
        self._handles = [weakref.ref(handle) for handle in handles]
        self._kept: list[Named] = []
        device = reader.cluster.devices[rank]
        self._device = device
        self._parts = [
            Named(part_name(number, i), _dtype(slot), [slot.end - slot.begin], device)
            for i, slot in enumerate(slots)
        ]
        self._marks = {mark: Named(mark_name(number, mark), "int64", [], device) for mark in _MARKS}
        for mark in self._marks.values():
            mark.assign(_int64(-1))

    def handles(self) -> list[Any]:
        """The handles that still exist."""
        return [handle for ref in self._handles if (handle := ref()) is not None]

    def bytes(self) -> tuple[int, int]:
        """How many bytes the parts have, and how many the whole values."""
        return (
            sum((s.end - s.begin) * _dtype(s).size for s in self.slots),
            sum(_bytes(s) for s in self.slots),
        )

    def bytes_of_others(self) -> int:
        """How many bytes of the values only other replicas have."""
        return sum(
            _bytes(s) - (s.own[1] - s.own[0]) * _dtype(s).size
            for s, ref in zip(self.slots, self._handles, strict=True)
            if ref() is not None
        )

    def cut(self) -> None:
        """Gives the parts the variables' values, which stay where they are for now."""
        if self.version and not self._kept:  # (A step that failed has kept them already.)
            for part in self._parts:
                kept = Named(f"{part.name}@{self.version}", part._dtype, [], self._device)
                kept.assign(part.read())
                self._kept.append(kept)
            self._marks["overwritten"].assign(_int64(self.version))
        for slot, part, ref in zip(self.slots, self._parts, self._handles, strict=True):
            part.assign(self._own_part(slot, ref()))

    def begin(self) -> None:
        """Tells others that this replica waits for them."""
        self._marks["begun"].assign(_int64(self.version))

    def ended(self) -> None:
        """A step has ended well: the variables' own values are of the past."""
        self.version += 1
        self.free()
        if not self.is_parted:
            self.is_parted = True
            self._release()

    def failed(self) -> None:
        """A step has failed. Where it has changed the parts before, they have the values."""
        if self.is_parted or not self._has_moved():
            return
        self.is_parted = True
        self._release()

    def join(self) -> None:
        """Puts the variables' values together.

        Raises:
          tf.errors.OpError: another replica has died or does not answer; nothing has changed.
        """
        chunk: list[int] = []
        chunks = [chunk]
        size = 0
        for i, slot in enumerate(self.slots):
            if chunk and size + _bytes(slot) > _CHUNK_BYTES:
                chunk, size = [], 0
                chunks.append(chunk)
            chunk.append(i)
            size += _bytes(slot)
        for chunk in chunks:
            self._join(chunk)
        self.is_parted = False
        self._marks["taken"].assign(_int64(self.version))

    def free(self) -> None:
        """Frees what was kept for others."""
        for kept in self._kept:
            kept.destroy()
        self._kept.clear()

    def destroy(self) -> None:
        """Frees everything."""
        self.free()
        for named in [*self._parts, *self._marks.values()]:
            named.destroy()

    # --- Values ----------------------------------------------------------------------------------

    def _own_part(self, slot: Slot, handle: Any) -> Any:
        from tensorflow.python.ops import array_ops, gen_resource_variable_ops

        with aside(self._device):
            value = gen_resource_variable_ops.read_variable_op(handle, _dtype(slot))
            flat = array_ops.reshape(value, [-1])
            return array_ops.slice(flat, [slot.begin], [slot.end - slot.begin])

    def _has_moved(self) -> bool:
        import numpy as np

        return any(
            (ref() is not None)
            and not np.array_equal(
                np.asarray(part.read()).view(np.uint8),
                np.asarray(self._own_part(slot, ref())).view(np.uint8),
            )
            for slot, part, ref in zip(self.slots, self._parts, self._handles, strict=True)
        )

    def _release(self) -> None:
        from tf_fuse import _native

        for handle in self.handles():
            with aside(self._device):
                _native.load().tf_fuse_release_variable(handle)

    def _join(self, chunk: Sequence[int]) -> None:
        from tensorflow.python.ops import gen_resource_variable_ops

        cluster = self._reader.cluster
        live = [i for i in chunk if self._handles[i]() is not None]
        overwritten: tuple[int, ...] = ()
        while True:
            key = (self.number, tuple(live), overwritten, self.version if overwritten else 0)
            marks = self._reader.run(key, functools.partial(self._whole, live, overwritten))
            late = tuple(r for r in range(len(cluster.devices)) if marks[r] == self.version)
            if late == overwritten or set(late) <= {self._rank}:
                break
            overwritten = late
        for i in live:
            slot = self.slots[i]
            whole = Named(_whole_name(self.number, i), _dtype(slot), slot.shape, self._device)
            handle = self._handles[i]()
            if handle is not None:
                with aside(self._device):
                    gen_resource_variable_ops.assign_variable_op(handle, whole.read())
            whole.destroy()

    def _whole(self, chunk: Sequence[int], overwritten: Sequence[int]) -> list[Any]:
        """Adds what puts slots together to a graph; fetches each replica's mark `overwritten`."""
        import tensorflow as tf

        raw = tf.raw_ops
        by_rank: dict[int, list[Any]] = {r: [] for r in range(len(self._reader.cluster.devices))}
        assigned = []
        for i in chunk:
            slot = self.slots[i]
            pieces = []
            for rank, own in enumerate(slot.owns):
                if own[0] == own[1]:
                    continue
                begin, end = window(own, _size(slot))
                name = part_name(self.number, i)
                if rank in overwritten and rank != self._rank:
                    name = f"{name}@{self.version}"
                with tf.device(self._reader.cluster.devices[rank]):
                    dtype = _dtype(slot)
                    handle = raw.VarHandleOp(dtype=dtype, shape=[end - begin], shared_name=name)
                    part = raw.ReadVariableOp(resource=handle, dtype=dtype)
                    by_rank[rank].append(part.op)
                    pieces.append((own, part[own[0] - begin : own[1] - begin]))
            with tf.device(self._device):
                parts = [piece for _, piece in sorted(pieces, key=lambda p: p[0])]
                whole = tf.reshape(tf.concat(parts, 0), slot.shape)
                handle = raw.VarHandleOp(
                    dtype=_dtype(slot), shape=slot.shape, shared_name=_whole_name(self.number, i)
                )
                assigned.append(raw.AssignVariableOp(resource=handle, value=whole))
        marks = []
        for rank, reads in by_rank.items():
            with tf.device(self._reader.cluster.devices[rank]), tf.control_dependencies(reads):
                name = mark_name(self.number, "overwritten")
                handle = raw.VarHandleOp(dtype=tf.int64, shape=[], shared_name=name)
                marks.append(raw.ReadVariableOp(resource=handle, dtype=tf.int64))
        with tf.control_dependencies(assigned), tf.device(self._device):
            return [tf.identity(mark) for mark in marks]


_MARKS = ("begun", "overwritten", "taken")


def key_of(slots: Sequence[Slot], handles: Sequence[Any]) -> tuple[Any, ...]:
    """What tells whether two functions can use the same parts."""
    return tuple((id(h), s.owns, s.shape) for s, h in zip(slots, handles, strict=True))


def part_name(number: int, slot: int) -> str:
    """Shared name of a part."""
    return f"tf_fuse/state/{number}/{slot}"


def _whole_name(number: int, slot: int) -> str:
    return f"tf_fuse/state/{number}/{slot}/whole"


def mark_name(number: int, mark: str) -> str:
    """Shared name of a bundle's mark: the version that "begun", "overwritten" or "taken" is of."""
    return f"tf_fuse/state/{number}/{mark}"


def _dtype(slot: Slot) -> Any:
    from tensorflow.python.framework import dtypes

    return dtypes.as_dtype(slot.dtype)


def _size(slot: Slot) -> int:
    import math

    return math.prod(slot.shape)


def _bytes(slot: Slot) -> int:
    return _size(slot) * int(_dtype(slot).size)


def _int64(value: int) -> Any:
    import numpy as np

    return np.int64(value)
