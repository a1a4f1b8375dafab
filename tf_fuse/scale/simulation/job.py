# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Simulate steps of workers, servers and a coordinator."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from tf_fuse.scale.rates import Rates
from tf_fuse.scale.simulation.host import Host, arrival
from tf_fuse.scale.simulation.merge import merged
from tf_fuse.scale.steps.step_graph import WORKER, StepGraph, Transfer, server_names

COORDINATOR = "coordinator"
# Messages of one transfer are sent while others of it are made: in so many portions.
_PORTIONS = 4
# Steps of all workers that are simulated at least, and steps of each that are not counted, and that
# are, in a job of many workers.
_STEPS, _WARM_UP, _COUNTED = 80, 1, 2
# With more pairs of a worker and a server, one server stands for several.
_PAIRS = 2000


@dataclasses.dataclass(frozen=True)
class Setting:
    """A job.

    Attributes:
      workers: tasks that run steps.
      cores: of a host.
      link_bytes_per_s: of a host's link, in each direction; 0 for no limit.
      link_s: seconds on the way between two hosts.
      one_host: whether all tasks are on one host.
      host_of: host of a task ("worker:3", "ps:1", "coordinator"), where that is given; else each
        task has its own.
      compute_scale: what the model's operations take, over what the rates say.
      sides: of tasks that share the cores of one host, and yet have links: the end of the link of
        each job.
    """

    workers: int
    cores: float
    link_bytes_per_s: float = 0.0
    link_s: float = 0.0
    one_host: bool = False
    host_of: Mapping[str, str] | None = None
    compute_scale: float = 1.0
    sides: Mapping[str, str] | None = None

    def host(self, task: str) -> str:
        """Return the name of a task's host."""
        if self.one_host:
            return "host"
        if self.host_of is not None:
            return self.host_of.get(task, self.host_of.get(task.partition(":")[0], task))
        return task


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a simulated job does.

    Attributes:
      steps_per_s: of all workers together.
      cpu_s: CPU seconds per step, of "coordinator", "worker" and "ps", each role together.
      server_cpu_s: of each server, per step of any worker.
      sent_bytes: per step, by task.
      busy: share of its host's cores, by role and the busiest task of it.
      link_busy: share of the time that the busiest link of a role's hosts is used.
      coordinator_busy: share of the time that the coordinator dispatches steps.
      waiting: share of a step in which its worker computes nothing.
    """

    steps_per_s: float
    cpu_s: dict[str, float]
    server_cpu_s: tuple[float, ...]
    busy: dict[str, float]
    link_busy: dict[str, float]
    coordinator_busy: float
    waiting: float


def simulate(graph: StepGraph, rates: Rates, setting: Setting, steps: int = _STEPS) -> Prediction:
    """Run a job until its workers have a steady rate.

    Args:
      graph: the step of one worker.
      rates: what things cost.
      setting: tasks, hosts and links.
      steps: of all workers, to simulate at least.

    Returns:
      What it does per second and step.
    """
    return _Job(graph, rates, setting).run(steps)


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
        self._segments: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for segment in graph.segments:
            seconds = rates.segment_s(segment.work, setting.compute_scale)
            self._segments[segment.task].append((segment.depth, seconds))
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
            self._segments[task] = [(depth, own.get(depth, 0.0)) for depth in sorted(depths)]

        tasks: dict[str, int] = defaultdict(int)
        for name in (
            COORDINATOR,
            *(f"worker:{number}" for number in range(setting.workers)),
            *server_names(graph.servers),
        ):
            tasks[setting.host(name)] += 1
        self._slowdown = {
            host: rates.slowdown(count, setting.cores) for host, count in tasks.items()
        }

    def run(self, steps: int) -> Prediction:
        env = self._env
        for number in range(self._setting.workers):
            env.process(self._worker(number))
        workers = self._setting.workers
        self._warm = workers * _WARM_UP
        self._to_count = max(workers * _COUNTED, steps)
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

    def _work(self, task: str, seconds: float, threads: float = 1.0) -> Any:
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
        at = arrival(near, far, now, sizes, setting.link_bytes_per_s, setting.link_s + delay)
        return self._env.timeout(at - now)

    def _worker(self, number: int) -> Iterator[Any]:
        env, task = self._env, f"worker:{number}"
        while True:
            share = self._rates.path_share
            yield env.process(self._dispatch(share))
            if share < 1:
                env.process(self._dispatch(1 - share))
            yield self._travel(COORDINATOR, task)
            begin = env.now
            yield env.process(self._step(task))
            self._note(env.now - begin)
            yield self._travel(task, COORDINATOR)

    def _dispatch(self, share: float) -> Iterator[Any]:
        """Do a share of what the coordinator does for a step, in turn: Python runs one thread."""
        with self._dispatcher.request() as turn:
            yield turn
            begin = self._env.now
            yield self._work(COORDINATOR, share * self._rates.coordinator_s(self._whole))
            if self._counting_from is not None:
                self._dispatch_s += self._env.now - begin

    def _note(self, seconds: float) -> None:
        self._warm -= 1
        if self._warm == 0:
            self._counting_from = self._start = self._env.now
            return
        if self._warm < 0:
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
        own = sum(s for _, s in self._segments[WORKER]) + rates.worker_call_s
        if self._counting_from is not None:
            self._sums.worker_s += own / min(rates.step_threads, self._setting.cores)


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
        for depth, seconds in job._segments[task]:
            if arrivals := self._arrived.get((task, depth)):
                yield env.all_of(arrivals)
            if seconds:
                yield job._work(self._name(task), seconds, job._rates.step_threads)
            for transfer, done in self._arrived.get((task, -1 - depth), ()):
                env.process(self._send(transfer, done))

    def _send(self, transfer: Transfer, done: Any) -> Iterator[Any]:
        job, env = self._job, self._job._env
        if not self._started[transfer.target].processed:
            # The receiver asks when its part of the step begins.
            yield self._started[transfer.target]
            yield job._travel(self._name(transfer.target), self._name(transfer.source))
        portions = min(_PORTIONS, transfer.rpcs)
        if portions <= 1:
            yield env.process(self._portion(transfer, 1))
        else:
            yield env.all_of(
                [env.process(self._portion(transfer, portions)) for _ in range(portions)]
            )
        done.succeed()

    def _portion(self, transfer: Transfer, of: int) -> Iterator[Any]:
        job, rates = self._job, self._job._rates
        source, target = self._name(transfer.source), self._name(transfer.target)
        # A worker does this for each server of a group.
        to, by = job._copies.get(target, 1), job._copies.get(source, 1)
        yield job._work(source, to * rates.sender_s(transfer) / of)
        yield job._travel(source, target, transfer.bytes / of)
        yield job._work(target, by * rates.receiver_s(transfer) / of)
