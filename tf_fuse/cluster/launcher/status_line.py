# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Show what the tasks of a job do, below their logs, on a terminal."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import psutil

_REFRESHES_PER_S = 1.0
_MOST_OF_HEIGHT = 1 / 3  # of the terminal; the rest is for the logs
_BETWEEN = " · "


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of the job.

    Attributes:
      pid: its process, or the one that stands for it.
      steps: how many it has done; None if that is not known.
      is_here: whether the process is the task's own.
    """

    pid: int
    steps: int | None
    is_here: bool


@contextlib.contextmanager
def shown(tasks: Callable[[], Mapping[str, Task]]) -> Iterator[None]:
    """Keep the line below all that is printed to standard output, if that is a terminal.

    Args:
      tasks: returns the tasks by name.
    """
    from rich.console import Console
    from rich.live import Live

    console = Console()
    if not console.is_terminal:
        yield
        return
    line = StatusLine(tasks)
    with Live(
        console=console,
        get_renderable=lambda: line.render(*console.size),
        refresh_per_second=_REFRESHES_PER_S,
        transient=True,
    ):
        yield


class StatusLine:
    """What each task does now."""

    def __init__(self, tasks: Callable[[], Mapping[str, Task]]):
        self._tasks = tasks
        self._processes: dict[str, psutil.Process] = {}
        self._steps: dict[str, tuple[float, int]] = {}

    def render(self, width: int, height: int) -> Any:
        """Return each task with its state, steps/s, processor time in percent of a core, memory.

        Args:
          width: of the terminal, in columns.
          height: in rows; if the tasks need too many, the last ones are counted.
        """
        from rich.text import Text

        tasks = self._tasks()
        parts = [self._describe(name, tasks[name]) for name in sorted(tasks, key=_order)]
        text = _fit(parts or ["starts"], width * max(1, int(height * _MOST_OF_HEIGHT)))
        return Text(text, style="reverse", end="")

    def _describe(self, name: str, task: Task) -> str:
        try:
            known = self._processes.get(name)
            if known is None or known.pid != task.pid:
                known = self._processes[name] = psutil.Process(task.pid)
            with known.oneshot():
                state = known.status()
                if state == psutil.STATUS_ZOMBIE:
                    return f"{name} ended"
                parts = [f"{name} {'stopped' if state == psutil.STATUS_STOPPED else 'runs'}"]
                if task.steps is not None:
                    parts.append(f"{self._steps_per_s(name, task.steps):.1f} steps/s")
                if task.is_here:
                    parts.append(f"{known.cpu_percent():.0f} %")
                    parts.append(f"{known.memory_info().rss / 1e6:.0f} MB")
                return ", ".join(parts)
        except psutil.NoSuchProcess:
            return f"{name} ended"

    def _steps_per_s(self, name: str, steps: int) -> float:
        now = time.monotonic()
        before, done = self._steps.get(name, (now, steps))
        self._steps[name] = now, steps
        return (steps - done) / (now - before) if now > before else 0.0


def _order(name: str) -> tuple[str, int]:
    job, _, index = name.partition(":")
    return job, int(index)


def _fit(parts: list[str], room: int) -> str:
    """Join the parts that have room, and say how many do not."""
    shown = len(parts)
    while True:
        left = len(parts) - shown
        text = _BETWEEN.join([*parts[:shown], *([f"{left} more"] if left else [])])
        if len(text) <= room or shown == 0:
            return text
        shown -= 1
