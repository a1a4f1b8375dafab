# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Track which variables lie in shards, and which threads may use them.

Whoever reads or assigns such a variable outside of the function that shards it gets the full and
fresh value: its handle, which everybody needs for that, is not given out before the values are put
together. (What has a handle already, and passes it to an operation by itself, finds a variable
without elements.)

Between that and the operation, another thread may end a step, which takes the value away. So a
thread that makes no steps gets a copy of the handle: the copy is gone when the operation
has run, and a step waits for that.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorflow.python.framework import errors

from tf_fuse.sharded_variable.choose_sources import Copies
from tf_fuse.sharded_variable.handle_access import copy_of, states
from tf_fuse.sharded_variable.local_shards import ShardRanges
from tf_fuse.sharded_variable.peers import Reader, timeout_seconds
from tf_fuse.sharded_variable.shard_group import ShardGroup, key_of
from tf_fuse.sharded_variable.unshard import caller

_log = logging.getLogger("tf_fuse")

# A copy of a handle that lives longer is kept by the program, and not by an operation.
_LONGEST_ACCESS_S = 10.0


@dataclass(frozen=True)
class _HandleAccess:
    """Variables that a thread uses.

    Attributes:
      ids: of their handles.
      thread: that uses them.
      patience: for how many seconds a step waits for it.
    """

    ids: frozenset[int]
    thread: int
    patience: float


class ShardGroups:
    """The shard groups of a program. Thread-safe.

    Attributes:
      before_step: is called before each step, which may still fail then.
    """

    def __init__(self, reader: Reader | None, readers: Mapping[int, Reader] | None = None):
        """Start without shard groups.

        Args:
          reader: of all replicas; None where there will be no shard groups.
          readers: of each one of other processes, by rank.
        """
        self._copies = None if reader is None else Copies(reader, readers or {})
        self.before_step: Callable[[ShardGroup], None] = lambda shard_group: None
        self._shard_groups: dict[Any, ShardGroup] = {}
        self._sharded: dict[int, ShardGroup] = {}
        self._count = 0
        self._dead: list[ShardGroup] = []
        # What was done with shard groups that are gone.
        self._past: Counter[str] = Counter()
        self._counting = threading.Lock()
        # Ids of handles that a step or a reader is busy with, and their threads.
        self._busy: dict[int, int] = {}
        self._changed = threading.Condition()
        # Of each handle, the threads that have begun a step with it.
        self._steppers: dict[int, set[int]] = {}
        self._taped: set[int] = set()
        # The collector takes accesses away: nobody hears of it.
        self._accesses: dict[int, _HandleAccess] = {}
        self._numbers = itertools.count()
        # Ids of handles that steps wait for, so that no new accesses come in between.
        self._wanted: list[Collection[int]] = []
        # Threads in a step; and the one that may begin others when the process is about to end.
        self._in_steps: list[int] = []
        self._last: int | None = None

    def shard_groups(self) -> list[ShardGroup]:
        """All that exist, by number."""
        # (Of a copy: metrics are read in threads of their own.)
        groups = self._shard_groups.copy().values()
        return sorted(groups, key=lambda shard_group: shard_group.number)

    def counts(self) -> dict[str, float]:
        """Return what has been done with all shard groups so far, by the names of counters."""
        with self._counting:
            total = Counter(self._past)
            for shard_group in [*self._shard_groups.copy().values(), *self._dead]:
                total.update(shard_group.counts())
        return dict(total)

    def shard_group(
        self, held: Sequence[ShardRanges], handles: Mapping[int, Sequence[Any]]
    ) -> ShardGroup:
        """Return the shard group of some variables; make it at the first call.

        Raises:
          tf.errors.OpError: another replica has died or does not answer.
        """
        self._bury()
        key = key_of(held, handles)
        found = self._shard_groups.get(key)
        if found is None:
            assert self._copies is not None
            self._copies.connect(held[0].groups if held else 1)
            found = ShardGroup(self._count, held, handles, self._copies)
            self._count += 1
            self._shard_groups[key] = found
            for handle in found.handles():
                self._steppers.setdefault(id(handle), set()).add(threading.get_ident())
                states[id(handle)] = self
                weakref.finalize(handle, self._gone, found, id(handle)).atexit = False
        return found

    @contextlib.contextmanager
    def step(self, shard_group: ShardGroup, who: str = "") -> Iterator[None]:
        """For a step that uses shards: make them of the values before it, where these are whole.

        Args:
          shard_group: of the shards.
          who: the function that uses them, for the report.

        Raises:
          tf.errors.OpError: values had to be put together first, and another replica died.
        """
        ids = {id(handle) for handle in shard_group.handles()}
        for i in ids:
            self._steppers[i].add(threading.get_ident())
        with self._under_way(), self._reserve(ids, for_step=True):
            self._bury()
            if not shard_group.is_sharded:
                self._make_whole(ids, who)
                shard_group.shard()
            self.before_step(shard_group)
            shard_group.begin()
            try:
                yield
            except BaseException:
                shard_group.failed()
                self._note(shard_group)
                raise
            shard_group.ended()
            self._note(shard_group)

    def stop(self, seconds: float) -> bool:
        """Keep other threads from beginning steps, and wait for those that are under way.

        Args:
          seconds: that it waits at most: a step may wait for a process that is gone.

        Returns:
          Whether no step is under way.
        """
        with self._changed:
            self._last = threading.get_ident()
            return self._changed.wait_for(lambda: not self._in_steps, seconds)

    def go_on(self) -> None:
        """Take `stop` back."""
        with self._changed:
            self._last = None
            self._changed.notify_all()

    @contextlib.contextmanager
    def _under_way(self) -> Iterator[None]:
        """For a step, which waits after `stop`."""
        thread = threading.get_ident()
        with self._changed:
            self._changed.wait_for(lambda: self._last in (None, thread))
            self._in_steps.append(thread)
        try:
            yield
        finally:
            with self._changed:
                self._in_steps.remove(thread)
                self._changed.notify_all()

    def whole(self, handles: Iterable[Any], who: str = "") -> None:
        """Put the values of variables together, where they are in shards.

        Args:
          handles: of the variables.
          who: needs them, for the report; "" for the caller outside of libraries.

        Raises:
          tf.errors.OpError: another replica has died or does not answer; nothing has changed.
        """
        ids = {id(handle) for handle in handles} & self._sharded.keys()
        if ids:
            with self._reserve(ids):
                self._make_whole(ids, who)

    def access(self, handle: Any, who: str = "") -> Any:
        """Return the handle of a variable that has its value, for one operation.

        Args:
          handle: of the variable.
          who: as of `whole`.

        Returns:
          The handle; or a copy of it, where another thread makes steps.

        Raises:
          tf.errors.OpError: as of `whole`.
        """
        from tensorflow.python.eager import record

        # A tape knows a variable by its handle, which it is asked for behind it: a copy would be
        # another one.
        if record.could_possibly_record():
            self._taped.add(id(handle))
        if id(handle) in self._taped or not self._is_of_others(id(handle)):
            self.whole([handle], who)
            return handle
        number = self._begin_access([handle], who, _LONGEST_ACCESS_S)
        try:
            copy = copy_of(handle)
        except BaseException:
            self._accesses.pop(number, None)
            raise
        weakref.finalize(copy, self._accesses.pop, number, None).atexit = False
        return copy

    @contextlib.contextmanager
    def using(self, handles: Sequence[Any], who: str, is_short: bool) -> Iterator[None]:
        """For a function that reads or assigns variables: they have their values in it.

        Args:
          handles: of the variables.
          who: as of `whole`.
          is_short: whether it waits for no other process. A step does not wait for one that does:
            the other one might wait for this step.

        Raises:
          tf.errors.OpError: as of `whole`.
        """
        if not is_short or not any(self._is_of_others(id(handle)) for handle in handles):
            self.whole(handles, who)
            yield
            return
        number = self._begin_access(handles, who, timeout_seconds())
        try:
            yield
        finally:
            self._accesses.pop(number, None)
            with self._changed:
                self._changed.notify_all()

    def _is_of_others(self, handle: int) -> bool:
        """Return whether another thread than this one makes steps with a variable."""
        return self._steppers.get(handle) != {threading.get_ident()}

    def _begin_access(self, handles: Iterable[Any], who: str, patience: float) -> int:
        """Make steps of other threads wait for this one, and return the number of this access."""
        thread = threading.get_ident()
        ids = frozenset(id(handle) for handle in handles)
        with self._changed:
            # Who has an access already goes on: the step waits for that.
            self._changed.wait_for(
                lambda: (
                    any(access.thread == thread for access in tuple(self._accesses.values()))
                    or not any(i in wanted for wanted in self._wanted for i in ids)
                )
            )
        with self._reserve(ids):
            self._make_whole(ids, who)
            number = next(self._numbers)
            self._accesses[number] = _HandleAccess(ids, thread, patience)
        return number

    def _make_whole(self, ids: Collection[int], who: str) -> None:
        for shard_group in {
            self._sharded[i].number: self._sharded[i] for i in ids if i in self._sharded
        }.values():
            began = time.monotonic()
            shard_group.join()
            size = shard_group.bytes_of_others()
            shard_group.joins.add(who or caller(), size, time.monotonic() - began)
            self._note(shard_group)

    def _note(self, shard_group: ShardGroup) -> None:
        for handle in shard_group.handles():
            if shard_group.is_sharded:
                self._sharded[id(handle)] = shard_group
            elif self._sharded.get(id(handle)) is shard_group:
                del self._sharded[id(handle)]

    @contextlib.contextmanager
    def _reserve(self, ids: Collection[int], for_step: bool = False) -> Iterator[None]:
        """Keep other threads from some variables, and from what is put together with them."""
        while True:
            together = self._together(ids)
            with self._alone(together, for_step):
                if together == self._together(ids):
                    yield
                    return

    def _together(self, ids: Collection[int]) -> set[int]:
        """Add to variables all others of the shard groups in whose shards they are."""
        found = set(ids)
        for shard_group in {self._sharded[i] for i in ids if i in self._sharded}:
            found.update(id(handle) for handle in shard_group.handles())
        return found

    @contextlib.contextmanager
    def _alone(self, ids: Collection[int], for_step: bool = False) -> Iterator[None]:
        """Keep other threads from some variables; for a step, also when these have an access."""
        thread = threading.get_ident()
        if any(self._busy.get(i) == thread for i in ids):
            # As a handler of a signal that comes in a step. It would wait for itself.
            raise errors.FailedPreconditionError(
                None,
                None,
                "tf_fuse: sharded variables of the optimizer, or sharded weights, are used in the "
                "middle of a step, perhaps by a signal handler. Note the signal there, and read "
                "or save the variables after the step.",
            )
        with self._changed:
            if for_step:
                self._wait_for_accesses(ids, thread)
            else:
                self._changed.wait_for(lambda: not any(i in self._busy for i in ids))
            self._busy.update(dict.fromkeys(ids, thread))
        try:
            yield
        finally:
            with self._changed:
                for i in ids:
                    self._busy.pop(i, None)
                self._changed.notify_all()

    def _wait_for_accesses(self, ids: Collection[int], thread: int) -> None:
        """Return when no other thread uses some variables; `_changed` is held."""
        self._wanted.append(ids)
        began, wait = time.monotonic(), 0.001
        try:
            while True:
                self._changed.wait_for(lambda: not any(i in self._busy for i in ids))
                late = {
                    number: access
                    for number, access in self._accesses.copy().items()
                    if access.thread != thread and not access.ids.isdisjoint(ids)
                }
                if not late:
                    return
                now = time.monotonic()
                for number, access in late.items():
                    if now - began > access.patience:
                        self._accesses.pop(number, None)
                        _log.warning(
                            "A step has waited %d s for another thread that uses a "
                            "variable of the optimizer, and goes on. If that thread keeps the "
                            "variable's handle, it should ask the variable anew each time.",
                            now - began,
                        )
                self._changed.wait(wait)
                wait = min(2 * wait, 0.05)
        finally:
            self._wanted.remove(ids)
            self._changed.notify_all()

    # The collector calls it, on any thread: it only takes notes.
    def _gone(self, shard_group: ShardGroup, handle: int) -> None:
        self._sharded.pop(handle, None)
        self._steppers.pop(handle, None)
        self._taped.discard(handle)
        states.pop(handle, None)
        # (Of handles that are collected at once, none is there when the first one is noted.)
        if not shard_group.handles() and self._shard_groups.get(shard_group.key) is shard_group:
            self._shard_groups.pop(shard_group.key, None)
            self._dead.append(shard_group)

    def _bury(self) -> None:
        while self._dead:
            with self._counting:
                shard_group = self._dead.pop()
                self._past.update(shard_group.counts())
            shard_group.destroy()
