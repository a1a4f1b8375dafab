# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What `run.py` makes of its measurements: numbers by mode, a table and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.common import output
from benchmarks.shard_update.modes import MODES, Round
from examples.compare import spread

_STOCK = "stock"
_SHM = "collective_bytes_shm"


def entry(rounds: Sequence[Round], finished: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the numbers of one mode.

    Args:
      rounds: what it took.
      finished: what its replicas say at the end.

    Returns:
      step_ms: of a step, {median, min, max} of the rounds. update_ms: how much longer a step is
      than one that computes and reduces gradients, median of the rounds.
      collective_bytes_per_step: over the loopback interface and through shared memory, all
      replicas together, median of the rounds. optimizer_state_bytes and peak_rss_bytes: of the
      replica that has most. losses: of each step, the mean over the replicas.
    """
    losses = zip(*([float.fromhex(x) for x in replica["losses"]] for replica in finished),
                 strict=True)  # fmt: skip
    return {
        "step_ms": spread(_step_ms(rounds)),
        "update_ms": statistics.median(
            1e3 * (one.step.seconds / one.step.calls - one.gradients.seconds / one.gradients.calls)
            for one in rounds
        ),
        "collective_bytes_per_step": statistics.median(
            (one.step.wire_bytes + one.step.counters.get(_SHM, 0)) / one.step.calls
            for one in rounds
        ),
        "optimizer_state_bytes": max(replica["optimizer_state_bytes"] for replica in finished),
        "peak_rss_bytes": max(replica["peak_rss_bytes"] for replica in finished),
        "losses": [statistics.fmean(step) for step in losses],
    }


def ratios(rounds: Mapping[str, Sequence[Round]]) -> dict[str, dict[str, float]]:
    """How many times each mode's step time stock's is, by round: "stock/ddp" to the spread."""
    if _STOCK not in rounds:
        return {}
    stock = _step_ms(rounds[_STOCK])
    return {
        f"{_STOCK}/{name}": spread(s / m for s, m in zip(stock, _step_ms(of), strict=True))
        for name, of in rounds.items()
        if name != _STOCK
    }


def estimates(
    rounds: Mapping[str, Sequence[Round]], finished: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """Return what sharding was expected to save, and what it saves.

    Args:
      rounds: by mode, what it took.
      finished: by mode, what its replicas say at the end.

    Returns:
      By mode that has an estimate: `sharded_ms`, `left_ms` and `costs` of that; `whole`, the mode
      that differs in nothing but that it does not shard, or ""; and `measured_ms`, by how much a
      step of that mode is longer, {median, min, max} of the rounds; None where it did not run.
    """
    return {
        name: {
            **estimate,
            "whole": MODES[name].whole,
            "measured_ms": _saved(rounds.get(MODES[name].whole, []), rounds[name]),
        }
        for name, of in finished.items()
        if (estimate := of[0]["estimate"]) is not None
    }


def _saved(whole: Sequence[Round], sharded: Sequence[Round]) -> dict[str, float] | None:
    if not whole:
        return None
    return spread(w - c for w, c in zip(_step_ms(whole), _step_ms(sharded), strict=True))


def expected(name: str, found: Mapping[str, Any]) -> str:
    """Return an estimate as a sentence."""
    measured, whole = found["measured_ms"], found["whole"]
    said = f"{name}: sharding is expected to save {found['sharded_ms']:.1f} ms per step"
    if found["left_ms"]:
        said += f" (and {found['left_ms']:.1f} by what is left alone)"
    if measured is not None:
        return f"{said}; saves {{median:.1f}} ({{min:.1f}} to {{max:.1f}}) over {whole}".format(
            **measured
        )
    return f"{said}; not measured, for --modes lacks {whole}" if whole else said


def compared(finished: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Compare the losses of TensorFlow's modes with those of stock, by replica and bit by bit.

    Args:
      finished: by mode, what its replicas say at the end.

    Returns:
      By mode {"equal", "first_step", "largest_difference"}; first_step is the first that differs,
      or None.
    """
    if _STOCK not in finished:
        return {}
    stock = [replica["losses"] for replica in finished[_STOCK]]
    return {
        name: _compared(stock, [replica["losses"] for replica in of])
        for name, of in finished.items()
        if name != _STOCK and MODES[name].backend == "tensorflow"
    }


def _compared(stock: Sequence[Sequence[str]], other: Sequence[Sequence[str]]) -> dict[str, Any]:
    differing = [
        (step, abs(float.fromhex(one) - float.fromhex(two)))
        for ours, theirs in zip(stock, other, strict=True)
        for step, (one, two) in enumerate(zip(ours, theirs, strict=True))
        if one != two
    ]
    return {
        "equal": not differing,
        "first_step": min((step for step, _ in differing), default=None),
        "largest_difference": max((size for _, size in differing), default=0.0),
    }


def verdict(name: str, found: Mapping[str, Any], steps: int) -> str:
    """Return a comparison as a sentence."""
    if found["equal"]:
        return f"{name}: all losses of {steps} steps are those of stock, to the last bit"
    return (
        f"{name}: losses differ from those of stock, first in step {found['first_step']} of "
        f"{steps}, by {found['largest_difference']:.3g} at most"
    )


def _step_ms(rounds: Sequence[Round]) -> list[float]:
    return [1e3 * one.step.seconds / one.step.calls for one in rounds]


def render(result: Mapping[str, Any]) -> Table:
    """Return the result as a table, a line per mode."""
    settings = result["settings"]
    table = Table(
        title=f"{result['model']}, {settings['parameters'] / 1e6:.1f} million weights, "
        f"{result['optimizer']}, {result['replicas']} replicas\n"
        f"{settings['rounds']} rounds of {settings['steps']} steps"
    )
    table.add_column("mode", no_wrap=True)
    for column in ("ms per step\n(min to max)", "stock's time over it\n(by round)",
                   "update\nms", "collectives,\nMB per step", "optimizer's\nstate, MB",
                   "peak RSS\nMB", "losses as\nin stock"):  # fmt: skip
        table.add_column(column, justify="right")
    for name, mode in result["modes"].items():
        ratio = result["ratio"].get(f"stock/{name}")
        found = result["losses_compared"].get(name)
        table.add_row(
            name,
            output.span(mode["step_ms"], ".1f"),
            output.span(ratio, ".2f") if ratio else "",
            f"{mode['update_ms']:.1f}",
            f"{mode['collective_bytes_per_step'] / 1e6:.2f}",
            f"{mode['optimizer_state_bytes'] / 1e6:.2f}",
            f"{mode['peak_rss_bytes'] / 1e6:.0f}",
            ("yes" if found["equal"] else "no") if found else "",
        )
    return table


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Draw times, memory and losses, a panel each.

    Args:
      result: what `--json` writes.
      path: the picture; its ending chooses the format.
    """
    from matplotlib.figure import Figure

    modes = result["modes"]
    figure = Figure(figsize=(12, 3.5), layout="constrained")
    times, memory, losses = figure.subplots(1, 3)
    names = list(modes)
    spans = [modes[name]["step_ms"] for name in names]
    medians = [span["median"] for span in spans]
    errors = [
        [span["median"] - span["min"] for span in spans],
        [span["max"] - span["median"] for span in spans],
    ]
    times.bar(names, medians, yerr=errors, capsize=3, label="step")
    times.bar(names, [modes[name]["update_ms"] for name in names], width=0.4, label="update")
    times.set_ylabel("ms")
    memory.bar(names, [modes[name]["optimizer_state_bytes"] / 1e6 for name in names])
    memory.set_ylabel("optimizer's state of a replica, MB")
    for name in names:
        losses.plot(modes[name]["losses"], label=name)
    losses.set_xlabel("step")
    losses.set_ylabel("loss")
    for axes in (times, memory):
        axes.tick_params("x", rotation=30)
    for axes in (times, losses):
        axes.legend()
    figure.suptitle(f"{result['model']}, {result['optimizer']}, {result['replicas']} replicas",
                    fontsize=10)  # fmt: skip
    figure.savefig(path)
