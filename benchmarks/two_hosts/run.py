# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What tf_fuse gains between two hosts: each benchmark's main row, over links of several kinds.

    python benchmarks/two_hosts/run.py --json two_hosts.json --plot two_hosts.svg
    python benchmarks/two_hosts/run.py --works features all_reduce --links 1000,0.1

Each work is a run of another benchmark with `--hosts 2`, in a process of its own: the hosts are
network namespaces of this machine (root is needed). A link is megabits per second (0: no limit) and
milliseconds each way. What the link does is measured, not believed: an emulator that is a process
carries a few gigabits per second at most.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from rich.table import Table

from benchmarks.common import link, output
from benchmarks.fuse_recv.results import machine
from examples import two_hosts
from examples.progress import display, open_console

_BENCHMARKS = Path(__file__).resolve().parents[1]
_SERVERS = ("parameter_server/run.py", "--steps", "40", "--modes", "stock", "all", "--model")
# Of each work: the program of its benchmark, and the arguments of its row.
WORKS: Mapping[str, Sequence[str]] = {
    "features": ("fuse_recv/network.py", "--workload", "features", "--features", "300",
                 "--steps", "20", "--losses"),
    "dense": (*_SERVERS, "dense"),
    "wide_deep": (*_SERVERS, "wide_deep"),
    "dlrm": (*_SERVERS, "dlrm"),
    "all_reduce": ("collectives/run.py", "--op", "all_reduce", "--ranks", "2", "--sizes", "16MB",
                   "--variants", "stock,tf_fuse", "--paths", "tcp"),
    "mlp": ("shard_update/run.py", "--model", "mlp", "--replicas", "2", "--modes",
            "stock,sharded", "--steps", "4"),
}  # fmt: skip
_LINKS = ("1000,0.1", "1000,1", "10000,0.1", "10000,1")


def arguments(work: str, condition: link.Condition, rounds: int) -> list[str]:
    """Return the command line of a work's benchmark, without the interpreter."""
    program, *more = WORKS[work]
    if program == "fuse_recv/network.py":
        # Its conditions are delays, and rates at one delay.
        delay, mbit = f"{condition.delay_ms:g}", f"{condition.mbit:g}"
        only = ["--delays", "--mbits", mbit, "--base-delay", delay]
        of_link = only if condition.mbit else ["--delays", delay, "--mbits"]
    else:
        of_link = ["--hosts", "2", "--delay-ms", f"{condition.delay_ms:g}"]
        of_link += ["--mbit", f"{condition.mbit:g}"]
    return [str(_BENCHMARKS / program), *more, "--rounds", str(rounds), *of_link]


def row(work: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a work: what its benchmark's `--json` says of stock and of tf_fuse.

    Returns:
      "unit"; "stock", "tf_fuse" and "ratio" {median, min, max}, which is above 1 if tf_fuse is
      faster; "round_trip_ms"; "stream_mbit", of one TCP connection, None where it is not measured.
    """
    if work == "features":
        (one,) = found["conditions"]
        stock, ours = (one["modes"][mode]["steps_per_s"] for mode in ("stock", "fused"))
        ratio, unit = one["speedup_by_round"]["fused"], "steps/s"
        return _row(unit, stock, ours, ratio, one["round_trip_ms"], None)
    of_link = found["link"]["round_trip_ms"], found["link"]["stream_mbit"]
    if work == "all_reduce":
        (one,) = found["rows"]
        ((pair, ratio),) = one["ratio"].items()
        stock, ours = (one["ms"][name] for name in pair.split("/"))
        return _row("ms", stock, ours, ratio, *of_link)
    if work == "mlp":
        stock, ours = (found["modes"][mode]["step_ms"] for mode in ("stock", "sharded"))
        return _row("ms per step", stock, ours, found["ratio"]["stock/sharded"], *of_link)
    stock, ours = (found["modes"][mode]["steps_per_s"] for mode in ("stock", "all"))
    return _row("steps/s", stock, ours, found["ratio"]["stock"]["steps_per_s"], *of_link)


def _row(
    unit: str, stock: Any, ours: Any, ratio: Any, round_trip_ms: float, stream_mbit: float | None
) -> dict[str, Any]:
    return {
        "unit": unit,
        "stock": stock,
        "tf_fuse": ours,
        "ratio": ratio,
        "round_trip_ms": round_trip_ms,
        "stream_mbit": stream_mbit,
    }


def measure(args: argparse.Namespace, say: Any, advance: Any) -> dict[str, Any]:
    """Run all works over all links, one after the other.

    Args:
      args: the command line.
      say: shows what runs.
      advance: is called after each.

    Returns:
      What `--json` writes.

    Raises:
      RuntimeError: a benchmark failed; the text ends with what it printed.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="tf_fuse_bench_") as folder:
        for condition in args.links:
            for work in args.works:
                say(f"{work}: {condition.name}")
                path = Path(folder) / f"{work}.json"
                command = [sys.executable, *arguments(work, condition, args.rounds)]
                done = subprocess.run(
                    [*command, "--json", str(path)], capture_output=True, text=True, check=False
                )
                if done.returncode:
                    raise RuntimeError(
                        f"{' '.join(command[1:])} ended with status {done.returncode}:\n"
                        f"{(done.stdout + done.stderr)[-2000:]}"
                    )
                found = row(work, json.loads(path.read_text()))
                rows.append({"work": work, "link": condition.name, **found})
                advance()
    return {"rows": rows, "settings": {"rounds": args.rounds}, "machine": machine()}


def render(result: Mapping[str, Any]) -> Table:
    """Return the table of a result, a row per link and work."""
    table = Table(title=f"two hosts; {result['settings']['rounds']} rounds")
    for column in ("link, each way", "work", "unit"):
        table.add_column(column)
    for column in ("stock", "tf_fuse", "ratio\nmedian (min to max)", "round trip\nmeasured, ms",
                   "one stream\nMbit/s"):  # fmt: skip
        table.add_column(column, justify="right")
    for one in result["rows"]:
        table.add_row(
            one["link"], one["work"], one["unit"],
            f"{one['stock']['median']:.1f}", f"{one['tf_fuse']['median']:.1f}",
            output.span(one["ratio"], ".2f"), f"{one['round_trip_ms']:.2f}",
            "" if one["stream_mbit"] is None else f"{one['stream_mbit']:.0f}",
        )  # fmt: skip
    return table


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Draw the ratios, a group of bars per work.

    Args:
      result: what `measure` returned.
      path: the picture; its ending chooses the format.
    """
    from matplotlib.figure import Figure

    works = list(dict.fromkeys(one["work"] for one in result["rows"]))
    links = list(dict.fromkeys(one["link"] for one in result["rows"]))
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(links)
    for number, name in enumerate(links):
        of_link = [one for one in result["rows"] if one["link"] == name]
        ratios = [one["ratio"] for one in of_link]
        low = [one["median"] - one["min"] for one in ratios]
        high = [one["max"] - one["median"] for one in ratios]
        places = [works.index(one["work"]) + (number + 0.5) * width - 0.4 for one in of_link]
        medians = [one["median"] for one in ratios]
        axes.bar(places, medians, width, yerr=[low, high], capsize=3, label=name)
    axes.axhline(1.0, lw=0.8, color="grey")
    axes.set_xticks(range(len(works)), works)
    axes.set_ylabel("times as fast as stock")
    axes.legend(title="link, each way")
    figure.savefig(path)


def _link(text: str) -> link.Condition:
    mbit, _, delay_ms = text.partition(",")
    try:
        condition = link.Condition(float(delay_ms), mbit=float(mbit))
    except ValueError:
        condition = link.Condition(-1.0)
    if not 0 <= condition.delay_ms < float("inf") or not 0 <= condition.mbit < float("inf"):
        raise argparse.ArgumentTypeError(f"a link is MBIT,MS, as 1000,0.1; got {text!r}")
    return condition


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare stock and tf_fuse between two hosts.")
    parser.add_argument("--works", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--links", nargs="+", type=_link, metavar="MBIT,MS",
                        default=[_link(text) for text in _LINKS],
                        help="megabits per second, 0 for no limit, and milliseconds each way; "
                        f"by default {' '.join(_LINKS)}")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--plot", type=Path, help="write a picture here")
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {args.rounds}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; see --help.

    Returns:
      0; 1 when a benchmark failed; 77 where there can be no network namespaces.
    """
    args = parse(argv)
    console = open_console()
    if reason := two_hosts.why_not():
        print(f"skipped: {reason}", file=sys.stderr)
        return link.EXIT_SKIPPED
    try:
        with display(console) as progress:
            bar = progress.add_task("starting", total=len(args.links) * len(args.works))
            result = measure(
                args,
                lambda text: progress.update(bar, description=text),
                lambda: progress.advance(bar),
            )
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console.print(render(result))
    output.write(result, args, lambda text: console.print(text, highlight=False), plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
