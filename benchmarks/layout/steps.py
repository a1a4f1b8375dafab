# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times of training steps: data-parallel, by hand-made layouts, and as a search lays them out.

A process of its own runs them on four logical devices, since these have to be made before
TensorFlow uses any. Rates are measured there, and the search goes by them.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))

from rich.progress import Progress
from rich.table import Table

from benchmarks.common import output

FOUND = "found"
DATA = "data-parallel"
ROUNDS = 101
WARM = 3
TIMEOUT_S = 1800


def measure(progress: Progress) -> list[dict[str, Any]]:
    """One row per model and layout, for `--json`.

    Args:
      progress: gets a task that ends with the process.

    Raises:
      ProcessError: the process failed.
    """
    progress.add_task("training steps", total=None)
    return output.rows_of([sys.executable, __file__], TIMEOUT_S)


def render(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The rows as a table, each with its time over that of the best hand-made layout."""
    table = Table(title="training steps on four logical devices, mesh 2x2")
    for name in ("model", "layout"):
        table.add_column(name)
    for name in ("ms, median", "over the best hand-made", "bytes"):
        table.add_column(name, justify="right")
    for model, mine in itertools.groupby(rows, lambda row: row["model"]):
        every = list(mine)
        by_hand = [row["ms"]["median"] for row in every if row["layout"] != FOUND]
        for row in every:
            table.add_row(
                model,
                row["layout"],
                f"{row['ms']['median']:.2f}",
                f"{row['ms']['median'] / min(by_hand):.2f}",
                f"{row['received_bytes']:,}",
            )
    return table


def main() -> int:
    """Runs all models, and writes the rows into a file, as JSON."""
    import tensorflow as tf

    devices = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    from benchmarks.layout import step_models
    from tf_fuse import layout
    from tf_fuse.layout.profile import measure_rates
    from tf_fuse.layout.profile.probe_runner import ExecutionBench

    mesh = layout.Mesh({"x": 2, "y": 2})
    rates = measure_rates.measure(mesh, ExecutionBench(mesh)).rates
    two_layers, transformer = step_models.two_layers, step_models.transformer
    rows = []
    for make in (
        functools.partial(two_layers, 64, 512, 1024),
        functools.partial(two_layers, 1024, 256, 512),
        functools.partial(two_layers, 4096, 128, 256),
        functools.partial(transformer, 4, 32, 64),
        functools.partial(transformer, 8, 64, 128),
    ):
        rows += _times(make, mesh, rates)
        print(f"{rows[-1]['model']} is done", file=sys.stderr, flush=True)
    output.give_rows(rows)
    return 0


def _times(make: Callable[[], Any], mesh: Any, rates: Any) -> list[dict[str, Any]]:
    model = make()
    plans = _plans(model, mesh, rates)
    runs = {name: _execution(make(), mesh, rates, name, plan) for name, plan in plans.items()}
    for _, run in itertools.product(range(WARM), runs.values()):
        run(*model.args)
    # Step by step in turns: what else the machine does meets all of them alike.
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _, (name, run) in itertools.product(range(ROUNDS), runs.items()):
        begin = time.perf_counter()
        run(*model.args).numpy()
        taken[name].append((time.perf_counter() - begin) * 1e3)
    for run in runs.values():
        run.release()
    return [
        {
            "model": model.name,
            "layout": name,
            "ms": {"median": statistics.median(mine), "min": min(mine)},
            "predicted_ms": plans[name].plan.seconds * 1e3,
            "received_bytes": runs[name].program.received_bytes,
        }
        for name, mine in taken.items()
    ]


def _problem(model: Any, mesh: Any, rates: Any, stacked: bool) -> Any:
    from tf_fuse import layout
    from tf_fuse.layout.strategies.strategy import Allowed

    allowed = Allowed(stacked=stacked)
    return layout.function_problem(model.step, mesh, model.specs, rates=rates, allowed=allowed)


def _plans(model: Any, mesh: Any, rates: Any) -> dict[str, Any]:
    from tf_fuse import layout

    every, unstacked = (_problem(model, mesh, rates, stacked) for stacked in (True, False))
    plans = {DATA: every.search("data")}
    for rules in model.rules:
        plans[rules] = layout.plan_by_rules(unstacked, rules, model.dimensions)
    return plans | {FOUND: every.search()}


def _execution(model: Any, mesh: Any, rates: Any, name: str, plan: Any) -> Any:
    """A model of its own for each plan: a variable lies in one way at a time."""
    from tf_fuse import layout

    problem = _problem(model, mesh, rates, name in (DATA, FOUND))
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan")
        return layout.execute(problem.load(Path(folder) / "plan"))


if __name__ == "__main__":
    sys.exit(main())
