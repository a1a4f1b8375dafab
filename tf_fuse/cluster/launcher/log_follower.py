# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Show the logs of a job's tasks while they grow."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

_LOOK_S = 0.2  # between two looks at the logs
_END_S = 3.0  # for whoever reads the output, unless `wait_at_most` says less
_PIECE = 1 << 16  # bytes of a log that are read at once


def log_of(folder: Path, name: str) -> Path:
    """Return the file of a task's log.

    Args:
      folder: of the logs of a job.
      name: of the task, "job:index".
    """
    return folder / f"{name.replace(':', '-')}.log"


class LogFollower:
    """Writes each line of the tasks' logs with its task, while they grow."""

    def __init__(self, out: TextIO | None, names_tasks: bool = True):
        """Follow nothing yet.

        Args:
          out: takes the lines; None for none.
          names_tasks: whether each line is written with its task.
        """
        self._out, self._names_tasks = out, names_tasks
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._logs: tuple[Path, ...] = ()
        self._read: dict[Path, int] = {}
        self._tails: dict[Path, bytes] = {}
        self._end_s = _END_S
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> LogFollower:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join(self._end_s)

    def follow(self, logs: Sequence[Path]) -> None:
        """Follow the logs of tasks, too: what their processes add from now on.

        Args:
          logs: files that may not exist yet, each named as its task, "worker-0.log".
        """
        new = [path for path in logs if path not in self._logs]
        for path in new:
            with contextlib.suppress(OSError):
                self._read[path] = path.stat().st_size  # of an earlier job
        self._logs = (*self._logs, *new)  # The thread that writes sees all of it, or nothing.

    def wait_at_most(self, seconds: float) -> None:
        """Wait no longer for whoever reads the output when this ends."""
        self._end_s = seconds

    def say(self, text: str) -> None:
        """Write a line; does not wait for whoever reads the output."""
        self._said.put(text)

    def is_stuck(self) -> bool:
        """Return whether nobody has read the output when this had ended."""
        return self._thread.is_alive()

    def _follow(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._write(whole_lines=True)
        self._write(whole_lines=False)

    def _by_time(self) -> list[Path]:
        """Return the logs that exist, the one first that was written to before the others."""
        found = []
        for path in self._logs:
            with contextlib.suppress(OSError):
                found.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(found)]

    def _write(self, whole_lines: bool) -> None:
        """Write what is new: first the tasks' last words, then what is said of their ends.

        A log that cannot be read, or an output that is closed, is left.
        """
        for path in self._by_time():
            with contextlib.suppress(OSError):
                self._write_log(path, whole_lines)
        with contextlib.suppress(queue.Empty):
            while True:
                self._print(self._said.get_nowait())
        with contextlib.suppress(OSError):
            if self._out is not None:
                self._out.flush()

    def _write_log(self, path: Path, whole_lines: bool) -> None:
        with path.open("rb") as log:
            if self._read.get(path, 0) > os.fstat(log.fileno()).st_size:  # Somebody has emptied it.
                self._read[path] = 0
                self._tails.pop(path, None)
            log.seek(self._read.get(path, 0))
            while data := log.read(_PIECE):
                self._read[path] = log.tell()
                lines = (self._tails.pop(path, b"") + data).split(b"\n")
                tail = lines.pop()
                if len(tail) > _PIECE:  # A line that does not end is written in pieces.
                    lines, tail = [*lines, tail], b""
                self._tails[path] = tail
                self._write_lines(path, lines)
        if not whole_lines and (tail := self._tails.pop(path, b"")):
            self._write_lines(path, [tail])

    def _write_lines(self, path: Path, lines: Sequence[bytes]) -> None:
        task = f"[{path.stem.replace('-', ':')}] " if self._names_tasks else ""
        for line in lines:
            # A line that was written over several times, as by progress bars: how it looked last.
            last = line.rstrip(b"\r").rpartition(b"\r")[2]
            self._print(task + last.decode(errors="replace"))

    def _print(self, line: str) -> None:
        if self._out is None:
            return
        try:
            print(line, file=self._out)
        except OSError:  # Nobody reads any more, or the disk is full: the job goes on.
            self._out = None
            _discard_output()


def _discard_output() -> None:
    """Let Python end without an error about its standard output."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
