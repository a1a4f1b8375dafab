# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Counters of this process, and of every task of a connected cluster.

Receiving side: `fused_rpcs` (RPCs that carried a frame), `single_rpcs` (RPCs that carried
one tensor), `tensors` and `bytes` (in frames), `beside_tensors` (too large for a frame, received
singly), `copied_tensors` (copied out of a frame), `fallbacks` (fused receives done one by one,
because the peer lacks the plugin), `errors` (fused receives that failed), and the gauge
`pending_receives`. Gauge of both sides: `open_steps`, the steps that have a rendezvous here.
Sending side: `served_rpcs`, `served_tensors`, `served_bytes`, `served_errors`, `served_probes`,
`cancelled_requests`, `rejected_requests`, `postponed_requests` (to be sent again, because their
step had not begun), and the gauge `pending_requests`.
The pass: `functions`, `groups` (fused receives made), `fused_receives` (receives they replaced) and
`skipped`, receives left alone by reason (docs/fuse_recv.md).
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from typing import Any, TypeVar

from tf_fuse import _native

_T = TypeVar("_T")


def metrics() -> dict[str, Any]:
    """Returns the counters of this process; they start at 0 and only grow (but for gauges)."""
    library = _native.library()
    library.tf_fuse_metrics_json.restype = ctypes.c_void_p
    library.tf_fuse_free.argtypes = [ctypes.c_void_p]
    text = library.tf_fuse_metrics_json()
    try:
        counters: dict[str, Any] = json.loads(ctypes.string_at(text))
        return counters
    finally:
        library.tf_fuse_free(text)


def cluster_metrics() -> dict[str, dict[str, Any]]:
    """Returns the counters of every task of the connected cluster, this process included.

    Runs an op on each task, so it must be called outside of any `tf.function`.

    Returns:
      A dict from task ("/job:worker/replica:0/task:0") to what `metrics` returns there. For a task
      that runs without the plugin, or that cannot be reached, the dict has one key, "error".
    """
    return _on_every_task(
        lambda ops: json.loads(ops.tf_fuse_metrics().numpy()),
        on_error=lambda text: {"error": text},
    )


def cluster_reports() -> dict[str, list[dict[str, Any]]]:
    """Returns what the fuse_recv pass did to the last functions of every task.

    Returns:
      A dict from task to a list of `tf_fuse.v1.FuseReport` messages as dicts, oldest first; empty
      for a task without the plugin.
    """
    from google.protobuf import json_format

    from tf_fuse.v1 import fuse_recv_pb2

    def fetch(ops: Any) -> list[dict[str, Any]]:
        reports = ops.tf_fuse_reports().numpy()
        return [
            json_format.MessageToDict(
                fuse_recv_pb2.FuseReport.FromString(report), preserving_proto_field_name=True
            )
            for report in reports
        ]

    return _on_every_task(fetch, on_error=lambda _: [])


def _on_every_task(fetch: Callable[[Any], _T], on_error: Callable[[str], _T]) -> dict[str, _T]:
    """Calls `fetch` with our ops, under a device of each task in turn."""
    import tensorflow as tf

    ops = _native.load()
    devices: dict[str, str] = {}
    for device in tf.config.list_logical_devices("CPU"):
        spec = tf.DeviceSpec.from_string(device.name)
        if spec.job is None:
            task = "/job:localhost/replica:0/task:0"
        else:
            task = f"/job:{spec.job}/replica:{spec.replica or 0}/task:{spec.task or 0}"
        devices.setdefault(task, device.name)
    results: dict[str, _T] = {}
    for task, name in sorted(devices.items()):
        try:
            with tf.init_scope(), tf.device(name):
                results[task] = fetch(ops)
        except tf.errors.OpError as error:
            results[task] = on_error(f"{type(error).__name__}: {error.message}")
    return results
