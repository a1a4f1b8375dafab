# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A training step as counts: what each task runs between messages, and what the messages carry."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

WORKER = "worker"


@dataclasses.dataclass(frozen=True)
class Work:
    """Operations of one kind of place, counted.

    Attributes:
      operations: that the executor schedules one by one, and that use no variable.
      members: that run inside a group of operations.
      bytes: that operations without a variable read and write, where shapes are known.
      flops: of products of matrices and of convolutions.
      variable_operations: scheduled one by one, that read or change a variable.
      variable_bytes: that all those read and write, also inside groups.
    """

    operations: int = 0
    members: int = 0
    bytes: float = 0.0
    flops: float = 0.0
    variable_operations: int = 0
    variable_bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.operations + other.operations,
            self.members + other.members,
            self.bytes + other.bytes,
            self.flops + other.flops,
            self.variable_operations + other.variable_operations,
            self.variable_bytes + other.variable_bytes,
        )


@dataclasses.dataclass(frozen=True)
class Segment:
    """What a task runs at one depth, between the tensors that it receives and those that it sends.

    Attributes:
      task: "worker" or "ps:3".
      depth: the most messages on a path of the graph that leads to it.
      work: its operations.
    """

    task: str
    depth: int
    work: Work


@dataclasses.dataclass(frozen=True)
class Transfer:
    """Tensors that travel from one task to another at one depth.

    Attributes:
      source: the sending task.
      target: the receiving one.
      depth: of the segment that makes them.
      calls: RPCs of one tensor each.
      fused_calls: RPCs of several tensors each.
      tensors: in all of them.
      fused_tensors: in fused calls.
      bytes: of the tensors, where shapes are known.
      fused_bytes: of those in frames.
      large_bytes: of those in frames so large that they take a data channel.
    """

    source: str
    target: str
    depth: int
    calls: int
    fused_calls: int
    tensors: int
    fused_tensors: int
    bytes: float
    fused_bytes: float
    large_bytes: float = 0.0

    @property
    def rpcs(self) -> int:
        """Return the number of RPCs."""
        return self.calls + self.fused_calls


@dataclasses.dataclass(frozen=True)
class StepGraph:
    """One step of one worker.

    Attributes:
      segments: by task and depth, in this order.
      transfers: by depth.
      servers: tasks of the job ps.
      handles: variables on each task, which each call of the step names; by task.
    """

    segments: tuple[Segment, ...]
    transfers: tuple[Transfer, ...]
    servers: int
    handles: tuple[tuple[str, int], ...] = ()

    @property
    def rpcs(self) -> int:
        """Return the RPCs that carry tensors."""
        return sum(transfer.rpcs for transfer in self.transfers)

    @property
    def bytes(self) -> float:
        """Return the bytes of all tensors that travel."""
        return sum(transfer.bytes for transfer in self.transfers)

    def handles_of(self, task: str) -> int:
        """Return the variables that the call names to a task: all of them to the worker."""
        if task == WORKER:
            return sum(count for _, count in self.handles)
        return dict(self.handles).get(task, 0)

    def work_of(self, tasks: Iterable[str]) -> Work:
        """Return the operations of some tasks."""
        wanted = set(tasks)
        return sum((one.work for one in self.segments if one.task in wanted), start=Work())

    def tasks(self) -> list[str]:
        """Return the worker, and the servers that the step involves."""
        found = {segment.task for segment in self.segments}
        found |= {task for one in self.transfers for task in (one.source, one.target)}
        return [WORKER, *(name for name in server_names(self.servers) if name in found)]


def server_names(servers: int) -> list[str]:
    """Return the names of so many servers."""
    return [f"ps:{i}" for i in range(servers)]
