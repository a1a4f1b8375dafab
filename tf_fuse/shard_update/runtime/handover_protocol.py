# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Exchange questions, answers and shards between a process that ends and the others.

Parts are of the last step that has ended until all replicas have begun another one. So what is
handed over in the middle of a step counts only if another replica had not begun it when all was
copied, and is marked as `unsure`: who reads it must know of a replica that has not begun that step.
What is handed over between two steps gets that mark when this process begins the next one.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tf_fuse._tensorflow.eager import error_messages as tensorflow_errors
from tf_fuse.sharded_variable.local_shards import (
    INHERITED,
    inherited_name,
    mark_name,
    unsure,
    version_of,
)
from tf_fuse.sharded_variable.named_variables import Named, handle_in_graph, read_in_graph
from tf_fuse.sharded_variable.peers import Peers, Reader, timeout_seconds
from tf_fuse.sharded_variable.shard_group import Handover, ShardGroup
from tf_fuse.sharded_variable.unshard import in_chunks

_log = logging.getLogger("tf_fuse")

# Within which others answer.
ANSWER_S = 5.0
_EXITING = "tf_fuse/state/exiting"


@dataclass(frozen=True)
class HandoverAnswer:
    """What a replica answers about a shard group.

    Attributes:
      is_gone: whether it ends, or has no such shard group any more.
      is_silent: whether it does not answer in time.
      is_lost: whether it cannot be reached.
      taken: the last version that it has had all values of.
      begun: the version with which it has begun its last step.
      inherited: what it was handed, as INHERITED says.
    """

    is_gone: bool = False
    is_silent: bool = False
    is_lost: bool = False
    taken: int = -1
    begun: int | None = None
    inherited: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Given:
    """What was handed over last.

    Attributes:
      heir: to whom.
      handovers: what.
      is_sure: whether the marks there say that this process has begun no other step.
    """

    heir: int
    handovers: tuple[Handover, ...]
    is_sure: bool


class Others:
    """The other processes' memory. Thread-safe, but for `hand_over`."""

    def __init__(self, peers: Peers, readers: Mapping[int, Reader]):
        """Say on this process's server that it does not end.

        Args:
          peers: of all replicas.
          readers: of the others, by rank; connected.
        """
        self._peers, self._readers = peers, readers
        self._own = peers.own[0]
        self._mark = Named(_EXITING, "bool", [], peers.devices[self._own])
        # Others say here that they end, since they may be gone when they are asked.
        self._ended = {
            rank: Named(_ended_name(rank), "bool", [], peers.devices[self._own]) for rank in readers
        }
        for mark in [self._mark, *self._ended.values()]:
            mark.assign(False)
        self._is_exiting = False
        # By scope.
        self._given: dict[str, _Given] = {}

    def exit(self) -> None:
        """Say on this process's server that it ends, and on others' when they are asked."""
        self._is_exiting = True
        self._mark.assign(True)

    def ask(
        self, ranks: Sequence[int], shard_group: ShardGroup, until: float
    ) -> dict[int, HandoverAnswer]:
        """Ask some replicas at once."""
        limit = max(0.1, min(ANSWER_S, until - time.monotonic()))
        answers = dict.fromkeys(ranks, HandoverAnswer(is_silent=True))

        def ask(rank: int) -> None:
            answers[rank] = self._answer(rank, shard_group, limit)

        threads = [threading.Thread(target=ask, args=[rank], daemon=True) for rank in ranks]
        for thread in threads:
            thread.start()
        late = time.monotonic() + limit + 1
        for thread in threads:
            thread.join(max(0, late - time.monotonic()))
        return answers.copy()

    def _answer(self, rank: int, shard_group: ShardGroup, limit: float) -> HandoverAnswer:
        from tensorflow.python.framework import errors

        is_exiting = self._is_exiting

        def build() -> list[object]:
            import tensorflow as tf

            with tf.device(self._peers.devices[rank]):
                said = []
                if is_exiting:
                    handle = handle_in_graph(_ended_name(self._own), tf.bool)
                    said.append(tf.raw_ops.AssignVariableOp(resource=handle, value=True))
                with tf.control_dependencies(said):
                    marks = [
                        read_in_graph(mark_name(shard_group.scope, mark), tf.int64)
                        for mark in ("taken", "begun")
                    ]
                    count = len(self._peers.devices)
                    inherited = mark_name(shard_group.scope, INHERITED)
                    marks.append(read_in_graph(inherited, tf.int64, [count]))
                    return [read_in_graph(_EXITING, tf.bool), *marks]

        try:
            exiting, taken, begun, inherited = self._readers[rank].run(
                ("exiting", shard_group.scope, is_exiting), build, limit
            )
        except errors.DeadlineExceededError:
            return HandoverAnswer(is_silent=True)
        except (errors.NotFoundError, errors.FailedPreconditionError):
            return HandoverAnswer(is_gone=True)  # It has no variables of this shard group any more.
        except errors.OpError:
            # One that may have been killed after it had handed its shards over here needs none.
            has_left = version_of(shard_group.inherited()[rank]) >= shard_group.version
            has_ended = has_left or bool(self._ended[rank].read())
            return HandoverAnswer(is_gone=has_ended, is_lost=not has_ended)
        return HandoverAnswer(
            is_gone=bool(exiting),
            taken=int(taken),
            begun=int(begun),
            inherited=tuple(int(mark) for mark in inherited),
        )

    def is_between_steps(self, shard_group: ShardGroup, until: float) -> bool:
        """Return whether some replica has not begun the step that this process has begun.

        Then no replica has changed its shards in it.
        """
        answers = self.ask(sorted(self._readers), shard_group, until).values()
        marks = [mark for answer in answers for mark in answer.inherited]
        return shard_group.version in [*marks, *shard_group.inherited()] or any(
            answer.begun is not None and answer.begun < shard_group.version for answer in answers
        )

    def hand_over(
        self, shard_group: ShardGroup, heir: int, until: float, is_quiet: bool
    ) -> tuple[bool, str | None]:
        """Give a process what this one has of a shard_group.

        Returns:
          Whether that one stays for now; and why it could not be given, None if it ends.
        """
        from tensorflow.python.framework import errors

        handovers = tuple(shard_group.handovers())
        given = self._given.get(shard_group.scope)
        is_there = given is not None and (given.heir, given.handovers) == (heir, handovers)
        is_sure = is_quiet and not shard_group.has_begun
        try:
            if not is_there:
                # Nobody shall take for whole what is half written.
                self._given.pop(shard_group.scope, None)
                self._say(shard_group, handovers, heir, until, lambda handover: -1)
                self._copy(shard_group, handovers, heir, until)
            if tuple(shard_group.handovers()) != handovers:
                return False, "a step has ended meanwhile"
            if shard_group.has_begun and not self.is_between_steps(shard_group, until):
                return False, "a step has changed it meanwhile"

            def mark(handover: Handover) -> int:
                return (
                    handover.version if is_sure and handover.is_sure else unsure(handover.version)
                )

            exiting = self._say(shard_group, handovers, heir, until, mark)
        except errors.OpError as error:
            _log.info("%s takes nothing over: %s", self._peers.devices[heir], error)
            return False, error.message.partition("\n")[0]
        if exiting:
            return False, None
        self._given[shard_group.scope] = _Given(heir, handovers, is_sure)
        return True, None

    def _copy(
        self, shard_group: ShardGroup, handovers: Sequence[Handover], heir: int, until: float
    ) -> None:
        for handover in handovers:
            sizes = [
                int(one.dtype.size) * (one.range(handover.rank)[1] - one.range(handover.rank)[0])
                for one in shard_group.held
            ]
            slots = [i for i, size in enumerate(sizes) if size]
            for chunk in in_chunks(slots, sizes):
                build = functools.partial(self._copied, shard_group, handover, chunk, heir)
                self._run(heir, (shard_group.scope, handover.names, chunk[0]), build, until)

    def _say(
        self,
        shard_group: ShardGroup,
        handovers: Sequence[Handover],
        heir: int,
        until: float,
        mark: Callable[[Handover], int],
    ) -> bool:
        """Write marks to another process; return whether it ends."""
        marks = tuple((handover.rank, mark(handover)) for handover in handovers)
        build = functools.partial(self._said, shard_group.scope, marks, heir)
        return bool(self._run(heir, (shard_group.scope, marks), build, until))

    def take_back(self, shard_group: ShardGroup) -> None:
        """Take back that this process has begun no other step, before it begins one.

        Raises:
          tf.errors.DeadlineExceededError: who has its shards does not answer.
        """
        from tensorflow.python.framework import errors

        given = self._given.get(shard_group.scope)
        if given is None or not given.is_sure:
            return
        until = time.monotonic() + timeout_seconds()
        try:
            self._say(shard_group, given.handovers, given.heir, until, lambda p: unsure(p.version))
        except errors.DeadlineExceededError as error:
            tensorflow_errors.set_message(
                error,
                f"tf_fuse: {self._peers.devices[given.heir]}, which was handed shards of the "
                f"optimizer's state, does not answer before the next step: {error.message}",
            )
            raise
        except errors.OpError:
            pass  # It is gone, and what it was handed with it.
        self._given.pop(shard_group.scope, None)

    def _run(
        self, heir: int, key: tuple[Hashable, ...], build: Callable[[], object], until: float
    ) -> Any:
        limit = max(1.0, until - time.monotonic())
        return self._readers[heir].run(("hands over", *key), build, limit)

    def _copied(
        self, shard_group: ShardGroup, handover: Handover, chunk: Sequence[int], heir: int
    ) -> object:
        """Add what copies some shards to another process."""
        import tensorflow as tf

        assigned = []
        for i in chunk:
            dtype = shard_group.held[i].dtype
            begin, end = shard_group.held[i].range(handover.rank)
            with tf.device(self._peers.devices[self._peers.own[0]]):
                value = read_in_graph(handover.names[i], dtype, [end - begin])
            with tf.device(self._peers.devices[heir]):
                name = inherited_name(shard_group.scope, i, handover.rank)
                handle = handle_in_graph(name, dtype, [end - begin])
                assigned.append(tf.raw_ops.AssignVariableOp(resource=handle, value=value))
        return tf.group(*assigned)

    def _said(self, scope: str, marks: Sequence[tuple[int, int]], heir: int) -> object:
        """Add what writes to another process what it was handed; fetches whether it ends."""
        import tensorflow as tf

        with tf.device(self._peers.devices[heir]):
            name = mark_name(scope, INHERITED)
            handle = handle_in_graph(name, tf.int64, [len(self._peers.devices)])
            said = tf.raw_ops.ResourceScatterUpdate(
                resource=handle,
                indices=tf.constant([rank for rank, _ in marks]),
                updates=tf.constant([mark for _, mark in marks], tf.int64),
            )
            with tf.control_dependencies([said]):
                return read_in_graph(_EXITING, tf.bool)


def _ended_name(rank: int) -> str:
    return f"{_EXITING}/{rank}"
