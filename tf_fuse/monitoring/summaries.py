# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Write what the tasks of a job count as `tf.summary` scalars, for TensorBoard."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from tf_fuse.monitoring.metrics import cluster_metrics

_WAITS = {"receives": "receive", "requests": "request", "chunks": "chunk", "locks": "lock"}

# Of each writer: the step of the last call, and what had been counted by then.
_Counts = dict[tuple[str, str], float]
_last: weakref.WeakKeyDictionary[Any, tuple[int, _Counts]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def write_summaries(writer: Any, step: int, *, timeout_s: float = 10.0) -> None:
    """Ask every task for its counters, and write what they have counted since the last call.

    Writes these scalars, each under the name of its task ("worker:0"); of what has not happened
    since the last call with this writer (of the first call: since the job began), no mean:

    * `tf_fuse/rpcs_per_step/worker:0`: receives of a frame or of one tensor;
    * `tf_fuse/receive_wait_ms/worker:0`, `request_wait_ms`, `chunk_wait_ms` and `lock_wait_ms`:
      means of the waits in docs/metrics.md, in milliseconds;
    * `tf_fuse/updates_per_step/ps:0`: updates in one operation on that server;
    * `tf_fuse/staleness/worker:0`: mean staleness of that worker's updates;
    * `tf_fuse/tasks_without_answer`: how many tasks did not answer.

    Args:
      writer: a `tf.summary.SummaryWriter`.
      step: the number of steps so far, of all workers together.
      timeout_s: seconds to wait for a task's answer.

    Raises:
      RuntimeError: eager execution is disabled, so that `tf.summary` would write nothing.
      ValueError: `step` is less than 0, or than that of the last call with this writer.
    """
    import tensorflow as tf

    with tf.init_scope():
        if not tf.executing_eagerly():
            raise RuntimeError(
                "write_summaries needs eager execution, which this program has disabled; read "
                "tf_fuse.cluster_metrics(target=...) and write what you need"
            )
    tasks = cluster_metrics(timeout_s)
    answered = {task: counters for task, counters in tasks.items() if "waits" in counters}
    with _lock:
        last_step, last = _last.get(writer, (0, {}))
        if step < last_step:
            raise ValueError(f"step is {step}, must be {last_step} or more")
        counts = _counts(answered)
        # (Of a task that does not answer now, the next call knows what it had counted.)
        _last[writer] = (step, {**last, **counts})
    grown = {}
    for key, count in counts.items():
        before = last.get(key, 0)
        # A task that was started again counts from 0.
        grown[key] = count - before if count >= before else count
    with tf.init_scope(), writer.as_default(step=step):
        for name, value in _scalars(grown, counts, step - last_step):
            tf.summary.scalar(f"tf_fuse/{name}", value)
        tf.summary.scalar("tf_fuse/tasks_without_answer", len(tasks) - len(answered))


def _counts(tasks: Mapping[str, Mapping[str, Any]]) -> _Counts:
    """Return what each task has counted, by what it is and the task's short name."""
    found: _Counts = {}
    for task, counters in tasks.items():
        name = _short(task)
        found["rpcs", name] = counters["fused_rpcs"] + counters["single_rpcs"]
        for key, wait in _WAITS.items():
            found[f"{wait} waits", name] = sum(counters["waits"][key]["counts"])
            found[f"{wait} us", name] = counters["waits"][key]["sum_us"]
        updates = counters["server_updates"]
        found["updates", name] = sum(one["updates"] for one in updates["variables"].values())
        for worker, one in updates["workers"].items():
            place = f"{_short(worker)} on {name}"
            found["stale updates", place] = one["updates"]
            found["stale", place] = one["staleness_sum"]
    return found


def _scalars(grown: _Counts, counts: _Counts, steps: int) -> Iterator[tuple[str, float]]:
    """Yield names and values."""
    stale: dict[str, list[float]] = {}
    for (what, name), count in grown.items():
        if what in ("rpcs", "updates") and counts[what, name] and steps:
            yield f"{what}_per_step/{name}", count / steps
        elif what.endswith(" waits") and count:
            wait = what.removesuffix(" waits")
            yield f"{wait}_wait_ms/{name}", grown[f"{wait} us", name] / count / 1e3
        elif what == "stale updates":
            sums = stale.setdefault(name.partition(" on ")[0], [0, 0])
            sums[0] += count
            sums[1] += grown["stale", name]
    for worker, (updates, staleness) in stale.items():
        if updates:
            yield f"staleness/{worker}", staleness / updates


def _short(task: str) -> str:
    """Return "ps:1" for the task "/job:ps/replica:0/task:1"."""
    job, _, rest = task.removeprefix("/job:").partition("/")
    return f"{job}:{rest.rpartition(':')[2]}" if rest else "unknown"
