# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What benchmarks/fuse_recv makes of its rounds: numbers, comparisons, a table and a picture."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.fuse_recv.options import COMPRESSED, IN_FLIGHT, PER_CALL, UNIQUE
from examples import compare


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
    """Return what the pass did, all tasks together.

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
      speedup_by_round (steps/s, fused over stock) and cpu_by_round (CPU of all tasks, likewise),
      if both modes ran; with six rounds and more, "interval" is the median's 95 % confidence
      interval. times_local_by_round, mode to a step's time over one of one process.
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
        pairs = list(zip(rounds["stock"], rounds["fused"], strict=True))
        for name, ratios in (
            ("speedup_by_round", [f["steps_per_s"] / s["steps_per_s"] for s, f in pairs]),
            ("cpu_by_round", [_cpu_ms(f) / _cpu_ms(s) for s, f in pairs]),
        ):
            interval = compare.interval_of_median(ratios)
            out[name] = {**compare.spread(ratios), **({"interval": interval} if interval else {})}
    return out


def _cpu_ms(one: Mapping[str, Any]) -> float:
    """CPU ms per step of all tasks in a round."""
    return float(sum(one["cpu_ms_per_step"].values()))


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
      (of all modes on a cluster that keep all bits). Empty if the steps were not in order.
    """
    if not in_order or len(modes) < 2:
        return {}
    compared = compared_modes(modes)
    modes = {mode: one for mode, one in modes.items() if mode == "local" or mode in compared}
    out: dict[str, Any] = {"max_loss_difference": compare.max_loss_differences(modes)}
    first, *others = [modes[mode]["losses"] for mode in compared_modes(modes)] or [[]]
    if others:
        out["losses_equal"] = all(losses == first for losses in others)
    return out


def machine() -> dict[str, Any]:
    """Return what the numbers were made on: cores, processor and memory."""
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
    """Return the result as a table, a row per mode."""
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
    """Return the ratios and the losses, for people."""
    lines = []
    if "speedup" in result:
        by_round, cpu = result["speedup_by_round"], result["cpu_by_round"]
        lines.append(
            f"speedup        {result['speedup']:.2f} (of medians; by round "
            f"{by_round['min']:.2f} to {by_round['max']:.2f}{_interval(by_round)})"
        )
        lines.append(
            f"cpu            {cpu['median']:.3f} times stock's, all tasks ({cpu['min']:.2f} to "
            f"{cpu['max']:.2f} by round{_interval(cpu)})"
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
        names = compared_modes(result["modes"])
        steps = len(result["modes"][names[0]]["losses"])
        lines.append(
            f"losses         all {steps} equal, bit for bit, {' and '.join(names)}"
            if result["losses_equal"]
            else f"losses         NOT EQUAL: {result['max_loss_difference']}"
        )
    elif len(result["modes"]) > 1 and result["settings"]["workers"] > 1:
        lines.append("losses         not compared: the order of several workers' updates varies")
    return "\n".join(lines)


def _interval(ratios: Mapping[str, Any]) -> str:
    if "interval" not in ratios:
        return ""
    low, high = ratios["interval"]
    return f"; 95 % interval of the median {low:.3f} to {high:.3f}"


def compared_modes(modes: Iterable[str]) -> list[str]:
    """Return the modes whose losses are compared: on a cluster, with all bits."""
    others = ("local", UNIQUE)
    # A graph of several steps differs from one step's in the last bit, in one process as well.
    begins = (COMPRESSED, IN_FLIGHT, PER_CALL)
    return [mode for mode in modes if mode not in others and not mode.startswith(begins)]


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Draw steps/s per mode: the median, with a line from minimum to maximum.

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
