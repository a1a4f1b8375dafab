# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Make one report of several: those of the tasks of a job."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tf_fuse.report.gains import gains_in
from tf_fuse.report.json_form import ReportError, read
from tf_fuse.report.records.model import Function, Gain, Note, Report, Task


def report_of_files(paths: Iterable[Path]) -> Report:
    """Return one report of files: reports of any tasks, and JSON files of benchmarks.

    What cannot be read is left out, and a note says why.

    Args:
      paths: of files, or of folders whose files *.json are read.
    """
    reports: list[Report] = []
    gains: list[Gain] = []
    notes: list[Note] = []
    for path in _files(paths, notes):
        try:
            try:
                reports.append(read(path))
            except ReportError as not_report:
                try:
                    gains += gains_in(path)
                except ReportError:
                    raise not_report from None
        except (OSError, ReportError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            notes.append(Note(path.name, f"not read: {reason}"))
    merged = merge(reports)
    return dataclasses.replace(merged, notes=(*merged.notes, *notes), gains=(*merged.gains, *gains))


def merge(reports: Sequence[Report]) -> Report:
    """Return one report of several; of what two of them have, the newer one's is taken."""
    ordered = sorted(reports, key=lambda one: one.made)
    if not ordered:
        return Report(notes=(Note("report", "there is no report that can be read"),))
    tasks: dict[str, Task] = {}
    functions: dict[str, list[Function]] = {}
    for report in ordered:
        for task in report.tasks:
            # (An answer of earlier is better than no answer.)
            if not task.error or task.name not in tasks:
                tasks[task.name] = task
        for name in {one.task for one in report.functions}:
            own = [one for one in report.functions if one.task == name]
            if name not in functions or _named(own) >= _named(functions[name]):
                functions[name] = own
    last = ordered[-1]
    notes = {note: None for report in ordered for note in report.notes}
    versions = sorted({one.tf_fuse for one in ordered if one.tf_fuse})
    if len(versions) > 1:
        text = f"were written by several versions of tf_fuse: {', '.join(versions)}"
        notes[Note("tasks", text)] = None
    return Report(
        tf_fuse=last.tf_fuse,
        tensorflow=last.tensorflow,
        made=last.made,
        notes=tuple(notes),
        tasks=tuple(tasks[name] for name in sorted(tasks)),
        functions=tuple(one for name in sorted(functions) for one in functions[name]),
        timeline=next((one.timeline for one in reversed(ordered) if one.timeline), None),
        weight_updates={k: v for one in ordered for k, v in one.weight_updates.items()},
        server_updates=_server_updates(ordered),
        placements=next((one.placements for one in reversed(ordered) if one.placements), ()),
        layouts=next((one.layouts for one in reversed(ordered) if one.layouts), ()),
        gains=tuple(gain for one in ordered for gain in one.gains),
    )


def _files(paths: Iterable[Path], notes: list[Note]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob("*.json"))
            if not inside:
                notes.append(Note(path.name, "the folder has no file *.json"))
            found += inside
        else:
            found.append(path)
    return found


def _named(functions: Sequence[Function]) -> int:
    """Return how many tensors have a variable: the process that traced a function knows them."""
    return sum(
        bool(tensor.variable)
        for one in functions
        for group in one.groups
        for tensor in group.tensors
    ) + sum(bool(left.tensor.variable) for one in functions for left in one.left)


def _server_updates(reports: Sequence[Report]) -> dict[str, Any]:
    """Return one report of updates on servers; each server's from whoever had it last."""
    known = [one.server_updates for one in reports if one.server_updates.get("servers")]
    if not known:
        return {}
    servers: dict[str, Any] = {}
    whose: dict[str, int] = {}
    for number, one in enumerate(known):
        for server, counts in one["servers"].items():
            servers[server], whose[server] = counts, number
    # Each report sums the workers of its own servers.
    used = [known[number] for number in sorted(set(whose.values()))]
    workers: dict[str, dict[str, Any]] = {}
    for one in used:
        for worker, counts in (one.get("workers") or {}).items():
            workers[worker] = _both(workers.get(worker), counts)
    return {"servers": servers, "workers": workers, "errors": {}}


def _both(one: dict[str, Any] | None, other: dict[str, Any]) -> dict[str, Any]:
    """Return the counts of a worker on the servers of two reports."""
    if one is None:
        return dict(other)
    # (What one of them lacks is not known of both.)
    known = {key for key, value in one.items() if value is not None and other.get(key) is not None}
    both: dict[str, Any] = {}
    if "updates" in known:
        both["updates"] = one["updates"] + other["updates"]
    if {"updates", "mean_staleness"} <= known:
        weighted = sum(part["updates"] * part["mean_staleness"] for part in (one, other))
        both["mean_staleness"] = weighted / both["updates"] if both["updates"] else 0.0
    if "max_staleness" in known:
        both["max_staleness"] = max(one["max_staleness"], other["max_staleness"])
    if "staleness" in known:
        buckets: dict[tuple[int, int], int] = {}
        for first, last, count in [*one["staleness"], *other["staleness"]]:
            buckets[first, last] = buckets.get((first, last), 0) + count
        both["staleness"] = [[*bucket, count] for bucket, count in sorted(buckets.items())]
    return both
