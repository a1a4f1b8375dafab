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

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from tf_fuse.shard_update.copies import Copies
from tf_fuse.shard_update.joining import Joiner, Joins
from tf_fuse.shard_update.named import Named
from tf_fuse.shard_update.parts import MARKS, Held, Replica, mark_name


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
        self._has_weights = any(one.is_weight for one in self.held)
        self._replicas = [
            Replica(self.scope, self.held, handles[rank], rank, copies.cluster.devices[rank])
            for rank in sorted(handles)
        ]
        device = self._replicas[0].device
        self._marks = {
            mark: Named(mark_name(self.scope, mark), "int64", [], device) for mark in MARKS
        }
        for mark in self._marks.values():
            mark.assign(_int64(-1))
        self._joiner = Joiner(self.scope, self.held, self._replicas, copies)

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
        self._joiner.join(self.version)
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


def key_of(held: Sequence[Held], handles: Mapping[int, Sequence[Any]]) -> tuple[Any, ...]:
    """What tells whether two functions can use the same parts."""
    ids = tuple((rank, *map(id, handles[rank])) for rank in sorted(handles))
    return ids, tuple(held)


def scope_of(number: int, devices: Sequence[str]) -> str:
    """Beginning of a bundle's names: no other's, also where strategies share devices."""
    digest = hashlib.sha256("\n".join(devices).encode()).hexdigest()[:12]
    return f"tf_fuse/state/{digest}/{number}"


def _int64(value: int) -> Any:
    import numpy as np

    return np.int64(value)
