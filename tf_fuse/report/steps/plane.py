# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Read the plane of a recorded task's profile that the plugin writes (recv_profiler.cc).

It has the task's fused receives, and a line with the times at which at least one thread ran
operations. Each time is of the task's clock, in nanoseconds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

PLANE = "/device:CUSTOM:tf_fuse"
BUSY_LINE = "operations"


@dataclasses.dataclass(frozen=True)
class Event:
    """A fused receive, as the task of one side has recorded it."""

    task: str
    peer: str
    is_receiver: bool
    step_id: int
    names: tuple[str, ...]
    start: int
    end: int
    bytes: int
    slowest: str
    wait_us: int | None
    error: str


def missing(space: Any) -> Iterator[str]:
    """Yield what the profile lacks, if anything, as ends of sentences that begin with the task."""
    plane = _plane(space)
    if plane is None:
        yield "was not recorded: tf_fuse is missing there, or is older than here"
        return
    stats = _stats(plane, plane.stats)
    if not stats.get("has_busy_times"):
        yield "has no times of its operations: something else collects what its threads run"
    for name, what in (
        ("dropped_busy_times", "times of operations"),
        ("dropped_events", "requests"),
    ):
        if stats.get(name):
            yield f"had no memory for {stats[name]:,} {what}: record fewer seconds"


def receives(task: str, space: Any) -> Iterator[Event]:
    """Yield the fused receives of both sides."""
    plane = _plane(space)
    for line in () if plane is None else plane.lines:
        if line.name == BUSY_LINE:
            continue
        for event, start, end in _timed(plane, line):
            found = _stats(plane, [*plane.event_metadata[event.metadata_id].stats, *event.stats])
            names = str(found.get("tensor_names", ""))
            yield Event(
                task=task,
                peer=str(found.get("peer", "")),
                is_receiver=line.name.startswith("from "),
                step_id=int(found.get("step_id", 0)),
                names=tuple(names.split(",")) if names else (),
                start=start,
                end=end,
                bytes=int(found.get("bytes", 0)),
                slowest=str(found.get("slowest_tensor", "")),
                wait_us=found.get("slowest_wait_us"),
                error=str(found.get("error", "")),
            )


def busy_times(space: Any) -> list[tuple[int, int]]:
    """Return when at least one thread ran operations, in order."""
    plane = _plane(space)
    lines = [] if plane is None else [one for one in plane.lines if one.name == BUSY_LINE]
    return [(start, end) for line in lines for _, start, end in _timed(plane, line)]


def _plane(space: Any) -> Any:
    """Return the plane of a recording; None if the task made none."""
    named = [one for one in space.planes if one.name == PLANE]
    return next((one for one in named if "begin_ns" in _stats(one, one.stats)), None)


def _timed(plane: Any, line: Any) -> Iterator[tuple[Any, int, int]]:
    """Yield the events of a line with begin and end.

    TensorFlow subtracts the begin of the profile from the line's own time, and each task's profile
    begins at another time.
    """
    begin = _stats(plane, plane.stats)["begin_ns"]
    for event in line.events:
        start = begin + event.offset_ps // 1000
        yield event, start, start + event.duration_ps // 1000


def _stats(plane: Any, stats: Any) -> dict[str, Any]:
    found = {}
    for stat in stats:
        value = stat.WhichOneof("value")
        if value is not None:
            found[plane.stat_metadata[stat.metadata_id].name] = getattr(stat, value)
    return found
