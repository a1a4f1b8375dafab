# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The slots that one function cuts, and where their values are.

Section 4.2 of Xu et al. (2020) has three programs: shard, step, unshard. Between the first and the
last, a slot's value is in parts, one on each replica, and the variable that the program knows has
none (`TfFuse>ReleaseVariable`).

Any process may put the values together alone, by reading the others' parts from their servers. They
are of its own last step: a replica that is not in a step keeps all others from finishing the next
one, and what they wrote in the last one was written before it ended (the gather of the new weights
waits for it; where weights are gathered in the next step, a reader waits for the mark `ended` of
each). But another one may have put its values together too, and cut them again, changed perhaps,
for the step that it now waits in. So it keeps what it had (`/kept`) until that step has ended, and
says so beforehand (`overwritten`).

Replicas may be in groups, each of which has everything once (`Copies`).
"""

from __future__ import annotations

import functools
import hashlib
import math
import threading
import time
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorflow.python.framework import errors

from tf_fuse.shard_update.cluster import timeout_seconds
from tf_fuse.shard_update.copies import Copies
from tf_fuse.shard_update.named import Named, aside, handle_in_graph, read_in_graph
from tf_fuse.shard_update.rewrite import Slot, window

# Values that are put together at once.
_CHUNK_BYTES = 256 << 20
# Between two looks at whether others have ended a step.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.001, 0.1
# Behind the name of a part: what it was before it was cut anew.
_KEPT = "/kept"
_MARKS = ("begun", "ended", "overwritten", "taken")


@dataclass(frozen=True)
class Held:
    """What all replicas have of one variable of the optimizer, or of a weight.

    Attributes:
      shape: of the whole.
      dtype: of it.
      owns: of each replica, its first element, and the one behind its last.
      groups: of consecutive replicas, as many in each, that have all elements once.
      is_weight: whether it is a weight, and not of the optimizer.
    """

    shape: tuple[int, ...]
    dtype: Any
    owns: tuple[tuple[int, int], ...]
    groups: int = 1
    is_weight: bool = False

    @classmethod
    def of(cls, slot: Slot) -> Held:
        """What is held of a slot."""
        from tensorflow.python.framework import dtypes

        dtype = dtypes.as_dtype(slot.dtype)
        return cls(slot.shape, dtype, slot.owns, slot.groups, slot.is_weight)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Of the whole."""
        return self.size * int(self.dtype.size)

    def range(self, rank: int) -> tuple[int, int]:
        """The elements that a replica's part has: its own, and whole registers around them."""
        return window(self.owns[rank], self.size)


class _Replica:
    """The parts of one replica of this process, and the variables that they are of."""

    def __init__(self, scope: str, held: Sequence[Held], handles: Sequence[Any], rank: int,
                 device: str):  # fmt: skip
        self.rank, self.device, self.held = rank, device, held
        self.refs = [weakref.ref(handle) for handle in handles]
        self.parts = []
        for i, one in enumerate(held):
            begin, end = one.range(rank)
            self.parts.append(Named(part_name(scope, i), one.dtype, [end - begin], device))
        self.kept: list[Named] = []

    def keep(self) -> None:
        """Has others find what the parts have now, whatever they get."""
        if not self.kept:  # (A step that failed has kept them already.)
            for part, one in zip(self.parts, self.held, strict=True):
                kept = Named(f"{part.name}{_KEPT}", one.dtype, [], self.device)
                kept.assign(part.read())
                self.kept.append(kept)

    def cut(self) -> None:
        """Gives the parts the variables' values."""
        for part, own in zip(self.parts, self._own_parts(), strict=True):
            part.assign(own)

    def has_moved(self) -> bool:
        """Whether the parts have other values than the variables."""
        import numpy as np

        def bits(tensor: Any) -> Any:
            return np.ascontiguousarray(np.asarray(tensor)).view(np.uint8)

        return any(
            not np.array_equal(bits(part.read()), bits(own))
            for part, own in zip(self.parts, self._own_parts(), strict=True)
        )

    def _own_parts(self) -> list[Any]:
        from tensorflow.python.ops import array_ops, gen_resource_variable_ops

        found = []
        with aside(self.device):
            for part, one, ref in zip(self.parts, self.held, self.refs, strict=True):
                handle = ref()
                if handle is None:
                    found.append(part.read())
                    continue
                begin, end = one.range(self.rank)
                value = gen_resource_variable_ops.read_variable_op(handle, one.dtype)
                found.append(
                    array_ops.slice(array_ops.reshape(value, [-1]), [begin], [end - begin])
                )
        return found

    def assign(self, index: int, value: Any) -> None:
        """Gives a variable its whole value."""
        from tensorflow.python.ops import gen_resource_variable_ops

        handle = self.refs[index]()
        if handle is not None:
            with aside(self.device):
                gen_resource_variable_ops.assign_variable_op(handle, value)

    def release(self) -> None:
        """Frees the variables' own values."""
        from tf_fuse import _native

        with aside(self.device):
            for ref in self.refs:
                handle = ref()
                if handle is not None:
                    _native.load().tf_fuse_release_variable(handle)

    def free(self) -> None:
        """Frees what was kept for others."""
        for kept in self.kept:
            kept.destroy()
        self.kept.clear()


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
      number: the same in all processes.
      scope: beginning of its variables' names.
      held: what the function cuts.
      key: of which variables it is, and how they are cut.
      version: how many steps have ended.
      is_parted: whether the values are in the parts.
      joins: how often they were put together.
    """

    def __init__(
        self,
        number: int,
        held: Sequence[Held],
        handles: Mapping[int, Sequence[Any]],
        copies: Copies,
    ):
        """Makes the parts, without values.

        Args:
          number: the same in all processes.
          held: what is cut, in the same order in all processes.
          handles: of the variables, by rank of this process's replicas.
          copies: of what replicas have.
        """
        self.number, self.held = number, tuple(held)
        self.scope = scope_of(number, copies.cluster.devices)
        self.key = key_of(held, handles)
        self.version = 0
        self.is_parted = False
        self.joins = Joins()
        # How many joins have failed: what is left of them may still write where they would have.
        self._failed = 0
        self._copies = copies
        self._cluster = copies.cluster
        self._groups = held[0].groups if held else 1
        # Replicas that have everything together.
        self._sources = copies.own_group(self._groups)
        self._has_weights = any(one.is_weight for one in self.held)
        self._replicas = [
            _Replica(self.scope, self.held, handles[rank], rank, self._cluster.devices[rank])
            for rank in sorted(handles)
        ]
        self._device = self._replicas[0].device
        self._marks = {mark: Named(mark_name(self.scope, mark), "int64", [], self._device)
                       for mark in _MARKS}  # fmt: skip
        for mark in self._marks.values():
            mark.assign(_int64(-1))

    def handles(self) -> list[Any]:
        """The handles that still exist."""
        refs = [ref for replica in self._replicas for ref in replica.refs]
        return [handle for ref in refs if (handle := ref()) is not None]

    def bytes(self) -> tuple[int, int]:
        """How many bytes the parts of this process have, and how many the whole values."""
        here = 0
        for replica in self._replicas:
            for one in self.held:
                begin, end = one.range(replica.rank)
                here += (end - begin) * int(one.dtype.size)
        return here, len(self._replicas) * sum(one.bytes for one in self.held)

    def allocated(self, weights: bool = True) -> int:
        """Bytes of the buffers that the parts have, those of weights too or not."""
        from tensorflow.python.ops import array_ops

        values = [
            part.read()
            for replica in self._replicas
            for part, one in zip(replica.parts, self.held, strict=True)
            if weights or not one.is_weight
        ]
        return sum(int(array_ops.size(value)) * value.dtype.size for value in values)

    def bytes_of_others(self) -> int:
        """How many bytes of the values only other processes have."""
        here = {replica.rank for replica in self._replicas}
        total = 0
        for i, one in enumerate(self.held):
            if any(replica.refs[i]() is not None for replica in self._replicas):
                others = set(one.owns) - {one.owns[rank] for rank in here}
                total += sum(end - begin for begin, end in others) * int(one.dtype.size)
        return total

    def cut(self) -> None:
        """Gives the parts the variables' values, which stay where they are for now."""
        if self.version:
            for replica in self._replicas:
                replica.keep()
            self._marks["overwritten"].assign(_int64(self.version))
        for replica in self._replicas:
            replica.cut()

    def begin(self) -> None:
        """Tells others that this process waits for them."""
        self._marks["begun"].assign(_int64(self.version))

    def ended(self) -> None:
        """A step has ended well: the variables' own values are of the past."""
        self.version += 1
        # Before what was kept is gone: a step without an all-reduce waits for nobody.
        self._marks["overwritten"].assign(_int64(-1 - self.version))
        for replica in self._replicas:
            replica.free()
        self._part()
        if self._has_weights:
            self._marks["ended"].assign(_int64(self.version))

    def failed(self) -> None:
        """A step has failed. Where it has changed the parts before, they have the values."""
        if not self.is_parted and any(replica.has_moved() for replica in self._replicas):
            self._part()

    def _part(self) -> None:
        if not self.is_parted:
            self.is_parted = True
            for replica in self._replicas:
                replica.release()

    def join(self) -> None:
        """Puts the variables' values together.

        Raises:
          tf.errors.OpError: another replica has died or does not answer; nothing has changed.
        """
        is_here = len(self._replicas) == len(self._cluster.devices)
        if self._has_weights and not is_here:
            self._wait_for_others()
        for chunk in self._chunks():
            if is_here:
                self._join_here(chunk)
                continue
            try:
                self._join(chunk)
            except errors.OpError:
                self._failed += 1
                raise
        self.is_parted = False
        self._marks["taken"].assign(_int64(self.version))

    def destroy(self) -> None:
        """Frees everything."""
        for replica in self._replicas:
            replica.free()
            for part in replica.parts:
                part.destroy()
        for mark in self._marks.values():
            mark.destroy()

    # --- Values ----------------------------------------------------------------------------------

    def _chunks(self) -> list[list[int]]:
        """What to put together at once: of variables that still exist."""
        chunks: list[list[int]] = [[]]
        size = 0
        for i, one in enumerate(self.held):
            if all(replica.refs[i]() is None for replica in self._replicas):
                continue
            if chunks[-1] and size + one.bytes > _CHUNK_BYTES:
                chunks.append([])
                size = 0
            chunks[-1].append(i)
            size += one.bytes
        return [chunk for chunk in chunks if chunk]

    def _join_here(self, chunk: Sequence[int]) -> None:
        """All replicas are in this process."""
        from tensorflow.python.ops import array_ops

        for i in chunk:
            one = self.held[i]
            with aside(self._device):
                pieces = []
                first = self._replicas[: len(self._replicas) // self._groups]
                for replica in sorted(first, key=lambda r: one.owns[r.rank]):
                    own, (begin, _) = one.owns[replica.rank], one.range(replica.rank)
                    part = array_ops.identity(replica.parts[i].read())
                    pieces.append(part[own[0] - begin : own[1] - begin])
                whole = array_ops.reshape(array_ops.concat(pieces, 0), one.shape)
            for replica in self._replicas:
                with aside(replica.device):
                    replica.assign(i, array_ops.identity(whole))

    def _wait_for_others(self) -> None:
        """Returns when all replicas have ended the last step that this one has ended.

        They write their parts when they have what they need of this one; nothing in a step waits
        for that, since weights are gathered in the next one.
        """
        ranks = range(len(self._cluster.devices))
        reader = self._copies.reader(tuple(ranks))

        def build() -> list[Any]:
            import tensorflow as tf

            marks = []
            for rank in ranks:
                with tf.device(self._cluster.devices[rank]):
                    marks.append(read_in_graph(mark_name(self.scope, "ended"), tf.int64))
            return marks

        began, wait, pause = time.monotonic(), _FIRST_WAIT_S, threading.Event()
        limit = timeout_seconds()
        while True:
            ended = reader.run(("ended", self.scope), build)
            late = [rank for rank in ranks if ended[rank] < self.version]
            if not late:
                return
            if time.monotonic() - began > limit:
                raise errors.DeadlineExceededError(
                    None,
                    None,
                    f"{self._cluster.devices[late[0]]} has ended step {ended[late[0]]}, and not "
                    f"step {self.version}, after {limit:g} s",
                )
            pause.wait(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _join(self, chunk: Sequence[int]) -> None:
        why = "it did not answer before"
        if self._sources == self._copies.own_group(self._groups):
            try:
                return self._join_from(chunk)
            except errors.OpError as error:
                if self._groups == 1:
                    raise
                self._failed += 1
                why = error.message
        # (A step may have ended since they were chosen, which this process has not waited for.)
        mark = mark_name(self.scope, "overwritten")
        self._sources = self._copies.others(self._groups, mark, self._has_ended, why)
        return self._join_from(chunk)

    def _has_ended(self, mark: int) -> bool:
        """Whether a replica with a mark `overwritten` has ended this one's last step."""
        return (mark if mark >= 0 else -1 - mark) >= self.version

    def _join_from(self, chunk: Sequence[int]) -> None:
        reader = self._copies.reader(self._sources)
        own = {replica.rank for replica in self._replicas}
        overwritten: tuple[int, ...] = ()
        while True:
            key = (self.scope, tuple(chunk), self._sources, overwritten, self._failed)
            build = functools.partial(self._whole, chunk, overwritten)
            try:
                marks = dict(zip(self._sources, reader.run(key, build), strict=True))
            except (errors.NotFoundError, errors.FailedPreconditionError):
                if not overwritten:
                    raise
                # Their step has ended without waiting for this process: it had no all-reduce.
                overwritten = ()
                continue
            late = tuple(r for r in self._sources if marks[r] == self.version and r not in own)
            if late == overwritten:
                break
            overwritten = late
        for i in chunk:
            one = self.held[i]
            whole = Named(self._whole_name(i), one.dtype, one.shape, self._device)
            for replica in self._replicas:
                replica.assign(i, whole.read())
            whole.destroy()

    def _whole_name(self, slot: int) -> str:
        return f"{self.scope}/{slot}/whole/{self._failed}"

    def _whole(self, chunk: Sequence[int], overwritten: Sequence[int]) -> list[Any]:
        """Adds what puts slots together to a graph; fetches each replica's mark `overwritten`."""
        import tensorflow as tf

        by_rank: dict[int, list[Any]] = {rank: [] for rank in self._sources}
        assigned = []
        for i in chunk:
            one = self.held[i]
            pieces = []
            for rank in self._sources:
                own = one.owns[rank]
                if own[0] == own[1]:
                    continue
                begin, end = one.range(rank)
                name = part_name(self.scope, i)
                if rank in overwritten:
                    name = f"{name}{_KEPT}"
                with tf.device(self._cluster.devices[rank]):
                    part = read_in_graph(name, one.dtype, [end - begin])
                    by_rank[rank].append(part.op)
                    pieces.append((own, part[own[0] - begin : own[1] - begin]))
            with tf.device(self._device):
                parts = [piece for _, piece in sorted(pieces, key=lambda p: p[0])]
                whole = tf.reshape(tf.concat(parts, 0), one.shape)
                name = self._whole_name(i)
                handle = handle_in_graph(name, one.dtype, one.shape)
                assigned.append(tf.raw_ops.AssignVariableOp(resource=handle, value=whole))
        marks = []
        for rank, reads in by_rank.items():
            with tf.device(self._cluster.devices[rank]), tf.control_dependencies(reads):
                name = mark_name(self.scope, "overwritten")
                marks.append(read_in_graph(name, tf.int64))
        with tf.control_dependencies(assigned), tf.device(self._device):
            return [tf.identity(mark) for mark in marks]


def key_of(held: Sequence[Held], handles: Mapping[int, Sequence[Any]]) -> tuple[Any, ...]:
    """What tells whether two functions can use the same parts."""
    ids = tuple((rank, *map(id, handles[rank])) for rank in sorted(handles))
    return ids, tuple(held)


def scope_of(number: int, devices: Sequence[str]) -> str:
    """Beginning of a bundle's names: no other's, also where strategies share devices."""
    digest = hashlib.sha256("\n".join(devices).encode()).hexdigest()[:12]
    return f"tf_fuse/state/{digest}/{number}"


def part_name(scope: str, slot: int) -> str:
    """Shared name of a part."""
    return f"{scope}/{slot}"


def mark_name(scope: str, mark: str) -> str:
    """Shared name of a bundle's mark, one of _MARKS: the version that it is of.

    Where nothing is overwritten, that of "overwritten" is -1 - the steps that have ended.
    """
    return f"{scope}/{mark}"


def _int64(value: int) -> Any:
    import numpy as np

    return np.int64(value)
