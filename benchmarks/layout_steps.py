# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Times of training steps: data-parallel, by hand-made layouts, and as a search lays them out.

A process of its own runs them on four logical devices, since these have to be made before
TensorFlow uses any. Rates are measured there, and the search goes by them.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))

from rich.progress import Progress
from rich.table import Table

FOUND = "found"
DATA = "data-parallel"
ROUNDS = 3
STEPS = 15
CALLS = 41
TIMEOUT_S = 1800
# What is measured to tell rates from, and the least that a difference of two is taken for.
_ELEMENTS = (256, 262144)
_GATHERS = (1, 33)
_SUMS = (1 << 16, 1 << 20)
_CHAINS = (16, 1024)
_LEAST_S = 1e-6


class StepError(RuntimeError):
    """The process failed; the text is what it said."""


def measure(progress: Progress) -> list[dict[str, Any]]:
    """One row per model and layout, for `--json`.

    Args:
      progress: gets a task that ends with the process.

    Raises:
      StepError: the process failed.
    """
    progress.add_task("training steps", total=None)
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    if done.returncode:
        raise StepError(done.stderr.strip()[-4000:] or f"it ended with {done.returncode}")
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


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
    """Runs all models, and prints the rows as JSON."""
    import tensorflow as tf

    devices = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    from benchmarks import layout_step_models
    from tf_fuse import layout
    from tf_fuse.layout.execution.bench import Bench

    mesh = layout.Mesh({"x": 2, "y": 2})
    rates = _rates(mesh, Bench(mesh))
    rows = []
    for model in (
        layout_step_models.two_layers(64, 512, 1024),
        layout_step_models.two_layers(1024, 256, 512),
        layout_step_models.two_layers(4096, 128, 256),
        layout_step_models.transformer(4, 32, 64),
        layout_step_models.transformer(8, 64, 128),
    ):
        rows += _times(model, mesh, rates)
        print(f"{model.name} is done", file=sys.stderr, flush=True)
    print(json.dumps(rows))
    return 0


def _rates(mesh: Any, bench: Any) -> Any:
    """Rates by differences of two sizes each, of the medians of many calls.

    `measurement.measure` fits all samples at once; on a machine with other work, where a small
    sample may take less than a call that does nothing, that is off by more than this is.
    """
    from tf_fuse.layout import Link, TensorLayout
    from tf_fuse.layout.cost import Rates

    nothing = _median(bench.nothing())
    links = {}
    for axis in mesh.axes:
        small, large = (
            bench.relayout(TensorLayout(mesh, (n,), None, [axis]), TensorLayout(mesh, (n,)))
            for n in _ELEMENTS
        )
        per_byte = max(_median(large.run) - _median(small.run), 0.0) / (
            large.received_bytes - small.received_bytes
        )
        few, many = (_median(bench.gathers(axis, n, 16)) for n in _GATHERS)
        messages = (_GATHERS[1] - _GATHERS[0]) * (mesh.size_of(axis) - 1)
        links[axis] = Link(max(many - few, _LEAST_S) / messages, per_byte)
    sums = [_median(bench.sums(n)) for n in _SUMS]
    chains = [_median(bench.chain(n, 16)) for n in _CHAINS]
    rows = 512
    return Rates(
        mesh,
        links,
        max(_median(bench.product(rows)) - nothing, _LEAST_S) / (2 * rows**3),
        max(sums[1] - sums[0], 0.0) / (12 * (_SUMS[1] - _SUMS[0])),
        max(chains[1] - chains[0], _LEAST_S) / (_CHAINS[1] - _CHAINS[0]),
    )


def _median(run: Any) -> float:
    run()
    taken = []
    for _ in range(CALLS):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def _times(model: Any, mesh: Any, rates: Any) -> list[dict[str, Any]]:
    from tf_fuse import layout
    from tf_fuse.layout.strategy import Allowed

    problem = layout.function_problem(
        model.step, mesh, model.specs, rates=rates, allowed=Allowed(stacked=False)
    )
    stacked = layout.function_problem(model.step, mesh, model.specs, rates=rates)
    plans = {DATA: stacked.search("data")}
    for rules in model.rules:
        plans[rules] = layout.plan_by_rules(problem, rules, model.dimensions)
    plans[FOUND] = stacked.search()
    taken: dict[str, list[float]] = {name: [] for name in plans}
    received = {}
    for _, (name, plan) in itertools.product(range(ROUNDS), plans.items()):
        run = layout.execute(plan)
        received[name] = run.program.received_bytes
        run(*model.args)
        for _ in range(STEPS):
            begin = time.perf_counter()
            run(*model.args).numpy()
            taken[name].append((time.perf_counter() - begin) * 1e3)
        run.release()
    return [
        {
            "model": model.name,
            "layout": name,
            "ms": {"median": statistics.median(mine), "min": min(mine)},
            "received_bytes": received[name],
        }
        for name, mine in taken.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
