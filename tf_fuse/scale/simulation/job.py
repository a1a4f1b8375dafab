# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Simulate steps of workers, servers and a coordinator."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tf_fuse.scale.rates import Rates
from tf_fuse.scale.simulation.host import Host, arrival
from tf_fuse.scale.simulation.limits import COORDINATOR, limits
from tf_fuse.scale.simulation.many_workers import of_many
from tf_fuse.scale.simulation.merge import merged
from tf_fuse.scale.simulation.schedule import schedule
from tf_fuse.scale.simulation.setting import Prediction, Setting
from tf_fuse.scale.simulation.step import Step
from tf_fuse.scale.steps.step_graph import WORKER, StepGraph, server_names

# Steps of all workers that are simulated at least, and steps of each that are not counted, and that
# are, in a job of many workers.
_STEPS, _WARM_UP, _COUNTED = 80, 1, 2
# With more workers, one step of each is counted.
_MANY = 1000
# With more pairs of a worker and a server, one server stands for several.
_PAIRS = 2000


def simulate(
    graph: StepGraph,
    rates: Rates,
    setting: Setting,
    steps: int = _STEPS,
    whole_round: bool = False,
) -> Prediction:
    """Run a job until its workers have a steady rate.

    Args:
      graph: the step of one worker.
      rates: what things cost.
      setting: tasks, hosts and links.
      steps: of all workers, to simulate at least.
      whole_round: make this number of steps, and count from the first one's beginning to the last
        one's end, when some workers already have none: as who measures a job does.

    Returns:
      What it does per second and step.
    """
    part, copies = graph, dict.fromkeys(graph.tasks(), 1)
    if setting.workers * graph.servers > _PAIRS and not setting.one_host:
        part, merged_copies = merged(graph, rates)
        copies |= merged_copies

    def run(workers: int) -> Prediction:
        some = dataclasses.replace(setting, workers=workers)
        return _Job(graph, part, copies, rates, some).run(steps, whole_round)

    if whole_round or setting.one_host or setting.host_of is not None:
        return run(setting.workers)
    most = limits(graph, rates, setting)
    return of_many(setting.workers, most, rates.watch_share, run)


@dataclasses.dataclass
class _Sums:
    steps: int = 0
    worker_s: float = 0.0
    step_s: float = 0.0


class _Job:
    """One simulation, where its steps run."""

    def __init__(
        self,
        whole: StepGraph,
        part: StepGraph,
        copies: dict[str, int],
        rates: Rates,
        setting: Setting,
    ):
        import simpy

        self.env = simpy.Environment()
        self.schedule = schedule(whole, part, copies, rates, setting)
        self._whole, self._rates, self._setting = whole, rates, setting
        self._copies = copies
        self._hosts: dict[str, Host] = {}
        self._host_of: dict[str, Host] = {}
        self._link_of: dict[str, Host] = {}
        self._cpu: dict[str, float] = defaultdict(float)
        self._dispatcher = simpy.Resource(self.env, capacity=1)
        self._dispatch_s = 0.0
        self._sums = _Sums()
        self._counting_from: float | None = None
        tasks: dict[str, int] = defaultdict(int)
        workers: dict[str, int] = defaultdict(int)
        for number in range(setting.workers):
            workers[setting.host(f"worker:{number}")] += 1
        for name in (COORDINATOR, *server_names(whole.servers)):
            tasks[setting.host(name)] += 1
        self._slowdown = {
            host: rates.slowdown(count, count + tasks[host], setting.cores)
            for host, count in workers.items()
        }

    def run(self, steps: int, whole_round: bool) -> Prediction:
        env = self.env
        workers = self._setting.workers
        if whole_round:
            self._left: float = steps
            self._warm, self._to_count = 0, steps
            self._counting_from = self._start = 0.0
        else:
            self._left = math.inf
            self._warm = workers * _WARM_UP
            self._to_count = max(workers * (_COUNTED if workers <= _MANY else 1), steps)
        for number in range(workers):
            env.process(self._worker(number))
        self._done = env.event()
        env.run(self._done)
        span = env.now - self._start
        counted = self._sums.steps
        cpu = {
            role: sum(
                seconds * self._copies.get(task, 1)
                for task, seconds in self._cpu.items()
                if task.partition(":")[0] == role
            )
            / counted
            for role in (COORDINATOR, "worker", "ps")
        }
        cpu[COORDINATOR] += self._rates.watch_share * span / counted
        busy: dict[str, float] = {}
        for role in ("worker", "ps"):
            busy[role] = max(
                (
                    self._cpu[task] / span / self._setting.cores
                    for task in self._cpu
                    if task.partition(":")[0] == role
                ),
                default=0.0,
            )
        return Prediction(
            steps_per_s=counted / span,
            cpu_s=cpu,
            server_cpu_s=tuple(self._cpu[task] / counted for task in self.schedule.servers),
            busy=busy,
            link_busy=self._link_busy(counted / span),
            coordinator_busy=self._dispatch_s / span,
            waiting=max(0.0, 1.0 - self._sums.worker_s / self._sums.step_s),
            step_s=self._sums.step_s / counted,
        )

    def _link_busy(self, steps_per_s: float) -> dict[str, float]:
        rate = self._setting.link_bytes_per_s
        if rate <= 0 or self._setting.one_host:
            return {"worker": 0.0, "ps": 0.0}
        sent: dict[str, float] = defaultdict(float)
        received: dict[str, float] = defaultdict(float)
        for transfer in self._whole.transfers:
            sent[transfer.source] += transfer.bytes
            received[transfer.target] += transfer.bytes
        load = {task: max(sent[task], received[task]) for task in self._whole.tasks()}
        return {
            "worker": load[WORKER] * steps_per_s / self._setting.workers / rate,
            "ps": max((load[task] for task in load if task != WORKER), default=0.0)
            * steps_per_s
            / rate,
        }

    def _named(self, name: str, cores: float, background: float = 0.0) -> Host:
        if name not in self._hosts:
            self._hosts[name] = Host(self.env, cores, background)
        return self._hosts[name]

    def _host(self, task: str) -> Host:
        if task not in self._host_of:
            name = self._setting.host(task)
            background = self._rates.watch_share if name == self._setting.host(COORDINATOR) else 0
            cores = self._setting.cores * self._rates.core_share
            self._host_of[task] = self._named(name, cores, background)
        return self._host_of[task]

    def _link(self, task: str) -> Host:
        """Return what a task's messages leave from: its host, or its side of a link."""
        sides = self._setting.sides
        if sides is None:
            return self._host(task)
        if task not in self._link_of:
            self._link_of[task] = self._named(f"side {sides[task.partition(':')[0]]}", 1.0)
        return self._link_of[task]

    def work(self, task: str, cpu_s: float, threads: float = 1.0, pieces: int = 1) -> Any:
        """Return an event of the end of equal pieces of work, which begin at the same time.

        Args:
          task: that does it.
          cpu_s: CPU seconds of a piece.
          threads: of a piece.
          pieces: how many.
        """
        cpu_s *= pieces
        if task.startswith("worker"):
            cpu_s *= self._slowdown[self._setting.host(task)]
        if self._counting_from is not None:
            self._cpu[task] += cpu_s
        return self._host(task).run(cpu_s, min(threads, self._setting.cores) * pieces)

    def call(self, task: str, role: str) -> Any:
        """Return an event of the end of what a step waits for of a call; begin the rest, too.

        Args:
          task: that is called.
          role: its name in the schedule.
        """
        share, seconds = self._rates.path_share, self.schedule.call_s[role]
        self.work(task, seconds * (1 - share))
        return self.work(task, seconds * share)

    def arrivals(self, source: str, target: str, size: float, count: int) -> list[float]:
        """Send messages now; return the seconds until each arrives.

        Args:
          source: the sending task.
          target: the receiving one.
          size: bytes of each message between two tasks; a worker's goes to all servers of a group.
          count: how many messages.
        """
        near, far = self._link(source), self._link(target)
        setting = self._setting
        delay = self._rates.hop_s
        if near is far:
            return [delay] * count
        now = self.env.now
        sizes = size * self._copies.get(target, 1), size * self._copies.get(source, 1)
        link = setting.link_bytes_per_s, setting.link_s + delay, setting.link_burst_bytes
        return [arrival(near, far, now, sizes, *link) - now for _ in range(count)]

    def travel(self, source: str, target: str) -> Any:
        """Return an event of the arrival of a message without tensors.

        Args:
          source: the sending task.
          target: the receiving one.
        """
        return self.env.timeout(self.arrivals(source, target, 0.0, 1)[0])

    def _worker(self, number: int) -> Iterator[Any]:
        env, task = self.env, f"worker:{number}"
        while self._left > 0:
            self._left -= 1
            share = self._rates.path_share
            yield env.process(self._dispatch(share))
            if share < 1:
                env.process(self._dispatch(1 - share))
            yield self.travel(COORDINATOR, task)
            begin = env.now
            yield from Step(self, task).run()
            if self._counting_from is not None:
                self._sums.worker_s += self.schedule.alone_s
            seconds = env.now - begin
            yield self.travel(task, COORDINATOR)
            self._note(seconds)

    def _dispatch(self, share: float) -> Iterator[Any]:
        """Do a share of what the coordinator does for a step, in turn: Python runs one thread."""
        with self._dispatcher.request() as turn:
            yield turn
            begin = self.env.now
            yield self.work(COORDINATOR, share * self.schedule.dispatch_s)
            if self._counting_from is not None:
                self._dispatch_s += self.env.now - begin

    def _note(self, seconds: float) -> None:
        if self._warm > 0:
            self._warm -= 1
            if self._warm == 0:
                self._counting_from = self._start = self.env.now
            return
        self._sums.steps += 1
        self._sums.step_s += seconds
        if self._sums.steps == self._to_count:
            self._done.succeed()
