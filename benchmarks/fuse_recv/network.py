# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What fused receives gain on a network that is not loopback: delay, loss, limited bandwidth.

    python benchmarks/fuse_recv/network.py --json network.json --plot docs/network.svg \
        --markdown docs/benchmarks.md
    python benchmarks/fuse_recv/network.py --workload dense --grouping level,cost --delays --losses

Coordinator and worker are on one host, the servers on another: network namespaces of this machine
(root is needed), joined by a link that `examples/two_hosts.py` makes bad. Stock and fused have
processes of their own, which stay warm; each round goes through all conditions of the link, and
runs both under each of them. The round trip is measured, not believed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from rich.progress import Progress
from rich.table import Table

from benchmarks.common import link as link_options
from benchmarks.common.link import Condition
from benchmarks.fuse_recv import options, results
from benchmarks.fuse_recv import run as fuse_recv
from examples import compare, tun_relay, two_hosts
from examples.progress import display, open_console
from examples.session import SessionError

_SIDES = {"chief": 0, "worker": 0, "ps": 1}
_MARKS = ("<!-- network -->", "<!-- /network -->")


def conditions(args: argparse.Namespace) -> list[Condition]:
    """Return the delays alone, then bandwidths and losses at the base delay."""
    return [
        *(Condition(delay) for delay in args.delays),
        *(Condition(args.base_delay, mbit=mbit) for mbit in args.mbits),
        *(Condition(args.base_delay, loss=loss) for loss in args.losses),
    ]


def condition_of(number: int, rounds: int) -> tuple[int, bool]:
    """Which condition round `number` of `compare.run_in_turn` has, and whether it counts.

    All rounds of a condition follow each other, and the first one does not count: connections of
    TCP and HTTP/2 take seconds to learn how much they may send at once over another delay.

    Args:
      number: from 0.
      rounds: that count, of each condition.
    """
    at, of_condition = divmod(number, rounds + 1)
    return at, of_condition > 0


def measure(
    args: argparse.Namespace, hosts: two_hosts.TwoHosts, progress: Progress, work_dir: str
) -> dict[str, Any]:
    """Run both modes under all conditions.

    Args:
      args: the command line.
      hosts: the two hosts.
      progress: gets a task per mode.
      work_dir: folder for encoded data.

    Returns:
      What `--json` writes.

    Raises:
      SessionError: a mode's process failed.
      TwoHostsError: the link did not get the wanted properties.
    """
    spec = fuse_recv.specification(args, work_dir)
    links = conditions(args)
    round_trips: list[list[float]] = [[] for _ in links]

    def before_round(number: int) -> None:
        at, counts = condition_of(number, args.rounds)
        if counts:
            round_trips[at].append(hosts.round_trip_ms())
        else:
            hosts.shape(**dataclasses.asdict(links[at]))

    placed = {**spec, "hosts": hosts.of(_SIDES)}
    rounds, _ = compare.run_in_turn(
        {mode: compare.Variant({**placed, **fuse_recv.variant(args, mode)}) for mode in args.modes},
        (args.rounds + 1) * len(links),
        args.steps,
        progress,
        before_round=before_round,
    )
    modes = {mode: results.mode_numbers(mode, rounds[mode]) for mode in args.modes}
    fused = results.fused_modes(modes)
    # What is received does not depend on the link, so this runs without it.
    stock_rpcs = compare.count_stock_recv_rpcs(spec, progress)
    return {
        "workload": args.workload,
        "settings": {key: getattr(args, key) for key in fuse_recv._SETTINGS},
        "machine": results.machine(),
        "link": {"emulator": hosts.emulator, "mtu": tun_relay.MTU},
        "recv_rpcs_per_step": {
            "stock": stock_rpcs,
            **{mode: modes[mode]["recv_rpcs_per_step"] for mode in fused},
        },
        "conditions": [
            _numbers(link, round_trips[at], _rounds_of(rounds, at, args.rounds))
            for at, link in enumerate(links)
        ],
        "losses": modes[fused[0]]["losses"],
        **results.comparison_of_losses(modes, args.workers == 1 or args.synchronous),
    }


def _rounds_of(
    rounds: Mapping[str, Sequence[Mapping[str, Any]]], at: int, counted: int
) -> dict[str, list[Mapping[str, Any]]]:
    return {
        mode: [r for number, r in enumerate(of_mode) if condition_of(number, counted) == (at, True)]
        for mode, of_mode in rounds.items()
    }


def _numbers(
    link: Condition,
    round_trips: Sequence[float],
    rounds: Mapping[str, Sequence[Mapping[str, Any]]],
) -> dict[str, Any]:
    modes = {}
    for mode in rounds:
        numbers = results.mode_numbers(mode, rounds[mode])
        modes[mode] = {key: numbers[key] for key in ("steps_per_s", "cpu_ms_per_step")}
    rate = {mode: modes[mode]["steps_per_s"]["median"] for mode in rounds}
    fused = results.fused_modes(rounds)
    return {
        "name": link.name,
        **dataclasses.asdict(link),
        "round_trip_ms": statistics.median(round_trips),
        "modes": modes,
        "speedup": {mode: rate[mode] / rate["stock"] for mode in fused},
        "speedup_by_round": {
            mode: compare.spread(
                ours["steps_per_s"] / stock["steps_per_s"]
                for stock, ours in zip(rounds["stock"], rounds[mode], strict=True)
            )
            for mode in fused
        },
    }


def render(result: Mapping[str, Any]) -> Table:
    """Return the result as a table, a row per condition."""
    settings = result["settings"]
    modes = list(result["recv_rpcs_per_step"])
    table = Table(
        title=f"{_model(result)}, {settings['ps']} servers on another host; link by "
        f"{result['link']['emulator']}\n{settings['rounds']} rounds of {settings['steps']} steps; "
        f"receives per step: {_receives(result)}"
    )
    table.add_column("link, each way")
    for column in ("round trip\nmeasured, ms",
                   *(f"{mode}, steps/s\nmedian (min to max)" for mode in modes),
                   *(f"{mode}, speed-up\n(by round)" for mode in modes[1:])):  # fmt: skip
        table.add_column(column, justify="right")
    for row in result["conditions"]:
        table.add_row(row["name"], f"{row['round_trip_ms']:.2f}", *_cells(row))
    return table


def _model(result: Mapping[str, Any]) -> str:
    features = result["settings"]["features"]
    return result["workload"] + (f", {features} features" if features else "")


def _receives(result: Mapping[str, Any]) -> str:
    rpcs = result["recv_rpcs_per_step"]
    return ", ".join(f"{mode} {count:.0f}" for mode, count in rpcs.items())


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Return the steps per second of each mode, then the speed-up of each but stock."""
    return [
        *(_spread(numbers["steps_per_s"], ".1f") for numbers in row["modes"].values()),
        *(
            f"{speedup:.2f} ({row['speedup_by_round'][mode]['min']:.2f} to "
            f"{row['speedup_by_round'][mode]['max']:.2f})"
            for mode, speedup in row["speedup"].items()
        ),
    ]


def markdown(result: Mapping[str, Any], picture: str | None = None) -> str:
    """Return the section for the docs.

    Args:
      result: what `measure` returned.
      picture: where the plot is, seen from the document.
    """
    settings, machine = result["settings"], result["machine"]
    modes = list(result["recv_rpcs_per_step"])
    head = ["link, each way", "round trip, measured", *(f"{mode}, steps/s" for mode in modes)]
    head += ["speed-up"] if len(modes) == 2 else [f"speed-up, {mode}" for mode in modes[1:]]
    lines = [
        f"`{result['workload']}`{_model(result).removeprefix(result['workload'])}, "
        f"{settings['workers']} worker, "
        f"{settings['ps']} servers, {settings['rounds']} rounds of {settings['steps']} steps for "
        f"each row; receive RPCs per step: {_receives(result)}. "
        f"Link by {result['link']['emulator']}, on {machine['cpus']} cores "
        f"({machine['processor']}). Median, minimum and maximum of the rounds.",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    for row in result["conditions"]:
        cells = [row["name"], f"{row['round_trip_ms']:.2f} ms", *_cells(row)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"![Speed-up and steps per second by delay]({picture})"] if picture else []
    return "\n".join(lines) + "\n"


def put_into(path: Path, section: str) -> None:
    """Put the section between its two marks, if the file has them; else it is the whole file."""
    text = path.read_text() if path.exists() else ""
    first, mark, rest = text.partition(_MARKS[0])
    _, end, last = rest.partition(_MARKS[1])
    path.write_text(f"{first}{mark}\n{section}{end}{last}" if mark and end else section)


def _spread(values: Mapping[str, float], form: str) -> str:
    return f"{values['median']:{form}} ({values['min']:{form}} to {values['max']:{form}})"


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Draw the speed-up and the steps per second over the delay.

    Args:
      result: what `measure` returned.
      path: the picture; its ending chooses the format.
    """
    from matplotlib.figure import Figure

    rows = [row for row in result["conditions"] if not row["loss"] and not row["mbit"]]
    rows.sort(key=lambda row: row["delay_ms"])
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    delays = [row["delay_ms"] for row in rows]
    modes = list(result["recv_rpcs_per_step"])
    for mode in modes[1:]:
        _line(left, delays, [row["speedup_by_round"][mode] for row in rows], mode)
    left.axhline(1.0, lw=0.8, color="grey")
    left.set_ylabel("steps per second, over stock's")
    for mode in modes:
        _line(right, delays, [row["modes"][mode]["steps_per_s"] for row in rows], mode)
    right.set_ylabel("steps per second")
    right.legend()
    for axes in (left, right):
        axes.set_xscale("symlog", linthresh=0.1)
        axes.set_xticks(delays, [f"{delay:g}" for delay in delays])
        axes.set_xlabel("delay each way, ms")
        axes.set_xlim(-0.03, 1.3 * delays[-1] + 0.03)
        axes.set_ylim(bottom=0)
    emulator = result["link"]["emulator"]
    figure.suptitle(f"{result['workload']}: two hosts, link by {emulator}", fontsize=10)
    figure.savefig(path)


def _line(axes: Any, x: Sequence[float], spreads: Sequence[Mapping[str, float]], name: str) -> None:
    medians = [spread["median"] for spread in spreads]
    errors = [
        [spread["median"] - spread["min"] for spread in spreads],
        [spread["max"] - spread["median"] for spread in spreads],
    ]
    axes.errorbar(x, medians, yerr=errors, marker="o", capsize=3, label=name)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; what is not given is as in `fuse_recv/run.py`."""
    parser = argparse.ArgumentParser(description="Compare stock and fused steps on a bad network.")
    parser.add_argument("--workload", choices=("features", "rfc", "mixed", "dense"),
                        default="features")  # fmt: skip
    parser.add_argument("--delays", type=float, nargs="*", default=[0, 0.1, 0.3, 1, 3, 10],
                        help="milliseconds, each way")  # fmt: skip
    parser.add_argument("--mbits", type=float, nargs="*", default=[100, 1000])
    parser.add_argument("--losses", type=float, nargs="*", default=[0.01])
    parser.add_argument("--base-delay", type=float, default=0.3,
                        help="milliseconds, with --mbits and --losses")  # fmt: skip
    parser.add_argument("--emulator", choices=("netem", "relay"),
                        help="default: netem where the kernel has it")  # fmt: skip
    for name in ("features", "workers", "ps", "batch"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--grouping", help="as in fuse_recv/run.py: one value, or several modes")
    parser.add_argument("--modes", nargs="+", choices=options.MODES[1:-1], default=["fused"],
                        help="beside stock")  # fmt: skip
    parser.add_argument("--steps", type=int, default=20, help="per round and condition")
    parser.add_argument(
        "--rounds", type=int, default=5, help="of each condition, after one that does not count"
    )
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--plot", type=Path, help="write a picture here")
    parser.add_argument(
        "--markdown",
        type=Path,
        help="write the table for the docs here, between the marks if the file has them",
    )
    args = parser.parse_args(argv)
    known = ["--workload", args.workload, "--steps", str(args.steps)]
    known += ["--rounds", str(args.rounds), "--modes", "stock", *args.modes]
    known += ["--grouping", args.grouping] if args.grouping else []
    for name in ("features", "workers", "ps", "batch"):
        if (value := getattr(args, name)) is not None:
            known += [f"--{name}", str(value)]
    for key, value in vars(options.parse(known)).items():
        if key in ("grouping", "modes") or getattr(args, key, None) is None:
            setattr(args, key, value)
    if args.plot and not args.delays:
        parser.error("--plot draws over the delays: give --delays")
    if not conditions(args):
        parser.error("no condition: give --delays, --mbits or --losses")
    for link in conditions(args):
        if link.delay_ms < 0 or link.mbit < 0 or not 0 <= link.loss < 1:
            parser.error(f"no such link: {link}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; see --help.

    Returns:
      0; 1 when a mode failed or losses that must be equal are not; 77 where there can be no
      network namespaces.
    """
    args = parse(argv)
    console = open_console()
    if reason := two_hosts.why_not():
        print(f"skipped: {reason}", file=sys.stderr)
        return link_options.EXIT_SKIPPED
    try:
        with (
            tempfile.TemporaryDirectory(prefix="tf_fuse_bench_") as work_dir,
            two_hosts.TwoHosts(args.emulator) as hosts,
            display(console) as progress,
        ):
            console.print(f"the link is made bad by: {hosts.emulator}", highlight=False)
            result = measure(args, hosts, progress, work_dir)
    except (SessionError, two_hosts.TwoHostsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console.print(render(result))
    _write(args, result)
    if not result.get("losses_equal", True):
        print("error: the losses of stock and fused differ", file=sys.stderr)
        return 1
    if "losses_equal" in result:
        console.print(f"all {len(result['losses'])} losses equal, bit for bit", highlight=False)
    return 0


def _write(args: argparse.Namespace, result: Mapping[str, Any]) -> None:
    for path in (args.json, args.plot, args.markdown):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.plot:
        plot(result, args.plot)
    if args.markdown:
        picture = args.plot and os.path.relpath(args.plot, args.markdown.parent)
        put_into(args.markdown, markdown(result, picture))


if __name__ == "__main__":
    sys.exit(main())
