# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What a soak test measured: the rule by which it is flat, and a picture of it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: the rest of the path is that of an installed tf_fuse.
sys.path.append(str(Path(__file__).resolve().parents[3]))

from tests.fault.soak import job as soak_job
from tests.fault.soak import models

#: How much a process may grow over the whole test, counted between restarts of tasks: the median of
#: the slopes of all pairs of samples with no restart between them, nor shortly before
#: (Theil-Sen), times all steps.
#: Whoever keeps one small thing per step, or per fault that kills nobody, is above it: so is who
#: keeps 1 MB in 10,000 steps of 100,000.
BOUNDS = {"rss_mib": 8.0, "threads": 4.0, "fds": 4.0}
#: What may come on top for each restart of a task, and for each new coordinator. Stock TensorFlow
#: keeps the threads of its clients of a peer that is gone (4 for a worker, 6 to 10 for a server and
#: its coordinator), and 1 to 10 MiB; it does not keep descriptors.
PER_RESTART = {"rss_mib": 12.0, "threads": 10.0, "fds": 0.0}
#: A process with fewer samples is too young to be judged.
MIN_SAMPLES = 16
#: Fewer are too few to tell growth from warm-up.
LEAST_STEPS = 20_000
#: Steps of a process that are not looked at: memory pools and threads come with use.
WARM_UP_STEPS = 5000
#: Steps after a restart of a task in which the others grow: for its connections, and for functions
#: that are made anew for it.
SETTLE_STEPS = 2000
_WARM_UP = 0.1
_RESTARTS = ("worker_killed", "server_killed")


@dataclasses.dataclass(frozen=True)
class Point:
    """A sample of one process.

    Attributes:
      steps: when.
      restarts: of tasks so far.
      values: by the names of `BOUNDS`.
    """

    steps: int
    restarts: int
    values: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Growth:
    """How one thing of a process grew after its warm-up, a tenth of its samples.

    Attributes:
      steadily: between restarts, as `BOUNDS` has it.
      in_all: last value less first value.
      restarts: of tasks in that time.
    """

    steadily: float
    in_all: float
    restarts: int


def growth(points: Sequence[Point], name: str) -> Growth:
    """How `name` grew over points in their order."""
    begun: dict[int, int] = {}
    for point in points:
        begun.setdefault(point.restarts, point.steps)
    points = points[int(len(points) * _WARM_UP) :]
    slopes = [
        (b.values[name] - a.values[name]) / (b.steps - a.steps)
        for i, a in enumerate(points)
        for b in points[i + 1 :]
        if b.restarts == a.restarts and b.steps > a.steps >= begun[a.restarts] + SETTLE_STEPS
    ]
    first, last = points[0], points[-1]
    slope = statistics.median(slopes) if slopes else 0.0
    return Growth(
        slope * (last.steps - first.steps),
        last.values[name] - first.values[name],
        last.restarts - first.restarts,
    )


def growths(samples: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Growth]]:
    """By process ("ps:0 (pid)"), how each of `BOUNDS` grew; young processes are left out."""
    series: dict[str, list[Point]] = {}
    for sample in samples:
        restarts = sum(sample["faults"].get(kind, 0) for kind in _RESTARTS)
        for task, numbers in sample["tasks"].items():
            point = Point(sample["steps"], restarts, numbers)
            series.setdefault(f"{task} ({numbers['pid']})", []).append(point)
    warm = {
        process: [p for p in points if p.steps >= points[0].steps + WARM_UP_STEPS]
        for process, points in sorted(series.items())
    }
    return {
        process: {name: growth(points, name) for name in BOUNDS}
        for process, points in warm.items()
        if len(points) >= MIN_SAMPLES
    }


def restless(samples: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tasks that did not come to rest, in each of the JSON lines that have "tasks".

    Receives that are `job.forsaken` do not count, if no more than were in flight at deaths.
    """
    found = []
    for sample in samples:
        receives, requests = soak_job.forsaken(sample["waiting"])
        deaths = sum(sample["faults"].get(kind, 0) for kind in _RESTARTS)
        if receives.total() > deaths * models.MODELS:
            found.append(
                f"after {sample['steps']} steps and {deaths} deaths {receives.total()} receives "
                f"wait for steps that nobody runs: {sample['waiting']}"
            )
        found += [
            f"after {sample['steps']} steps {task} is not at rest: {gauges}, "
            f"waiting: {sample['waiting'].get(task)}"
            for task, gauges in sample["gauges"].items()
            if not soak_job.is_at_rest(
                gauges, sample["coordinators"], receives[task], requests[task]
            )
        ]
    return found


def grown(samples: Sequence[Mapping[str, Any]], kept: Sequence[str]) -> list[str]:
    """The processes that grew beyond the bounds.

    Args:
      samples: the lines of the JSON that have "tasks".
      kept: tasks whose process lived through the whole test; one that was not judged is a
        finding, too.
    """
    found = []
    judged = growths(samples)
    for process, by_name in judged.items():
        for name, of_name in by_name.items():
            if of_name.steadily > BOUNDS[name]:
                found.append(
                    f"{process}: {name} grew steadily by {of_name.steadily:.1f}, of {BOUNDS[name]}"
                )
            allowed = BOUNDS[name] + of_name.restarts * PER_RESTART[name]
            if of_name.in_all > allowed:
                found.append(
                    f"{process}: {name} grew by {of_name.in_all:.1f} with {of_name.restarts} "
                    f"restarts, of {allowed}"
                )
    for task in kept:
        if not any(process.startswith(f"{task} ") for process in judged):
            found.append(f"{task}: no process has {MIN_SAMPLES} samples")
    return found


def verdict(findings: Sequence[str], judged: bool, equal: str) -> str:
    """The last line.

    Args:
      findings: of the run.
      judged: whether growth was looked at.
      equal: what was compared, too.
    """
    if findings:
        return f"FAILED, findings: {len(findings)}"
    return f"flat, and {equal}" if judged else f"{equal}, growth not judged"


def plot(samples: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Draws memory, threads, descriptors and the gauges' sum of each task over the steps.

    Args:
      samples: as of `restless`.
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
        axes.set_ylim(bottom=0, top=1.1 * axes.get_ylim()[1])
    gauges = [list(sample["gauges"].values()) for sample in samples]
    others = [sum(sum(g.values()) - g["open_steps"] for g in by_task) for by_task in gauges]
    panels[3].plot(steps, others, lw=1, label="at rest: all gauges but open_steps")
    panels[3].plot(steps, [s["coordinators"] for s in samples], lw=1, label="coordinators so far")
    for kind, style in zip(_RESTARTS, ("--", ":"), strict=True):
        counts = [s["faults"].get(kind, 0) for s in samples]
        panels[3].plot(steps, counts, style, lw=1, label=kind.replace("_", "s "))
    panels[3].legend(fontsize=8)
    panels[3].set_xlabel("steps")
    panels[0].legend(fontsize=8, ncols=5, loc="lower center")
    panels[0].set_title(title, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)


def main(argv: Sequence[str] | None = None) -> int:
    """Judges the JSON of a test that was run, also of one that still runs; 1 if it is not flat."""
    parser = argparse.ArgumentParser(description="Judge the JSON lines of a soak test.")
    parser.add_argument("json", type=Path)
    parser.add_argument("--plot", type=Path, help="write a picture here")
    args = parser.parse_args(argv)
    samples = [line for line in map(json.loads, args.json.open()) if "tasks" in line]
    if args.plot:
        plot(samples, args.plot, f"{samples[-1]['steps']} steps")
    judged = growths(samples)
    print(describe(judged))
    found = restless(samples) + grown(samples, ())
    flat = "flat" if judged else f"at rest, growth not judged: no process has {MIN_SAMPLES} samples"
    print("\n".join(found) or flat)
    return 1 if found else 0


def describe(judged: Mapping[str, Mapping[str, Growth]]) -> str:
    """What grew, a line per process."""
    return "\n".join(
        f"{process}: "
        + "; ".join(
            f"{name} {g.steadily:+.1f} steadily, {g.in_all:+.1f} in all"
            for name, g in by_name.items()
        )
        + f"; {by_name['fds'].restarts} restarts"
        for process, by_name in judged.items()
    )


if __name__ == "__main__":
    sys.exit(main())
