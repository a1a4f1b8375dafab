# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Puts the values of a bundle's variables together; see `bundle.py`."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tensorflow.python.framework import errors

from tf_fuse.shard_update.cluster import timeout_seconds
from tf_fuse.shard_update.copies import Copies
from tf_fuse.shard_update.named import Named, aside, handle_in_graph, read_in_graph
from tf_fuse.shard_update.parts import KEPT, Held, Replica, mark_name, part_name

# Values that are put together at once.
_CHUNK_BYTES = 256 << 20
# Between two looks at whether others have ended a step.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.001, 0.1
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


class Joiner:
    """Gives the variables of this process's replicas the values that all replicas' parts have."""

    def __init__(
        self, scope: str, held: Sequence[Held], replicas: Sequence[Replica], copies: Copies
    ):
        """Takes what there is to be put together.

        Args:
          scope: beginning of the parts' names.
          held: what is cut.
          replicas: of this process.
          copies: of what replicas have.
        """
        self._scope, self._held, self._replicas = scope, held, replicas
        self._copies, self._cluster = copies, copies.cluster
        self._device = replicas[0].device
        self._groups = held[0].groups if held else 1
        # Replicas that have everything together.
        self._sources = copies.own_group(self._groups)
        # How many joins have failed: what is left of them may still write where they would have.
        self._failed = 0

    def join(self, version: int) -> None:
        """Puts the values together.

        Args:
          version: how many steps this process has ended.

        Raises:
          tf.errors.OpError: another replica has died or does not answer; nothing has changed.
        """
        is_here = len(self._replicas) == len(self._cluster.devices)
        if any(one.is_weight for one in self._held) and not is_here:
            self._wait_for_others(version)
        for chunk in self._chunks():
            if is_here:
                self._join_here(chunk)
                continue
            try:
                self._join(chunk, version)
            except errors.OpError:
                self._failed += 1
                raise

    def _chunks(self) -> list[list[int]]:
        """What to put together at once: of variables that still exist."""
        chunks: list[list[int]] = [[]]
        size = 0
        for i, one in enumerate(self._held):
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
            one = self._held[i]
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

    def _wait_for_others(self, version: int) -> None:
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
                    marks.append(read_in_graph(mark_name(self._scope, "ended"), tf.int64))
            return marks

        began, wait, pause = time.monotonic(), _FIRST_WAIT_S, threading.Event()
        limit = timeout_seconds()
        while True:
            ended = reader.run(("ended", self._scope), build)
            late = [rank for rank in ranks if ended[rank] < version]
            if not late:
                return
            if time.monotonic() - began > limit:
                raise errors.DeadlineExceededError(
                    None,
                    None,
                    f"{self._cluster.devices[late[0]]} has ended step {ended[late[0]]}, and not "
                    f"step {version}, after {limit:g} s",
                )
            pause.wait(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _join(self, chunk: Sequence[int], version: int) -> None:
        why = "it did not answer before"
        if self._sources == self._copies.own_group(self._groups):
            try:
                return self._join_from(chunk, version)
            except errors.OpError as error:
                if self._groups == 1:
                    raise
                self._failed += 1
                why = error.message
        # (A step may have ended since they were chosen, which this process has not waited for.)
        mark = mark_name(self._scope, "overwritten")
        self._sources = self._copies.others(
            self._groups, mark, functools.partial(_has_ended, version), why
        )
        return self._join_from(chunk, version)

    def _join_from(self, chunk: Sequence[int], version: int) -> None:
        reader = self._copies.reader(self._sources)
        own = {replica.rank for replica in self._replicas}
        overwritten: tuple[int, ...] = ()
        while True:
            key = (self._scope, tuple(chunk), self._sources, overwritten, self._failed)
            build = functools.partial(self._whole, chunk, overwritten)
            try:
                marks = dict(zip(self._sources, reader.run(key, build), strict=True))
            except (errors.NotFoundError, errors.FailedPreconditionError):
                if not overwritten:
                    raise
                # Their step has ended without waiting for this process: it had no all-reduce.
                overwritten = ()
                continue
            late = tuple(r for r in self._sources if marks[r] == version and r not in own)
            if late == overwritten:
                break
            overwritten = late
        for i in chunk:
            one = self._held[i]
            whole = Named(self._whole_name(i), one.dtype, one.shape, self._device)
            for replica in self._replicas:
                replica.assign(i, whole.read())
            whole.destroy()

    def _whole_name(self, slot: int) -> str:
        return f"{self._scope}/{slot}/whole/{self._failed}"

    def _whole(self, chunk: Sequence[int], overwritten: Sequence[int]) -> list[Any]:
        """Adds what puts slots together to a graph; fetches each replica's mark `overwritten`."""
        import tensorflow as tf

        by_rank: dict[int, list[Any]] = {rank: [] for rank in self._sources}
        assigned = []
        for i in chunk:
            one = self._held[i]
            pieces = []
            for rank in self._sources:
                own = one.owns[rank]
                if own[0] == own[1]:
                    continue
                begin, end = one.range(rank)
                name = part_name(self._scope, i)
                if rank in overwritten:
                    name = f"{name}{KEPT}"
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
                name = mark_name(self._scope, "overwritten")
                marks.append(read_in_graph(name, tf.int64))
        with tf.control_dependencies(assigned), tf.device(self._device):
            return [tf.identity(mark) for mark in marks]


def _has_ended(version: int, mark: int) -> bool:
    """Whether a replica with a mark `overwritten` has ended a step."""
    return (mark if mark >= 0 else -1 - mark) >= version
