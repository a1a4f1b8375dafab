# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains the same wide & deep job twice, stock and fused, and compares; `make demo` runs this.

    python -m examples.demo                                   # synthetic Criteo data
    python -m examples.demo --data adult.data --eval adult.test

Both jobs stand at the same time, each with its own processes, and train in turns, so that whatever
else the machine does meets both. Timed rounds follow an untimed one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn
from rich.table import Table

from examples.session import Session, SessionError
from examples.wide_deep.data.common import DataError
from examples.wide_deep.train import Prepared, prepare

_WARM_UP_STEPS = 20
_COUNTED_STEPS = 10
_DATA_VARIABLE = "TF_FUSE_DATA"  # a folder with adult/adult.data and adult/adult.test


def count_stock_recv_rpcs(spec: dict[str, Any], on_event: Any = None) -> float:
    """Receive RPCs per step of the stock graphs.

    TensorFlow does not count its receives. So the same graphs run for a few steps under the
    protocol `grpc+fuse` with the option off: each receive is then a single one, and counted.

    Args:
      spec: the stock session's specification.
      on_event: see `Session`.

    Returns:
      Receive RPCs of all tasks per step.

    Raises:
      SessionError: the process failed, e.g. because the plugin is missing.
    """
    with Session({**spec, "mode": "count"}, on_event=on_event) as session:
        session.wait_ready()
        session.run(_WARM_UP_STEPS)
        return session.run(_COUNTED_STEPS)["recv_rpcs_per_step"]


def summarize(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One mode's rounds as the numbers of the table.

    Args:
      rounds: `Round.as_dict()` of each timed round.

    Returns:
      steps_per_s {median, min, max}, recv_rpcs_per_step, cpu_ms_per_step by role, losses.
    """
    rates = [r["steps_per_s"] for r in rounds]
    roles = sorted(rounds[0]["cpu_ms_per_step"])
    counts = [r["recv_rpcs_per_step"] for r in rounds if r["recv_rpcs_per_step"] is not None]
    return {
        "steps_per_s": {
            "median": statistics.median(rates),
            "min": min(rates),
            "max": max(rates),
        },
        "recv_rpcs_per_step": statistics.median(counts) if counts else None,
        "cpu_ms_per_step": {
            role: statistics.median(r["cpu_ms_per_step"][role] for r in rounds) for role in roles
        },
        "losses": [loss for r in rounds for loss in r["losses"]],
    }


def compare(args: argparse.Namespace, progress: Progress, work_dir: str) -> dict[str, Any]:
    """Runs the comparison; see `main`'s options.

    Raises:
      DataError: a data file is missing or malformed.
      SessionError: a mode's process failed.
    """
    data = _prepare(args, progress, work_dir)
    spec = {
        "workload": args.dataset,
        "workers": args.workers,
        "ps": args.ps,
        "data": data.train,
        "evaluation": data.evaluation,
        "options": {"batch": args.batch, "seed": args.seed},
    }
    results: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        sessions, bars = {}, {}
        for mode in args.modes:
            bars[mode] = progress.add_task(f"{mode}: starting", total=args.rounds * args.steps)
            sessions[mode] = stack.enter_context(Session({**spec, "mode": mode}))
            sessions[mode].wait_ready()
            progress.update(bars[mode], description=f"{mode}: tracing and warming up")
            sessions[mode].run(_WARM_UP_STEPS)
            progress.update(bars[mode], description=f"{mode}: waiting")
        rounds: dict[str, list[dict[str, Any]]] = {mode: [] for mode in args.modes}
        for number in range(args.rounds):
            # A B, B A, A B: neither mode always comes first.
            for mode in args.modes if number % 2 == 0 else reversed(args.modes):
                progress.update(bars[mode], description=f"{mode}: training")
                rounds[mode].append(sessions[mode].run(args.steps))
                progress.update(bars[mode], description=f"{mode}: waiting")
                progress.advance(bars[mode], args.steps)
        for mode in args.modes:
            progress.update(bars[mode], description=f"{mode}: evaluating")
            scored = sessions[mode].evaluate()
            results[mode] = {
                **summarize(rounds[mode]),
                "evaluation": {k: scored[k] for k in ("loss", "auc", "rows")},
            }
            progress.update(bars[mode], description=f"{mode}: done")
    if {"stock", "fused"} <= set(args.modes):
        bar = progress.add_task("counting the stock receives", total=None)
        results["stock"]["recv_rpcs_per_step"] = count_stock_recv_rpcs(spec)
        progress.update(bar, total=1, completed=1)
    return {"workload": args.dataset, "data": data.source, "modes": results, **_ratios(results)}


def _prepare(args: argparse.Namespace, progress: Progress, work_dir: str) -> Prepared:
    bar = progress.add_task("encoding rows", total=None)
    data = prepare(
        args.dataset, work_dir, train=args.data, evaluation=args.eval, rows=args.rows,
        seed=args.seed, on_rows=lambda n: progress.update(bar, completed=n),
    )  # fmt: skip
    total = data.train["rows"] + data.evaluation["rows"]
    progress.update(bar, total=total, completed=total)
    return data


def _ratios(modes: dict[str, Any]) -> dict[str, float]:
    """Speedup (fused over stock, steps/s) and rpc_reduction (1 - fused over stock)."""
    if not {"stock", "fused"} <= set(modes):
        return {}
    stock, fused = modes["stock"], modes["fused"]
    ratios = {"speedup": fused["steps_per_s"]["median"] / stock["steps_per_s"]["median"]}
    if stock["recv_rpcs_per_step"] and fused["recv_rpcs_per_step"] is not None:
        ratios["rpc_reduction"] = 1 - fused["recv_rpcs_per_step"] / stock["recv_rpcs_per_step"]
    return ratios


def render(result: dict[str, Any]) -> Table:
    """The comparison as a table: a column per mode, side by side."""
    modes = result["modes"]
    table = Table(title=f"wide & deep on {result['workload']} ({result['data']})")
    table.add_column("")
    for mode in modes:
        table.add_column(mode, justify="right", no_wrap=True)

    def add(name: str, cell: Callable[[dict[str, Any]], str]) -> None:
        table.add_row(name, *(cell(numbers) for numbers in modes.values()))

    def rate(numbers: dict[str, Any]) -> str:
        steps = numbers["steps_per_s"]
        return f"{steps['median']:.1f} ({steps['min']:.1f} to {steps['max']:.1f})"

    def rpcs(numbers: dict[str, Any]) -> str:
        count = numbers["recv_rpcs_per_step"]
        return "n/a" if count is None else f"{count:.1f}"

    def cpu(role: str) -> Callable[[dict[str, Any]], str]:
        return lambda numbers: (
            f"{numbers['cpu_ms_per_step'][role]:.1f}" if role in numbers["cpu_ms_per_step"] else "-"
        )

    add("steps/s, median (min to max)", rate)
    add("receive RPCs per step", rpcs)
    add("CPU ms per step, workers", cpu("worker"))
    add("CPU ms per step, servers", cpu("ps"))
    add("loss, first step", lambda numbers: f"{numbers['losses'][0]:.6f}")
    add("loss, last step", lambda numbers: f"{numbers['losses'][-1]:.6f}")
    add("evaluation loss", lambda numbers: f"{numbers['evaluation']['loss']:.6f}")
    add("evaluation AUC", lambda numbers: f"{numbers['evaluation']['auc']:.6f}")
    return table


def _conclusion(result: dict[str, Any], workers: int) -> str:
    lines = []
    if "speedup" in result:
        lines.append(f"fused / stock: {result['speedup']:.2f}x steps per second")
    if "rpc_reduction" in result:
        lines.append(f"receive RPCs:  {result['rpc_reduction']:.1%} fewer")
    losses = [numbers["losses"] for numbers in result["modes"].values()]
    if workers == 1 and len(losses) > 1:
        differences = [abs(a - b) for other in losses[1:] for a, b in zip(losses[0], other)]  # noqa: B905
        worst = max(differences)
        lines.append(
            f"losses:        all {len(losses[0])} equal, bit for bit"
            if worst == 0
            else f"losses:        differ by at most {worst:.3g}"
        )
    elif len(losses) > 1:
        lines.append(
            "losses:        with several workers the order of updates varies from run to run"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the comparison and prints the table; see --help."""
    found = os.environ.get(_DATA_VARIABLE)
    parser = argparse.ArgumentParser(description="Train the same job stock and fused.")
    parser.add_argument("--dataset", choices=("adult", "criteo"), help="format of the data")
    parser.add_argument("--data", type=Path, help="training file; else synthetic data")
    parser.add_argument("--eval", type=Path, help="evaluation file; else every fifth row")
    parser.add_argument("--rows", type=int, default=20_000, help="rows of synthetic data")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--ps", type=int, default=2)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=100, help="per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--modes", nargs="+", choices=("stock", "fused", "local"), default=["stock", "fused"]
    )
    parser.add_argument("--json", type=Path, default=Path("demo.json"))
    args = parser.parse_args(argv)
    if args.data is None and args.dataset in (None, "adult") and found:
        args.dataset = "adult"
        args.data = Path(found) / "adult" / "adult.data"
        args.eval = Path(found) / "adult" / "adult.test"
    args.dataset = args.dataset or ("adult" if args.data else "criteo")
    console = Console()
    columns = (SpinnerColumn(), *Progress.get_default_columns(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="tf_fuse_demo_") as work_dir:
        try:
            with Progress(*columns, console=console) as progress:
                result = compare(args, progress, work_dir)
        except (DataError, SessionError, ValueError) as e:
            print(f"error: {e}", file=sys.stderr)
            return 1
    console.print(render(result))
    console.print(_conclusion(result, args.workers), highlight=False)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    console.print(f"all numbers: {args.json}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
