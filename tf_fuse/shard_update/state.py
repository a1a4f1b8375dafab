# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which variables are in parts, and who may use them.

Whoever reads or assigns such a variable outside of the function that cuts it gets the full and
fresh value: its handle, which everybody needs for that, is not given out before the values are put
together. (What has a handle already and passes it to an operation by itself gets an error, as of a
variable that is not initialized.)
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from tensorflow.python.framework import errors

from tf_fuse.shard_update.bundle import Bundle, Held, key_of
from tf_fuse.shard_update.cluster import Reader

# Handles, by id, of variables in parts. Looked at whenever a handle is used.
_parted: dict[int, State] = {}
# Packages whose code uses variables for others.
_LIBRARIES = frozenset({"contextlib", "keras", "tensorflow", "tf_fuse", "tf_keras", "threading"})


class State:
    """The bundles of a program. Thread-safe."""

    def __init__(self, reader: Reader):
        """Starts without bundles.

        Args:
          reader: of all replicas.
        """
        self._reader = reader
        self._bundles: dict[Any, Bundle] = {}
        self._parted: dict[int, Bundle] = {}
        self._count = 0
        self._dead: list[Bundle] = []
        # Ids of handles that a step or a reader is busy with, and their threads.
        self._busy: dict[int, int] = {}
        self._changed = threading.Condition()

    def bundles(self) -> list[Bundle]:
        """All that exist, by number."""
        return sorted(self._bundles.values(), key=lambda bundle: bundle.number)

    def bundle(self, held: Sequence[Held], handles: Mapping[int, Sequence[Any]]) -> Bundle:
        """The bundle of some variables that are cut in a way; made when it is first asked for."""
        self._bury()
        key = key_of(held, handles)
        found = self._bundles.get(key)
        if found is None:
            found = Bundle(self._count, held, handles, self._reader)
            self._count += 1
            self._bundles[key] = found
            for handle in found.handles():
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
        ids = [id(handle) for handle in bundle.handles()]
        with self._alone(ids):
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
        while ids:
            bundle = self._parted.get(ids.pop())
            if bundle is None:
                continue
            everything = [id(handle) for handle in bundle.handles()]
            with self._alone(everything):
                self._make_whole(everything, who)

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
                _parted[id(handle)] = self
            elif self._parted.get(id(handle)) is bundle:
                del self._parted[id(handle)]
                _parted.pop(id(handle), None)

    @contextlib.contextmanager
    def _alone(self, ids: Collection[int]) -> Iterator[None]:
        """Keeps other threads from some variables."""
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
            self._changed.wait_for(lambda: not any(i in self._busy for i in ids))
            self._busy.update(dict.fromkeys(ids, thread))
        try:
            yield
        finally:
            with self._changed:
                for i in ids:
                    self._busy.pop(i, None)
                self._changed.notify_all()

    # The collector calls it, on any thread: it only takes notes.
    def _gone(self, bundle: Bundle, handle: int) -> None:
        self._parted.pop(handle, None)
        _parted.pop(handle, None)
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


def use(handle: Any, who: str = "") -> None:
    """Sees to it that a variable has its value before its handle is given out.

    Args:
      handle: of the variable.
      who: as of `State.whole`.
    """
    from tensorflow.python.eager import context

    state = _parted.get(id(handle))
    # A graph that is being made is not run yet; when it is, the handle is among its inputs.
    if state is not None and context.executing_eagerly():
        state.whole([handle], who)


def is_any_parted() -> bool:
    """Whether any variable is in parts."""
    return bool(_parted)


class _Handle:
    """`_handle` of TensorFlow's variables, which its C++ code reads as well."""

    def __get__(self, variable: Any, owner: Any = None) -> Any:
        if variable is None:
            return self
        try:
            handle = variable.__dict__["_handle"]
        except KeyError:
            raise AttributeError(
                f"{type(variable).__name__!r} object has no attribute '_handle'"
            ) from None
        if _parted:
            use(handle)
        return handle

    def __set__(self, variable: Any, handle: Any) -> None:
        variable.__dict__["_handle"] = handle

    def __delete__(self, variable: Any) -> None:
        variable.__dict__.pop("_handle", None)


def watch_handles() -> None:
    """Has variables ask `use` before they give out their handles; once per process."""
    from tensorflow.python.ops import resource_variable_ops

    cls = resource_variable_ops.BaseResourceVariable
    if not isinstance(cls.__dict__.get("_handle"), _Handle):
        cls._handle = _Handle()
