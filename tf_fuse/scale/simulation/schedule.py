# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What each task does in a step, in which order, and how long it takes: the same for all steps."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Mapping

from tf_fuse.scale.rates import Rates
from tf_fuse.scale.simulation.setting import Setting
from tf_fuse.scale.steps.step_graph import WORKER, StepGraph, Transfer

# Messages of one transfer are sent while others of it are made, and a large one streams: in so many
# portions at most, of so many bytes at least.
_PORTIONS = 4
_PORTION_BYTES = 256 << 10


@dataclasses.dataclass(frozen=True)
class Sending:
    """A transfer.

    Attributes:
      number: of it, among all of a step.
      source: the sending task.
      target: the receiving one.
      send_s: CPU seconds of the sender, of a worker for all servers of a group.
      receive_s: CPU seconds of the receiver, of a worker for all servers of a group.
      bytes: of one pair of tasks.
      portions: in which it is sent.
      streams: whether each portion is sent after the one before; else all at once.
    """

    number: int
    source: str
    target: str
    send_s: float
    receive_s: float
    bytes: float
    portions: int
    streams: bool


@dataclasses.dataclass(frozen=True)
class Stage:
    """What a task does at one depth.

    Attributes:
      awaited: numbers of the transfers that it waits for.
      cpu_s: CPU seconds of its operations.
      threads: that they run on.
      sent: what it sends then.
    """

    awaited: tuple[int, ...]
    cpu_s: float
    threads: float
    sent: tuple[Sending, ...]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A step of any worker.

    Attributes:
      stages: of each task, by depth.
      call_s: CPU seconds of each task for the call of its part of a step.
      dispatch_s: CPU seconds of the coordinator.
      copies: servers for which each stands.
      transfers: number of them.
      alone_s: seconds in which the worker computes.
    """

    stages: Mapping[str, tuple[Stage, ...]]
    call_s: Mapping[str, float]
    dispatch_s: float
    copies: Mapping[str, int]
    transfers: int
    alone_s: float

    @property
    def servers(self) -> list[str]:
        """Return the servers that are simulated."""
        return [task for task in self.stages if task != WORKER]


def schedule(
    whole: StepGraph,
    graph: StepGraph,
    copies: Mapping[str, int],
    rates: Rates,
    setting: Setting,
) -> Schedule:
    """Price a step.

    Args:
      whole: the step.
      graph: the part of it that is simulated, see `merged`.
      copies: servers for which each server of the part stands.
      rates: what things cost.
      setting: hosts and links.
    """
    tasks = graph.tasks()
    parts: dict[tuple[str, int], tuple[float, float]] = {}
    for segment in graph.segments:
        at = segment.task, segment.depth
        parts[at] = rates.segment_parts_s(segment.work, setting.compute_scale)
    sent: dict[tuple[str, int], list[Sending]] = defaultdict(list)
    awaited: dict[tuple[str, int], list[int]] = defaultdict(list)
    hosts = [setting.host(one) for one in tasks if one != WORKER]
    neighbours = {one: hosts.count(setting.host(one)) - 1 for one in tasks if one != WORKER}
    for number, one in enumerate(graph.transfers):
        sent[one.source, one.depth].append(_sending(number, one, copies, rates, neighbours))
        awaited[one.target, one.depth + 1].append(number)
    stages = {}
    for task in tasks:
        depths = {depth for owner, depth in (*parts, *sent, *awaited) if owner == task}
        stages[task] = tuple(
            Stage(
                tuple(awaited[task, depth]),
                sum(parts.get((task, depth), ())),
                rates.threads(*parts.get((task, depth), (0.0, 0.0))),
                tuple(sent[task, depth]),
            )
            for depth in sorted(depths)
        )
    call_s = {one: rates.server_s(whole, one) for one in tasks if one != WORKER}
    call_s[WORKER] = rates.worker_s(whole)
    own = [(rates.worker_call_s, 0.0), *(at for (task, _), at in parts.items() if task == WORKER)]
    operations_s, data_s = map(sum, zip(*own, strict=True))
    threads = min(rates.threads(operations_s, data_s), setting.cores)
    return Schedule(
        stages,
        call_s,
        rates.coordinator_s(whole),
        copies,
        len(graph.transfers),
        (operations_s + data_s) / threads,
    )


def _sending(
    number: int,
    transfer: Transfer,
    copies: Mapping[str, int],
    rates: Rates,
    neighbours: Mapping[str, int],
) -> Sending:
    portions = min(_PORTIONS, max(transfer.rpcs, int(transfer.bytes / _PORTION_BYTES)))
    # A worker does this for each server of a group.
    send_s = rates.sender_s(transfer, neighbours.get(transfer.source, 0))
    receive_s = rates.receiver_s(transfer, neighbours.get(transfer.target, 0))
    return Sending(
        number,
        transfer.source,
        transfer.target,
        send_s * copies.get(transfer.target, 1),
        receive_s * copies.get(transfer.source, 1),
        transfer.bytes,
        portions,
        portions > transfer.rpcs,
    )
