# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Record steps: ask each task at its server's address, and make a timeline of the answers.

Recorded are fused receives, and when threads ran operations. While nothing is recorded, a task
looks at one flag for each fused receive.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tf_fuse.report.records.model import Note, Timeline
from tf_fuse.report.records.parts import part, short
from tf_fuse.report.steps import plane
from tf_fuse.report.steps.ask_profiler import ProfilerError, Recording
from tf_fuse.report.steps.timeline import timeline_of

_MOST_S = 600.0


class _Last:
    """What was recorded last in this process."""

    timeline: Timeline | None = None
    notes: tuple[Note, ...] = ()


def record(seconds: float, addresses: Mapping[str, str] | None = None) -> Timeline | None:
    """Record steps, and keep them for the next report; see `tf_fuse.report.record`."""
    timeline, notes = record_timeline(seconds, addresses)
    _Last.timeline, _Last.notes = timeline, tuple(notes)
    return timeline


def last_timeline() -> Timeline | None:
    """Return what `record` recorded last; None if nothing was."""
    return _Last.timeline


def last_notes() -> tuple[Note, ...]:
    """Return what was missing then."""
    return _Last.notes


def record_timeline(
    seconds: float, addresses: Mapping[str, str] | None = None
) -> tuple[Timeline | None, list[Note]]:
    """Record the steps that run meanwhile in all tasks.

    Args:
      seconds: how long.
      addresses: task ("/job:worker/replica:0/task:0") to "host:port"; None for the tasks of the
        cluster that this process is connected to.

    Returns:
      The timeline, None if no task could be recorded; and what is missing.

    Raises:
      ValueError: `seconds` is not more than 0, or too large.
    """
    if not 0 < seconds <= _MOST_S:
        raise ValueError(f"seconds is more than 0 and at most {_MOST_S:g}, got {seconds!r}")
    notes: list[Note] = []
    known = cluster_addresses() if addresses is None else dict(addresses)
    if not known:
        text = "this process is not connected to a cluster, so there are no tasks to record"
        return None, [Note("timeline", text)]
    profiles = profiles_of(known, seconds, notes)
    if not profiles:
        return None, notes
    timeline = part("timeline", notes, lambda: timeline_of(profiles), None)
    if timeline is not None and not timeline.receives:
        notes.append(Note("timeline", "no fused receive was recorded: did steps run meanwhile?"))
    if timeline is not None and timeline.dropped:
        notes.append(Note("timeline", f"{timeline.dropped:,} requests left out: too many"))
    return timeline, notes


def cluster_addresses() -> dict[str, str]:
    """Return task to address, of the workers and servers that this process is connected to."""
    from tf_fuse._tensorflow.eager import context_servers

    context = context_servers.present_context()
    if context is None:
        return {}
    server, left_out = context_servers.server_def(context), "chief"
    if server is None:
        server, left_out = context_servers.collective_server_def(context), ""
    if server is None:
        return {}
    return {
        f"/job:{job.name}/replica:0/task:{index}": address
        for job in server.cluster.job
        for index, address in sorted(job.tasks.items())
        # A coordinator runs no steps, and its address may be one that nobody can reach.
        if job.name != left_out
    }


def profiles_of(known: Mapping[str, str], seconds: float, notes: list[Note]) -> dict[str, Any]:
    """Record all tasks at once; return task to profile, and add to `notes` what is missing."""
    profiles: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(
        prefix="tf_fuse_report_", ignore_cleanup_errors=True
    ) as folder:
        recordings = {
            task: Recording(address, seconds, Path(folder) / short(task).replace(":", "_"))
            for task, address in known.items()
        }
        for task, recording in recordings.items():
            try:
                profile = recording.profile()
            except ProfilerError as error:
                notes.append(Note("timeline", f"{short(task)} was not recorded: {error}"))
                continue
            profiles[task] = profile
            lacks = plane.missing(profile)
            notes += [Note("timeline", f"{short(task)} {text}") for text in lacks]
    return profiles
