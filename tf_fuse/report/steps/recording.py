# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Record steps by TensorFlow's profiler, which each task's server has at its own address.

While nothing is recorded, a task looks at one flag for each fused receive.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tf_fuse.report.collect import part, short
from tf_fuse.report.model import Note, Timeline
from tf_fuse.report.steps.timeline import timeline_of

# It has all that a timeline shows; each operation would be one more event.
_LEVEL = 1
# A profile of more is not read: it takes minutes.
_MOST_BYTES = 1 << 30
_MOST_S = 600.0
# For which a task's answer is waited, after the recording.
_ANSWER_S = 60.0


class _Integer:
    """A number that TensorFlow 2.21's profiler client does not take for a truth value.

    It takes an `int` for one, warns that it "expects an i value", and records every operation.
    """

    def __init__(self, value: int):
        self._value = value

    def __index__(self) -> int:
        return self._value


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
    with tempfile.TemporaryDirectory(
        prefix="tf_fuse_report_", ignore_cleanup_errors=True
    ) as folder:
        failed = _trace(known, folder, seconds)
        profiles = {}
        for task in known:
            text = failed.get(task) or "its profiler gave no answer"
            found = list(_profiles(Path(folder) / _folder_of(task)))
            if found:
                space = part(f"timeline of {short(task)}", notes, lambda: _read(found[0]), None)  # noqa: B023
                if space is not None:
                    profiles[task] = space
            else:
                notes.append(Note("timeline", f"{short(task)} was not recorded: {text}"))
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


def _trace(known: Mapping[str, str], folder: str, seconds: float) -> dict[str, str]:
    """Record all tasks at once, each into a folder of its own; return task to what went wrong."""
    import tensorflow as tf

    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=_Integer(_LEVEL),
        python_tracer_level=_Integer(0),
        device_tracer_level=_Integer(0),
        delay_ms=_Integer(0),
    )
    failed: dict[str, str] = {}

    def trace(task: str, address: str) -> None:
        try:
            tf.profiler.experimental.client.trace(
                f"grpc://{address}",
                str(Path(folder) / _folder_of(task)),
                duration_ms=max(1, round(1e3 * seconds)),
                num_tracing_attempts=1,
                options=options,
            )
        except (tf.errors.OpError, OSError, RuntimeError, ValueError) as error:
            failed[task] = f"{type(error).__name__}: {str(error)[:200]}"

    # One call for all would wait for a task that does not answer, and lose what the others gave.
    threads = [threading.Thread(target=trace, args=one, daemon=True) for one in known.items()]
    for one in threads:
        one.start()
    deadline = time.monotonic() + seconds + _ANSWER_S
    for thread, task in zip(threads, known, strict=True):
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            failed[task] = f"no answer within {seconds + _ANSWER_S:g} s"
    return failed


def _folder_of(task: str) -> str:
    return short(task).replace(":", "_")


def _profiles(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.rglob("*.xplane.pb"))


def _read(path: Path) -> Any:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"its profile has {path.stat().st_size:,} bytes; record fewer seconds")
    return xplane_pb2.XSpace.FromString(path.read_bytes())
