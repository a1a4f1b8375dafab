# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A simulated host: cores that running threads share equally, and both directions of its link."""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Any


class Host:
    """Cores, shared by all threads that can run, as the kernel's scheduler does.

    A piece of work uses a fixed number of threads. Where threads outnumber cores, each gets an
    equal share. So a clock that counts the CPU seconds of one thread finds which ends first.

    Attributes:
      busy_s: CPU seconds so far.
      out_free_at: when the last byte so far has left.
      in_free_at: when the last byte so far has arrived.
    """

    def __init__(self, env: Any, cores: float, background: float = 0.0):
        """Make an idle host.

        Args:
          env: the `simpy.Environment`.
          cores: that work can use.
          background: threads that always run.
        """
        self._env = env
        self._cores = cores
        self._background = background
        self._threads = 0.0
        self._clock = 0.0  # CPU seconds that one thread would have had.
        self._at = 0.0
        self._ends: list[tuple[float, int, float, Any]] = []
        self._numbers = itertools.count()
        self._timer = 0
        self._timer_at = math.inf
        self._is_due = False  # Whether the first work ends when the timer does.
        self.busy_s = 0.0
        self.out_free_at = 0.0
        self.in_free_at = 0.0

    def run(self, cpu_s: float, threads: float = 1.0) -> Any:
        """Return an event of the end of work.

        Args:
          cpu_s: CPU seconds of all its threads.
          threads: that it runs on.
        """
        event = self._env.event()
        if cpu_s <= 0:
            event.succeed()
            return event
        self._advance()
        self.busy_s += cpu_s
        first, rate = self._ends[:1], self._rate()
        end = self._clock + cpu_s / threads
        heapq.heappush(self._ends, (end, next(self._numbers), threads, event))
        self._threads += threads
        if self._ends[:1] != first or self._rate() != rate:
            self._set_timer()
        return event

    def _rate(self) -> float:
        """Return the share of a core that each thread has now."""
        threads = self._threads + self._background
        return 1.0 if threads <= self._cores else self._cores / threads

    def _advance(self) -> None:
        now = self._env.now
        if now > self._at:
            self._clock += (now - self._at) * self._rate()
            self._at = now

    def _set_timer(self) -> None:
        """Wait for the work that ends first."""
        if not self._ends:
            return
        delay = max(0.0, (self._ends[0][0] - self._clock) / self._rate())
        due = self._env.now + delay
        if self._timer_at <= due:
            # That timer sets the next one: most work begins while other work runs.
            self._is_due = False
            return
        self._timer += 1
        self._timer_at, self._is_due = due, True
        timeout = self._env.timeout(delay, self._timer)
        timeout.callbacks.append(self._on_timer)

    def _on_timer(self, timeout: Any) -> None:
        if timeout.value != self._timer:
            return  # An earlier one was set.
        self._timer_at = math.inf
        self._advance()
        if self._is_due:
            first = self._ends[0][0]
            while self._ends and self._ends[0][0] <= max(first, self._clock):
                _, _, threads, event = heapq.heappop(self._ends)
                self._threads -= threads
                event.succeed()
            if not self._ends:
                self._threads = 0.0  # Without what rounding has left.
        self._set_timer()


def arrival(
    source: Host,
    target: Host,
    now: float,
    sizes: tuple[float, float],
    rate: float,
    delay: float,
    burst: float = 0.0,
) -> float:
    """Return when the last of some bytes arrives, and keep both links busy until then.

    Args:
      source: the sending host.
      target: the receiving one.
      now: when the sender has them.
      sizes: bytes that leave the one, and that come to the other.
      rate: bytes per second of each link; 0 for no limit.
      delay: seconds on the way.
      burst: bytes that an idle link lets pass at once.
    """
    if rate <= 0:
        return now + delay
    # A link that was idle is ahead of the time by a burst.
    source.out_free_at = max(now - burst / rate, source.out_free_at) + sizes[0] / rate
    target.in_free_at = max(source.out_free_at + delay, target.in_free_at + sizes[1] / rate)
    return max(now + delay, target.in_free_at)
