# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a soak test measured: the rule by which it is flat, and a picture of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fault import soak_job

#: How much a process may grow from the end of its warm-up (a quarter of its samples) to its end, by
#: the line through its samples: what is left of a straight line's growth when single samples do not
#: count (Theil-Sen). Whoever keeps one small thing per step or per fault is above it.
BOUNDS = {"rss_mib": 24.0, "threads": 8.0, "fds": 16.0}
#: A process with fewer samples is too young to be judged.
MIN_SAMPLES = 16
_WARM_UP = 0.25


def growth(steps: Sequence[float], values: Sequence[float]) -> float:
    """What values grow by from the end of the warm-up to the end.

    Args:
      steps: where the values were taken, ascending.
      values: one for each.

    Returns:
      The median of the slopes of all pairs of samples after the warm-up, times their steps.
    """
    first = int(len(steps) * _WARM_UP)
    points = list(zip(steps[first:], values[first:], strict=True))
    slopes = [
        (b[1] - a[1]) / (b[0] - a[0])
        for i, a in enumerate(points)
        for b in points[i + 1 :]
        if b[0] > a[0]
    ]
    return statistics.median(slopes) * (points[-1][0] - points[0][0])


def growths(samples: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """By process ("ps:0 (pid)"), what each of `BOUNDS` grew by; young processes are left out."""
    series: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for sample in samples:
        for task, numbers in sample["tasks"].items():
            series.setdefault(f"{task} ({numbers['pid']})", []).append((sample["steps"], numbers))
    return {
        process: {
            name: growth([step for step, _ in points], [numbers[name] for _, numbers in points])
            for name in BOUNDS
        }
        for process, points in sorted(series.items())
        if len(points) >= MIN_SAMPLES
    }


def findings(samples: Sequence[Mapping[str, Any]], kept: Sequence[str]) -> list[str]:
    """What is not flat: a task that does not come to rest, a process that grows beyond `BOUNDS`.

    Args:
      samples: the lines of the JSON that have "tasks".
      kept: tasks of which a process lived through the whole test; one that was not judged is a
        finding, too.
    """
    found = []
    for sample in samples:
        for task, gauges in sample.get("gauges", {}).items():
            if not soak_job.is_at_rest(gauges, sample["coordinators"]):
                found.append(f"after {sample['steps']} steps {task} is not at rest: {gauges}")
    judged = growths(samples)
    for process, by_name in judged.items():
        for name, grown in by_name.items():
            if grown > BOUNDS[name]:
                found.append(f"{process}: {name} grew by {grown:.1f}, of {BOUNDS[name]} allowed")
    for task in kept:
        if not any(process.startswith(f"{task} ") for process in judged):
            found.append(f"{task}: no process has {MIN_SAMPLES} samples")
    return found


def plot(samples: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draws memory, threads, descriptors and the gauges' sum of each task over the steps.

    Args:
      samples: as of `findings`.
      path: the picture; its ending chooses the format.
      title: above it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 7), layout="constrained")
    panels = figure.subplots(4, 1, sharex=True)
    steps = [sample["steps"] for sample in samples]
    labels = {"rss_mib": "memory (RSS), MiB", "threads": "threads", "fds": "file descriptors"}
    for axes, (name, label) in zip(panels[:3], labels.items(), strict=True):
        for task in samples[-1]["tasks"]:
            values = [s["tasks"].get(task, {}).get(name) for s in samples]
            axes.plot(steps, [float("nan") if v is None else v for v in values], label=task, lw=1)
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    sums = [sum(sum(g.values()) for g in s.get("gauges", {}).values()) for s in samples]
    panels[3].plot(steps, sums, lw=1, label="sum of all gauges at rest")
    panels[3].plot(steps, [sum(s["faults"].values()) for s in samples], lw=1, label="faults so far")
    panels[3].legend(fontsize=8)
    panels[3].set_xlabel("steps")
    panels[0].legend(fontsize=8, ncols=5, loc="lower center")
    panels[0].set_title(title, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
