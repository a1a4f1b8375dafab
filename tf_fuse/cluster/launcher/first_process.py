# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Be the first process of a container, and run the command in a second one.

For its first process the kernel ignores each signal that it does not handle, and gives it the
children of processes that have ended: it must wait for them, or they stay as zombies.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from .. import end_limits

_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def leave_to_child() -> None:
    """Go on in a child; this process waits for it, passes signals on, and has its status.

    The child gets the limits of a container: `end_limits` bounds its end, and with this process
    the kernel ends all that is left.

    Call it before the first thread. Does not return in the calling process.
    """
    signals = {*_PASSED_ON, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # What is blocked is not ignored.
    child = os.fork()
    if child == 0:
        _take_terminal()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        end_limits.use(end_limits.CONTAINER)
        return
    while (status := _reap(child)) is None:  # Some may have ended before the signals were blocked.
        number = signal.sigwait(signals)
        if number != signal.SIGCHLD:
            os.kill(child, number)
    os._exit(status)


def _take_terminal() -> None:
    """Leave the first process's group, so that Ctrl-C reaches the command once."""
    os.setpgid(0, 0)
    with contextlib.suppress(OSError, ValueError):  # There is no terminal.
        ignored = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        try:
            os.tcsetpgrp(sys.stdin.fileno(), os.getpgrp())
        finally:
            signal.signal(signal.SIGTTOU, ignored)


def _reap(child: int) -> int | None:
    """Wait for all processes that have ended; return the child's status if it is one of them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                code = os.waitstatus_to_exitcode(ended[1])
                status = code if code >= 0 else 128 - code
    return status
