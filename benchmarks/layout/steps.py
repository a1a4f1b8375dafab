# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times of training steps: on one device, by the layouts of peers and by hand, and by a search.

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
ONE = "one device"
ROUNDS = 21
# Steps of a turn that count, behind one that does not: training repeats a step, and the first of a
# turn finds the caches as the others left them.
TURN = 5
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
    """Return the rows as a table, with predicted times; the found one is over the others' best."""
    table = Table(title="training steps on four logical devices, mesh 2x2")
    for name in ("model", "layout"):
        table.add_column(name)
    for name in ("ms, median", "predicted", "off by", "over the best other", "bytes"):
        table.add_column(name, justify="right")
    for model, mine in itertools.groupby(rows, lambda row: row["model"]):
        every = list(mine)
        others = [row["ms"]["median"] for row in every if row["layout"] != FOUND]
        for row in every:
            told, bytes_ = row["predicted_ms"], row["received_bytes"]
            table.add_row(
                model,
                row["layout"],
                f"{row['ms']['median']:.2f}",
                "" if told is None else f"{told:.2f}",
                "" if told is None else f"{_error(row):+.0%}",
                f"{row['ms']['median'] / min(others):.2f}",
                "" if bytes_ is None else f"{bytes_:,}",
            )
    errors = [abs(_error(row)) for row in rows if row["predicted_ms"] is not None]
    table.caption = f"predictions are off by {statistics.median(errors):.0%} in the median"
    return table


def _error(row: Mapping[str, Any]) -> float:
    """How far the predicted time is from the measured one, as a share of that."""
    return float(row["predicted_ms"] / row["ms"]["median"] - 1)


def main() -> int:
    """Run all models, and write the rows into a file, as JSON."""
    import tensorflow as tf

    devices = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    from benchmarks.layout import peers, step_models
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
        rows += _times(make, mesh, rates, peers.PEERS)
        print(f"{rows[-1]['model']} is done", file=sys.stderr, flush=True)
    output.give_rows(rows)
    return 0


def _times(
    make: Callable[..., Any], mesh: Any, rates: Any, peers: Mapping[str, Any]
) -> list[dict[str, Any]]:
    model = make()
    plans = _plans(model, mesh, rates)
    planned = {name: _execution(make(), mesh, rates, name, plan) for name, plan in plans.items()}
    runs: dict[str, Callable[[], Any]] = {
        **{name: peer(make, mesh.size) for name, peer in peers.items()},
        **{name: functools.partial(run, *model.args) for name, run in planned.items()},
    }
    losses = {name: float(run()) for name, run in runs.items()}
    assert all(abs(loss - losses[DATA]) < 1e-4 * abs(losses[DATA]) for loss in losses.values())
    for _, run in itertools.product(range(WARM - 1), runs.values()):
        run()
    # In turns: what else the machine does meets all of them alike.
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for _, (name, run) in itertools.product(range(ROUNDS), runs.items()):
        run().numpy()
        for _ in range(TURN):
            begin = time.perf_counter()
            run().numpy()
            taken[name].append((time.perf_counter() - begin) * 1e3)
    predicted = {name: plan.seconds for name, plan in plans.items()}
    predicted[ONE] = plans[FOUND].one_device_seconds
    sent = {name: run.program.received_bytes for name, run in planned.items()}
    for execution in planned.values():
        execution.release()
    return [
        {
            "model": model.name,
            "layout": name,
            "ms": {"median": statistics.median(mine), "min": min(mine), "max": max(mine)},
            "predicted_ms": predicted[name] * 1e3 if name in predicted else None,
            "received_bytes": sent.get(name),
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
    """Execute a plan with a model of its own: a variable lies in one way at a time."""
    from tf_fuse import layout

    problem = _problem(model, mesh, rates, name in (DATA, FOUND))
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan")
        return layout.execute(problem.load(Path(folder) / "plan"))


if __name__ == "__main__":
    sys.exit(main())
