# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whose parts are read where replicas are in groups, each of which has everything once.

A process reads from its own group: the gather of the new weights, which ends a step, has waited for
these parts. Where one of the group is gone, replicas of other groups are read, which have the same
parts, and which this process has not waited for: they have to say first that their step has ended.
"""

from __future__ import annotations

import atexit
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tensorflow.python.framework import errors

from tf_fuse.shard_update.cluster import Cluster, Reader, timeout_seconds
from tf_fuse.shard_update.named import read_in_graph

_log = logging.getLogger("tf_fuse")

_ANSWER_S = 5.0
_FIRST_WAIT_S = 0.005
_LONGEST_WAIT_S = 0.5


class Copies:
    """The replicas that have copies of each other's parts."""

    def __init__(self, reader: Reader, readers: Mapping[int, Reader]):
        """Knows of no replica that is gone.

        Args:
          reader: of all replicas.
          readers: of each one of other processes, by rank.
        """
        self.cluster: Cluster = reader.cluster
        self._readers = readers
        self._lost: set[int] = set()
        self._told: set[tuple[str, str]] = set()
        self._of: dict[tuple[int, ...], Reader] = {
            tuple(range(len(reader.cluster.devices))): reader
        }

    def reader(self, ranks: tuple[int, ...]) -> Reader:
        """What reads from some replicas, whether others live or not."""
        if ranks not in self._of:
            self._of[ranks] = Reader(self.cluster, ranks)
            atexit.register(self._of[ranks].abandon)
        return self._of[ranks]

    def own_group(self, groups: int) -> tuple[int, ...]:
        """The ranks of the group that this process is in; of its first replica."""
        size = len(self.cluster.devices) // groups
        first = self.cluster.own[0] // size * size
        return tuple(range(first, first + size))

    def connect(self, groups: int) -> None:
        """Connects to the own group, if others are in processes of their own.

        It is done early: a task that has died by then would be waited for.

        Raises:
          tf.errors.OpError: as of `Reader.run`.
        """
        if groups > 1 and self._readers:
            self.reader(self.own_group(groups)).connect()

    def others(
        self,
        groups: int,
        mark: str,
        has_ended: Callable[[int], bool],
        why: str,
    ) -> tuple[int, ...]:
        """Replicas that have everything together, where the own group cannot be read.

        Args:
          groups: of all replicas.
          mark: name of the variable in which each of them says which step has ended.
          has_ended: whether that is the last step of this process, or a later one.
          why: the own group could not be read.

        Returns:
          A rank for each part, in the order of parts; of the own group where no other answers.

        Raises:
          tf.errors.UnavailableError: of a part, nobody who has it answers.
        """
        own = self.own_group(groups)
        until = time.monotonic() + timeout_seconds()
        chosen = tuple(
            self._living(rank, len(own), functools.partial(self._ended, mark, has_ended), until)
            for rank in own
        )
        devices = self.cluster.devices
        if None in chosen:
            holders = [devices[r] for r in self._holders(own[chosen.index(None)], len(own))]
            raise errors.UnavailableError(
                None,
                None,
                f"of {', '.join(holders)}, which have the same part, none "
                f"answers that its last step has ended: {why}",
            )
        found = tuple(rank for rank in chosen if rank is not None)
        moved = [(devices[r], devices[c]) for r, c in zip(own, found, strict=True) if r != c]
        for gone, other in moved:
            if (gone, other) not in self._told:
                self._told.add((gone, other))
                _log.warning(
                    "tf_fuse: reads the optimizer's state from %s, which has what %s has: %s",
                    other,
                    gone,
                    why.partition("\n")[0],
                )
        return found

    def _living(
        self, rank: int, size: int, ended: Callable[[int], bool | None], until: float
    ) -> int | None:
        """A replica that has the same part as one of the own group, and has ended its step."""
        if rank in self.cluster.own:
            return rank
        # That one last: it may be the one that does not answer, which takes time to find out.
        first, *others = self._holders(rank, size)
        candidates = [*others, first]
        pause, wait = threading.Event(), _FIRST_WAIT_S
        while True:
            answers = []
            for one in candidates:
                answers.append(None if one in self._lost else ended(one))
                if answers[-1]:
                    return one
            if False not in answers or time.monotonic() > until:
                return None
            pause.wait(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)

    def _holders(self, rank: int, size: int) -> list[int]:
        """The replicas that have the same as one, which comes first, in groups of a size."""
        count = len(self.cluster.devices)
        return [(rank + i) % count for i in range(0, count, size)]

    def _ended(self, mark: str, has_ended: Callable[[int], bool], rank: int) -> bool | None:
        """Whether the last step has ended on a replica; None if it does not answer."""
        import tensorflow as tf

        def build() -> Any:
            with tf.device(self.cluster.devices[rank]):
                return read_in_graph(mark, tf.int64)

        try:
            limit = min(_ANSWER_S, timeout_seconds())
            return has_ended(int(self._readers[rank].run(("copies", mark), build, limit)))
        except errors.UnavailableError:
            self._lost.add(rank)  # To connect again would take as long as it may take to answer.
            return None
        except errors.OpError:
            return None
