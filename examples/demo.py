# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train the same wide & deep job twice, stock and fused, and compare; `make demo` runs this.

    python -m examples.demo                                   # synthetic Criteo data
    python -m examples.demo --data adult.data --eval adult.test

Both jobs stand at the same time, each with its own processes, and train in turns, so that whatever
else the machine does meets both. Timed rounds follow an untimed one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress
from rich.table import Table

from examples import compare
from examples.progress import display, open_console
from examples.session import Session, SessionError
from examples.wide_deep.data.common import DataError
from examples.wide_deep.train import Prepared, prepare

_DATA_VARIABLE = "TF_FUSE_DATA"  # a folder with adult/adult.data and adult/adult.test


def train(args: argparse.Namespace, progress: Progress, work_dir: str) -> dict[str, Any]:
    """Train in every mode; see `main`'s options.

    Args:
      args: the command line.
      progress: gets a task per mode.
      work_dir: folder for the encoded data.

    Returns:
      What `--json` writes.

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

    def evaluate(mode: str, session: Session) -> dict[str, Any]:
        scored = session.evaluate()
        return {key: scored[key] for key in ("loss", "auc", "rows")}

    rounds, evaluations = compare.run_in_turn(
        {mode: compare.Variant({**spec, "mode": mode}) for mode in args.modes},
        args.rounds,
        args.steps,
        progress,
        evaluate,
    )
    modes = {
        mode: {**compare.summarize(rounds[mode]), "evaluation": evaluations[mode]}
        for mode in args.modes
    }
    if {"stock", "fused"} <= set(modes):
        modes["stock"]["recv_rpcs_per_step"] = compare.count_stock_recv_rpcs(spec, progress)
    settings = {key: getattr(args, key) for key in ("workers", "ps", "batch", "steps", "rounds")}
    return {
        "workload": args.dataset,
        "data": data.source,
        "settings": settings,
        "modes": modes,
        **compare.ratios(modes),
    }


def _prepare(args: argparse.Namespace, progress: Progress, work_dir: str) -> Prepared:
    bar = progress.add_task("encoding rows", total=None)
    data = prepare(
        args.dataset, work_dir, train=args.data, evaluation=args.eval, rows=args.rows,
        seed=args.seed, on_rows=lambda n: progress.update(bar, completed=n),
    )  # fmt: skip
    total = data.train["rows"] + data.evaluation["rows"]
    progress.update(bar, total=total, completed=total)
    return data


def render(result: dict[str, Any]) -> Table:
    """Return the comparison as a table: a column per mode, side by side."""
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
    if workers == 1 and len(result["modes"]) > 1:
        steps = len(next(iter(result["modes"].values()))["losses"])
        differences = compare.max_loss_differences(result["modes"])
        if all(difference == 0 for difference in differences.values()):
            lines.append(f"losses:        all {steps} equal, bit for bit")
        else:
            told = ", ".join(f"{mode} {value:.3g}" for mode, value in differences.items())
            lines.append(f"losses:        differ from {next(iter(result['modes']))}'s by: {told}")
    elif len(result["modes"]) > 1:
        lines.append(
            "losses:        with several workers the order of updates varies from run to run"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the comparison and print the table; see --help."""
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
    parser.add_argument("--json", type=Path, default=Path("build/demo.json"))
    args = parser.parse_args(argv)
    if args.data is None and args.dataset in (None, "adult") and found:
        args.dataset = "adult"
        args.data = Path(found) / "adult" / "adult.data"
        args.eval = Path(found) / "adult" / "adult.test"
    args.dataset = args.dataset or ("adult" if args.data else "criteo")
    console = open_console()
    console.print(
        f"Training wide & deep with {args.workers} worker(s) and {args.ps} parameter server(s), in "
        f"turn: {', '.join(args.modes)}. This takes about two minutes on two cores.",
        highlight=False,
    )
    with tempfile.TemporaryDirectory(prefix="tf_fuse_demo_") as work_dir:
        try:
            with display(console) as progress:
                result = train(args, progress, work_dir)
        except (DataError, SessionError, ValueError) as e:
            print(f"error: {e}", file=sys.stderr)
            return 1
    console.print(render(result))
    console.print(_conclusion(result, args.workers), highlight=False)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps(result, indent=1) + "\n")
    console.print(f"all numbers: {args.json}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
