# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Simulate replicas that reduce gradients and update weights, all in step.

All hosts do the same at the same time. So one of them is simulated: what its replicas send to
another host arrives when what the like replicas of another host send arrives here.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from tf_fuse.scale.collective_rates import GRPC, SHARED, STOCK, CollectiveRates, WayRates
from tf_fuse.scale.errors import ScaleError
from tf_fuse.scale.replicas.step import Part, ReplicaStep
from tf_fuse.scale.simulation.host import Host, arrival
from tf_fuse.shard_update.cost_figures import DEFAULTS, UpdateCosts

#: TensorFlow; the protocol grpc+fuse and fused updates; and shard_weight_update.
MODES = ("stock", "fused", "sharded")
RING, DIRECT = "ring", "direct"
# The direct algorithm sends all to all up to this size.
_AT_ONCE_BYTES = 16 << 10
_PORTIONS = 4
_WARM_UP, _STEPS = 1, 3


@dataclasses.dataclass(frozen=True)
class Setting:
    """A job.

    Attributes:
      replicas: in all.
      hosts: that have as many each.
      cores: of a host.
      link_bytes_per_s: of a host's link, in each direction; 0 for no limit.
      link_s: seconds on the way between two hosts.
      algorithm: of the modes but stock, which takes the ring.
    """

    replicas: int
    hosts: int = 1
    cores: float = 1.0
    link_bytes_per_s: float = 0.0
    link_s: float = 0.0
    algorithm: str = DIRECT

    def __post_init__(self) -> None:
        if self.replicas % self.hosts:
            raise ScaleError(
                f"{self.replicas} replicas cannot be on {self.hosts} hosts alike; take a number of "
                f"hosts that divides {self.replicas}"
            )

    @property
    def here(self) -> int:
        """Return the replicas of a host."""
        return self.replicas // self.hosts


@dataclasses.dataclass(frozen=True)
class Prediction:
    """What a simulated job does.

    Attributes:
      step_s: seconds of a step.
      cpu_s: CPU seconds of a replica per step.
      sent_bytes: that a host sends to others per step.
      collective_share: share of a step that is not the computing and updating of one replica.
      cores_busy: share of a host's cores.
      link_busy: share of the time that a host's link sends.
    """

    step_s: float
    cpu_s: float
    sent_bytes: float
    collective_share: float
    cores_busy: float
    link_busy: float


def simulate(
    step: ReplicaStep,
    mode: str,
    rates: CollectiveRates,
    setting: Setting,
    costs: UpdateCosts = DEFAULTS,
) -> Prediction:
    """Run a job for a few steps.

    Args:
      step: of a replica.
      mode: of `MODES`.
      rates: what collectives cost.
      setting: replicas, hosts and links.
      costs: of a sharded update, for what it takes beside a whole one.
    """
    return _Job(step, mode, rates, setting, costs).run()


class _Job:
    """One simulation."""

    def __init__(
        self,
        step: ReplicaStep,
        mode: str,
        rates: CollectiveRates,
        setting: Setting,
        costs: UpdateCosts,
    ):
        import simpy

        self._env = simpy.Environment()
        self._host = Host(self._env, setting.cores)
        # What another host of the same kind is busy with.
        self._other = Host(self._env, setting.cores)
        self._step, self._mode, self._rates, self._setting = step, mode, rates, setting
        self._costs = costs
        self._algorithm = RING if mode == "stock" else setting.algorithm
        self._events: dict[tuple[Any, ...], Any] = defaultdict(self._env.event)
        self._sent = 0.0
        self._computed_s = 0.0
        # Time, CPU seconds and bytes before the first step that counts.
        self._begin = 0.0, 0.0, 0.0

    def run(self) -> Prediction:
        env, setting = self._env, self._setting
        ends = [env.process(self._replica(one)) for one in range(setting.here)]
        env.run(env.all_of(ends))
        begin, busy, sent = self._begin
        seconds = (env.now - begin) / _STEPS
        cpu_s = (self._host.busy_s - busy) / _STEPS
        sent = (self._sent - sent) / _STEPS
        rate = setting.link_bytes_per_s
        return Prediction(
            step_s=seconds,
            cpu_s=cpu_s / setting.here,
            sent_bytes=sent,
            collective_share=max(0.0, 1 - self._computed_s / seconds) if seconds else 0.0,
            cores_busy=cpu_s / seconds / setting.cores if seconds else 0.0,
            link_busy=sent / rate / seconds if rate and seconds else 0.0,
        )

    def _work(self, part: Part) -> Any:
        return self._host.run(part.cpu_s, min(part.threads, self._setting.cores))

    def _replica(self, rank: int) -> Iterator[Any]:
        step, replicas, env = self._step, self._setting.replicas, self._env
        for number in range(_WARM_UP + _STEPS):
            if number == _WARM_UP and self._begin == (0.0, 0.0, 0.0):
                self._begin = env.now, self._host.busy_s, self._sent
            key = (number, rank)
            begin = env.now
            yield self._work(step.compute)
            computed = env.now - begin
            sharded = self._mode == "sharded" and replicas > 1
            if replicas > 1:
                yield from self._reduce(key, step.weight_bytes, 1 if sharded else 2)
            begin = env.now
            yield self._work(self._update(sharded))
            self._computed_s = computed + env.now - begin
            if sharded:
                yield from self._reduce((*key, "gather"), step.weight_bytes, 1)

    def _update(self, sharded: bool) -> Part:
        step = self._step
        if self._mode == "stock":
            return step.update
        if not sharded:
            return step.fused_update
        own = step.fused_update.cpu_s / self._setting.replicas
        costs = self._costs
        more = 1e-6 * (costs.gradient_us * step.gradients + costs.collective_us)
        return Part(own + more, step.fused_update.threads)

    def _reduce(self, key: tuple[Any, ...], size: float, halves: int) -> Iterator[Any]:
        """Make an all-reduce, or one of its halves."""
        near = self._rates.ways[STOCK if self._mode == "stock" else SHARED]
        yield self._host.run(near.call_s, 1.0)
        members = self._setting.replicas
        if self._algorithm == RING:
            for number in range(halves * (members - 1)):
                yield from self._ring_step((*key, number), size / members)
            return
        if halves == 2 and size <= _AT_ONCE_BYTES:
            yield from self._exchange((*key, 0), size)
            return
        for half in range(halves):
            yield from self._exchange((*key, half), size / members)

    def _way(self, is_near: bool) -> WayRates:
        if self._mode == "stock":
            return self._rates.ways[STOCK]
        return self._rates.ways[SHARED if is_near else GRPC]

    def _half(self, way: WayRates, messages: float, size: float) -> Any:
        """Return an event of the end of sending, or of receiving, so many messages."""
        seconds = 0.5 * (way.message_s * messages + way.byte_s * size)
        return self._host.run(seconds, min(way.threads, self._setting.cores))

    def _travel(self, size: float) -> Any:
        """Return an event of the arrival of what leaves for other hosts, and comes from them."""
        self._sent += size
        setting = self._setting
        now = self._env.now
        # The receiver has asked for it at the same time.
        at = arrival(
            self._host, self._other, now, (size, size), setting.link_bytes_per_s, 2 * setting.link_s
        )
        return self._env.timeout(at - now)

    def _exchange(self, key: tuple[Any, ...], chunk: float) -> Iterator[Any]:
        """Send a chunk to each other member, and receive one of each."""
        setting, env = self._setting, self._env
        near, far = setting.here - 1, setting.replicas - setting.here
        waits = []
        if near:
            waits.append(env.process(self._exchange_here(key, near, chunk)))
        if far:
            portions = min(_PORTIONS, far)
            waits += [
                env.process(self._exchange_far((*key, one), far / portions, chunk))
                for one in range(portions)
            ]
        yield env.all_of(waits)

    def _exchange_here(self, key: tuple[Any, ...], others: int, chunk: float) -> Iterator[Any]:
        step, rank, half = key[0], key[1], key[2:]
        way = self._way(True)
        yield self._half(way, others, others * chunk)
        self._events["sent", step, rank, half].succeed()
        yield self._env.all_of(
            [self._events["sent", step, one, half] for one in range(others + 1) if one != rank]
        )
        yield self._env.timeout(way.wake_s)
        yield self._half(way, others, others * chunk)

    def _exchange_far(self, key: tuple[Any, ...], others: float, chunk: float) -> Iterator[Any]:
        step, rank, half = key[0], key[1], key[2:]
        way = self._way(False)
        yield self._half(way, others, others * chunk)
        yield self._travel(others * chunk)
        # A replica of another host receives from all of this one.
        self._events["arrived", step, rank, half].succeed()
        yield self._env.all_of(
            [self._events["arrived", step, one, half] for one in range(self._setting.here)]
        )
        yield self._env.timeout(way.wake_s)
        yield self._half(way, others, others * chunk)

    def _ring_step(self, key: tuple[Any, ...], chunk: float) -> Iterator[Any]:
        """Send a chunk to the next member, and receive one of the one before."""
        env, setting = self._env, self._setting
        step, rank, half = key[0], key[1], key[2:]
        leaves = setting.hosts > 1 and rank == setting.here - 1
        comes = setting.hosts > 1 and rank == 0
        sends = self._way(not leaves)
        yield self._half(sends, 1, chunk)
        if leaves:
            yield self._travel(chunk)
        self._events["sent", step, rank, half].succeed()
        before = "sent", step, (rank - 1) % setting.here, half
        yield self._events[before]
        del self._events[before]  # (Large rings have millions.)
        receives = self._way(not comes)
        yield env.timeout(receives.wake_s)
        yield self._half(receives, 1, chunk)


def algorithm(text: str) -> str:
    """Check the name of an algorithm.

    Raises:
      ScaleError: there is none of the name.
    """
    if text in (RING, DIRECT):
        return text
    raise ScaleError(f"the algorithm {text!r} is neither {RING} nor {DIRECT}")
