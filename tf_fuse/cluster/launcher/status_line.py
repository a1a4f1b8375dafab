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

from .step_counts import Usage

_REFRESHES_PER_S = 1.0
_MOST_OF_HEIGHT = 1 / 3  # of the terminal; the rest is for the logs
_OLD_S = 5.0  # A host that has said nothing for so long may be gone.
_BETWEEN = " · "


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of the job.

    Attributes:
      pid: its process, or the one that stands for it.
      steps: how many it has done; None if that is not known: it has counted none.
      is_here: whether the process is the task's own.
      usage: what its host has said of it; None if it is here, or that has said nothing.
    """

    pid: int
    steps: int | None
    is_here: bool
    usage: Usage | None = None


@contextlib.contextmanager
def shown(tasks: Callable[[], Mapping[str, Task]]) -> Iterator[None]:
    """Keep the line below all that is printed to standard output, if that is a terminal.

    Args:
      tasks: returns the tasks by name.
    """
    from rich.console import Console
    from rich.live import Live

    class VisibleCursor(Console):
        """A terminal whose cursor stays: a launcher that is killed cannot show it again."""

        def show_cursor(self, show: bool = True) -> bool:
            return False

    console = VisibleCursor()
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
        self._rates: dict[tuple[str, str], _Rate] = {}

    def render(self, width: int, height: int) -> Any:
        """Return each task with its state, steps/s, processor time in percent of a core, memory.

        Of a task on another host, rates are those between the host's last two reports.

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
                at_s = task.usage.at_s if task.usage else time.monotonic()
                if task.steps is not None:
                    rate = self._rate(name, "steps", at_s, task.steps)
                    parts.append(f"{rate:.1f} steps/s")
                if task.is_here:
                    parts.append(f"{known.cpu_percent():.0f} %")
                    parts.append(f"{known.memory_info().rss / 1e6:.0f} MB")
                elif task.usage:
                    rate = self._rate(name, "cpu_s", at_s, task.usage.cpu_s)
                    parts.append(f"{100 * rate:.0f} %")
                    parts.append(f"{task.usage.memory_bytes / 1e6:.0f} MB")
                return ", ".join(parts)
        except psutil.NoSuchProcess:
            return f"{name} ended"

    def _rate(self, name: str, what: str, at_s: float, number: float) -> float:
        """Return by how much a number of a task grows in a second; 0.0 before that is known.

        Args:
          name: of the task.
          what: is counted.
          at_s: when, on the clock of whoever counts.
          number: so far.
        """
        now = time.monotonic()
        last = self._rates.get((name, what))
        if last is not None and at_s == last.at_s:  # The host has said nothing new.
            return last.rate if now - last.seen_s <= _OLD_S else 0.0
        rate = 0.0
        if last is not None and at_s > last.at_s:
            rate = max(0.0, (number - last.number) / (at_s - last.at_s))
        self._rates[name, what] = _Rate(at_s, now, number, rate)
        return rate


@dataclasses.dataclass(frozen=True)
class _Rate:
    """A number when it was looked at last, and its growth since it was before."""

    at_s: float
    seen_s: float
    number: float
    rate: float


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
