# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hand the shards of a process that ends over to a process that stays.

Often one replica, the chief, goes on after the last step: it saves the model, while the others have
nothing left to do. In stock TensorFlow it needs nobody for that. So a process that ends, also by an
exception or by SIGTERM, writes its shards to another one's memory first, with those that were
handed to it. It does not where all others end, too, or have the values of the last step.

Often SIGTERM does not end a process: the program handles it, or TensorFlow, whose notifier of
preemptions MultiWorkerMirroredStrategy starts. A SIGKILL may follow. So the shards are handed over
then, too, and the process goes on; if it ends another step, it hands them over again at its end.

Two that leave at once may choose each other. So each says first that it ends, then looks at what it
was handed; and who hands over looks again whether the other one ends when that one has it all.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from tf_fuse.shard_update.runtime.handover_protocol import ANSWER_S, Others
from tf_fuse.sharded_variable.peers import Peers, Reader
from tf_fuse.sharded_variable.shard_group import ShardGroup
from tf_fuse.sharded_variable.state import ShardGroups

_log = logging.getLogger("tf_fuse")

_VARIABLE = "TF_FUSE_EXIT_WAIT_S"
_LONGEST_S = 60.0
# After a SIGTERM: many systems kill a process 30 s later.
_LONGEST_AFTER_SIGTERM_S = 25.0
# Others that end in this time need nothing.
_GRACE_S = 2.0
# A step that is under way when the process shall end may end by then.
_STEP_S = 5.0


class ExitBarrier:
    """What a process does at its end. Thread-safe."""

    def __init__(self, peers: Peers, state: ShardGroups, readers: Mapping[int, Reader]):
        """Register itself with the interpreter, and for SIGTERM.

        Args:
          peers: of all replicas.
          state: of this one.
          readers: of the others, by rank; connected.
        """
        self._peers, self._state, self._readers = peers, state, readers
        self._pid = os.getpid()
        self._others = Others(peers, readers)
        self._lock = threading.Lock()
        self._has_left = False
        self._catch = _end_after_barrier(self)
        state.before_step = self._before_step

    def leave(self, until: float | None = None) -> None:
        """Hand over what others may need of this process; a second time, only wait for that.

        Args:
          until: when it gives up; None: after `seconds_to_leave`, for all such calls together.
        """
        until = _at_the_end() if until is None else until
        seconds = until - time.monotonic()
        # (A forked child has no thread of TensorFlow's.)
        if seconds <= 0 or os.getpid() != self._pid or not self._lock.acquire(timeout=seconds):
            return
        try:
            if self._has_left:
                return
            self._has_left = True
            is_quiet = self._state.stop(min(_STEP_S, seconds))
            self._others.exit()
            # Where the program failed, others may end later, by errors that it causes.
            grace = 0.0 if getattr(sys, "last_value", None) is not None else _GRACE_S
            # The first one is the chief, which often stays.
            self._leave(sorted(self._readers), until, grace, is_quiet)
        finally:
            self._lock.release()

    def may_end(self, until: float) -> None:
        """Hand over what others would miss if the process was killed now; it may also go on.

        Args:
          until: when it gives up.
        """
        seconds = until - time.monotonic()
        if seconds <= 0 or os.getpid() != self._pid or not self._lock.acquire(timeout=seconds):
            return
        try:
            if self._has_left:
                return
            try:
                is_quiet = self._state.stop(min(_STEP_S, seconds))
                own = self._peers.own[0]
                # To the next one: all may have the same signal, and none shall get all shards.
                ranks = sorted(self._readers, key=lambda rank: (rank < own, rank))
                is_with_others = self._leave(ranks, until, 0, is_quiet)
            finally:
                self._state.go_on()
            _log.warning(
                "This replica has had a SIGTERM; what others need of its shards of the optimizer's "
                "state is %s.",
                "with them, as of now"
                if is_with_others
                else "not with all of them: it is lost if this process is killed now",
            )
        finally:
            self._lock.release()

    def _leave(self, others: Sequence[int], until: float, grace: float, is_quiet: bool) -> bool:
        """Hand over all shard groups; return whether nobody misses anything."""
        graceful = time.monotonic() + grace
        return all(
            [
                self._leave_shard_group(shard_group, list(others), until, graceful, is_quiet)
                for shard_group in self._state.shard_groups()
                if shard_group.version
            ]
        )

    def _leave_shard_group(
        self,
        shard_group: ShardGroup,
        left: list[int],
        until: float,
        graceful: float,
        is_quiet: bool,
    ) -> bool:
        """Hand the shards of a shard group over, if anybody may need them.

        Args:
          shard_group: of the shards.
          left: ranks of others, who is asked first in front.
          until: when it gives up.
          graceful: until when it waits for others to end, too.
          is_quiet: whether no step is under way, nor can begin.

        Returns:
          Whether nobody misses them.
        """
        pause, wait = threading.Event(), 0.01
        # When those that cannot be reached, or that take nothing, were reached last.
        reached = dict.fromkeys(left, time.monotonic())
        refused: str | None = None
        while True:
            answers = self._others.ask(left, shard_group, until)
            now = time.monotonic()
            left = [rank for rank in left if not answers[rank].is_gone]
            reached.update({rank: now for rank in left if not answers[rank].is_lost})
            needing = [rank for rank in left if answers[rank].taken != shard_group.version]
            if not needing:
                return True
            heirs = [
                rank
                for rank in [*needing, *left]
                if not (answers[rank].is_silent or answers[rank].is_lost)
            ]
            if now > until or all(now - reached[rank] > ANSWER_S for rank in needing):
                self._warn(
                    shard_group,
                    f"{self._peers.devices[needing[0]]} may still need it, and has not taken it "
                    f"over ({refused or 'it does not answer'}), nor has another replica. "
                    f"{_VARIABLE} limits the time for that",
                )
                return False
            if heirs and now >= graceful:
                if shard_group.has_begun and not self._others.is_between_steps(shard_group, until):
                    self._warn(
                        shard_group,
                        "a step has changed it that has failed, or has not ended within "
                        f"{_STEP_S:g} s",
                    )
                    return False
                for heir in dict.fromkeys(heirs):
                    stays, refused = self._others.hand_over(shard_group, heir, until, is_quiet)
                    if stays:
                        return True
                    if refused is None:
                        left.remove(heir)
                        break
                if refused is None:
                    continue
            pause.wait(wait)
            wait = min(2 * wait, 0.5)

    def _before_step(self, shard_group: ShardGroup) -> None:
        if os.getpid() == self._pid:
            self._catch()
            self._others.take_back(shard_group)

    def _warn(self, shard_group: ShardGroup, why: str) -> None:
        _log.warning(
            "This replica's shard of the optimizer's state after step %d is lost when its process "
            "ends, unless others keep a copy: %s. The last checkpoint has all of it.",
            shard_group.version,
            why,
        )


_all: list[ExitBarrier] = []
# When all that is done at the end of the interpreter is over.
_ends_at: list[float] = []


def _at_the_end() -> float:
    if not _ends_at:
        _ends_at.append(time.monotonic() + seconds_to_leave())
    return _ends_at[0]


def _end_after_barrier(barrier: ExitBarrier) -> Callable[[], None]:
    """Call `leave` at the end of the interpreter, and hands over when a SIGTERM comes.

    Python's handlers run when the main thread returns to Python, which may wait in a step without
    end: here another thread hears of the signal.

    Returns:
      What catches SIGTERM again, if the program has set another handler since.
    """
    from tf_fuse import _native

    library = _native.library()
    _all.append(barrier)
    if len(_all) == 1:
        library.tf_fuse_wait_for_sigterm.argtypes = [ctypes.c_double]
        library.tf_fuse_wait_for_sigterm.restype = ctypes.c_bool
        library.tf_fuse_catch_sigterm()
        # After all others: then no thread is left that would hear of a SIGTERM.
        atexit.register(library.tf_fuse_release_sigterm)
        threading.Thread(
            target=_wait_for_sigterm, args=[library], name="tf_fuse sigterm", daemon=True
        ).start()
    atexit.register(barrier.leave)
    catch: Callable[[], None] = library.tf_fuse_catch_sigterm
    return catch


def _wait_for_sigterm(library: ctypes.CDLL) -> None:
    while True:
        # (A reader needs a moment more to give up.)
        ends = library.tf_fuse_wait_for_sigterm(seconds_to_leave(True) + _GRACE_S)
        until = time.monotonic() + seconds_to_leave(True)
        for barrier in _all:
            try:
                if ends:
                    barrier.leave(until)
                else:
                    barrier.may_end(until)
            except Exception:
                _log.warning(
                    "This replica has had a SIGTERM, and hands nothing over", exc_info=True
                )
        if ends:
            library.tf_fuse_end_by_sigterm()


def seconds_to_leave(after_sigterm: bool = False) -> float:
    """Return how long a process may take to hand over what it has."""
    seconds = float(os.environ.get(_VARIABLE, _LONGEST_S))
    if after_sigterm and _VARIABLE not in os.environ:
        return _LONGEST_AFTER_SIGTERM_S
    return seconds
