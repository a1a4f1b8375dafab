# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Choose the replicas whose shards a process reads when replicas are in groups.

Each group has everything once. A process reads from its own group: the gather of the new weights,
which ends a step, has waited for these shards. Where a replica of its group is gone, it reads the
same shards from replicas of other groups. It has not waited for these, so they first have to say
that their step has ended. Or it reads from the replicas that got the shards of one that left.
"""

from __future__ import annotations

import atexit
import functools
import logging
import math
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tensorflow.python.framework import errors

from tf_fuse.sharded_variable.local_shards import INHERITED, mark_name, usable
from tf_fuse.sharded_variable.named_variables import read_in_graph
from tf_fuse.sharded_variable.peers import Peers, Reader, timeout_seconds

_log = logging.getLogger("tf_fuse")

_ANSWER_S = 5.0
_FIRST_WAIT_S = 0.005
_LONGEST_WAIT_S = 0.5
# A task that did not answer is asked again after this time: its network may have come back.
_LOST_S = 60.0

# The rank of whose shards, and the rank of the process that has them.
Source = tuple[int, int]


class Copies:
    """The replicas that have copies of each other's shards."""

    def __init__(self, reader: Reader, readers: Mapping[int, Reader]):
        """Know of no replica that is gone.

        Args:
          reader: of all replicas.
          readers: of each one of other processes, by rank.
        """
        self.peers: Peers = reader.peers
        self._readers = readers
        # Ranks that did not answer, and when.
        self._lost: dict[int, float] = {}
        self._told: set[tuple[str, str]] = set()
        self._of: dict[tuple[int, ...], Reader] = {tuple(range(len(reader.peers.devices))): reader}

    def reader(self, ranks: tuple[int, ...]) -> Reader:
        """Return what reads from some replicas, whether others live or not."""
        if ranks not in self._of:
            self._of[ranks] = Reader(self.peers, ranks)
            atexit.register(self._of[ranks].abandon)
        return self._of[ranks]

    def own_group(self, groups: int) -> tuple[int, ...]:
        """Return the ranks of the group that this process is in; of its first replica."""
        size = len(self.peers.devices) // groups
        first = self.peers.own[0] // size * size
        return tuple(range(first, first + size))

    def connect(self, groups: int) -> None:
        """Connect to the own group, if others are in processes of their own.

        It is done early: a task that has died by then would be waited for.

        Raises:
          tf.errors.OpError: as of `Reader.run`.
        """
        if groups > 1 and self._readers:
            self.reader(self.own_group(groups)).connect()

    def others(
        self,
        groups: int,
        scope: str,
        version: int,
        here: Collection[int],
        why: str,
        has_begun: bool = False,
    ) -> tuple[Source, ...]:
        """Return replicas that have everything together, where the own group cannot be read.

        Args:
          groups: of all replicas.
          scope: beginning of the names of the marks in which each of them says which step has
            ended, and whose shards it was handed.
          version: the last step of this process: theirs is that one, or a later one.
          here: whose shards this process was handed.
          why: the own group could not be read.
          has_begun: as of `usable`.

        Returns:
          For each shard, in the order of shards, whose it is and who has it; of the own group where
          no other answers.

        Raises:
          tf.errors.UnavailableError: of a shard, nobody who has it answers.
        """
        own = self.own_group(groups)
        until = time.monotonic() + timeout_seconds()
        choose = functools.partial(self._source, len(own), scope, version, here, until, has_begun)
        chosen = [choose(rank) for rank in own]
        devices = self.peers.devices
        if None in chosen:
            holders = [devices[r] for r in self._holders(own[chosen.index(None)], len(own))]
            raise errors.UnavailableError(
                None,
                None,
                f"of {', '.join(holders)}, which have the same shard, none "
                f"answers that its last step has ended: {why}",
            )
        found = tuple(source for source in chosen if source is not None)
        for rank, (whose, _) in zip(own, found, strict=True):
            gone, other = devices[rank], devices[whose]
            if gone != other and (gone, other) not in self._told:
                self._told.add((gone, other))
                _log.warning(
                    "This replica reads the optimizer's state from %s, which has what %s has: %s",
                    other,
                    gone,
                    why.partition("\n")[0],
                )
        return found

    def heirs(self, scope: str, version: int, has_begun: bool = False) -> dict[int, int]:
        """Map each replica that left to the one that got its shards, as far as others answer.

        Args:
          scope: as of `others`.
          version: as of `others`.
          has_begun: as of `usable`.
        """
        found: dict[int, int] = {}
        # (One alone has nobody's shards but those of this process.)
        for heir in self._readers if len(self._readers) > 1 else ():
            found.update(dict.fromkeys(self.handed(scope, heir, version, has_begun), heir))
        return found

    def handed(self, scope: str, heir: int, version: int, has_begun: bool) -> list[int]:
        """Return whose shards a process was handed, as far as it answers.

        Args:
          scope: as of `others`.
          heir: rank of the process.
          version: as of `others`.
          has_begun: as of `usable`.
        """
        _, inherited = self._marks(scope, heir) or (0, ())
        return usable(list(inherited), version, has_begun)

    def _source(
        self,
        size: int,
        scope: str,
        version: int,
        here: Collection[int],
        until: float,
        has_begun: bool,
        rank: int,
    ) -> Source | None:
        """Who has the same shard as one of the own group, of a step that has ended."""
        if rank in self.peers.own:
            return rank, rank
        holders = self._holders(rank, size)
        for one in holders:
            if one in here:
                return one, self.peers.own[0]
        # That one last: it may be the one that does not answer, which takes time to find out.
        first, *others = holders
        pause, wait = threading.Event(), _FIRST_WAIT_S
        while True:
            ask = functools.cache(functools.partial(self._marks, scope))
            is_late = False
            for one in [*others, first]:
                if (marks := ask(one)) is not None:
                    if marks[0] >= version:
                        return one, one
                    is_late = True
            for heir in self._readers:
                inherited = (ask(heir) or (0, ()))[1]
                for one in holders:
                    if one in usable(list(inherited), version, has_begun):
                        return one, heir
            if not is_late or time.monotonic() > until:
                return None
            pause.wait(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _holders(self, rank: int, size: int) -> list[int]:
        """Return the replicas that have the same as one, which comes first, in groups of a size."""
        count = len(self.peers.devices)
        return [(rank + i) % count for i in range(0, count, size)]

    def _marks(self, scope: str, rank: int) -> tuple[int, Sequence[int]] | None:
        """Return how many steps a replica has ended, and what it was handed; None if it is silent.

        Of what it was handed, the version of each replica's shards; -1.
        """
        import tensorflow as tf

        if time.monotonic() - self._lost.get(rank, -math.inf) < _LOST_S:
            return None

        def build() -> Any:
            with tf.device(self.peers.devices[rank]):
                return (
                    read_in_graph(mark_name(scope, "overwritten"), tf.int64),
                    read_in_graph(mark_name(scope, INHERITED), tf.int64, [len(self.peers.devices)]),
                )

        try:
            limit = min(_ANSWER_S, timeout_seconds())
            mark, inherited = self._readers[rank].run(("copies", scope), build, limit)
        except errors.UnavailableError:
            self._lost[rank] = (
                time.monotonic()
            )  # To connect again would take as long as it may take to answer.
            return None
        except errors.OpError:
            return None
        return (mark if mark >= 0 else -1 - mark), inherited
