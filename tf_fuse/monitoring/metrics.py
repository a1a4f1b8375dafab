# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Return the counters of this process, and of every task of a connected cluster.

Receiving side: `fused_rpcs` (RPCs that carried a frame), `single_rpcs` (RPCs that carried
one tensor), `tensors` and `bytes` (in frames), `beside_tensors` (too large for a frame, received
singly), `copied_tensors` (copied out of a frame), `fallbacks` (fused receives done one by one,
because the peer lacks the plugin), `errors` (fused receives that failed), `dynamic_requests` (those
of `fused_rpcs` that receives shared dynamically, and those that failed), `dynamic_rounds` (answers
to them that left something to ask for again), `stalled_receives` (that waited longer than
TF_FUSE_STALL_WARN_MS), and the gauge `pending_receives`. Gauge of both sides:
`open_steps`, the steps that have begun here, and are neither over nor aborted. `steps` counts all
that have begun, and operations outside of steps; `collective_steps` those with collectives.
Sending side: `served_rpcs`, `served_tensors`, `served_bytes`, `served_errors`, `served_probes`,
`cancelled_requests`, `rejected_requests` (malformed, or above a limit), `postponed_requests` (to be
sent again, because their step had not begun), `stalled_requests`, `asked_receivers` (questions to
receivers whether they still wait: a cancellation may be lost), and five gauges:
`pending_requests`, `pending_bytes` (what those take, estimated, and what is asked for dynamically
and not sent yet), `partial_tensors` (how many tensors the latter are), `unsent_frame_bytes` (of
frames not taken by their receivers yet) and `remembered_requests` (kept parsed, because they come
again).
The pass: `functions`, `groups` (fused receives made), `fused_receives` (receives they replaced) and
`skipped`, receives left alone by reason (docs/fuse_recv.md).
Waits of what ended well: `waits` has the upper bounds of its buckets in microseconds (`bounds_us`;
one more bucket is for longer waits), and of each kind the waits by bucket (`counts`) and their sum
(`sum_us`).
Updates on parameter servers: `server_updates`, by variable and by worker (`server_update_report`).
Of this process only: `weight_updates`, the counters of the option `shard_weight_update`
(docs/watching.md).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tf_fuse.monitoring import tasks

#: What each counter counts, in the order of `metrics`; without `skipped` and `waits`.
DESCRIPTIONS = {
    "fused_rpcs": "Receives of a whole frame.",
    "single_rpcs": "Receives of one tensor.",
    "tensors": "Tensors received in frames.",
    "bytes": "Bytes of the frames received.",
    "channel_frames": "Of the frames received, those that came by a data channel.",
    "channel_bytes": "Bytes of those.",
    "beside_tensors": "Tensors of fused receives that were too large for the frame.",
    "copied_tensors": "Tensors copied out of a frame.",
    "fallbacks": "Fused receives done one by one, because the peer lacks the plugin.",
    "errors": "Fused receives that failed.",
    "dynamic_requests": "Requests that receives shared dynamically.",
    "dynamic_rounds": "Answers to those that left something to ask for again.",
    "stalled_receives": "Fused receives that waited longer than TF_FUSE_STALL_WARN_MS.",
    "pending_receives": "Fused receives under way.",
    "open_steps": "Steps that have begun here, and are neither over nor aborted.",
    "steps": "Steps that have begun here, and operations outside of steps.",
    "collective_steps": "Steps that had collectives.",
    "served_rpcs": "Frames sent.",
    "served_tensors": "Tensors sent in frames.",
    "served_bytes": "Bytes of the frames sent.",
    "served_errors": "Requests for frames that were answered with an error.",
    "served_probes": "Questions of other tasks whether this one has the plugin.",
    "cancelled_requests": "Requests given up by their receivers.",
    "postponed_requests": "Requests to be sent again, because their step had not begun.",
    "rejected_requests": "Requests that were malformed or above a limit.",
    "stalled_requests": "Requests that waited longer than TF_FUSE_STALL_WARN_MS.",
    "asked_receivers": "Questions to receivers whether they still wait for their requests.",
    "pending_requests": "Requests that wait for tensors of this task.",
    "remembered_requests": "Requests that are kept parsed.",
    "pending_bytes": "Bytes that pending requests take, estimated.",
    "unsent_frame_bytes": "Bytes of frames that their receivers have not taken yet.",
    "partial_tensors": "Tensors that were asked for dynamically, and not sent yet.",
    "collective_bytes_shm": "Bytes of collectives that came through shared memory.",
    "collective_bytes_tcp": "Bytes of collectives that came through the sockets of data channels.",
    "collective_bytes_grpc": "Bytes of collectives that came by gRPC without a copy of ours.",
    "collective_bytes_stock": "Bytes of collectives that came by TensorFlow's own RecvBuf.",
    "collective_copied_bytes": "Bytes that were copied here to send or take those.",
    "direct_collectives": "All-reduces that took the direct algorithm in place of the ring.",
    "shared_memory_bytes": "Memory that this process lends to others of its host.",
    "lent_chunks": "Parts of it that were not given back yet, and large frames not taken yet.",
    "data_channels": "Open connections to processes that chunks and large frames are taken from.",
    "functions": "Graphs that the pass looked at.",
    "groups": "Fused receives that the pass made.",
    "fused_receives": "Receives that those replaced.",
}

#: What has waited, by its key in `waits`.
WAITS = {
    "receives": "Fused receives, for their tensors.",
    "requests": "Requests of peers, for tensors of this task.",
    "chunks": "Collectives, for chunks of other members.",
    "locks": "Updates on this server, for their variables' locks; those that waited.",
}

#: Counters that may fall.
GAUGES = frozenset(
    {
        "data_channels",
        "lent_chunks",
        "open_steps",
        "partial_tensors",
        "pending_bytes",
        "pending_receives",
        "pending_requests",
        "remembered_requests",
        "shared_memory_bytes",
        "unsent_frame_bytes",
    }
)


def metrics() -> dict[str, Any]:
    """Return the counters of this process; they start at 0 and only grow (except for gauges)."""
    from tf_fuse.monitoring.weight_update_counters import weight_update_counters
    from tf_fuse.v1 import fuse_recv_pb2

    counters: dict[str, Any] = json.loads(
        tasks.ask_this_process(fuse_recv_pb2.QUESTION_METRICS).decode(errors="replace")
    )
    counters["weight_updates"] = weight_update_counters()
    return counters


def cluster_metrics(
    timeout_s: float = 10.0, *, target: str | Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the counters of every task of a cluster.

    Args:
      timeout_s: seconds to wait for a task's answer.
      target: the target of a session's master (`server.target`), to ask the tasks of its cluster;
        or task to its own server's target, to ask each alone; None for the cluster of the eager
        context, including this process.

    Returns:
      A dict from task ("/job:worker/replica:0/task:0") to what `metrics` returns there, without
      `weight_updates`. For a task
      that runs without the plugin, or that does not answer, the dict has one key, "error".

    Raises:
      tf.errors.OpError: `target` is one address, and no master there answered in time.
    """
    from tf_fuse.v1 import fuse_recv_pb2

    answers = tasks.ask_every_task(fuse_recv_pb2.QUESTION_METRICS, timeout_s, target)
    return {
        task: {"error": str(answer)}
        if isinstance(answer, tasks.TaskError)
        # (A program may use any bytes in names of variables.)
        else json.loads(answer.decode(errors="replace"))
        for task, answer in answers.items()
    }


def cluster_reports(
    timeout_s: float = 10.0, *, target: str | Mapping[str, str] | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Return what the fuse_recv pass did to the last functions and sessions of every task.

    Args:
      timeout_s: seconds to wait for a task's answer.
      target: the target of a session's master (`server.target`), to ask the tasks of its cluster;
        or task to its own server's target, to ask each alone; None for the cluster of the eager
        context, including this process.

    Returns:
      A dict from task to a list of `tf_fuse.v1.FuseReport` messages as dicts, oldest first; empty
      for a task without the plugin, or that does not answer.

    Raises:
      tf.errors.OpError: see `cluster_metrics`.
    """
    from tf_fuse.v1 import fuse_recv_pb2

    answers = tasks.ask_every_task(fuse_recv_pb2.QUESTION_REPORTS, timeout_s, target)
    return {
        task: [] if isinstance(answer, tasks.TaskError) else _reports(answer)
        for task, answer in answers.items()
    }


def own_reports() -> list[dict[str, Any]]:
    """Return what the fuse_recv pass did to the last functions of this process."""
    from tf_fuse.v1 import fuse_recv_pb2

    return _reports(tasks.ask_this_process(fuse_recv_pb2.QUESTION_REPORTS))


def _reports(answer: bytes) -> list[dict[str, Any]]:
    """Parse a serialized `tf_fuse.v1.FuseReports`."""
    from google.protobuf import json_format

    from tf_fuse.v1 import fuse_recv_pb2

    return [
        json_format.MessageToDict(report, preserving_proto_field_name=True)
        for report in fuse_recv_pb2.FuseReports.FromString(answer).reports
    ]
