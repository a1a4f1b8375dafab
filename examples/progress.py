# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Progress of long work: bars on a terminal, and a line every few seconds anywhere else."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

_INTERVAL_S = 5.0
# Characters of a line that no table reaches.
_UNLIMITED = 10_000


def open_console() -> Console:
    """Return standard output; in a file or a pipe, lines are as long as they need to be.

    `rich` would assume 80 columns there, and break names to fit. (`tf_fuse` has the same, but is
    not imported by programs that run stock TensorFlow, too.)
    """
    made = Console()
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _UNLIMITED
    return made


@contextlib.contextmanager
def display(console: Console, interval_s: float = _INTERVAL_S) -> Iterator[Progress]:
    """Show the tasks of a `rich.progress.Progress` for as long as the block runs.

    Args:
      console: where to. A terminal gets bars that move; a file or a pipe (a log, a CI job) gets
        one line with all unfinished tasks at once, and another every `interval_s`.
      interval_s: seconds between lines.

    Yields:
      The progress, to add tasks to.
    """
    if console.is_terminal:
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(),
                   MofNCompleteColumn(), TimeElapsedColumn())  # fmt: skip
        with Progress(*columns, console=console) as progress:
            yield progress
        return
    progress = Progress(console=console, disable=True)
    finished = threading.Event()
    start = time.monotonic()

    def narrate() -> None:
        while not finished.wait(interval_s):
            line = describe(progress)
            if line:
                seconds = time.monotonic() - start
                console.print(f"{seconds:5.0f} s  {line}", highlight=False, soft_wrap=True)

    thread = threading.Thread(target=narrate, name="progress", daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        finished.set()
        thread.join()


def describe(progress: Progress) -> str:
    """Return the unfinished tasks in one line, in the order in which they were added."""
    parts = []
    for task in progress.tasks:
        if task.finished:
            continue
        done = f" {task.completed:.0f}" if task.completed or task.total else ""
        total = f"/{task.total:.0f}" if task.total else ""
        parts.append(f"{task.description}{done}{total}")
    return "; ".join(parts)
