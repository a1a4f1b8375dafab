# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Name the counters for Prometheus: units last, labels for what differs in one respect alone."""

from __future__ import annotations

from typing import NamedTuple

from tf_fuse.monitoring.metrics import DESCRIPTIONS, GAUGES


class Family(NamedTuple):
    """Counters that are one metric.

    Attributes:
      name: without the "_total" that the text adds to a counter.
      text: what it counts.
      label: the label that its samples differ in; "" for one sample.
      keys: value of the label to key in `tf_fuse.metrics()`.
      is_gauge: whether it may fall.
    """

    name: str
    text: str
    label: str
    keys: dict[str, str]
    is_gauge: bool = False


_IN_AND_OUT = "direction"
_LABELLED = (
    Family(
        "tf_fuse_frames",
        "Frames, each with the tensors of a fused receive.",
        _IN_AND_OUT,
        {"received": "fused_rpcs", "sent": "served_rpcs"},
    ),
    Family(
        "tf_fuse_frame_tensors",
        "Tensors in frames.",
        _IN_AND_OUT,
        {"received": "tensors", "sent": "served_tensors"},
    ),
    Family(
        "tf_fuse_frame_bytes",
        "Bytes of frames.",
        _IN_AND_OUT,
        {"received": "bytes", "sent": "served_bytes"},
    ),
    Family(
        "tf_fuse_stalls",
        "Waits of more than TF_FUSE_STALL_WARN_MS: of receives, and of requests at the sender.",
        "side",
        {"receiver": "stalled_receives", "sender": "stalled_requests"},
    ),
    Family(
        "tf_fuse_unserved_requests",
        "Requests for frames that got none.",
        "reason",
        {
            "cancelled": "cancelled_requests",
            "failed": "served_errors",
            "postponed": "postponed_requests",
            "rejected": "rejected_requests",
        },
    ),
    Family(
        "tf_fuse_collective_bytes",
        "Bytes that collectives brought to this task.",
        "path",
        {path: f"collective_bytes_{path}" for path in ("shm", "tcp", "grpc", "stock")},
    ),
)
_RENAMED = {key for family in _LABELLED for key in family.keys.values()}

#: Every metric of one or more counters of `DESCRIPTIONS`.
FAMILIES = (
    *(
        Family(f"tf_fuse_{key}", text, "", {"": key}, key in GAUGES)
        for key, text in DESCRIPTIONS.items()
        if key not in _RENAMED
    ),
    *_LABELLED,
)

#: Histograms of waits in seconds, by key in `tf_fuse.metrics()["waits"]`.
WAITS = {
    "receives": "tf_fuse_receive_wait_seconds",
    "requests": "tf_fuse_request_wait_seconds",
    "chunks": "tf_fuse_chunk_wait_seconds",
    "locks": "tf_fuse_lock_wait_seconds",
}

#: Of updates on servers: name to what is summed, its unit, and what it is.
SERVER_SUMS = {
    "tf_fuse_server_updates": ("updates", 1, "Updates made as one operation on a server."),
    "tf_fuse_server_update_seconds": ("update_us", 1e-6, "Time under their variables' locks."),
}
STALENESS = "Updates that others made of a variable since the step of an update began."

#: The former name of a counter, by its key, and what has taken its place.
FORMER = {
    key: (f"tf_fuse_{key}", f'{family.name}_total{{{family.label}="{value}"}}')
    for family in _LABELLED
    for value, key in family.keys.items()
}
#: As `SERVER_SUMS`, with what has taken the place.
FORMER_SERVER_SUMS = {
    "tf_fuse_server_update_waits": ("waits", 1, "tf_fuse_lock_wait_seconds_count"),
    "tf_fuse_server_update_wait_seconds": ("wait_us", 1e-6, "tf_fuse_lock_wait_seconds_sum"),
}


def deprecated(new: str) -> str:
    """Return the text of a former name whose place `new` has taken."""
    return f"Deprecated, goes in 0.4.0. Use {new}."
