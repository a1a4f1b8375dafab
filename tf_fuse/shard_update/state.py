# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which variables are in parts, and who may use them.

Whoever reads or assigns such a variable outside of the function that cuts it gets the full and
fresh value: its handle, which everybody needs for that, is not given out before the values are put
together. (What has a handle already, and passes it to an operation by itself, finds a variable
without elements.)

Between that and the operation, another thread may end a step, which takes the value away. So a
thread that makes no steps gets a copy of the handle, on loan: the copy is gone when the operation
has run, and a step waits for that.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from tensorflow.python.framework import errors

from tf_fuse.shard_update.bundle import Bundle, key_of
from tf_fuse.shard_update.cluster import Reader, timeout_seconds
from tf_fuse.shard_update.copies import Copies
from tf_fuse.shard_update.lending import copy_of, states
from tf_fuse.shard_update.parts import Held

_log = logging.getLogger("tf_fuse")

# A copy of a handle that lives longer is kept by the program, and not by an operation.
_LONGEST_LOAN_S = 10.0
# Packages whose code uses variables for others.
_LIBRARIES = frozenset({"contextlib", "keras", "tensorflow", "tf_fuse", "tf_keras", "threading"})


@dataclass(frozen=True)
class _Loan:
    """Variables that a thread uses.

    Attributes:
      ids: of their handles.
      thread: that uses them.
      patience: for how many seconds a step waits for it.
    """

    ids: frozenset[int]
    thread: int
    patience: float


class State:
    """The bundles of a program. Thread-safe."""

    def __init__(self, reader: Reader | None, readers: Mapping[int, Reader] | None = None):
        """Starts without bundles.

        Args:
          reader: of all replicas; None where there will be no bundles.
          readers: of each one of other processes, by rank.
        """
        self._copies = None if reader is None else Copies(reader, readers or {})
        self._bundles: dict[Any, Bundle] = {}
        self._parted: dict[int, Bundle] = {}
        self._count = 0
        self._dead: list[Bundle] = []
        # Ids of handles that a step or a reader is busy with, and their threads.
        self._busy: dict[int, int] = {}
        self._changed = threading.Condition()
        # Of each handle, the threads that have begun a step with it.
        self._steppers: dict[int, set[int]] = {}
        self._taped: set[int] = set()
        # The collector takes loans away: nobody hears of it.
        self._loans: dict[int, _Loan] = {}
        self._numbers = itertools.count()
        # Ids of handles that steps wait for, so that no new loans come in between.
        self._wanted: list[Collection[int]] = []

    def bundles(self) -> list[Bundle]:
        """All that exist, by number."""
        return sorted(self._bundles.values(), key=lambda bundle: bundle.number)

    def bundle(self, held: Sequence[Held], handles: Mapping[int, Sequence[Any]]) -> Bundle:
        """The bundle of some variables that are cut in a way; made when it is first asked for.

        Raises:
          tf.errors.OpError: another replica has died or does not answer.
        """
        self._bury()
        key = key_of(held, handles)
        found = self._bundles.get(key)
        if found is None:
            assert self._copies is not None
            self._copies.connect(held[0].groups if held else 1)
            found = Bundle(self._count, held, handles, self._copies)
            self._count += 1
            self._bundles[key] = found
            for handle in found.handles():
                self._steppers.setdefault(id(handle), set()).add(threading.get_ident())
                states[id(handle)] = self
                weakref.finalize(handle, self._gone, found, id(handle)).atexit = False
        return found

    @contextlib.contextmanager
    def step(self, bundle: Bundle, who: str = "") -> Iterator[None]:
        """For a step that uses the parts: cuts the values before it, where they are whole.

        Args:
          bundle: of the parts.
          who: the function that uses them, for the report.

        Raises:
          tf.errors.OpError: values had to be put together first, and another replica died.
        """
        ids = {id(handle) for handle in bundle.handles()}
        for i in ids:
            self._steppers[i].add(threading.get_ident())
        with self._reserve(ids, for_step=True):
            self._bury()
            if not bundle.is_parted:
                self._make_whole(ids, who)
                bundle.cut()
            bundle.begin()
            try:
                yield
            except BaseException:
                bundle.failed()
                self._note(bundle)
                raise
            bundle.ended()
            self._note(bundle)

    def whole(self, handles: Iterable[Any], who: str = "") -> None:
        """Puts the values of variables together, as far as they are in parts.

        Args:
          handles: of the variables.
          who: needs them, for the report; "" for the caller outside of libraries.

        Raises:
          tf.errors.OpError: another replica has died or does not answer; nothing has changed.
        """
        ids = {id(handle) for handle in handles} & self._parted.keys()
        if ids:
            with self._reserve(ids):
                self._make_whole(ids, who)

    def lend(self, handle: Any, who: str = "") -> Any:
        """The handle of a variable that has its value, for one operation.

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
        number = self._borrow([handle], who, _LONGEST_LOAN_S)
        try:
            copy = copy_of(handle)
        except BaseException:
            self._loans.pop(number, None)
            raise
        weakref.finalize(copy, self._loans.pop, number, None).atexit = False
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
        number = self._borrow(handles, who, timeout_seconds())
        try:
            yield
        finally:
            self._loans.pop(number, None)
            with self._changed:
                self._changed.notify_all()

    def _is_of_others(self, handle: int) -> bool:
        """Whether another thread than this one makes steps with a variable."""
        return self._steppers.get(handle) != {threading.get_ident()}

    def _borrow(self, handles: Iterable[Any], who: str, patience: float) -> int:
        """Has steps of other threads wait for this one; the number of the loan."""
        thread = threading.get_ident()
        ids = frozenset(id(handle) for handle in handles)
        with self._changed:
            # Who has something on loan already goes on: the step waits for that.
            self._changed.wait_for(
                lambda: (
                    any(loan.thread == thread for loan in tuple(self._loans.values()))
                    or not any(i in wanted for wanted in self._wanted for i in ids)
                )
            )
        with self._reserve(ids):
            self._make_whole(ids, who)
            number = next(self._numbers)
            self._loans[number] = _Loan(ids, thread, patience)
        return number

    def _make_whole(self, ids: Collection[int], who: str) -> None:
        for bundle in {
            self._parted[i].number: self._parted[i] for i in ids if i in self._parted
        }.values():
            began = time.monotonic()
            with _explained(bundle):
                bundle.join()
            size = bundle.bytes_of_others()
            bundle.joins.add(who or _caller(), size, time.monotonic() - began)
            self._note(bundle)

    def _note(self, bundle: Bundle) -> None:
        for handle in bundle.handles():
            if bundle.is_parted:
                self._parted[id(handle)] = bundle
            elif self._parted.get(id(handle)) is bundle:
                del self._parted[id(handle)]

    @contextlib.contextmanager
    def _reserve(self, ids: Collection[int], for_step: bool = False) -> Iterator[None]:
        """Keeps other threads from some variables, and from what is put together with them."""
        while True:
            together = self._together(ids)
            with self._alone(together, for_step):
                if together == self._together(ids):
                    yield
                    return

    def _together(self, ids: Collection[int]) -> set[int]:
        """Some variables, and all others of the bundles in whose parts they are."""
        found = set(ids)
        for bundle in [self._parted[i] for i in ids if i in self._parted]:
            found.update(id(handle) for handle in bundle.handles())
        return found

    @contextlib.contextmanager
    def _alone(self, ids: Collection[int], for_step: bool = False) -> Iterator[None]:
        """Keeps other threads from some variables; for a step, also when they have them on loan."""
        thread = threading.get_ident()
        if any(self._busy.get(i) == thread for i in ids):
            # As a handler of a signal that comes in a step. It would wait for itself.
            raise errors.FailedPreconditionError(
                None,
                None,
                "tf_fuse: variables of the optimizer, or weights, of which each replica keeps a "
                "part, are used in the middle of a step, by a signal's handler perhaps. Note the "
                "signal there, and read or save them behind the step.",
            )
        with self._changed:
            if for_step:
                self._wait_for_loans(ids, thread)
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

    def _wait_for_loans(self, ids: Collection[int], thread: int) -> None:
        """Returns when no other thread uses some variables; `_changed` is held."""
        self._wanted.append(ids)
        began, wait = time.monotonic(), 0.001
        try:
            while True:
                self._changed.wait_for(lambda: not any(i in self._busy for i in ids))
                late = {
                    number: loan
                    for number, loan in self._loans.copy().items()
                    if loan.thread != thread and not loan.ids.isdisjoint(ids)
                }
                if not late:
                    return
                now = time.monotonic()
                for number, loan in late.items():
                    if now - began > loan.patience:
                        self._loans.pop(number, None)
                        _log.warning(
                            "tf_fuse: a step has waited %d s for another thread that uses a "
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
    def _gone(self, bundle: Bundle, handle: int) -> None:
        self._parted.pop(handle, None)
        self._steppers.pop(handle, None)
        self._taped.discard(handle)
        states.pop(handle, None)
        if not bundle.handles():
            self._bundles.pop(bundle.key, None)
            self._dead.append(bundle)

    def _bury(self) -> None:
        while self._dead:
            self._dead.pop().destroy()


@contextlib.contextmanager
def _explained(bundle: Bundle) -> Iterator[None]:
    """Says in an error what the values are of, and what to do."""
    try:
        yield
    except errors.OpError as error:
        weights = " and weights" if any(one.is_weight for one in bundle.held) else ""
        error._message = (
            f"tf_fuse: the values of {len(bundle.held)} variables of the optimizer{weights}, of "
            f"which each replica keeps a part, could not be put together after step "
            f"{bundle.version}: {error.message}\nIf a task has died, what it kept is lost: restart "
            "the program from its last checkpoint."
        )
        raise


def _caller() -> str:
    """The place in the program that uses a variable."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] not in _LIBRARIES:
            break
        frame = frame.f_back
    return f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"
