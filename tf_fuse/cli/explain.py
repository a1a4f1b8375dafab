# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run `python -m tf_fuse explain`: show groups, and why other receives are left alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tf_fuse import _json_output
from tf_fuse._console import open_console
from tf_fuse.report.reasons import REASONS

# Operations that do nothing in a step, or are made once.
_NOT_RUN = {"NoOp", "Const", "HostConst", "VarHandleOp", "_Arg", "_DeviceArg"}

# Of a slot's estimate, in a report made with fuse_grouping "cost".
_ESTIMATES = ("ready_us", "tail_us")


def run(
    path: str | None,
    example: str | None,
    signature: str,
    json_path: str | None,
    model_explorer: str | None = None,
    **options: Any,
) -> int:
    """Explain a file or a bundled example; return the exit status.

    Args:
      path: a GraphDef (*.pb, *.pbtxt) or the folder of a SavedModel; None for an example.
      example: a key of `example_graphs.EXAMPLES`; None for a file.
      signature: which one of a SavedModel.
      json_path: where to write the report as JSON beside the tables; "-" for standard output, in
        place of them.
      model_explorer: where to write the graphs before and after, for Model Explorer.
      **options: of `tf_fuse.explain.rewrite`.

    Returns:
      0; or 1, with a message on standard error, if the graph cannot be read or the report written.
    """
    from tf_fuse.cli import example_graphs
    from tf_fuse.cli.load import graph as load_graph
    from tf_fuse.explain import rewrite, write_model_explorer

    try:
        if example is not None:
            graph = example_graphs.build(example)
        else:
            graph = load_graph.load(Path(str(path)), signature)
        result = rewrite(graph, fuse_operations=True, **options)
        if model_explorer:
            write_model_explorer(result, model_explorer)
        data = describe(result)
        if _json_output.write(data, json_path):
            return 0
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _print(data)
    return 0


def describe(result: Any) -> dict[str, Any]:
    """Turn what the pass did into plain data.

    Args:
      result: a `tf_fuse.explain.Rewrite`.

    Returns:
      A dict with `grouping` (the `fuse_grouping` that was used), `groups` (each with node,
      send_device, recv_device, depth, dynamic, loop ("" outside of loops), tensors, known_bytes,
      unknown_sizes, may_be_dead (how many of its tensors may be) and slots, which have may_be_dead
      (true or false) too), `skips` (send_device, recv_device, reason, meaning and the slot's
      fields), `dropped` (the same without reason and meaning: receives that only the end of the
      function waited for), `operation_groups` (node, device, `operations`, type to number, and
      `sends`: how often the group sends, which is once for all tensors of one request),
      `operations` (of each device: how many there are before and after, without constants, handles
      and arguments),
      `local_receives`, `receives` (between tasks, before) and `receives_after`, for which a dynamic
      group counts as one: how many requests its receives share is not known before they run. A slot
      has tensor_name, dtype, sender_node, recv_node and bytes, null where the shape is not static.
      With fuse_grouping "cost" slots also have ready_us (when the sender is estimated to have it)
      and tail_us (how long the step takes after it), and groups the largest of each.
    """
    from tf_fuse.explain import known_bytes

    report = result.report
    known = known_bytes(result)
    groups = []
    for group in report.groups:
        slots = [
            {**_slot(known, group.send_device, slot), "may_be_dead": slot.may_be_dead}
            for slot in group.slots
        ]
        sizes = [slot["bytes"] for slot in slots]
        groups.append(
            {
                "node": group.node,
                "send_device": group.send_device,
                "recv_device": group.recv_device,
                "depth": group.depth,
                "dynamic": group.dynamic,
                "loop": group.frame,
                "tensors": len(slots),
                "known_bytes": sum(size for size in sizes if size is not None),
                "unknown_sizes": sizes.count(None),
                "may_be_dead": sum(slot["may_be_dead"] for slot in slots),
                **{
                    key: max(slot[key] for slot in slots)
                    for key in _ESTIMATES
                    if all(key in slot for slot in slots)
                },
                "slots": slots,
            }
        )
    skips = [
        {
            "reason": skip.reason,
            "meaning": REASONS.get(skip.reason, ""),
            **_receive(known, skip),
        }
        for skip in report.skips
    ]
    dropped = [_receive(known, one) for one in report.dropped]
    return {
        "grouping": result.splitting,
        "groups": groups,
        "skips": skips,
        "dropped": dropped,
        "operation_groups": [
            {
                "node": one.node,
                "device": one.device,
                "operations": dict(one.operations),
                "sends": one.sends,
            }
            for one in report.operation_groups
        ],
        "operations": {
            device: [_operations(graphs[device]) for graphs in (result.before, result.after)]
            for device in result.before
        },
        "local_receives": report.local_receives,
        "receives": sum(group["tensors"] for group in groups) + len(skips) + len(dropped),
        "receives_after": len(groups) + len(skips),
    }


def _operations(graph: Any) -> int:
    return sum(node.op not in _NOT_RUN for node in graph.node)


def _receive(known: dict[tuple[str, str], int | None], receive: Any) -> dict[str, Any]:
    return {
        "send_device": receive.send_device,
        "recv_device": receive.recv_device,
        **_slot(known, receive.send_device, receive.slot),
    }


def _slot(known: dict[tuple[str, str], int | None], send_device: str, slot: Any) -> dict[str, Any]:
    return {
        "tensor_name": slot.tensor_name,
        "dtype": slot.dtype,
        "sender_node": slot.sender_node,
        "recv_node": slot.recv_node,
        "bytes": known.get((send_device, slot.tensor_name)),
        **(
            {key: round(getattr(slot.estimate, key), 1) for key in _ESTIMATES}
            if slot.HasField("estimate")
            else {}
        ),
    }


def _print(data: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    console = open_console()
    groups = Table(title="Fused receives", box=box.SIMPLE, title_justify="left")
    loops = any(group["loop"] for group in data["groups"])
    doubts = any(group["may_be_dead"] for group in data["groups"])
    timed = any("ready_us" in group for group in data["groups"])
    more = [
        *(["ready µs", "tail µs"] if timed else []),
        *(["dead?"] if doubts else []),
        *(["loop"] if loops else []),
    ]
    for column in ("from", "to", "depth", "tensors", "bytes", *more):
        # Of a narrow screen, let the names of devices and loops take what is left.
        groups.add_column(
            column,
            justify="left" if column in ("from", "to", "loop") else "right",
            min_width=len(column) if column in more else None,
        )
    for group in data["groups"]:
        size = f"{group['known_bytes']:,}"
        if group["unknown_sizes"]:
            size += f" + {group['unknown_sizes']} unknown"
        groups.add_row(
            _short(group["send_device"]),
            _short(group["recv_device"]),
            "dynamic" if group["dynamic"] else str(group["depth"]),
            str(group["tensors"]),
            size,
            *([f"{group[key]:,.0f}" for key in _ESTIMATES] if timed else []),
            *([str(group["may_be_dead"] or "")] if doubts else []),
            *([group["loop"]] if loops else []),
        )
    console.print(groups)
    if timed:
        console.print("ready, tail: estimates of when all of it is there, and what then follows.")
    if doubts:
        console.print("dead?: tensors that may be dead, each behind a Switch of its own.")
    if data["skips"]:
        skips = Table(title="Receives left alone", box=box.SIMPLE, title_justify="left")
        skips.add_column("reason", no_wrap=True)
        for column in ("from", "to", "value of"):
            skips.add_column(column, overflow="fold")
        for skip in data["skips"]:
            value = skip["sender_node"] or skip["tensor_name"]
            skips.add_row(
                skip["reason"], _short(skip["send_device"]), _short(skip["recv_device"]), value
            )
        console.print(skips)
        for reason in sorted({skip["reason"] for skip in data["skips"]}):
            console.print(f"[bold]{reason}[/bold]: {REASONS.get(reason, '')}")
    if data["operation_groups"]:
        together = Table(title="Operations that run as one", box=box.SIMPLE, title_justify="left")
        together.add_column("on", no_wrap=True)
        together.add_column("operations", overflow="fold")
        together.add_column("sends", justify="right")
        for one in data["operation_groups"]:
            counts = sorted(one["operations"].items())
            together.add_row(
                _short(one["device"]),
                ", ".join(f"{count} {name}" for name, count in counts),
                str(one["sends"]),
            )
        console.print(together)
        for device, (before, after) in data["operations"].items():
            console.print(f"Operations on {_short(device)}: {before} before, {after} after.")
    console.print(_grouping(data["grouping"]), soft_wrap=True)
    before, after = data["receives"], data["receives_after"]
    saved = f", {1 - after / before:.0%} fewer" if before else ""
    least = "at least " if any(group["dynamic"] for group in data["groups"]) else ""
    if least:
        saved = ""
    console.print(f"Receives between tasks: {before} before, {least}{after} after{saved}.")
    if data["dropped"]:
        console.print(f"Of these, only the end of the step waited for: {len(data['dropped'])}.")
    if data["local_receives"]:
        console.print(f"Receives within a task, no RPC: {data['local_receives']}.")


def _grouping(used: str) -> str:
    """Return how receives were grouped; a run may group them otherwise."""
    if used == "cost":
        return "Grouping: cost, as in runs. (Each task is taken to have a host of its own.)"
    return f"Grouping: {used}. A run uses cost by default: --grouping cost."


def _short(device: str) -> str:
    """Shorten a device's name: "ps:0", "worker:1 GPU:0"."""
    import tensorflow as tf

    spec = tf.DeviceSpec.from_string(device)
    task = f"{spec.job}:{spec.task}"
    if (spec.device_type, spec.device_index) == ("CPU", 0):
        return task
    return f"{task} {spec.device_type}:{spec.device_index}"
