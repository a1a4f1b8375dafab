# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Let one writer or several readers use the local shards at a time.

A call reads the shards when it begins and writes them when it ends. Two calls that write would lose
each other's updates, and leave shards of different calls on different devices.

A thread that holds the lock may take it again: a signal handler or a destructor may run in the
middle of a call, and may read a variable too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

from tf_fuse.layout.types.errors import LayoutError

# A handler may also run in the middle of `Condition.wait`, wait there itself, and so take the
# notification of the interrupted wait. So no thread relies on a notification.
_LOOK_AGAIN_S: Final = 0.1


class ReadWriteLock:
    """Let one thread in that writes, or all that read; who waits to write goes first."""

    def __init__(self) -> None:
        """Start without readers and writers."""
        # Its lock is reentrant.
        self._condition = threading.Condition()
        # By thread, how often it holds the lock, or waits; without zeros.
        self._reading: dict[int, int] = {}
        self._waiting: dict[int, int] = {}
        self._writer: int | None = None
        self._depth = 0

    # Entering and leaving calls nothing, so that no signal handler runs there: a handler may
    # wait while another thread enters, or be a Ctrl-C after which the thread never leaves.

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other thread reads or writes; the holder may enter again.

        Raises:
          LayoutError: this thread is in to read, so what it reads would change meanwhile.
        """
        me = threading.get_ident()
        inside = waits = False
        try:
            with self._condition:
                if self._writer != me and me in self._reading:
                    raise LayoutError(
                        "a variable in slices is assigned to while the same thread reads variables "
                        "in slices, as a signal handler or a destructor can do; assign to it when "
                        "the read or call has ended"
                    )
                while not inside:
                    if self._writer == me or (self._writer is None and not self._reading):
                        self._writer = me
                        self._depth += 1
                        inside = True
                    else:
                        if not waits:
                            others = self._waiting.get(me, 0)
                            self._waiting[me] = others + 1
                            waits = True
                        self._condition.wait(_LOOK_AGAIN_S)
                if waits:
                    waits = False
                    self._waiting[me] -= 1
                    if not self._waiting[me]:
                        del self._waiting[me]
            yield
        finally:
            if waits:
                self._waiting[me] -= 1
                if not self._waiting[me]:
                    del self._waiting[me]
            if inside:
                self._depth -= 1
                if not self._depth:
                    self._writer = None
            with self._condition:
                self._condition.notify_all()

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Wait until no other thread writes; a holder may enter again."""
        me = threading.get_ident()
        inside = False
        try:
            with self._condition:
                while not inside:
                    if me in self._reading:
                        self._reading[me] += 1
                        inside = True
                    # A thread that reads here while it waits to write does not wait for another
                    # such thread, which may in turn wait for this one.
                    elif self._writer == me or (
                        self._writer is None and (me in self._waiting or not self._waiting)
                    ):
                        self._reading[me] = 1
                        inside = True
                    else:
                        self._condition.wait(_LOOK_AGAIN_S)
            yield
        finally:
            if inside:
                self._reading[me] -= 1
                if not self._reading[me]:
                    del self._reading[me]
            with self._condition:
                self._condition.notify_all()


# For all variables in shards: processes exchange tensors in one order anyway.
LOCK = ReadWriteLock()
