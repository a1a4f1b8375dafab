# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What fused receives gain: stock TensorFlow, fused, and one process without a cluster, in turn.

    python benchmarks/fuse_recv.py --workload features --features 300 --json features.json

Each mode has processes of its own, warm and idle between its rounds, and every round runs all modes
one after the other, so whatever else the machine does meets all of them. The stock receives per
step are counted in a separate short run: the stock graphs under the protocol grpc+fuse with the
option off, where every receive is a single one and is counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn
from rich.table import Table

from examples.demo import count_stock_recv_rpcs, summarize
from examples.session import Session, SessionError
from examples.wide_deep.data.common import DataError
from examples.wide_deep.train import prepare

MODES = ("stock", "fused", "local")
_WARM_UP_STEPS = 20
# Batch, workers and servers when they are not given. `rfc` is the setting of the FuseRecv RFC.
_DEFAULTS = {
    "features": {"batch": 64, "workers": 1, "ps": 2},
    "rfc": {"batch": 128, "workers": 5, "ps": 1},
    "adult": {"batch": 64, "workers": 1, "ps": 2},
}


def specification(args: argparse.Namespace, work_dir: str) -> dict[str, Any]:
    """The session's specification (see `examples.job.run`), without the mode.

    Raises:
      DataError: a data file is missing or malformed.
    """
    spec: dict[str, Any] = {
        "workload": args.workload,
        "workers": args.workers,
        "ps": args.ps,
        "options": {"batch": args.batch, "seed": args.seed},
    }
    if args.workload == "features":
        spec["options"]["features"] = args.features
    if args.workload == "adult":
        folder = os.environ.get("TF_FUSE_DATA")
        found = args.data or (Path(folder) / "adult" / "adult.data" if folder else None)
        data = prepare("adult", work_dir, train=found, rows=20_000, seed=args.seed)
        spec |= {"data": data.train, "evaluation": data.evaluation}
    return spec


def compare(args: argparse.Namespace, progress: Progress, work_dir: str) -> dict[str, Any]:
    """Runs all modes in turn; returns what `--json` writes.

    Raises:
      DataError: a data file is missing or malformed.
      SessionError: a mode's process failed.
    """
    spec = specification(args, work_dir)
    rounds: dict[str, list[dict[str, Any]]] = {mode: [] for mode in args.modes}
    with contextlib.ExitStack() as stack:
        sessions, bars = {}, {}
        for mode in args.modes:
            bars[mode] = progress.add_task(f"{mode}: starting", total=args.rounds * args.steps)
            sessions[mode] = stack.enter_context(Session({**spec, "mode": mode}))
        for mode in args.modes:
            sessions[mode].wait_ready()
            progress.update(bars[mode], description=f"{mode}: warming up")
            sessions[mode].run(_WARM_UP_STEPS * args.workers)
        for number in range(args.rounds):
            # Neither mode always comes first.
            for mode in args.modes if number % 2 == 0 else reversed(args.modes):
                progress.update(bars[mode], description=f"{mode}: running")
                rounds[mode].append(sessions[mode].run(args.steps))
                progress.update(bars[mode], description=f"{mode}: waiting")
                progress.advance(bars[mode], args.steps)
    modes = {mode: summarize(rounds[mode]) for mode in args.modes}
    if "stock" in modes and "fused" in modes:
        bar = progress.add_task("counting the stock receives", total=None)
        modes["stock"]["recv_rpcs_per_step"] = count_stock_recv_rpcs(spec)
        progress.update(bar, total=1, completed=1)
    return {
        "workload": args.workload,
        "settings": {
            key: getattr(args, key)
            for key in ("features", "workers", "ps", "batch", "steps", "rounds", "seed")
        },
        "machine": {"cpus": os.cpu_count()},
        "modes": modes,
        **ratios(modes, args.workers),
    }


def ratios(modes: dict[str, Any], workers: int) -> dict[str, Any]:
    """The ratios of medians.

    Args:
      modes: mode to `summarize`'s numbers.
      workers: number of workers; with one, the order of updates is fixed and so are the losses.

    Returns:
      speedup (fused over stock, steps/s), rpc_reduction (1 - fused over stock), vs_local (time of
      fused over local) and, with one worker, losses_equal.
    """
    out: dict[str, Any] = {}
    rate = {mode: numbers["steps_per_s"]["median"] for mode, numbers in modes.items()}
    if {"stock", "fused"} <= set(modes):
        out["speedup"] = rate["fused"] / rate["stock"]
        stock_rpcs = modes["stock"]["recv_rpcs_per_step"]
        fused_rpcs = modes["fused"]["recv_rpcs_per_step"]
        if stock_rpcs and fused_rpcs is not None:
            out["rpc_reduction"] = 1 - fused_rpcs / stock_rpcs
        if workers == 1:
            out["losses_equal"] = modes["stock"]["losses"] == modes["fused"]["losses"]
    if {"local", "fused"} <= set(modes):
        out["vs_local"] = rate["local"] / rate["fused"]
    return out


def render(result: dict[str, Any]) -> Table:
    """The result as a table, a row per mode."""
    settings = result["settings"]
    table = Table(
        title=f"{result['workload']}: {settings['workers']} worker(s), {settings['ps']} server(s), "
        f"batch {settings['batch']}"
    )
    for column in ("mode", "steps/s median", "min", "max", "receive RPCs per step",
                   "CPU ms per step: workers", "servers"):  # fmt: skip
        table.add_column(column, justify="left" if column == "mode" else "right")
    for mode, numbers in result["modes"].items():
        rate, cpu = numbers["steps_per_s"], numbers["cpu_ms_per_step"]
        rpcs = numbers["recv_rpcs_per_step"]
        table.add_row(
            mode,
            *(f"{rate[key]:.1f}" for key in ("median", "min", "max")),
            "-" if rpcs is None else f"{rpcs:.1f}",
            f"{cpu['worker']:.1f}" if "worker" in cpu else f"{cpu['local']:.1f} (all)",
            f"{cpu['ps']:.1f}" if "ps" in cpu else "-",
        )
    return table


def plot(result: dict[str, Any], path: Path) -> None:
    """Draws steps/s per mode: the median, with a line from minimum to maximum."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    names = list(result["modes"])
    rates = [result["modes"][name]["steps_per_s"] for name in names]
    medians = [rate["median"] for rate in rates]
    spans = [
        [rate["median"] - rate["min"] for rate in rates],
        [rate["max"] - rate["median"] for rate in rates],
    ]
    axes.bar(names, medians, yerr=spans, capsize=4)
    axes.set_ylabel("steps per second")
    axes.set_title(result["workload"])
    figure.savefig(path)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare stock, fused and local training steps.")
    parser.add_argument("--workload", choices=sorted(_DEFAULTS), default="features")
    parser.add_argument("--features", type=int, default=300, help="tables, for --workload features")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--ps", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, default=60, help="per round, all workers together")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, help="adult.data; else TF_FUSE_DATA, else synthetic")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="picture of the steps per second")
    args = parser.parse_args(argv)
    for key, value in _DEFAULTS[args.workload].items():
        if getattr(args, key) is None:
            setattr(args, key, value)
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark and prints its table; see --help."""
    args = _parse(argv)
    console = Console()
    columns = (SpinnerColumn(), *Progress.get_default_columns(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="tf_fuse_bench_") as work_dir:
        try:
            with Progress(*columns, console=console) as progress:
                result = compare(args, progress, work_dir)
        except (DataError, SessionError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    console.print(render(result))
    for key in ("speedup", "rpc_reduction", "vs_local", "losses_equal"):
        if key in result:
            value = result[key]
            text = f"{value:.3f}" if isinstance(value, float) else str(value)
            console.print(f"{key}: {text}", highlight=False)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.plot:
        plot(result, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
