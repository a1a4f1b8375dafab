# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Assemble whole variables from the shards of all replicas; see `shard_group.py`."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from tensorflow.python.framework import errors

from tf_fuse.sharded_variable.choose_sources import Copies, Source
from tf_fuse.sharded_variable.local_shards import (
    INHERITED,
    KEPT,
    LocalShards,
    ShardRanges,
    inherited_name,
    mark_name,
    shard_name,
    usable,
)
from tf_fuse.sharded_variable.named_variables import Named, aside, handle_in_graph, read_in_graph
from tf_fuse.sharded_variable.peers import Reader, timeout_seconds

# Values that are put together, or handed over, at once.
_CHUNK_BYTES = 256 << 20
# Between two looks at whether others have ended a step.
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.001, 0.1
# Who had values put together; of more, no names are kept.
_MOST_NAMES = 100
_OTHERS = "others"
# Packages whose code uses variables for others.
_LIBRARIES = frozenset({"contextlib", "keras", "tensorflow", "tf_fuse", "tf_keras", "threading"})


@dataclass
class UnshardCounts:
    """How often the values of a shard group were put together.

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
        """Count one."""
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


class Unsharder:
    """Gives the variables of this process's replicas the values that all replicas' shards have."""

    def __init__(
        self,
        scope: str,
        held: Sequence[ShardRanges],
        replicas: Sequence[LocalShards],
        copies: Copies,
        inherited: Callable[[], Sequence[int]],
    ):
        """Take the shards to put together.

        Args:
          scope: beginning of the shards' names.
          held: what is sharded.
          replicas: of this process.
          copies: of what replicas have.
          inherited: what this process was handed, as INHERITED says.
        """
        self._scope, self._held, self._replicas = scope, held, replicas
        self._copies, self._peers = copies, copies.peers
        self._inherited = inherited
        self._device = replicas[0].device
        self._groups = held[0].groups if held else 1
        # Who has everything together.
        self._sources: tuple[Source, ...] = ()
        self._has_begun = False
        # How many joins have failed: what is left of them may still write where they would have.
        self._failed = 0

    def join(self, version: int, has_begun: bool = False) -> None:
        """Put the values together.

        Args:
          version: how many steps this process has ended.
          has_begun: whether another one has begun here, and failed.

        Raises:
          tf.errors.OpError: another replica has died or does not answer; nothing has changed.
        """
        self._has_begun = has_begun
        is_here = len(self._replicas) == len(self._peers.devices)
        if not is_here:
            self._choose_sources(version)
            if any(one.is_weight for one in self._held):
                self._wait_for_others(version)
        existing = [
            i
            for i in range(len(self._held))
            if any(replica.refs[i]() is not None for replica in self._replicas)
        ]
        for chunk in in_chunks(existing, [one.bytes for one in self._held]):
            if is_here:
                self._join_here(chunk)
            else:
                self._join(chunk, version)

    def _join_here(self, chunk: Sequence[int]) -> None:
        """All replicas are in this process."""
        from tensorflow.python.ops import array_ops

        for i in chunk:
            one = self._held[i]
            with aside(self._device):
                shards = []
                first = self._replicas[: len(self._replicas) // self._groups]
                for replica in sorted(first, key=lambda r: one.owns[r.rank]):
                    own, (begin, _) = one.owns[replica.rank], one.range(replica.rank)
                    shard = array_ops.identity(replica.shards[i].read())
                    shards.append(shard[own[0] - begin : own[1] - begin])
                whole = array_ops.reshape(array_ops.concat(shards, 0), one.shape)
            for replica in self._replicas:
                with aside(replica.device):
                    replica.assign(i, array_ops.identity(whole))

    def _choose_sources(self, version: int) -> None:
        """Choose whom to read: the own group, or who has the shards of those that have left."""
        own = self._copies.own_group(self._groups)
        if not all(rank in own for rank, _ in self._sources):
            self._sources = self._others(version, "it did not answer before")
            return
        sources: dict[int, int | None] = dict.fromkeys(own)
        for rank, heir in self._sources:
            # Its own process has gone: to ask it first would take as long as it may take to answer.
            if heir != rank and rank in self._handed_to(heir, version):
                sources[rank] = heir
        sources |= dict.fromkeys({*own}.intersection(self._handed_here(version)), self._here)
        self._sources = tuple((rank, rank if h is None else h) for rank, h in sources.items())

    @property
    def _here(self) -> int:
        return self._peers.own[0]

    def _handed_here(self, version: int) -> list[int]:
        """Return whose shards this process was handed."""
        return usable(self._inherited(), version, self._has_begun)

    def _handed_to(self, heir: int, version: int) -> list[int]:
        """Return whose shards a process was handed, as far as it answers."""
        if heir in self._peers.own:
            return self._handed_here(version)
        return self._copies.handed(self._scope, heir, version, self._has_begun)

    def _others(self, version: int, why: str) -> tuple[Source, ...]:
        here, has_begun = self._handed_here(version), self._has_begun
        return self._copies.others(self._groups, self._scope, version, here, why, has_begun)

    def _try_others(self, version: int, error: errors.OpError) -> None:
        """Choose others to read after an error, which is raised if there are none."""
        self._failed += 1
        if self._groups > 1:
            sources = self._others(version, error.message)
        else:
            heirs = self._copies.heirs(self._scope, version, self._has_begun)
            # (Perhaps since this read began.)
            heirs |= dict.fromkeys(self._handed_here(version), self._here)
            sources = tuple(
                (rank, holder if holder in self._peers.own else heirs.get(rank, holder))
                for rank, holder in self._sources
            )
        if sources == self._sources:
            raise error
        self._sources = sources

    def _reader(self) -> Reader:
        return self._copies.reader(tuple(dict.fromkeys(holder for _, holder in self._sources)))

    def _wait_for_others(self, version: int) -> None:
        """Return when all replicas have ended the last step that this one has ended.

        They write their shards when they have what they need of this one; nothing in a step waits
        for that, since weights are gathered in the next one. (One that has left had ended it.)
        """

        def build(ranks: Sequence[int]) -> list[Any]:
            import tensorflow as tf

            marks = []
            for rank in ranks:
                with tf.device(self._peers.devices[rank]):
                    marks.append(read_in_graph(mark_name(self._scope, "ended"), tf.int64))
            return marks

        began, wait, pause = time.monotonic(), _FIRST_WAIT_S, threading.Event()
        limit = timeout_seconds()
        while True:
            ranks = tuple(rank for rank, holder in self._sources if rank == holder)
            try:
                marks = self._reader().run(
                    ("ended", self._scope, ranks), functools.partial(build, ranks)
                )
            except errors.OpError as error:
                self._try_others(version, error)
                continue
            ended = dict(zip(ranks, marks, strict=True))
            late = [rank for rank in ranks if ended[rank] < version]
            if not late:
                return
            if time.monotonic() - began > limit:
                raise errors.DeadlineExceededError(
                    None,
                    None,
                    f"{self._peers.devices[late[0]]} has ended step {ended[late[0]]}, and not "
                    f"step {version}, after {limit:g} s",
                )
            pause.wait(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _join(self, chunk: Sequence[int], version: int) -> None:
        # Those that have others' shards may leave, too, one after the other.
        for _ in self._peers.devices:
            try:
                return self._join_from(chunk, version)
            except errors.OpError as error:
                self._try_others(version, error)
        try:
            self._join_from(chunk, version)
        except errors.OpError:
            self._failed += 1
            raise

    def _join_from(self, chunk: Sequence[int], version: int) -> None:
        reader = self._reader()
        # Who has been handed shards overwrites none.
        others = [r for r, h in self._sources if r == h and r not in self._peers.own]
        handed = {rank: heir for rank, heir in self._sources if rank != heir}
        overwritten: tuple[int, ...] = ()
        while True:
            key = (self._scope, tuple(chunk), self._sources, overwritten, self._failed)
            build = functools.partial(self._whole, chunk, others, overwritten)
            try:
                told = reader.run(key, build)
            except (errors.NotFoundError, errors.FailedPreconditionError):
                if not overwritten:
                    raise
                # Their step has ended without waiting for this process: it had no all-reduce.
                overwritten = ()
                continue
            marks = dict(zip(others, told[: len(others)], strict=True))
            if not self._are_still(handed, told[len(others) : -1], version):
                continue
            late = tuple(rank for rank in others if marks[rank] == version)
            if late == overwritten:
                break
            overwritten = late
        for i in chunk:
            one = self._held[i]
            whole = Named(self._whole_name(i), one.dtype, one.shape, self._device)
            for replica in self._replicas:
                replica.assign(i, whole.read())
            whole.destroy()

    def _are_still(self, handed: Mapping[int, int], marks: Sequence[Any], version: int) -> bool:
        """Return whether what was read of others' shards was not handed over anew meanwhile.

        Args:
          handed: whose shards, and who has them.
          marks: INHERITED of each of those, in front of the reads and after them.
          version: as of `join`.

        Raises:
          tf.errors.UnavailableError: a shard is not there any more.
        """
        for i, (rank, heir) in enumerate(handed.items()):
            before, after = marks[2 * i], marks[2 * i + 1]
            if rank not in usable([int(mark) for mark in after], version, self._has_begun):
                raise errors.UnavailableError(
                    None,
                    None,
                    f"{self._peers.devices[heir]} no longer has what "
                    f"{self._peers.devices[rank]} handed over to it after step {version}",
                )
            if before[rank] != after[rank]:
                return False
        return True

    def _whole_name(self, shard: int) -> str:
        return f"{self._scope}/{shard}/whole/{self._failed}"

    def _whole(
        self, chunk: Sequence[int], others: Sequence[int], overwritten: Sequence[int]
    ) -> list[Any]:
        """Add what puts shards together to a graph.

        It fetches the mark `overwritten` of others, then what `_are_still` needs.
        """
        import tensorflow as tf

        reads: dict[int, list[Any]] = {rank: [] for rank, _ in self._sources}
        before = {rank: [self._handed_mark(h)] for rank, h in self._sources if rank != h}
        assigned = []
        for i in chunk:
            one = self._held[i]
            found = []
            for rank, holder in self._sources:
                own = one.owns[rank]
                if own[0] == own[1]:
                    continue
                begin, end = one.range(rank)
                name = shard_name(self._scope, i)
                if rank != holder:
                    name = inherited_name(self._scope, i, rank)
                elif rank in overwritten:
                    name = f"{name}{KEPT}"
                device = tf.device(self._peers.devices[holder])
                with device, tf.control_dependencies(before.get(rank, [])):
                    shard = read_in_graph(name, one.dtype, [end - begin])
                    reads[rank].append(shard.op)
                    found.append((own, shard[own[0] - begin : own[1] - begin]))
            with tf.device(self._device):
                shards = [shard for _, shard in sorted(found, key=lambda p: p[0])]
                whole = tf.reshape(tf.concat(shards, 0), one.shape)
                name = self._whole_name(i)
                handle = handle_in_graph(name, one.dtype, one.shape)
                assigned.append(tf.raw_ops.AssignVariableOp(resource=handle, value=whole))
        marks = []
        for rank in others:
            with tf.device(self._peers.devices[rank]), tf.control_dependencies(reads[rank]):
                name = mark_name(self._scope, "overwritten")
                marks.append(read_in_graph(name, tf.int64))
        for rank, holder in self._sources:
            if rank in before:
                with tf.control_dependencies(reads[rank]):
                    marks.extend([*before[rank], self._handed_mark(holder)])
        with tf.control_dependencies(assigned), tf.device(self._device):
            # (One more, which is there without others, too.)
            return [tf.identity(mark) for mark in [*marks, tf.constant(0, tf.int64)]]

    def _handed_mark(self, holder: int) -> Any:
        import tensorflow as tf

        with tf.device(self._peers.devices[holder]):
            count = len(self._peers.devices)
            return read_in_graph(mark_name(self._scope, INHERITED), tf.int64, [count])


def in_chunks(shards: Iterable[int], sizes: Sequence[int]) -> list[list[int]]:
    """Return slots that are moved at once, given how many bytes each one has."""
    chunks: list[list[int]] = [[]]
    total = 0
    for i in shards:
        if chunks[-1] and total + sizes[i] > _CHUNK_BYTES:
            chunks.append([])
            total = 0
        chunks[-1].append(i)
        total += sizes[i]
    return [chunk for chunk in chunks if chunk]


def caller() -> str:
    """Return the place in the program that uses a variable."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in _LIBRARIES:
            break
        frame = frame.f_back
    return f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"
