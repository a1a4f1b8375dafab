# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""End what a launcher leaves behind if it is killed itself."""

from __future__ import annotations

import contextlib
import os
import signal


class Guardian:
    """A process that outlives this one for a moment: it kills the process groups that are left.

    The kernel kills a program together with its launcher, but not the processes that the program
    has started. Make it before the first thread: it is a fork of this process.
    """

    def __init__(self) -> None:
        read, self._write = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._write)
            _guard(read)
        os.close(read)

    def __enter__(self) -> Guardian:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._write)
        os.waitpid(self._pid, 0)

    def watch_this_group(self) -> None:
        """Watch the group that the calling process leads: a child between fork and exec."""
        self._tell(b"+%d\n" % os.getpid())

    def forget(self, group: int) -> None:
        """Leave out a group whose last process has ended, before its number can be another's."""
        self._tell(b"-%d\n" % group)

    def _tell(self, line: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # Somebody has killed it: the job goes on.
            os.write(self._write, line)


def _guard(read: int) -> None:
    """Kill the groups that are watched when the other end of the pipe has closed."""
    os.setsid()  # Ctrl-C does not reach it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    with os.fdopen(read, "rb") as lines:
        for line in lines:
            (groups.add if line.startswith(b"+") else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    os._exit(0)
