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
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tf_fuse.shard_update.bundle import Bundle, Held, key_of
from tf_fuse.shard_update.cluster import Reader

# Handles, by id, of variables in parts. Looked at whenever a handle is used.
_parted: dict[int, State] = {}


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
    def step(self, bundle: Bundle) -> Iterator[None]:
        """For a step that uses the parts: cuts the values before it, where they are whole.

        Raises:
          tf.errors.OpError: values had to be put together first, and another replica died.
        """
        ids = [id(handle) for handle in bundle.handles()]
        with self._alone(ids):
            self._bury()
            if not bundle.is_parted:
                self._make_whole(ids)
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

    def whole(self, handles: Iterable[Any]) -> None:
        """Puts the values of variables together, as far as they are in parts.

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
                self._make_whole(everything)

    def _make_whole(self, ids: Collection[int]) -> None:
        for bundle in {
            self._parted[i].number: self._parted[i] for i in ids if i in self._parted
        }.values():
            with _explained(bundle):
                bundle.join()
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
    from tensorflow.python.framework import errors

    try:
        yield
    except errors.OpError as error:
        error._message = (
            f"tf_fuse: the values of {len(bundle.held)} variables of the optimizer, of which each "
            f"replica keeps a part, could not be put together after step {bundle.version}: "
            f"{error.message}\nIf a task has died, what it kept is lost: restart the program from "
            "its last checkpoint."
        )
        raise


def use(handle: Any) -> None:
    """Sees to it that a variable has its value before its handle is given out."""
    from tensorflow.python.eager import context

    state = _parted.get(id(handle))
    # A graph that is being made is not run yet; when it is, the handle is among its inputs.
    if state is not None and context.executing_eagerly():
        state.whole([handle])


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
