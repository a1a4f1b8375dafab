# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What updates on parameter servers take: stock, with fused receives, and with all of tf_fuse.

    python benchmarks/parameter_server/run.py --model dense --workers 4 --ps 2 --json dense.json
    python benchmarks/parameter_server/run.py --model wide_deep --workers 1 --ps 4 --plot wide.svg
    python benchmarks/parameter_server/run.py --model dlrm --rounds 5 --steps 100

The models and their optimizer are Keras's (examples/keras_models). Each mode has processes of its
own, warm and idle between its rounds, and every round runs all modes, one after the other.

* `stock`: ParameterServerStrategy with the protocol `grpc`; the plugin is not loaded.
* `fuse_recv`: `grpc+fuse`, with the option `do_fuse_recv`, and so `do_pack_handles`.
* `all`: that, with `shard_weight_update` too, and with variables planned and split by their costs
  (`tf_fuse.parameter_server.build`, `CostPartitioner`).

With `--hosts 2` the servers run in another network namespace, behind the link of `--delay-ms` and
`--mbit`.

The stock receives per step are counted in a separate short run: the stock graphs under the protocol
grpc+fuse with the options off, where every receive is a single one and is counted.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from rich.progress import Progress
from rich.table import Table

from benchmarks.common import link, output
from benchmarks.fuse_recv.results import comparison_of_losses, machine
from examples import compare
from examples.progress import display, open_console
from examples.session import Session, SessionError
from examples.two_hosts import TwoHosts, TwoHostsError

MODELS = ("dense", "dlrm", "wide_deep")
MODES: Mapping[str, Mapping[str, Any]] = {
    "stock": {"mode": "stock"},
    "fuse_recv": {"mode": "fused"},
    "all": {
        "mode": "fused",
        "fuse_options": {"do_pack_handles": True, "shard_weight_update": True},
    },
}
_MIB = 1 << 20
_STEPS = {"dense": 60, "dlrm": 100, "wide_deep": 100}
# With which all modes learn, also if several workers do not wait for each other.
_RATES = {"dense": 1e-4, "dlrm": 1e-3, "wide_deep": 1e-3}
# Steps whose mean is the loss in the end.
_LAST = 20
_SETTINGS = (
    "batch", "learning_rate", "optimizer", "ps", "rounds", "seed", "steps", "width", "workers",
)  # fmt: skip


def measure(
    args: argparse.Namespace, progress: Progress, hosts: TwoHosts | None = None
) -> dict[str, Any]:
    """Run all modes in turn.

    Args:
      args: the command line.
      progress: gets a task per mode.
      hosts: None for loopback.

    Returns:
      What `--json` writes.

    Raises:
      SessionError: a mode's process failed.
    """
    spec = specification(args)

    def on_servers(name: str, session: Session) -> tuple[dict[str, int], dict[str, float]]:
        return session.placement(), update_ms(session.metrics())

    rounds, found = compare.run_in_turn(
        {
            name: compare.Variant({**_of_mode(spec, name), **link.of_tasks(hosts)})
            for name in args.modes
        },
        args.rounds,
        args.steps,
        progress,
        on_servers,
    )
    modes = {name: mode_numbers(rounds[name], *found[name], args.ps) for name in args.modes}
    if "stock" in modes:
        modes["stock"]["recv_rpcs_per_step"] = compare.count_stock_recv_rpcs(spec, progress)
    return {
        "model": args.model,
        "settings": {key: getattr(args, key) for key in _SETTINGS},
        "machine": machine(),
        "modes": modes,
        "ratio": ratios(rounds, modes),
        **comparison_of_losses(modes, args.workers == 1),
    }


def specification(args: argparse.Namespace) -> dict[str, Any]:
    """Return the sessions' specification (see `examples.job.run`), as of `stock`."""
    keys = ("batch", "learning_rate", "optimizer", "seed", "width")
    return {
        "mode": "stock",
        "workload": f"keras_{args.model}",
        "workers": args.workers,
        "ps": args.ps,
        "options": {key: getattr(args, key) for key in keys},
    }


def _of_mode(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    planned = {"servers": spec["ps"]} if name == "all" else {}
    return {**spec, **MODES[name], "options": {**spec["options"], **planned}}


def update_ms(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Server ("ps:0") to the time per step that its updates had their variables' locks.

    Args:
      tasks: of `tf_fuse.cluster_metrics`.

    Returns:
      Empty where no update is one operation, which is what is counted.
    """
    counted = {
        _task(task): list(counters.get("server_updates", {}).get("variables", {}).values())
        for task, counters in sorted(tasks.items())
        if "/job:ps/" in task
    }
    # (Each variable is updated in each step.)
    steps = max((one["updates"] for found in counted.values() for one in found), default=0)
    return {
        server: sum(one["update_us"] for one in found) / 1e3 / steps
        for server, found in counted.items()
        if found
    }


def mode_numbers(
    rounds: Sequence[Mapping[str, Any]],
    placed: Mapping[str, int],
    updating: Mapping[str, float],
    servers: int,
) -> dict[str, Any]:
    """One mode's numbers.

    Args:
      rounds: `examples.runner.Round.as_dict()` of each round.
      placed: device to the bytes of its variables.
      updating: of `update_ms`.
      servers: how many there are.

    Returns:
      steps_per_s {median, min, max}; server_cpu_ms_per_step, of all servers together, and
      server_cpu_ms_by_server; update_ms_by_server, of one step; imbalance_bytes,
      imbalance_update_ms and imbalance_cpu, the largest server over the mean, of the variables'
      bytes, of the time of updates (of CPU time, where that is not counted), and of CPU time;
      bytes_by_device; cpu_ms_per_step by role; recv_rpcs_per_step; losses, one per step;
      final_loss, the mean of the last steps'.
    """
    numbers = compare.summarize(rounds)
    by_server = {
        server: statistics.median(r["server_cpu_s"][server] / r["steps"] * 1e3 for r in rounds)
        for server in sorted(rounds[0]["server_cpu_s"])
    }
    sizes = [size for device, size in placed.items() if "/job:ps/" in device]
    return {
        "steps_per_s": numbers["steps_per_s"],
        "server_cpu_ms_per_step": numbers["cpu_ms_per_step"]["ps"],
        "server_cpu_ms_by_server": by_server,
        "update_ms_by_server": dict(updating),
        "imbalance_bytes": imbalance(sizes, servers),
        "imbalance_update_ms": imbalance((updating or by_server).values(), servers),
        "imbalance_cpu": imbalance(by_server.values(), servers),
        "bytes_by_device": dict(placed),
        "cpu_ms_per_step": numbers["cpu_ms_per_step"],
        "recv_rpcs_per_step": numbers["recv_rpcs_per_step"],
        "losses": numbers["losses"],
        "final_loss": statistics.fmean(numbers["losses"][-_LAST:]),
    }


def imbalance(loads: Any, servers: int) -> float:
    """Return the largest load over the mean of all servers; 1 if there is none."""
    loads = list(loads)
    return max(loads) * servers / sum(loads) if sum(loads) > 0 else 1.0


def ratios(
    rounds: Mapping[str, Sequence[Mapping[str, Any]]], modes: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """`all` over the others: {MODE: {"steps_per_s": {median, min, max}, "server_cpu": ...}}.

    Of each round, so that what drifts meets both.
    """
    if "all" not in modes:
        return {}
    out = {}
    for name in (name for name in modes if name != "all"):
        pairs = list(zip(rounds["all"], rounds[name], strict=True))
        out[name] = {
            key: compare.spread(value(mine) / value(other) for mine, other in pairs)
            for key, value in (("steps_per_s", _rate), ("server_cpu", _server_cpu))
        }
    return out


def _rate(one_round: Mapping[str, Any]) -> float:
    return float(one_round["steps_per_s"])


def _server_cpu(one_round: Mapping[str, Any]) -> float:
    # (The clock of processes has steps of 10 ms: a round may have none.)
    return max(float(one_round["cpu_ms_per_step"]["ps"]), 10.0 / one_round["steps"])


def render(result: Mapping[str, Any]) -> Table:
    """Return the result as a table, a row per mode."""
    settings = result["settings"]
    table = Table(
        title=f"{result['model']}, {settings['optimizer']}: {settings['workers']} worker(s), "
        f"{settings['ps']} server(s), batch {settings['batch']}\n"
        f"{settings['rounds']} rounds of {settings['steps']} steps"
    )
    table.add_column("mode")
    for column in ("steps/s\nmedian (min to max)", "server CPU\nms per step",
                   "imbalance\nbytes", "imbalance\nupdates", "imbalance\nCPU",
                   "receive RPCs\nper step", "final loss"):  # fmt: skip
        table.add_column(column, justify="right")
    for name, numbers in result["modes"].items():
        rpcs = numbers["recv_rpcs_per_step"]
        table.add_row(
            name,
            output.span(numbers["steps_per_s"], ".1f"),
            f"{numbers['server_cpu_ms_per_step']:.1f}",
            f"{numbers['imbalance_bytes']:.2f}",
            f"{numbers['imbalance_update_ms']:.2f}" if numbers["update_ms_by_server"] else "",
            f"{numbers['imbalance_cpu']:.2f}",
            "not counted" if rpcs is None else f"{rpcs:.1f}",
            f"{numbers['final_loss']:.4f}",
        )
    return table


def conclusion(result: Mapping[str, Any]) -> str:
    """Return the ratios and the losses, for people."""
    lines = [
        f"all over {name}: steps/s {output.span(ratio['steps_per_s'], '.2f')}, server CPU "
        f"{output.span(ratio['server_cpu'], '.2f')}"
        for name, ratio in result["ratio"].items()
    ]
    if "losses_equal" in result:
        count = len(next(iter(result["modes"].values()))["losses"])
        lines.append(
            f"losses: all {count} equal, bit for bit"
            if result["losses_equal"]
            else f"losses: NOT EQUAL, largest differences {result['max_loss_difference']}"
        )
    elif len(result["modes"]) > 1:
        lines.append("losses: not compared, since the order of several workers' updates varies")
    return "\n".join(lines)


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Draw steps/s, CPU of each server, and bytes of each server, per mode.

    Args:
      result: what `measure` returned.
      path: the picture; its ending chooses the format.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.2), layout="constrained")
    rate, cpu, size = figure.subplots(1, 3)
    names = list(result["modes"])
    modes = result["modes"].values()
    rates = [mode["steps_per_s"] for mode in modes]
    medians = [r["median"] for r in rates]
    spans = [[r["median"] - r["min"] for r in rates], [r["max"] - r["median"] for r in rates]]
    bars = rate.bar(names, medians, yerr=spans, capsize=4)
    rate.bar_label(bars, fmt="%.1f", label_type="center")
    rate.set_ylabel("steps per second")
    _stack(cpu, names, [mode["server_cpu_ms_by_server"] for mode in modes])
    cpu.set_ylabel("CPU ms per step, by server")
    _stack(
        size,
        names,
        [
            {_task(d): b / _MIB for d, b in mode["bytes_by_device"].items() if "/job:ps/" in d}
            for mode in modes
        ],
    )
    size.set_ylabel("MiB of variables, by server")
    handles, labels = size.get_legend_handles_labels()
    figure.legend(handles, labels, title="server", loc="outside right center")
    settings = result["settings"]
    figure.suptitle(
        f"{result['model']}: {settings['workers']} worker(s), {settings['ps']} server(s)"
    )
    figure.savefig(path)


def _task(device: str) -> str:
    """Of a server or its device, "/job:ps/replica:0/task:1/device:CPU:0", "ps:1"."""
    return "ps:" + device.partition("/task:")[2].partition("/")[0]


def _stack(axes: Any, names: Sequence[str], by_server: Sequence[Mapping[str, float]]) -> None:
    servers = sorted({server for one in by_server for server in one})
    below = [0.0] * len(names)
    for server in servers:
        values = [one.get(server, 0.0) for one in by_server]
        axes.bar(names, values, bottom=below, label=server)
        below = [a + b for a, b in zip(below, values, strict=True)]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare updates on parameter servers.")
    parser.add_argument("--model", choices=MODELS, default="dense")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--ps", type=int, default=2)
    parser.add_argument("--optimizer", default="adam", help="as keras.optimizers.get takes it")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=512, help="of the hidden layers")
    parser.add_argument("--steps", type=int, help="per round, all workers together")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--modes", nargs="+", choices=sorted(MODES), default=list(MODES))
    link.add_options(parser, "servers")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--plot", type=Path, help="write a picture here")
    args = parser.parse_args(argv)
    args.modes = list(dict.fromkeys(args.modes))
    if reason := link.settle(args):
        parser.error(reason)
    if args.steps is None:
        args.steps = _STEPS[args.model]
    if args.learning_rate is None:
        args.learning_rate = _RATES[args.model]
    for key in ("batch", "ps", "rounds", "steps", "width", "workers"):
        if getattr(args, key) < 1:
            parser.error(f"--{key} must be at least 1, got {getattr(args, key)}")
    if not (math.isfinite(args.learning_rate) and args.learning_rate > 0):
        parser.error(f"--learning-rate must be positive, got {args.learning_rate}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; see --help.

    Returns:
      0; 1 when a mode failed, or losses that must be equal are not; 77 where there can be no
      network namespaces.
    """
    args = parse(argv)
    console = open_console()
    if reason := link.why_not(args):
        print(f"skipped: {reason}", file=sys.stderr)
        return link.EXIT_SKIPPED
    try:
        with (
            link.joined(args, functools.partial(output.say, console)) as (hosts, of_link),
            display(console) as progress,
        ):
            result = {**measure(args, progress, hosts), **of_link}
    except (SessionError, TwoHostsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console.print(render(result))
    console.print(conclusion(result), highlight=False)
    output.write(result, args, lambda text: console.print(text, highlight=False), plot)
    if not result.get("losses_equal", True):
        print("error: the losses differ", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
