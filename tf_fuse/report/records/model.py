# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define what a report holds, as its JSON holds it.

Names, sizes, counts and times: no values of tensors, no paths of files, no environment variables.
Times of a timeline are microseconds since its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FORMAT = "tf_fuse report"  # says what a file is
VERSION = 1  # of the fields below; a reader takes what it knows of another version, and says so


@dataclass(frozen=True)
class Note:
    """Something that the report does not have.

    Attributes:
      part: what is missing, as "timeline" or a task's name.
      text: why, for people.
    """

    part: str = ""
    text: str = ""


@dataclass(frozen=True)
class Task:
    """A task, and what it has counted.

    Attributes:
      name: "/job:worker/replica:0/task:0".
      error: why it did not answer; "" if it did.
      counters: of `tf_fuse.metrics`; without those that are not numbers.
      skipped: receives that were left alone, by reason.
    """

    name: str = ""
    error: str = ""
    counters: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Tensor:
    """A tensor that one task sends to another in each step.

    Attributes:
      name: under which it travels.
      producer: the operation that computes it.
      consumer: an operation that reads it on the other task.
      variable: that the one reads, or the other reads or updates; "" if that is not known.
      dtype: "float".
      bytes: None if the graph does not tell its shape.
      may_be_dead: whether it may be in a branch that is not taken.
    """

    name: str = ""
    producer: str = ""
    consumer: str = ""
    variable: str = ""
    dtype: str = ""
    bytes: int | None = None
    may_be_dead: bool = False


@dataclass(frozen=True)
class Group:
    """Tensors that travel in one request.

    Attributes:
      sender: device that sends them.
      receiver: device that asks for them.
      depth: 1 plus the most receives on a path to their producers.
      dynamic: whether the receives find each other while they run.
      loop: name of the loop that they are in; "" outside of loops.
      tensors: one or more.
    """

    sender: str = ""
    receiver: str = ""
    depth: int = 0
    dynamic: bool = False
    loop: str = ""
    tensors: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Left:
    """A receive that was left alone: a request of its own.

    Attributes:
      sender: device that sends the tensor.
      receiver: device that asks for it.
      reason: a key of docs/fuse_recv.md's table.
      meaning: the same in words.
      tensor: the tensor.
    """

    sender: str = ""
    receiver: str = ""
    reason: str = ""
    meaning: str = ""
    tensor: Tensor = Tensor()


@dataclass(frozen=True)
class Function:
    """A function, as the task that runs it has rewritten it.

    Attributes:
      task: that reports it; "" for a function that was read from a file.
      name: of the traced function; "" if that is not known.
      local_receives: receives between devices of one task, without a request.
      groups: what was fused.
      left: what was not.
    """

    task: str = ""
    name: str = ""
    local_receives: int = 0
    groups: tuple[Group, ...] = ()
    left: tuple[Left, ...] = ()


@dataclass(frozen=True)
class Transfer:
    """What all requests for the same tensors have in common.

    Attributes:
      sender: task that sends.
      receiver: task that asks.
      tensors: names.
    """

    sender: str = ""
    receiver: str = ""
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True)
class Receive:
    """One request, as it was recorded.

    Attributes:
      transfer: number of the `Transfer`.
      step: number of the `Step`.
      start_us: when the receiver asked.
      ready_us: when the sender had computed its last tensor; None if that is not known.
      end_us: when the receiver had all of it.
      bytes: of the answer.
      slowest: name of the tensor that was ready last; "" if that is not known.
      error: TensorFlow's code; "" if it went well.
    """

    transfer: int = 0
    step: int = 0
    start_us: float = 0.0
    ready_us: float | None = None
    end_us: float = 0.0
    bytes: int = 0
    slowest: str = ""
    error: str = ""


@dataclass(frozen=True)
class Segment:
    """A part of a step's critical path.

    Attributes:
      kind: "compute" on the task, "transfer" from it to `peer`, or "request" of `peer` on its way
        to the task.
      task: where.
      peer: the other task; "" for "compute".
      tensor: what was transferred last; "" for others.
      start_us: its begin.
      end_us: its end.
    """

    kind: str = ""
    task: str = ""
    peer: str = ""
    tensor: str = ""
    start_us: float = 0.0
    end_us: float = 0.0


@dataclass(frozen=True)
class Step:
    """A step that was recorded from its begin to its end.

    Attributes:
      task: that runs it.
      start_us: its begin.
      end_us: its end.
      path: its critical path, in the order of time, without gaps.
    """

    task: str = ""
    start_us: float = 0.0
    end_us: float = 0.0
    path: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class Lane:
    """When a task ran operations.

    Attributes:
      task: its name.
      busy: [begin, end] of times at which an operation ran, in order.
    """

    task: str = ""
    busy: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Timeline:
    """Some recorded steps.

    Attributes:
      duration_us: how long was recorded.
      lanes: of each task that was recorded.
      transfers: what is received.
      receives: when.
      steps: in the order of their begins.
      dropped: receives that are not here, since there were too many.
    """

    duration_us: float = 0.0
    lanes: tuple[Lane, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    receives: tuple[Receive, ...] = ()
    steps: tuple[Step, ...] = ()
    dropped: int = 0


@dataclass(frozen=True)
class LaidOut:
    """An operation of a layout plan.

    Attributes:
      name: of the operation.
      strategy: that the plan has.
      data_strategy: that data parallelism has; "" if there is no such plan.
      compute_s: of the operation itself.
      communication_s: of its collectives.
      relayout_s: of relayouts of what it makes.
      bytes: of a device.
    """

    name: str = ""
    strategy: str = ""
    data_strategy: str = ""
    compute_s: float = 0.0
    communication_s: float = 0.0
    relayout_s: float = 0.0
    bytes: int = 0


@dataclass(frozen=True)
class Relayout:
    """A tensor that the plan brings into another layout between two operations.

    Attributes:
      source: operation that makes it.
      target: operation that takes it.
      tensor: its name.
      layout: in which it is made.
      wanted: in which it is taken; "" if that is not known.
      seconds: what that takes.
      bytes: that a device receives, on average; None if that is not known.
    """

    source: str = ""
    target: str = ""
    tensor: str = ""
    layout: str = ""
    wanted: str = ""
    seconds: float = 0.0
    bytes: int | None = None


@dataclass(frozen=True)
class PlanSums:
    """What a call costs in all, by a plan; bytes are those of a device, at the worst moment."""

    seconds: float = 0.0
    compute_s: float = 0.0
    communication_s: float = 0.0
    relayout_s: float = 0.0
    bytes: int = 0


@dataclass(frozen=True)
class LayoutPlan:
    """A layout plan of a function.

    Attributes:
      function: its name.
      mesh: axes and sizes.
      mode: of the search.
      found: what the plan costs.
      data: what data parallelism costs; None if there is no such plan.
      data_reason: why there is none; "" if there is one.
      operations: in the function's order.
      relayouts: those that take time.
    """

    function: str = ""
    mesh: str = ""
    mode: str = ""
    found: PlanSums = PlanSums()
    data: PlanSums | None = None
    data_reason: str = ""
    operations: tuple[LaidOut, ...] = ()
    relayouts: tuple[Relayout, ...] = ()


@dataclass(frozen=True)
class Measured:
    """What one way to run a job took, of all tasks; None is a figure that was not measured."""

    name: str = ""
    steps_per_s: float | None = None
    rpcs_per_step: float | None = None
    bytes_per_step: float | None = None
    cpu_ms_per_step: float | None = None


@dataclass(frozen=True)
class Gain:
    """A benchmark: the same job in several ways.

    Attributes:
      title: what ran.
      ways: the first one is what the others are compared with.
    """

    title: str = ""
    ways: tuple[Measured, ...] = ()


@dataclass(frozen=True)
class Report:
    """All of it.

    Attributes:
      format: `FORMAT`.
      version: `VERSION` of the program that wrote it.
      tf_fuse: version of tf_fuse.
      tensorflow: version of TensorFlow.
      made: when, in UTC, as "2026-01-31T12:00:00Z".
      notes: what is missing.
      tasks: of the job.
      functions: that were rewritten, oldest first.
      timeline: some recorded steps, if any.
      weight_updates: task to what `tf_fuse.weight_update_report` returned there.
      server_updates: of `tf_fuse.server_update_report`.
      placements: of `tf_fuse.parameter_server.placement_report`, of each strategy.
      layouts: plans of layouts.
      gains: benchmarks.
    """

    format: str = FORMAT
    version: int = VERSION
    tf_fuse: str = ""
    tensorflow: str = ""
    made: str = ""
    notes: tuple[Note, ...] = ()
    tasks: tuple[Task, ...] = ()
    functions: tuple[Function, ...] = ()
    timeline: Timeline | None = None
    weight_updates: dict[str, Any] = field(default_factory=dict)
    server_updates: dict[str, Any] = field(default_factory=dict)
    placements: tuple[dict[str, Any], ...] = ()
    layouts: tuple[LayoutPlan, ...] = ()
    gains: tuple[Gain, ...] = ()
