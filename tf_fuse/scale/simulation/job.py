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
from tf_fuse.scale.simulation.merge import merged
from tf_fuse.scale.simulation.setting import Prediction, Setting
from tf_fuse.scale.steps.step_graph import WORKER, StepGraph, Transfer, server_names

COORDINATOR = "coordinator"
# Messages of one transfer are sent while others of it are made, and a large one streams: in so many
# portions at most, of so many bytes at least.
_PORTIONS = 4
_PORTION_BYTES = 256 << 10
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
    return _Job(graph, rates, setting).run(steps, whole_round)


@dataclasses.dataclass
class _Sums:
    steps: int = 0
    worker_s: float = 0.0
    step_s: float = 0.0


class _Job:
    """One simulation."""

    def __init__(self, graph: StepGraph, rates: Rates, setting: Setting):
        import simpy

        self._env = simpy.Environment()
        self._rates, self._setting = rates, setting
        self._hosts: dict[str, Host] = {}
        self._cpu: dict[str, float] = defaultdict(float)
        self._dispatcher = simpy.Resource(self._env, capacity=1)
        self._dispatch_s = 0.0
        self._sums = _Sums()
        self._counting_from: float | None = None
        self._finished_at = 0.0
        self._copies = dict.fromkeys(graph.tasks(), 1)
        self._whole = graph
        if setting.workers * graph.servers > _PAIRS and not setting.one_host:
            graph, copies = merged(graph, rates)
            self._copies |= copies
        self._servers = [task for task in graph.tasks() if task != WORKER]
        self._graph = graph
        self._segments: dict[str, list[tuple[int, tuple[float, float]]]] = defaultdict(list)
        for segment in graph.segments:
            parts = rates.segment_parts_s(segment.work, setting.compute_scale)
            self._segments[segment.task].append((segment.depth, parts))
        self._out: dict[tuple[str, int], list[Transfer]] = defaultdict(list)
        self._into: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for transfer in graph.transfers:
            self._out[transfer.source, transfer.depth].append(transfer)
            self._into[transfer.target][transfer.depth + 1] += 1
        for task in graph.tasks():
            depths = {depth for depth, _ in self._segments[task]}
            depths |= self._into[task].keys()
            depths |= {depth for source, depth in self._out if source == task}
            own = dict(self._segments[task])
            self._segments[task] = [(depth, own.get(depth, (0.0, 0.0))) for depth in sorted(depths)]

        tasks: dict[str, int] = defaultdict(int)
        workers: dict[str, int] = defaultdict(int)
        for number in range(setting.workers):
            workers[setting.host(f"worker:{number}")] += 1
        for name in (COORDINATOR, *server_names(graph.servers)):
            tasks[setting.host(name)] += 1
        self._slowdown = {
            host: rates.slowdown(count, count + tasks[host], setting.cores)
            for host, count in workers.items()
        }

    def run(self, steps: int, whole_round: bool) -> Prediction:
        env = self._env
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
            server_cpu_s=tuple(self._cpu[task] / counted for task in self._servers),
            busy=busy,
            link_busy=self._link_busy(counted / span),
            coordinator_busy=self._dispatch_s / span,
            waiting=max(0.0, 1.0 - self._sums.worker_s / self._sums.step_s),
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

    def _host(self, task: str) -> Host:
        name = self._setting.host(task)
        if name not in self._hosts:
            share = self._rates.core_share
            background = self._rates.watch_share if name == self._setting.host(COORDINATOR) else 0
            self._hosts[name] = Host(self._env, self._setting.cores * share, background)
        return self._hosts[name]

    def _link(self, task: str) -> Host:
        """Return what a task's messages leave from: its host, or its side of a link."""
        if self._setting.sides is None:
            return self._host(task)
        side = f"side {self._setting.sides[task.partition(':')[0]]}"
        if side not in self._hosts:
            self._hosts[side] = Host(self._env, 1.0)
        return self._hosts[side]

    def _neighbours(self, task: str) -> int:
        """Return how many other servers a server's host has."""
        if task not in self._servers:
            return 0
        host = self._setting.host(task)
        return sum(self._setting.host(one) == host for one in self._servers) - 1

    def _work(self, task: str, seconds: float, threads: float = 1.0) -> Any:
        if task.startswith("worker"):
            seconds *= self._slowdown[self._setting.host(task)]
        if self._counting_from is not None:
            self._cpu[task] += seconds
        return self._host(task).run(seconds, min(threads, self._setting.cores))

    def _call(self, task: str, seconds: float) -> Any:
        """Return an event of the end of what a step waits for of a call; begin the rest, too."""
        share = self._rates.path_share
        self._work(task, seconds * (1 - share))
        return self._work(task, seconds * share)

    def _travel(self, source: str, target: str, size: float = 0.0) -> Any:
        """Return an event of the arrival of a message, or of those of all servers of a group."""
        near, far = self._link(source), self._link(target)
        setting = self._setting
        delay = self._rates.hop_s
        if near is far:
            return self._env.timeout(delay)
        now = self._env.now
        sizes = size * self._copies.get(target, 1), size * self._copies.get(source, 1)
        link = setting.link_bytes_per_s, setting.link_s + delay, setting.link_burst_bytes
        at = arrival(near, far, now, sizes, *link)
        return self._env.timeout(at - now)

    def _worker(self, number: int) -> Iterator[Any]:
        env, task = self._env, f"worker:{number}"
        while self._left > 0:
            self._left -= 1
            share = self._rates.path_share
            yield env.process(self._dispatch(share))
            if share < 1:
                env.process(self._dispatch(1 - share))
            yield self._travel(COORDINATOR, task)
            begin = env.now
            yield env.process(self._step(task))
            seconds = env.now - begin
            yield self._travel(task, COORDINATOR)
            self._note(seconds)

    def _dispatch(self, share: float) -> Iterator[Any]:
        """Do a share of what the coordinator does for a step, in turn: Python runs one thread."""
        with self._dispatcher.request() as turn:
            yield turn
            begin = self._env.now
            yield self._work(COORDINATOR, share * self._rates.coordinator_s(self._whole))
            if self._counting_from is not None:
                self._dispatch_s += self._env.now - begin

    def _note(self, seconds: float) -> None:
        if self._warm > 0:
            self._warm -= 1
            if self._warm == 0:
                self._counting_from = self._start = self._env.now
            return
        self._sums.steps += 1
        self._sums.step_s += seconds
        if self._sums.steps == self._to_count:
            self._done.succeed()

    def _step(self, worker: str) -> Iterator[Any]:
        env, rates = self._env, self._rates
        step = _Step(self, worker)
        yield self._call(worker, rates.worker_s(self._whole))
        ends = [env.process(step.task(WORKER))]
        ends += [env.process(step.server(server)) for server in self._servers]
        yield env.all_of(ends)
        if self._counting_from is not None:
            own = [sum(some) for some in zip(*(p for _, p in self._segments[WORKER]), strict=True)]
            own = own or [0.0, 0.0]
            own[0] += rates.worker_call_s
            threads = min(rates.threads(*own), self._setting.cores)
            self._sums.worker_s += sum(own) / threads


class _Step:
    """One step of one worker: its segments and transfers, as processes."""

    def __init__(self, job: _Job, worker: str):
        self._job, self._worker = job, worker
        env = job._env
        self._started = {task: env.event() for task in (WORKER, *job._servers)}
        self._arrived: dict[tuple[str, int], list[Any]] = defaultdict(list)
        for (source, depth), transfers in job._out.items():
            for transfer in transfers:
                done = env.event()
                self._arrived[transfer.target, depth + 1].append(done)
                self._arrived[source, -1 - depth].append((transfer, done))

    def _name(self, task: str) -> str:
        return self._worker if task == WORKER else task

    def server(self, server: str) -> Iterator[Any]:
        job = self._job
        yield job._travel(self._worker, server)
        yield job._call(server, job._rates.server_s(job._whole, server))
        yield from self.task(server)
        yield job._travel(server, self._worker)

    def task(self, task: str) -> Iterator[Any]:
        """Run the segments of a task, each when its tensors have arrived."""
        job, env = self._job, self._job._env
        self._started[task].succeed()
        for depth, parts in job._segments[task]:
            if arrivals := self._arrived.get((task, depth)):
                yield env.all_of(arrivals)
            if any(parts):
                yield job._work(self._name(task), sum(parts), job._rates.threads(*parts))
            for transfer, done in self._arrived.get((task, -1 - depth), ()):
                env.process(self._send(transfer, done))

    def _send(self, transfer: Transfer, done: Any) -> Iterator[Any]:
        job, env = self._job, self._job._env
        if not self._started[transfer.target].processed:
            # The receiver asks when its part of the step begins.
            yield self._started[transfer.target]
            yield job._travel(self._name(transfer.target), self._name(transfer.source))
        portions = min(_PORTIONS, max(transfer.rpcs, int(transfer.bytes / _PORTION_BYTES)))
        if portions <= transfer.rpcs:
            yield env.all_of(
                [env.process(self._portion(transfer, portions)) for _ in range(portions)]
            )
        else:  # A few large messages: each of their parts is sent after the one before.
            received = None
            for _ in range(portions):
                yield self._send_part(transfer, portions)
                received = env.process(self._receive_part(transfer, portions, received))
            yield received
        done.succeed()

    def _portion(self, transfer: Transfer, of: int) -> Iterator[Any]:
        yield self._send_part(transfer, of)
        yield self._job._env.process(self._receive_part(transfer, of, None))

    def _send_part(self, transfer: Transfer, of: int) -> Any:
        job = self._job
        # A worker does this for each server of a group.
        copies = job._copies.get(transfer.target, 1)
        source = self._name(transfer.source)
        seconds = copies * job._rates.sender_s(transfer, job._neighbours(source)) / of
        return job._work(source, seconds)

    def _receive_part(self, transfer: Transfer, of: int, before: Any) -> Iterator[Any]:
        """Receive what has left, and not before what was sent earlier."""
        job = self._job
        source, target = self._name(transfer.source), self._name(transfer.target)
        yield job._travel(source, target, transfer.bytes / of)
        if before is not None:
            yield before
        copies = job._copies.get(transfer.source, 1)
        seconds = job._rates.receiver_s(transfer, job._neighbours(target))
        yield job._work(target, copies * seconds / of)
