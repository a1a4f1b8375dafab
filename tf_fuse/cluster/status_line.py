# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Show what the processes of a job do, below their logs, on a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psutil

_REFRESHES_PER_S = 1.0


@contextlib.contextmanager
def shown(tasks: Callable[[], Mapping[str, int]]) -> Iterator[None]:
    """Keep the line below all that is printed to standard output, if that is a terminal.

    Args:
      tasks: returns the ids of processes by task.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if not console.is_terminal:
        yield
        return
    line = _StatusLine(tasks)
    with Live(
        console=console,
        get_renderable=line.render,
        refresh_per_second=_REFRESHES_PER_S,
        transient=True,
    ):
        yield


class _StatusLine:
    def __init__(self, tasks: Callable[[], Mapping[str, int]]):
        self._tasks = tasks
        self._processes: dict[str, psutil.Process] = {}

    def render(self) -> Any:
        """Return each task with its state, its processor time in percent of a core, its memory."""
        from rich.text import Text

        parts = [self._describe(name, pid) for name, pid in sorted(self._tasks().items())]
        return Text(" · ".join(parts) or "starts", style="reverse", end="")

    def _describe(self, name: str, pid: int) -> str:
        try:
            known = self._processes.get(name)
            if known is None or known.pid != pid:
                known = self._processes[name] = psutil.Process(pid)
            with known.oneshot():
                state = known.status()
                if state == psutil.STATUS_ZOMBIE:
                    return f"{name} ended"
                word = "stopped" if state == psutil.STATUS_STOPPED else "runs"
                memory = known.memory_info().rss / 1e6
                return f"{name} {word}, {known.cpu_percent():.0f} %, {memory:.0f} MB"
        except psutil.NoSuchProcess:
            return f"{name} ended"
