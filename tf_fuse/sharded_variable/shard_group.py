# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make, read and unshard the shards that one function uses, as a group.

Section 4.2 of Xu et al. (2020) has three programs: shard, step, unshard. Between the first and the
last, a value is in shards, one on each replica, and the variable that the program knows has
none (`TfFuse>CloseVariable`).

Any process may put the values together alone, by reading the others' shards from their servers.
They are of its own last step: a replica that is not in a step keeps all others from finishing the
next one, and what they wrote in the last one was written before it ended (the gather of the new
weights waits for it; where weights are gathered in the next step, a reader waits for the mark
`ended` of each). But another one may have put its values together too, and shard them again,
changed perhaps, for the step that it now waits in. So it keeps what it had (`/kept`) until that
step has ended, and says so beforehand (`overwritten`).

A process that leaves hands its shards over to one that stays (`exit_handover.py`), which shows
whose shards it has (`inherited`).

Replicas may be in groups (`Copies`); each group has everything once.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorflow.python.framework import errors

from tf_fuse._tensorflow.eager import error_messages as tensorflow_errors
from tf_fuse.sharded_variable.choose_sources import Copies
from tf_fuse.sharded_variable.local_shards import (
    INHERITED,
    MARKS,
    LocalShards,
    ShardRanges,
    inherited_name,
    mark_name,
    version_of,
)
from tf_fuse.sharded_variable.named_variables import Named
from tf_fuse.sharded_variable.unshard import UnshardCounts, Unsharder

_NUMBER = "_tf_fuse_number"
_numbers = itertools.count()


@dataclass(frozen=True)
class Handover:
    """Shards of one replica that a process hands over when it leaves.

    Attributes:
      rank: of the replica.
      version: how many steps had ended.
      names: of the variables that have them here, one for each shard.
      is_sure: whether no replica has changed its shard in a later step, as far as it was said.
    """

    rank: int
    version: int
    names: tuple[str, ...]
    is_sure: bool = True


class ShardGroup:
    """Slots whose shards are made, used and put together at once.

    Attributes:
      number: the same in all processes.
      scope: beginning of its variables' names.
      held: what the function shards.
      key: its variables, and how they are sharded.
      version: how many steps have ended.
      has_begun: whether another one has begun; it may have failed.
      is_sharded: whether the values are in the shards.
      joins: how often they were put together.
    """

    def __init__(
        self,
        number: int,
        held: Sequence[ShardRanges],
        handles: Mapping[int, Sequence[Any]],
        copies: Copies,
    ):
        """Make the shards, without values.

        Args:
          number: the same in all processes.
          held: what is sharded, in the same order in all processes.
          handles: of the variables, by rank of this process's replicas.
          copies: of what replicas have.
        """
        import numpy as np

        self.number, self.held = number, tuple(held)
        self.scope = scope_of(number, copies.peers.devices)
        self.key = key_of(held, handles)
        self.version = 0
        self.has_begun = False
        self.is_sharded = False
        self.joins = UnshardCounts()
        self._has_weights = any(one.is_weight for one in self.held)
        self._replicas = [
            LocalShards(self.scope, self.held, handles[rank], rank, copies.peers.devices[rank])
            for rank in sorted(handles)
        ]
        device = self._replicas[0].device
        self._marks = {
            mark: Named(mark_name(self.scope, mark), "int64", [], device) for mark in MARKS
        }
        for mark in self._marks.values():
            mark.assign(_int64(-1))
        count = len(copies.peers.devices)
        self._inherited = Named(mark_name(self.scope, INHERITED), "int64", [count], device)
        self._inherited.assign(np.full([count], -1, np.int64))
        self._unsharder = Unsharder(self.scope, self.held, self._replicas, copies, self.inherited)

    def handles(self) -> list[Any]:
        """Return the handles that still exist."""
        refs = [ref for replica in self._replicas for ref in replica.refs]
        return [handle for ref in refs if (handle := ref()) is not None]

    def bytes(self) -> tuple[int, int]:
        """Return how many bytes the shards of this process have, and how many the whole values."""
        here = 0
        for replica in self._replicas:
            for one in self.held:
                begin, end = one.range(replica.rank)
                here += (end - begin) * int(one.dtype.size)
        return here, len(self._replicas) * sum(one.bytes for one in self.held)

    def counts(self) -> dict[str, float]:
        """Return what has been done with the shards so far, by the names of counters."""
        joins = self.joins
        return {
            "steps": self.version,
            "joins": joins.count,
            "join_bytes": joins.bytes,
            "join_seconds": joins.seconds,
        }

    def allocated(self, weights: bool = True) -> int:
        """Return bytes of the buffers that the shards have, those of weights too or not."""
        from tensorflow.python.ops import array_ops

        values = [
            shard.read()
            for replica in self._replicas
            for shard, one in zip(replica.shards, self.held, strict=True)
            if weights or not one.is_weight
        ]
        return sum(int(array_ops.size(value)) * value.dtype.size for value in values)

    def bytes_of_others(self) -> int:
        """Return how many bytes of the values only other processes have."""
        here = {replica.rank for replica in self._replicas}
        here.update(rank for rank, mark in enumerate(self.inherited()) if version_of(mark) >= 0)
        total = 0
        for i, one in enumerate(self.held):
            if any(replica.refs[i]() is not None for replica in self._replicas):
                others = set(one.owns) - {one.owns[rank] for rank in here}
                total += sum(end - begin for begin, end in others) * int(one.dtype.size)
        return total

    def shard(self) -> None:
        """Give the shards the variables' values, which stay where they are for now."""
        if self.version:
            for replica in self._replicas:
                replica.keep()
            self._marks["overwritten"].assign(_int64(self.version))
        for replica in self._replicas:
            replica.shard()

    def begin(self) -> None:
        """Publish that a step begins. It may change the shards once all replicas have begun it."""
        self.has_begun = True
        self._marks["begun"].assign(_int64(self.version))

    def ended(self) -> None:
        """Note that a step has ended well: the variables' own values are out of date."""
        self.version += 1
        # Before what was kept is gone: a step without an all-reduce waits for nobody.
        self._marks["overwritten"].assign(_int64(-1 - self.version))
        for replica in self._replicas:
            replica.free()
        self._set_sharded()
        self.has_begun = False
        if self._has_weights:
            self._marks["ended"].assign(_int64(self.version))

    def failed(self) -> None:
        """Note that a step has failed. If it changed the shards before, they have the values."""
        if not self.is_sharded and any(replica.has_moved() for replica in self._replicas):
            self._set_sharded()

    def _set_sharded(self) -> None:
        if not self.is_sharded:
            self.is_sharded = True
            for replica in self._replicas:
                replica.release()

    def join(self) -> None:
        """Put the variables' values together.

        Raises:
          tf.errors.OpError: another replica has died or does not answer; nothing has changed.
        """
        with _explained(self):
            self._unsharder.join(self.version, self.has_begun)
        self.is_sharded = False
        self._marks["taken"].assign(_int64(self.version))

    def inherited(self) -> list[int]:
        """Return for each replica what this process was handed of it: see INHERITED."""
        return [int(mark) for mark in self._inherited.read().numpy()]

    def handovers(self) -> list[Handover]:
        """Return what others need of this process when it leaves."""
        found = [Handover(r.rank, self.version, tuple(r.shown())) for r in self._replicas]
        for rank, mark in enumerate(self.inherited()):
            if version_of(mark) >= max(self.version, 0):
                names = self._inherited_names(rank)
                found.append(Handover(rank, version_of(mark), names, mark >= 0))
        return found

    def _inherited_names(self, rank: int) -> tuple[str, ...]:
        return tuple(inherited_name(self.scope, i, rank) for i in range(len(self.held)))

    def destroy(self) -> None:
        """Free everything."""
        device = self._inherited.device
        ranks = [rank for rank, mark in enumerate(self.inherited()) if version_of(mark) >= 0]
        for rank in ranks:
            names = zip(self._inherited_names(rank), self.held, strict=True)
            for name, one in names:
                Named(name, one.dtype, [], device).destroy()
        self._inherited.destroy()
        for replica in self._replicas:
            replica.free()
            for shard in replica.shards:
                shard.destroy()
        for mark in self._marks.values():
            mark.destroy()


@contextlib.contextmanager
def _explained(shard_group: ShardGroup) -> Iterator[None]:
    """Say in an error which values are missing, and what to do."""
    try:
        yield
    except errors.OpError as error:
        weights = " and weights" if any(one.is_weight for one in shard_group.held) else ""
        tensorflow_errors.set_message(
            error,
            f"tf_fuse: the values of {len(shard_group.held)} variables of the optimizer{weights} "
            f"could not be put together from the replicas' shards after step "
            f"{shard_group.version}: {error.message}\n{after_a_death(shard_group.held[0])}",
        )
        raise


def after_a_death(held: ShardRanges) -> str:
    """Say what is lost with a task that was killed, and what to do.

    Args:
      held: any of the variables that are sharded alike.
    """
    count, restart = len(held.owns), "restart the program from its last checkpoint"
    if held.groups > 1:
        return (
            f"If a task was killed, {held.groups - 1} other{'s' * (held.groups > 2)} had the same "
            f"shards, which can be read and saved; if none of them is left, {restart}."
        )
    lost = f"If a task was killed, its shards are lost: {restart}."
    size = next((size for size in range(count // 2, 1, -1) if count % size == 0), None)
    if size is None:
        return (
            f"{lost} (shard_weight_update_group_size keeps each shard in several processes, if it "
            f"divides their number; nothing between 1 and {count} divides {count}.)"
        )
    return (
        f"{lost} With shard_weight_update_group_size={size}, {count // size} processes keep each "
        "shard, and the death of one loses nothing."
    )


def key_of(held: Sequence[ShardRanges], handles: Mapping[int, Sequence[Any]]) -> tuple[Any, ...]:
    """Return what tells whether two functions can use the same shards."""
    numbers = tuple((rank, *map(_number_of, handles[rank])) for rank in sorted(handles))
    return numbers, tuple(held)


def _number_of(handle: Any) -> int:
    """Return a number that no other handle ever has: Python uses ids of those that are gone."""
    number: int | None = getattr(handle, _NUMBER, None)
    if number is None:
        number = next(_numbers)
        setattr(handle, _NUMBER, number)
    return number


def scope_of(number: int, devices: Sequence[str]) -> str:
    """Beginning of a shard group's names: no other's, also where strategies share devices."""
    digest = hashlib.sha256("\n".join(devices).encode()).hexdigest()[:12]
    return f"tf_fuse/state/{digest}/{number}"


def _int64(value: int) -> Any:
    import numpy as np

    return np.int64(value)
