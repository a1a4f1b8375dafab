# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Bound a job's rate, without a simulation: no resource that workers share is busy all the time."""

from __future__ import annotations

import math
from collections import defaultdict

from tf_fuse.scale.rates import Rates
from tf_fuse.scale.simulation.merge import loads_s
from tf_fuse.scale.simulation.setting import Setting
from tf_fuse.scale.steps.step_graph import StepGraph

COORDINATOR, CORES, LINK = "coordinator", "cores", "link"


def limits(graph: StepGraph, rates: Rates, setting: Setting) -> dict[str, float]:
    """Return the steps per second of all workers that each shared resource allows.

    Args:
      graph: the step of one worker.
      rates: what things cost.
      setting: each task has a host of its own.

    Returns:
      By `COORDINATOR`, and `CORES` and `LINK` of the server that has the most to do; infinity for
      what costs nothing.
    """
    cores = setting.cores * rates.core_share
    loads = loads_s(graph, rates, setting.compute_scale)
    sent: dict[str, float] = defaultdict(float)
    received: dict[str, float] = defaultdict(float)
    for transfer in graph.transfers:
        sent[transfer.source] += transfer.bytes
        received[transfer.target] += transfer.bytes
    rate = setting.link_bytes_per_s
    return {
        # It runs one thread, beside those that always run.
        COORDINATOR: _over(min(1.0, cores / (1.0 + rates.watch_share)), rates.coordinator_s(graph)),
        CORES: _over(cores, max(loads.values(), default=0.0)),
        LINK: _over(rate, max((max(sent[o], received[o]) for o in loads), default=0.0))
        if rate > 0
        else math.inf,
    }


def _over(amount: float, of_a_step: float) -> float:
    return amount / of_a_step if of_a_step > 0 else math.inf
