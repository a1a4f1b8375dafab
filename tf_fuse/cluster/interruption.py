# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Turn the first signal into an exception, and let the second one end this process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from . import end_limits


class Interrupted(BaseException):
    """A signal came that ends the job.

    Attributes:
      status: the exit status for it: 128 and its number.
    """

    def __init__(self, number: int):
        super().__init__(number)
        self.name = signal.Signals(number).name
        self.status = 128 + number


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise `Interrupted` in this thread, the main one, when the first SIGINT or SIGTERM comes.

    The next one ends this process at once; the tasks end with it, since they watch its pipes. So
    does an alarm, if the end takes longer than `end_limits` allow: also after this block.
    """

    def first(number: int, frame: FrameType | None) -> None:
        del frame
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, second)
        signal.signal(signal.SIGALRM, lambda *_: os._exit(128 + number))
        signal.setitimer(signal.ITIMER_REAL, end_limits.current().total_s)
        raise Interrupted(number)

    def second(number: int, frame: FrameType | None) -> None:
        del frame
        os._exit(128 + number)

    before = {one: signal.signal(one, first) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
