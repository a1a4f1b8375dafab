# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run `tf-fuse plan-cluster`: predict what a job on parameter servers does, and where it stops."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from argparse import Namespace
from typing import Any

from rich.progress import Progress
from rich.table import Table

from tf_fuse import _json_output
from tf_fuse._console import open_console
from tf_fuse.cli.scale import packages, plan_replicas
from tf_fuse.cli.scale.calibrate import DEFAULT_PATH
from tf_fuse.scale.errors import ScaleError


def run(args: Namespace) -> int:
    """Predict, print and write; return the exit status.

    Args:
      args: model, signature, workers, ps, replicas, hosts, link, cores, batch, rates, sweep, plot,
        json, one_host.

    Returns:
      0; or 1, with a message on standard error.
    """
    if missing := packages.missing("simpy", *(["matplotlib"] if args.plot else [])):
        print(f"tf-fuse: error: {missing}", file=sys.stderr)
        return 1
    try:
        _check(args)
        if args.replicas:
            plan_replicas.run(args)
            return 0
        result = _predict(args)
        if not _json_output.write(_as_json(result), args.json):
            _print(result)
        if args.plot:
            _plot(result, args.plot)
    except (ScaleError, OSError) as error:
        print(f"tf-fuse: error: {error}", file=sys.stderr)
        return 1
    return 0


def _check(args: Namespace) -> None:
    """Refuse what would be ignored, or fail after minutes."""
    if args.hosts and not args.replicas:
        raise ScaleError(
            f"--hosts {args.hosts} is for --replicas; a worker or server has a host of its own, or "
            "with --one-host all have one"
        )
    if args.signature and not os.path.isdir(args.model):
        raise ScaleError(
            f"--signature {args.signature} is for the folder of a SavedModel, and --model is "
            f"{args.model}"
        )
    for option, path in (("--json", args.json), ("--plot", args.plot)):
        folder = os.path.dirname(path or "") or "."
        if not os.path.isdir(folder):
            raise ScaleError(f"{option} {path}: the folder {folder} does not exist; make it first")
    if args.plot:
        from matplotlib.figure import Figure

        known = sorted(Figure().canvas.get_supported_filetypes())
        ending = os.path.splitext(args.plot)[1].removeprefix(".")
        if ending and ending.lower() not in known:
            raise ScaleError(
                f"--plot {args.plot} has the ending {ending!r}, must be one of {', '.join(known)}"
            )


def numbers(text: str) -> list[int]:
    """Read "ps=1..64" or "ps=1,2,4".

    Raises:
      ScaleError: it is something else.
    """
    found = re.fullmatch(r"ps=(?:(\d+)\.\.(\d+)|(\d+(?:,\d+)*))", text)
    if found:
        from tf_fuse.scale.prediction import numbers_to_try

        if found[3]:
            listed = sorted({int(one) for one in found[3].split(",")})
        else:
            first, last = int(found[1]), int(found[2])
            listed = [one for one in {first, *numbers_to_try(last)} if first <= one <= last]
        if listed and min(listed) > 0:
            return sorted(listed)
    raise ScaleError(
        f"--sweep {text!r} is not a range of 1 or more servers, the smaller number first, as in "
        "ps=1..64 or ps=1,2,4"
    )


def _predict(args: Namespace) -> dict[str, Any]:
    from tf_fuse.cli.load import model as load_model
    from tf_fuse.scale import prediction
    from tf_fuse.scale.rates import load_rates
    from tf_fuse.scale.simulation.setting import Setting

    rates = load_rates(os.path.expanduser(args.rates or DEFAULT_PATH))
    link = prediction.Link.from_text(args.link)
    swept = numbers(args.sweep) if args.sweep else []
    console = open_console()
    traced = load_model.load(args.model, args.batch, args.signature)
    stock, _ = traced.on(1)
    cpu_s = load_model.measure_cpu_s(traced)
    scale = 1.0 if cpu_s is None else rates.compute_scale(stock, cpu_s)
    setting = Setting(
        args.workers, args.cores, link.bytes_per_s, link.seconds, args.one_host, None, scale
    )
    tried = swept or prediction.numbers_to_try(max(2 * args.ps, 8))
    with Progress(console=console, transient=True, disable=args.json == "-") as progress:
        bar = progress.add_task("simulating", total=len(tried) + 1)
        advance = lambda _: progress.advance(bar)  # noqa: E731
        chosen = prediction.compare(traced, args.ps, rates, setting)
        advance(None)
        comparisons = prediction.sweep(traced, tried, rates, setting, advance)
    return {
        "model": args.model,
        "link": args.link,
        "setting": setting,
        "cpu_s": cpu_s,
        "chosen": chosen,
        "comparisons": comparisons,
        "recommended": prediction.recommended([*comparisons, chosen]),
        "swept": bool(swept),
    }


def _print(result: dict[str, Any]) -> None:
    console = open_console()
    setting, chosen = result["setting"], result["chosen"]
    where = "one host" if setting.one_host else f"a host of {setting.cores:g} cores each"
    console.print(
        f"{result['model']}: {setting.workers} workers, {chosen.servers} servers, {where}, "
        f"{result['link']} (predicted)",
        highlight=False,
    )
    table = Table()
    table.add_column("")
    for variant in chosen.variants:
        table.add_column(variant.mode, justify="right")
    stock = chosen.rate("stock")
    found = [variant.prediction for variant in chosen.variants]
    graphs = [variant.graph for variant in chosen.variants]
    rows = [
        ("steps/s", [f"{one.steps_per_s:.1f}" for one in found]),
        ("over stock", [f"{one.steps_per_s / stock:.2f}" for one in found]),
        ("a step waits", [f"{one.waiting:.0%}" for one in found]),
        ("RPCs with tensors per step", [str(one.rpcs) for one in graphs]),
        ("MB per step", [f"{one.bytes / 1e6:.2f}" for one in graphs]),
        ("CPU ms per step: worker", [f"{one.cpu_s['worker'] * 1e3:.2f}" for one in found]),
        ("all servers", [f"{one.cpu_s['ps'] * 1e3:.2f}" for one in found]),
        ("coordinator", [f"{one.cpu_s['coordinator'] * 1e3:.2f}" for one in found]),
        ("busiest server, cores", [f"{one.busy['ps']:.0%}" for one in found]),
        ("busiest server, link", [f"{one.link_busy['ps']:.0%}" for one in found]),
        ("coordinator", [f"{one.coordinator_busy:.0%}" for one in found]),
    ]
    for name, cells in rows:
        table.add_row(name, *cells)
    console.print(table)
    for variant in chosen.variants:
        console.print(f"{variant.mode} stops at: {variant.bottleneck}", highlight=False)
    if result["swept"]:
        console.print(_sweep_table(result["comparisons"]))
    best = result["recommended"]
    console.print(
        f"recommended: {best.servers} server{'s' * (best.servers > 1)}: {best.rate('fused'):.1f} "
        "steps/s fused; with more, less than 5 % is gained",
        highlight=False,
    )
    if best.rate("stock") > best.rate("fused"):
        console.print(
            f"stock is faster there: {best.rate('stock'):.1f} steps/s; keep the protocol grpc",
            highlight=False,
        )


def _sweep_table(comparisons: list[Any]) -> Table:
    table = Table(title="steps/s by number of servers")
    for name in ("servers", "stock", "fused", "fused stops at"):
        table.add_column(name, justify="right" if name != "fused stops at" else "left")
    for one in comparisons:
        table.add_row(
            str(one.servers),
            f"{one.rate('stock'):.1f}",
            f"{one.rate('fused'):.1f}",
            one.variants[-1].bottleneck,
        )
    return table


def _as_json(result: dict[str, Any]) -> dict[str, Any]:
    def described(comparison: Any) -> dict[str, Any]:
        return {
            "servers": comparison.servers,
            "modes": {
                variant.mode: {
                    **dataclasses.asdict(variant.prediction),
                    "rpcs_per_step": variant.graph.rpcs,
                    "bytes_per_step": variant.graph.bytes,
                    "bottleneck": variant.bottleneck,
                }
                for variant in comparison.variants
            },
        }

    return {
        "model": result["model"],
        "setting": dataclasses.asdict(result["setting"]),
        "measured_cpu_s": result["cpu_s"],
        **described(result["chosen"]),
        "sweep": [described(one) for one in result["comparisons"]],
        "recommended_servers": result["recommended"].servers,
    }


def _plot(result: dict[str, Any], path: str) -> None:
    """Draw steps per second by number of servers; the file's ending chooses the format."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    servers = [one.servers for one in result["comparisons"]]
    for mode in ("stock", "fused"):
        axes.plot(servers, [o.rate(mode) for o in result["comparisons"]], marker="o", label=mode)
    axes.axvline(result["recommended"].servers, lw=0.8, color="grey", label="recommended")
    axes.set_xlabel("servers")
    axes.set_ylabel("steps/s, predicted")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.suptitle(f"{result['model']}, {result['setting'].workers} workers", fontsize=10)
    figure.savefig(path)
