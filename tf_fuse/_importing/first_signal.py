# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""End the commands by a signal as the first process of a container, from the first import on.

For its first process the kernel ignores each signal that it does not handle. The package imports
this module before all others, which take most of the time until a command has started;
`cluster.launcher.first_process` then takes signals for good. A user's program that is the first
process keeps its handlers.
"""

import os
import signal
from typing import Any, Final

from tf_fuse._importing import purpose

# Whether this process runs `python -m tf_fuse` or `tf-fuse`.
IS_COMMAND: Final = purpose.is_imported_for("tf_fuse.__main__")
_BEFORE: dict[int, Any] = {}


def restore() -> None:
    """Put back the handlers that this process had before the import."""
    while _BEFORE:
        signal.signal(*_BEFORE.popitem())


def _end(number: int, frame: object) -> None:
    del frame
    os._exit(128 + number)


if os.getpid() == 1 and IS_COMMAND:
    for _number in (signal.SIGINT, signal.SIGTERM):
        _BEFORE[_number] = signal.signal(_number, _end)
