# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_fuse explain`: the groups, and why the other receives were left alone."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

#: Reason in a report to one sentence for people.
REASONS = {
    "alone": "No other receive has the same two devices and the same depth.",
    "client_terminated": "A fed or fetched value; the client waits for it under its own key.",
    "cyclic_graph": "The partitions depend on one another in a circle.",
    "host_memory": "Its key depends on the function's call frame.",
    "loop_frame": "It lies inside a loop, where its key changes with the iteration.",
    "may_be_dead": "It lies on a branch of a conditional that may not be taken.",
    "no_fuse_server": "This process does not run the protocol grpc+fuse.",
    "not_cpu": "It leaves or enters a device that is not a CPU.",
    "peer_unreachable": "The receiving task did not answer when it was asked for the plugin.",
    "peer_without_plugin": "The receiving task runs the protocol grpc, without the plugin.",
    "sender_not_visible": "What is above it is in a partition that is not visible here.",
    "type_not_raw": "Strings, resources and variants are no flat bytes.",
    "unreachable_node": "The graph's source does not reach it.",
    "would_cycle": "Fusing it would make two tasks wait for one another.",
}


def run(path: str | None, example: str | None, signature: str, json_path: str | None) -> int:
    """Explains a file or a bundled example; returns the exit status."""
    from google.protobuf import json_format

    from tf_fuse.explain import rewrite

    try:
        graph = _example(example) if example else _load(Path(str(path)), signature)
        report = rewrite(graph).report
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    data = json_format.MessageToDict(report, preserving_proto_field_name=True)
    if json_path == "-":
        print(json.dumps(data, indent=1))
        return 0
    if json_path:
        Path(json_path).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    _print(report)
    return 0


def _print(report: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    groups = Table(title=f"{len(report.groups)} fused receives")
    for column in ("from", "to", "depth", "tensors", "types"):
        groups.add_column(column, justify="right" if column in ("depth", "tensors") else "left")
    for group in report.groups:
        types = Counter(slot.dtype for slot in group.slots)
        groups.add_row(
            group.send_device,
            group.recv_device,
            str(group.depth),
            str(len(group.slots)),
            ", ".join(f"{count} {dtype}" for dtype, count in sorted(types.items())),
        )
    console.print(groups)
    skips = Table(title=f"{len(report.skips)} receives left alone")
    for column in ("reason", "receives", "meaning", "first tensor"):
        skips.add_column(column)
    reasons = Counter(skip.reason for skip in report.skips)
    for reason, count in sorted(reasons.items()):
        first = next(skip for skip in report.skips if skip.reason == reason)
        skips.add_row(reason, str(count), REASONS.get(reason, ""), first.slot.tensor_name)
    console.print(skips)
    if report.local_receives:
        console.print(f"{report.local_receives} receives within one task: no RPC, never touched.")


def _load(path: Path, signature: str) -> Any:
    """Reads a GraphDef.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is no graph, or the SavedModel lacks the signature.
    """
    import tensorflow as tf
    from google.protobuf import message, text_format

    graph_def = tf.compat.v1.GraphDef()
    if path.is_dir():
        from tf_fuse.explain import placed_graph

        signatures = tf.saved_model.load(str(path)).signatures
        if signature not in signatures:
            raise ValueError(f"{path} has no signature {signature!r}; it has {sorted(signatures)}")
        return placed_graph(signatures[signature])
    content = path.read_bytes()
    try:
        if path.suffix == ".pbtxt":
            text_format.Parse(content.decode("utf-8"), graph_def)
        else:
            graph_def.ParseFromString(content)
    except (message.DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no GraphDef: {error}") from error
    return graph_def


def _example(name: str) -> Any:
    """A graph of two servers and a worker: eight tables, or a conditional that reads both."""
    import tensorflow as tf

    servers = [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(2)]
    with tf.Graph().as_default() as graph:
        tables = []
        for i in range(8):
            with tf.device(servers[i % 2]):
                tables.append(tf.random.stateless_uniform([1000, 16], [i, 0]))
        with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
            ids = tf.random.stateless_uniform([8, 64], [0, 1], maxval=1000, dtype=tf.int32)
        rows = []
        for i, table in enumerate(tables):
            with tf.device(servers[i % 2]):
                rows.append(tf.gather(table, ids[i]))
        with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
            joined = tf.concat(rows, axis=1)
            if name == "cond":
                total = tf.reduce_sum(joined)
                tf.raw_ops.Switch(data=total, pred=total > 0)
        if name == "cond":
            for server in servers:
                with tf.device(server):
                    branch, _ = tf.raw_ops.Switch(data=tf.reduce_sum(tables[0]), pred=total > 0)
                with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
                    tf.identity(branch)
    return graph.as_graph_def()
