# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables and pictures of what jobs reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

_MIB = 1 << 20
_ROLES = ("coordinator", "worker", "ps")
_TITLES = {
    "phases": "each phase",
    "workers": "by number of workers",
    "tables": "by number of tables",
}


def largest(peaks: Mapping[str, int]) -> dict[str, int]:
    """Return the largest peak of each role, in MiB.

    Args:
      peaks: bytes by task ("ps:0"; the coordinator has no number).
    """
    return {
        role: max(
            (size // _MIB for task, size in peaks.items() if task.partition(":")[0] == role),
            default=0,
        )
        for role in _ROLES
    }


def restores_equal(rows: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Return, by mode, whether all jobs that restored a checkpoint have the values saved.

    Args:
      rows: of `run.py`.
    """
    found: dict[str, list[Any]] = {}
    for row in rows:
        if "samples" in row["phases"]:
            found.setdefault(row["mode"], []).append(row["phases"]["samples"]["digests"])
    return {mode: all(one == all_[0] for one in all_) for mode, all_ in found.items()}


def render(result: Mapping[str, Any]) -> Table:
    """Return the table that was asked for."""
    settings = result["settings"]
    table = Table(
        title=f"{settings['model']}, {settings['rows']} rows of {settings['dim']}, batch "
        f"{settings['batch']}, {settings['servers']} servers: {_TITLES[result['table']]}"
    )
    make = _phases if result["table"] == "phases" else _jobs
    make(table, result)
    return table


def _phases(table: Table, result: Mapping[str, Any]) -> None:
    for name in ("mode", "servers, workers", "phase"):
        table.add_column(name)
    for name in ("seconds", "peak MiB:\ncoordinator", "worker", "server", ""):
        table.add_column(name, justify="right")
    for row in result["rows"]:
        for name, found in row["phases"].items():
            peaks = largest(found["peaks"])
            more = ""
            if name == "train":
                more = f"{found['steps_per_s']:.2f} steps/s"
            elif name == "save":
                more = f"{found['bytes'] / 1e9:.2f} GB"
            table.add_row(
                row["mode"],
                f"{row['servers']}, {row['workers']}",
                name,
                f"{found['seconds']:.1f}",
                *(str(peaks[role]) for role in _ROLES),
                more,
            )
        if "error" in row:
            table.add_row(row["mode"], f"{row['servers']}, {row['workers']}", row["error"])


def _jobs(table: Table, result: Mapping[str, Any]) -> None:
    table.add_column("mode")
    for name in ("workers", "tables", "build, s", "first step, s", "steps/s",
                 "receive RPCs\nper step", "coordinator's CPU,\nms per step"):  # fmt: skip
        table.add_column(name, justify="right")
    for row in result["rows"]:
        phases = row["phases"]
        train = phases.get("train")
        rpcs = train and train["recv_rpcs_per_step"]
        table.add_row(
            row["mode"],
            str(row["workers"]),
            str(row["tables"]),
            *(f"{phases[name]['seconds']:.1f}" if name in phases else "" for name in _BUILDS),
            f"{train['steps_per_s']:.2f}" if train else row["error"],
            "" if rpcs is None else f"{rpcs:.1f}",
            f"{train['coordinator_cpu_ms_per_step']:.1f}" if train else "",
        )


_BUILDS = ("build", "prepare")


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Draw seconds of phases, or steps per second.

    Args:
      result: all of it.
      path: the picture; its ending chooses the format.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    modes = list(dict.fromkeys(row["mode"] for row in result["rows"]))
    by_mode = {mode: [row for row in result["rows"] if row["mode"] == mode] for mode in modes}
    if result["table"] == "phases":
        for index, (mode, rows) in enumerate(by_mode.items()):
            bars = [
                (f"{name}, {row['servers']} servers", found["seconds"])
                for row in rows
                for name, found in row["phases"].items()
                if name not in ("start", "samples")
            ]
            places = [number + index / (len(modes) + 1) for number in range(len(bars))]
            axes.barh(places, [one for _, one in bars], 1 / (len(modes) + 1), label=mode)
            if index == 0:
                axes.set_yticks(places, [name for name, _ in bars])
        axes.invert_yaxis()
        axes.set_xlabel("seconds")
    else:
        for mode, rows in by_mode.items():
            done = [row for row in rows if "train" in row["phases"]]
            axes.plot(
                [row[result["table"]] for row in done],
                [row["phases"]["train"]["steps_per_s"] for row in done],
                "o-",
                label=mode,
            )
        axes.set_xscale("log", base=2)
        axes.set_xlabel(result["table"])
        axes.set_ylabel("steps per second")
        axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path)
