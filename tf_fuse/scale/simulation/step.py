# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One simulated step of one worker: its stages and transfers, as processes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Protocol

from tf_fuse.scale.simulation.schedule import Schedule, Sending
from tf_fuse.scale.steps.step_graph import WORKER


class Tasks(Protocol):
    """Where a step runs."""

    env: Any
    schedule: Schedule

    def work(self, task: str, cpu_s: float, threads: float = 1.0, pieces: int = 1) -> Any:
        """Return an event of the end of some equal pieces of work; see `Host.run`."""

    def call(self, task: str, role: str) -> Any:
        """Return an event of the end of what a step waits for of a call; begin the rest, too."""

    def travel(self, source: str, target: str) -> Any:
        """Return an event of the arrival of a message without tensors."""

    def arrivals(self, source: str, target: str, size: float, count: int) -> list[float]:
        """Send some messages of so many bytes now; return the seconds until each arrives."""


class Step:
    """A step of a worker."""

    def __init__(self, tasks: Tasks, worker: str):
        """Make a step that has not begun.

        Args:
          tasks: where it runs.
          worker: its name.
        """
        self._tasks, self._worker = tasks, worker
        self._schedule = tasks.schedule
        self._event = tasks.env.event
        self._started = {task: self._event() for task in self._schedule.stages}
        self._received = [self._event() for _ in range(self._schedule.transfers)]

    def run(self) -> Iterator[Any]:
        """Run it to its end."""
        env, tasks = self._tasks.env, self._tasks
        yield tasks.call(self._worker, WORKER)
        ends = [env.process(self._task(WORKER))]
        ends += [env.process(self._server(server)) for server in self._schedule.servers]
        yield env.all_of(ends)

    def _name(self, task: str) -> str:
        return self._worker if task == WORKER else task

    def _server(self, server: str) -> Iterator[Any]:
        tasks = self._tasks
        yield tasks.travel(self._worker, server)
        yield tasks.call(server, server)
        yield from self._task(server)
        yield tasks.travel(server, self._worker)

    def _task(self, task: str) -> Iterator[Any]:
        """Run the stages of a task, each when its tensors have arrived."""
        tasks, env = self._tasks, self._tasks.env
        name = self._name(task)
        self._started[task].succeed()
        for stage in self._schedule.stages[task]:
            waiting = [self._received[number] for number in stage.awaited]
            if waiting:
                yield env.all_of(waiting)
            if stage.cpu_s > 0:
                yield tasks.work(name, stage.cpu_s, stage.threads)
            for sending in stage.sent:
                env.process(self._send(sending))

    def _send(self, sending: Sending) -> Iterator[Any]:
        tasks = self._tasks
        source, target = self._name(sending.source), self._name(sending.target)
        if not self._started[sending.target].processed:
            # The receiver asks when its part of the step begins.
            yield self._started[sending.target]
            yield tasks.travel(target, source)
        if sending.streams:  # A few large messages: each of their parts after the one before.
            yield from self._stream(sending, source, target)
            self._received[sending.number].succeed()
            return
        count = sending.portions
        yield tasks.work(source, sending.send_s / count, pieces=count)
        self._receive(sending, target, tasks.arrivals(source, target, sending.bytes / count, count))

    def _receive(self, sending: Sending, target: str, arrivals: list[float]) -> None:
        """Receive portions when they arrive; those that arrive at one time together."""
        tasks, missing = self._tasks, len(arrivals)

        def arrived(timeout: Any) -> None:
            pieces = timeout.value
            done = tasks.work(target, sending.receive_s / sending.portions, pieces=pieces)
            done.callbacks.append(lambda _: received(pieces))

        def received(pieces: int) -> None:
            nonlocal missing
            missing -= pieces
            if not missing:
                self._received[sending.number].succeed()

        for seconds, group in itertools.groupby(arrivals):
            timeout = tasks.env.timeout(seconds, len(list(group)))
            timeout.callbacks.append(arrived)

    def _stream(self, sending: Sending, source: str, target: str) -> Iterator[Any]:
        tasks, env = self._tasks, self._tasks.env
        received = None
        for _ in range(sending.portions):
            yield tasks.work(source, sending.send_s / sending.portions)
            received = env.process(self._receive_part(sending, source, target, received))
        yield received

    def _receive_part(
        self, sending: Sending, source: str, target: str, before: Any
    ) -> Iterator[Any]:
        """Receive what has left, and not before what was sent earlier."""
        tasks = self._tasks
        (seconds,) = tasks.arrivals(source, target, sending.bytes / sending.portions, 1)
        yield tasks.env.timeout(seconds)
        if before is not None:
            yield before
        yield tasks.work(target, sending.receive_s / sending.portions)
