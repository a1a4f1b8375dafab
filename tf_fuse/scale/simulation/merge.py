# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Let one server stand for several with nearly the same work, so that large jobs simulate fast.

The one with the most work stands for its group: what the group waits for is kept, and what a worker
does for the others is counted as if they had as much.
"""

from __future__ import annotations

import dataclasses

from tf_fuse.scale.rates import Rates
from tf_fuse.scale.steps.step_graph import WORKER, StepGraph, Transfer

# Servers that are simulated, where a job has more.
_GROUPS = 5


def loads_s(graph: StepGraph, rates: Rates, scale: float = 1.0) -> dict[str, float]:
    """Return the CPU seconds of each server per step.

    Args:
      graph: the step.
      rates: what things cost.
      scale: as of `Rates.segment_s`.
    """
    found = {task: rates.server_s(graph, task) for task in graph.tasks() if task != WORKER}
    parts = [(one.task, rates.segment_s(one.work, scale)) for one in graph.segments]
    parts += [(one.source, rates.sender_s(one)) for one in graph.transfers]
    parts += [(one.target, rates.receiver_s(one)) for one in graph.transfers]
    for task, seconds in parts:
        if task != WORKER:
            found[task] += seconds
    return found


def merged(graph: StepGraph, rates: Rates) -> tuple[StepGraph, dict[str, int]]:
    """Return a step with fewer servers, and how many each stands for.

    Args:
      graph: the step.
      rates: what decides which servers have the same work.
    """
    loads = loads_s(graph, rates)
    if len(loads) <= _GROUPS:
        return graph, dict.fromkeys(loads, 1)
    ordered = sorted(loads, key=lambda one: loads[one], reverse=True)
    # The busiest stands for itself alone.
    rest = ordered[1:]
    groups = [[ordered[0]]]
    size, more = divmod(len(rest), _GROUPS - 1)
    at = 0
    for number in range(_GROUPS - 1):
        width = size + (1 if number < more else 0)
        groups.append(rest[at : at + width])
        at += width
    copies = {group[0]: len(group) for group in groups if group}
    kept = {WORKER, *copies}

    def is_kept(transfer: Transfer) -> bool:
        return transfer.source in kept and transfer.target in kept

    return (
        dataclasses.replace(
            graph,
            segments=tuple(one for one in graph.segments if one.task in kept),
            transfers=tuple(filter(is_kept, graph.transfers)),
        ),
        copies,
    )
