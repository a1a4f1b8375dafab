# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What fused receives gain: stock TensorFlow, fused, and one process without a cluster, in turn.

    python benchmarks/fuse_recv/run.py --workload features --features 300 --json features.json
    python benchmarks/fuse_recv/run.py --workload rfc --json rfc.json
    python benchmarks/fuse_recv/run.py --workload adult --data adult.data --json adult.json
    python benchmarks/fuse_recv/run.py --workload nothing --json nothing.json
    python benchmarks/fuse_recv/run.py --workload mixed --grouping level,consumer,cost
    python benchmarks/fuse_recv/run.py --modes stock fused all local --in-flight 2,4

One value of `--grouping` is what the mode `fused` uses; of several, each is a mode of its own. The
mode `all` has the option `tf_fuse`; each value of `--in-flight` is a mode that has the option
`steps_in_flight`, too.

Each mode has processes of its own, warm and idle between its rounds, and every round runs all modes
one after the other, so whatever else the machine does meets all of them. The stock receives per
step are counted in a separate short run: the stock graphs under the protocol grpc+fuse with the
option off, where every receive is a single one and is counted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from rich.progress import Progress
from rich.table import Table

from examples import compare
from examples.progress import display, open_console
from examples.session import Session, SessionError
from examples.wide_deep.data.common import DataError
from examples.wide_deep.train import prepare

MODES = ("stock", "fused", "all", "local")
_DEFAULT_MODES = ("stock", "fused", "local")
_IN_FLIGHT = "in_flight_"  # followed by the number
GROUPINGS = ("level", "consumer", "cost", "dynamic")
# What the flags are when they are not given. `rfc` is the setting of the FuseRecv RFC.
_DEFAULTS: dict[str, dict[str, int]] = {
    "features": {"features": 300, "batch": 64, "workers": 1, "ps": 2, "steps": 60},
    "dense": {"batch": 64, "workers": 1, "ps": 2, "steps": 40},
    "mixed": {"features": 60, "batch": 64, "workers": 1, "ps": 2, "steps": 40},
    "rfc": {"features": 40, "batch": 128, "workers": 5, "ps": 1, "steps": 60},
    "adult": {"batch": 64, "workers": 1, "ps": 2, "steps": 60},
    "nothing": {"batch": 64, "workers": 1, "ps": 1, "steps": 400},
}
# Which field of the workload --features is.
_FEATURES_FIELD = {"features": "features", "mixed": "features", "rfc": "embeddings"}
_SETTINGS = (
    "features", "workers", "ps", "batch", "steps", "rounds", "seed", "synchronous", "grouping",
    "in_flight",
)  # fmt: skip


def specification(
    args: argparse.Namespace, work_dir: str, on_rows: Callable[[int], None] | None = None
) -> dict[str, Any]:
    """The sessions' specification (see `examples.job.run`), without the mode.

    Args:
      args: the command line.
      work_dir: folder for encoded data.
      on_rows: called with the number of rows encoded so far.

    Raises:
      DataError: a data file is missing or malformed.
    """
    spec: dict[str, Any] = {
        "workload": args.workload,
        "workers": args.workers,
        "ps": args.ps,
        "synchronous": args.synchronous,
        "options": {"batch": args.batch, "seed": args.seed},
    }
    if args.workload in _FEATURES_FIELD:
        spec["options"][_FEATURES_FIELD[args.workload]] = args.features
    if args.workload == "adult":
        data = prepare(
            "adult", work_dir, train=args.data, rows=20_000, seed=args.seed, on_rows=on_rows
        )
        spec |= {"data": data.train, "source": data.source}
    return spec


def measure(args: argparse.Namespace, progress: Progress, work_dir: str) -> dict[str, Any]:
    """Runs all modes in turn.

    Args:
      args: the command line.
      progress: gets a task per mode.
      work_dir: folder for encoded data.

    Returns:
      What `--json` writes.

    Raises:
      DataError: a data file is missing or malformed.
      SessionError: a mode's process failed.
    """
    if args.workload == "adult":
        bar = progress.add_task("encoding rows", total=None)
        spec = specification(args, work_dir, lambda n: progress.update(bar, completed=n))
        progress.update(bar, total=spec["data"]["rows"], completed=spec["data"]["rows"])
    else:
        spec = specification(args, work_dir)
    source = spec.pop("source", None)

    def counters(mode: str, session: Session) -> dict[str, Any]:
        return pass_counters(session.metrics())

    rounds, passes = compare.run_in_turn(
        {mode: compare.Variant({**spec, **variant(args, mode)}) for mode in args.modes},
        args.rounds,
        args.steps,
        progress,
        counters,
    )
    modes = {mode: mode_numbers(mode, rounds[mode]) for mode in args.modes}
    for mode in fused_modes(modes):
        modes[mode]["pass"] = passes[mode]
    if "stock" in modes and fused_modes(modes):
        modes["stock"]["recv_rpcs_per_step"] = compare.count_stock_recv_rpcs(spec, progress)
    return {
        "workload": args.workload,
        "settings": {key: getattr(args, key) for key in _SETTINGS},
        **({"data": source} if source else {}),
        "machine": machine(),
        "modes": modes,
        **compare.ratios(modes),
        **comparison_of_rounds(rounds),
        **comparison_of_groupings(rounds),
        **comparison_of_losses(modes, args.workers == 1 or args.synchronous),
    }


def variant(args: argparse.Namespace, mode: str) -> dict[str, Any]:
    """What the sessions of a mode have in their specification beside what all have."""
    if mode == "all":
        return {"mode": "fused", "fuse_options": {"tf_fuse": True}}
    if mode.startswith(_IN_FLIGHT):
        number = int(mode.removeprefix(_IN_FLIGHT))
        return {"mode": "fused", "fuse_options": {"tf_fuse": True, "steps_in_flight": number}}
    if mode in GROUPINGS:
        return {"mode": "fused", "fuse_options": {"fuse_grouping": mode}}
    if mode != "fused" or len(args.grouping) != 1:
        return {"mode": mode}
    return {"mode": "fused", "fuse_options": {"fuse_grouping": args.grouping[0]}}


def fused_modes(modes: Iterable[str]) -> list[str]:
    """Those of the modes that fuse."""
    return [mode for mode in modes if mode not in ("stock", "local")]


def mode_numbers(mode: str, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One mode's numbers, with the same keys for each.

    The one process of `local` counts as a worker, without servers and without receives.
    """
    numbers = compare.summarize(rounds)
    if mode == "local":
        numbers["recv_rpcs_per_step"] = 0.0
        numbers["cpu_ms_per_step"] = {"worker": numbers["cpu_ms_per_step"]["local"], "ps": 0.0}
    return numbers


def pass_counters(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What the pass did, all tasks together.

    Args:
      tasks: task to counters, as `tf_fuse.cluster_metrics`.

    Returns:
      groups, fused_receives, skipped {reason: receives}, fallbacks and errors.
    """
    keys = ("groups", "fused_receives", "fallbacks", "errors")
    out: dict[str, Any] = {key: sum(t[key] for t in tasks.values()) for key in keys}
    skipped: dict[str, int] = {}
    for counters in tasks.values():
        for reason, count in counters["skipped"].items():
            skipped[reason] = skipped.get(reason, 0) + count
    return {**out, "skipped": dict(sorted(skipped.items()))}


def comparison_of_rounds(rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Ratios within each round, {median, min, max}: what drifts meets both modes.

    Args:
      rounds: mode to `examples.runner.Round.as_dict()` of each round.

    Returns:
      speedup_by_round (steps/s, fused over stock), if both modes ran; times_local_by_round, mode to
      a step's time over one of one process.
    """
    out: dict[str, Any] = {}
    if "local" in rounds:
        out["times_local_by_round"] = {
            mode: compare.spread(
                one["steps_per_s"] / r["steps_per_s"]
                for one, r in zip(rounds["local"], rounds[mode], strict=True)
            )
            for mode in rounds
            if mode != "local"
        }
    if {"stock", "fused"} <= set(rounds):
        pairs = zip(rounds["stock"], rounds["fused"], strict=True)
        out["speedup_by_round"] = compare.spread(
            f["steps_per_s"] / s["steps_per_s"] for s, f in pairs
        )
    return out


def comparison_of_groupings(rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """How long a step takes with fuse_grouping="cost", in times of the others and of stock.

    Args:
      rounds: mode to its rounds.

    Returns:
      cost_vs: mode to {median, min, max} over the rounds of a step's time with "cost" over one in
      that mode. Above 1 is slower. Empty without the mode cost.
    """
    if "cost" not in rounds:
        return {}
    cost = [r["steps_per_s"] for r in rounds["cost"]]
    return {
        "cost_vs": {
            mode: compare.spread(
                r["steps_per_s"] / rate for r, rate in zip(rounds[mode], cost, strict=True)
            )
            for mode in rounds
            if mode not in ("cost", "local")
        }
    }


def comparison_of_losses(modes: Mapping[str, Mapping[str, Any]], in_order: bool) -> dict[str, Any]:
    """How far the losses are apart.

    Args:
      modes: mode to its numbers.
      in_order: whether one step follows the other: with one worker, or synchronously. Else the
        order of the workers' updates is not fixed.

    Returns:
      max_loss_difference (mode to the largest difference from the first mode's) and losses_equal
      (of all modes on a cluster, to the last bit). Empty if the steps were not in order.
    """
    if not in_order or len(modes) < 2:
        return {}
    modes = {mode: numbers for mode, numbers in modes.items() if not mode.startswith(_IN_FLIGHT)}
    out: dict[str, Any] = {"max_loss_difference": compare.max_loss_differences(modes)}
    first, *others = [modes[mode]["losses"] for mode in _compared(modes)] or [[]]
    if others:
        out["losses_equal"] = all(losses == first for losses in others)
    return out


def machine() -> dict[str, Any]:
    """What the numbers were made on: cores, processor and memory."""
    import psutil

    model = ""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpus": os.cpu_count(),
        "processor": model,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
    }


def render(result: Mapping[str, Any]) -> Table:
    """The result as a table, a row per mode."""
    settings = result["settings"]
    features = f", {settings['features']} features" if settings["features"] else ""
    table = Table(
        title=f"{result['workload']}{features}: {settings['workers']} worker(s), "
        f"{settings['ps']} server(s), batch {settings['batch']}\n"
        f"{settings['rounds']} rounds of {settings['steps']} steps"
    )
    table.add_column("mode")
    for column in ("steps/s\nmedian", "min", "max", "receive RPCs\nper step",
                   "CPU ms per step\nworkers", "servers"):  # fmt: skip
        table.add_column(column, justify="right")
    for mode, numbers in result["modes"].items():
        rate, cpu = numbers["steps_per_s"], numbers["cpu_ms_per_step"]
        rpcs = numbers["recv_rpcs_per_step"]
        table.add_row(
            mode,
            *(f"{rate[key]:.1f}" for key in ("median", "min", "max")),
            "not counted" if rpcs is None else f"{rpcs:.1f}",
            f"{cpu['worker']:.1f}",
            f"{cpu['ps']:.1f}",
        )
    return table


def conclusion(result: Mapping[str, Any]) -> str:
    """The ratios and the losses, for people."""
    lines = []
    if "speedup" in result:
        by_round = result["speedup_by_round"]
        lines.append(
            f"speedup        {result['speedup']:.2f} (of medians; by round "
            f"{by_round['min']:.2f} to {by_round['max']:.2f})"
        )
    if "rpc_reduction" in result:
        lines.append(f"rpc_reduction  {result['rpc_reduction']:.2%} fewer receive RPCs")
    if "vs_local" in result:
        lines.append(f"vs_local       {result['vs_local']:.2f} times the time of one process")
    for mode, ratio in result.get("times_local_by_round", {}).items():
        lines.append(
            f"{mode:14} {ratio['median']:.2f} times the time of one process "
            f"({ratio['min']:.2f} to {ratio['max']:.2f} by round)"
        )
    for mode, ratio in result.get("cost_vs", {}).items():
        lines.append(
            f"cost           {ratio['median']:.3f} times the time of {mode} "
            f"({ratio['min']:.2f} to {ratio['max']:.2f})"
        )
    if "losses_equal" in result:
        names = _compared(result["modes"])
        steps = len(result["modes"][names[0]]["losses"])
        lines.append(
            f"losses         all {steps} equal, bit for bit, {' and '.join(names)}"
            if result["losses_equal"]
            else f"losses         NOT EQUAL: {result['max_loss_difference']}"
        )
    elif len(result["modes"]) > 1 and result["settings"]["workers"] > 1:
        lines.append("losses         not compared: the order of several workers' updates varies")
    return "\n".join(lines)


def _compared(modes: Iterable[str]) -> list[str]:
    """The modes whose losses are compared."""
    return [mode for mode in modes if mode != "local" and not mode.startswith(_IN_FLIGHT)]


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Draws steps/s per mode: the median, with a line from minimum to maximum.

    Args:
      result: what `measure` returned.
      path: the picture; its ending chooses the format.
    """
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
    bars = axes.bar(names, medians, yerr=spans, capsize=4)
    axes.bar_label(bars, fmt="%.1f", label_type="center")
    axes.set_ylabel("steps per second")
    axes.set_title(result["workload"])
    figure.savefig(path)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line, and fills in what the workload decides."""
    parser = argparse.ArgumentParser(description="Compare stock, fused and local training steps.")
    parser.add_argument("--workload", choices=sorted(_DEFAULTS), default="features")
    parser.add_argument(
        "--features",
        type=int,
        help="tables (features, mixed) or embeddings (rfc); others have none",
    )
    parser.add_argument(
        "--synchronous",
        action="store_true",
        help="start a step when the one before has ended, so that the losses of several workers "
        "can be compared",
    )
    parser.add_argument("--workers", type=int)
    parser.add_argument("--ps", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--steps", type=int, help="per round, all workers together")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, help="adult.data; else TF_FUSE_DATA, else synthetic")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(_DEFAULT_MODES))
    parser.add_argument(
        "--grouping",
        type=lambda text: text.split(","),
        default=[],
        help=f"the option fuse_grouping of the mode fused: {', '.join(GROUPINGS)}; or several, "
        "separated by commas, to have a mode for each in place of fused",
    )
    parser.add_argument(
        "--in-flight",
        type=lambda text: [int(one) for one in text.split(",")],
        default=[],
        help="values of the option steps_in_flight, separated by commas; each is a mode",
    )
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--plot", type=Path, help="write a picture of the steps per second here")
    args = parser.parse_args(argv)
    for key in ("features", "batch", "workers", "ps", "steps"):
        if getattr(args, key) is None:
            setattr(args, key, _DEFAULTS[args.workload].get(key))
    for key in ("features", "batch", "workers", "ps", "steps", "rounds"):
        value = getattr(args, key)
        if value is not None and value < 1:
            parser.error(f"--{key} must be at least 1, got {value}")
    if args.features is not None and args.workload not in _FEATURES_FIELD:
        print(
            f"note: the workload {args.workload} has no --features; {args.features} is not used",
            file=sys.stderr,
        )
        args.features = None
    if args.data is not None and args.workload != "adult":
        parser.error(f"--data is for the workload adult, not for {args.workload}")
    if args.workload == "adult" and args.data is None and "TF_FUSE_DATA" in os.environ:
        args.data = Path(os.environ["TF_FUSE_DATA"]) / "adult" / "adult.data"
    for grouping in args.grouping:
        if grouping not in GROUPINGS:
            parser.error(f"--grouping takes {', '.join(GROUPINGS)}; got {grouping!r}")
    if len(args.grouping) > 1:
        others = [mode for mode in args.modes if mode != "fused"]
        args.modes = [*others[:1], *args.grouping, *others[1:]]
    args.modes = list(dict.fromkeys([*args.modes, *(f"{_IN_FLIGHT}{n}" for n in args.in_flight)]))
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark and prints its table; see --help.

    Returns:
      0; or 1 when a mode failed, a file could not be read, or the losses of the modes on a cluster,
      which must be equal with one worker, are not.
    """
    args = parse(argv)
    console = open_console()
    with tempfile.TemporaryDirectory(prefix="tf_fuse_bench_") as work_dir:
        try:
            with display(console) as progress:
                result = measure(args, progress, work_dir)
        except (DataError, SessionError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    console.print(render(result))
    console.print(conclusion(result), highlight=False)
    for path in (args.json, args.plot):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
        console.print(f"all numbers: {args.json}", highlight=False)
    if args.plot:
        plot(result, args.plot)
        console.print(f"picture: {args.plot}", highlight=False)
    if not result.get("losses_equal", True):
        print(
            f"error: the losses of {' and '.join(_compared(result['modes']))} differ",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
