# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is simulated, and what is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Setting:
    """A job.

    Attributes:
      workers: tasks that run steps.
      cores: of a host.
      link_bytes_per_s: of a host's link, in each direction; 0 for no limit.
      link_s: seconds on the way between two hosts.
      link_burst_bytes: that a link which was idle lets pass at once, as emulated ones do.
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
    link_burst_bytes: float = 0.0

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
      busy: share of its host's cores, by role and the busiest task of it.
      link_busy: share of the time that the busiest link of a role's hosts is used.
      coordinator_busy: share of the time that the coordinator dispatches steps.
      waiting: share of a step in which its worker computes nothing.
      step_s: seconds of a step at its worker, from its dispatch to its end.
    """

    steps_per_s: float
    cpu_s: dict[str, float]
    server_cpu_s: tuple[float, ...]
    busy: dict[str, float]
    link_busy: dict[str, float]
    coordinator_busy: float
    waiting: float
    step_s: float = 0.0
