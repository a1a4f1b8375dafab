# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write a timeline in the trace event format, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tf_fuse.report.records.model import Timeline
from tf_fuse.report.records.parts import short

_BUSY, _PATH, _FIRST_RECEIVE = 0, 1, 2


def write_trace(timeline: Timeline, path: Path) -> None:
    """Write a timeline into a file, to be opened at https://ui.perfetto.dev.

    Each task is a process. Its threads are the times at which it computed, the critical path, and
    one for each request that is under way at the same time. Arrows lead from the sender to a
    request at the moment at which the last tensor was there.

    Args:
      timeline: of a report.
      path: of the file, as trace.json.

    Raises:
      OSError: it cannot be written.
    """
    path.write_text(json.dumps(trace_of(timeline)) + "\n", encoding="utf-8")


def trace_of(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as a JSON object of the trace event format; times are microseconds."""
    names = [one.task for one in timeline.lanes]
    names += [
        task
        for transfer in timeline.transfers
        for task in (transfer.receiver, transfer.sender)
        if task not in names
    ]
    pids = {task: number for number, task in enumerate(dict.fromkeys(names), 1)}
    events: list[dict[str, Any]] = []
    for task, pid in pids.items():
        events.append(_meta("process_name", pid, 0, short(task)))
        events.append(_meta("thread_name", pid, _BUSY, "computes"))
        events.append(_meta("thread_name", pid, _PATH, "critical path"))
    for lane in timeline.lanes:
        events += [
            _slice("computes", "compute", pids[lane.task], _BUSY, start, end, {})
            for start, end in lane.busy
        ]
    ends: dict[int, list[float]] = {pid: [] for pid in pids.values()}
    for number, one in sorted(enumerate(timeline.receives), key=lambda pair: pair[1].start_us):
        transfer = timeline.transfers[one.transfer]
        pid = pids[transfer.receiver]
        free = next((i for i, end in enumerate(ends[pid]) if end <= one.start_us), len(ends[pid]))
        ends[pid][free:] = [one.end_us, *ends[pid][free + 1 :]]
        thread = _FIRST_RECEIVE + free
        arguments = {
            "sender": short(transfer.sender),
            "tensors": list(transfer.tensors),
            "bytes": one.bytes,
            "step": one.step + 1,
            "slowest tensor": one.slowest,
        }
        name = f"{len(transfer.tensors)} tensors of {short(transfer.sender)}"
        events.append(_slice(name, "receive", pid, thread, one.start_us, one.end_us, arguments))
        if one.ready_us is not None and transfer.sender in pids:
            arrow = {"name": "ready", "cat": "ready", "id": number}
            sender = {"pid": pids[transfer.sender], "tid": _BUSY, "ts": one.ready_us}
            events.append({"ph": "s", **arrow, **sender})
            events.append(
                {"ph": "f", "bp": "e", **arrow, "pid": pid, "tid": thread, "ts": one.end_us}
            )
    for number, step in enumerate(timeline.steps, 1):
        for segment in step.path:
            arguments = {"step": number, "peer": short(segment.peer), "tensor": segment.tensor}
            events.append(
                _slice(
                    segment.kind, "critical path", pids[segment.task], _PATH,
                    segment.start_us, segment.end_us, arguments,
                )
            )  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _meta(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _slice(
    name: str,
    category: str,
    pid: int,
    tid: int,
    start: float,
    end: float,
    arguments: dict[str, Any],
) -> dict[str, Any]:
    return {
        "ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid,
        "ts": start, "dur": round(end - start, 1), "args": arguments,
    }  # fmt: skip
