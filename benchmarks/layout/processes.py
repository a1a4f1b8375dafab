# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Time steps in several processes: stock's strategy, `shard_weight_update`, and a found plan.

All ways have their processes at the same time, idle between their rounds, and run in turn. The
first process of a plan measures rates with the others, searches, and saves the plan for them.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress
from rich.table import Table

from benchmarks.common import output
from benchmarks.common.rank_group import RankError, RankGroup, Variant
from benchmarks.layout.process_rank import PLAN, SHARDED, STOCK

_PROGRAM = Path(__file__).resolve().parent / "process_rank.py"
MODELS = ("mlp", "transformer", "wide_deep", "resnet18")
PROCESSES = (2, 4)
ROUNDS = 7
STEPS = 2
WARM_UP = 3
TIMEOUT_S = 500
_OURS = "grpc+fuse"
WAYS: Mapping[str, str] = {STOCK: "grpc", SHARDED: _OURS, PLAN: _OURS}
_TOLERANCE = 1e-3


def measure(
    progress: Progress,
    models: Sequence[str] = MODELS,
    processes: Sequence[int] = PROCESSES,
    rounds: int = ROUNDS,
    sizes: Mapping[str, int] | None = None,
) -> list[dict[str, Any]]:
    """One row per model, number of processes and way, for `--json`.

    Args:
      progress: gets a task for each model and number of processes.
      models: names of `process_models.MODELS`.
      processes: how many.
      rounds: of each way; each has some steps.
      sizes: of the models, where they are not those of the benchmark.

    Raises:
      ProcessError: a process failed, or has wrong values.
    """
    rows = []
    for model in models:
        for count in processes:
            task = progress.add_task(f"{model} in {count} processes", total=rounds)
            try:
                rows += _rows(model, count, rounds, dict(sizes or {}), progress, task)
            except RankError as error:
                raise output.ProcessError(str(error)) from error
    return rows


def _rows(
    model: str, count: int, rounds: int, sizes: dict[str, int], progress: Progress, task: Any
) -> list[dict[str, Any]]:
    taken: dict[str, list[float]] = {way: [] for way in WAYS}
    received: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        groups = {}
        for way, protocol in WAYS.items():
            spec = {"way": way, "model": model, "sizes": sizes, "mesh": f"x:{count}"}
            group = RankGroup(
                Variant(way, protocol=protocol), count, TIMEOUT_S, program=_PROGRAM, spec=spec
            )
            groups[way] = stack.enter_context(group)
            # One after the other: rates are measured where nothing else runs.
            group.wait_ready()
            group.ask({"do": "prepare", "warm_up": WARM_UP}, "prepared")
        for _ in range(rounds):
            for way, group in groups.items():
                one = group.measure("step", STEPS)
                taken[way].append(one.seconds / STEPS * 1e3)
                received[way] = round(sum(one.counters.values()) / STEPS)
            progress.advance(task)
        ends = {way: group.ask({"do": "finish"}, "finished") for way, group in groups.items()}
    _check(model, ends)
    return [
        {
            "model": model,
            "processes": count,
            "way": way,
            "ms": {"median": statistics.median(mine), "min": min(mine), "max": max(mine)},
            "received_bytes": received[way],
            "peak_bytes": max(one["peak_bytes"] for one in ends[way]),
            **({"plan": {key: ends[way][0][key] for key in (
                "planned_s", "predicted_s", "received_bytes", "collectives", "layouts"
            )}} if way == PLAN else {}),
        }
        for way, mine in taken.items()
    ]  # fmt: skip


def _check(model: str, ends: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Compare the losses of the first step, which no update has changed.

    Raises:
      ProcessError: they differ.
    """
    first = {way: statistics.mean(one["first_loss"] for one in some) for way, some in ends.items()}
    if ends[PLAN][0]["sums_alike"] and not all(
        math.isclose(loss, first[STOCK], rel_tol=_TOLERANCE) for loss in first.values()
    ):
        raise output.ProcessError(f"{model}: the first losses differ: {first}")


def render(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows as a table; the ratio is that to the best of the other ways."""
    table = Table(title="training steps in several processes of one host")
    for name in ("model", "processes", "way"):
        table.add_column(name)
    for name in ("ms, median", "min", "max", "over the best other", "MB received"):
        table.add_column(name, justify="right")
    for row in rows:
        alike = [
            one["ms"]["median"]
            for one in rows
            if (one["model"], one["processes"]) == (row["model"], row["processes"])
            and one["way"] != row["way"]
        ]
        ms = row["ms"]
        table.add_row(
            row["model"],
            str(row["processes"]),
            row["way"],
            f"{ms['median']:.1f}",
            f"{ms['min']:.1f}",
            f"{ms['max']:.1f}",
            f"{ms['median'] / min(alike):.2f}",
            f"{row['received_bytes'] / 1e6:.1f}" if row["way"] != STOCK else "",
        )
    return table
