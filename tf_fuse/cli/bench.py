# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run `tf-fuse bench` and `tf-fuse demo`: compare stock TensorFlow with tf_fuse here."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tf_fuse import _json_output
from tf_fuse._console import open_console

_JOB = Path(__file__).resolve().parent / "bench_job.py"
_MODES = ("stock", "fused")
_TIMEOUT_S = 600


class BenchError(RuntimeError):
    """A run failed; the text has the end of what it wrote."""


def run(json_path: str | None, tables: int, workers: int, ps: int, steps: int, rounds: int) -> int:
    """Train both modes in turn, each time in fresh processes, and print the comparison.

    Args:
      json_path: where to write the numbers beside the table; "-" for standard output, in place of
        it.
      tables: see `bench_job.run`; so are the next three.
      workers: tasks that run steps.
      ps: parameter servers.
      steps: of all workers together, in each round.
      rounds: how often each mode runs.

    Returns:
      0; or 1 if a run failed, or the losses of one worker differ.
    """
    settings = {"tables": tables, "workers": workers, "ps": ps, "steps": steps}
    results: dict[str, list[dict[str, Any]]] = {mode: [] for mode in _MODES}
    for number in range(rounds):
        # In alternating order, so that neither mode always comes first.
        for mode in _MODES if number % 2 == 0 else _MODES[::-1]:
            if json_path != "-":
                print(f"round {number + 1} of {rounds}: {mode}", flush=True)
            try:
                results[mode].append(_run_job({"mode": mode, **settings}))
            except BenchError as error:
                print(f"tf-fuse: error: {error}", file=sys.stderr)
                return 1
    summary = _summarize(results, settings)
    if not _json_output.write(summary, json_path):
        _print(summary)
    return 1 if summary["losses_equal"] is False else 0


def _run_job(settings: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tf_fuse_bench_") as folder:
        result = Path(folder) / "result.json"
        try:
            done = subprocess.run(
                [sys.executable, str(_JOB), json.dumps(settings), str(result)],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"{settings['mode']} took longer than {_TIMEOUT_S} s") from error
        if done.returncode != 0:
            raise BenchError(
                f"{settings['mode']} ended with exit status {done.returncode}: "
                f"{done.stderr[-1500:]}"
            )
        found: dict[str, Any] = json.loads(result.read_text())
        return found


def _summarize(
    results: dict[str, list[dict[str, Any]]], settings: dict[str, int]
) -> dict[str, Any]:
    """Return medians with ranges, the ratio of the medians, and whether losses are equal."""
    modes = {
        mode: {
            key: {"median": statistics.median(values), "min": min(values), "max": max(values)}
            for key in ("steps_per_s", "cpu_ms_per_step")
            for values in [[one[key] for one in rounds]]
        }
        for mode, rounds in results.items()
    }
    losses = {tuple(one["losses"]) for rounds in results.values() for one in rounds}
    return {
        "settings": {**settings, "rounds": len(results["stock"])},
        "modes": modes,
        "speed_up": modes["fused"]["steps_per_s"]["median"]
        / modes["stock"]["steps_per_s"]["median"],
        # With several workers the order of updates varies from run to run.
        "losses_equal": len(losses) == 1 if settings["workers"] == 1 else None,
    }


def _print(summary: dict[str, Any]) -> None:
    from rich.table import Table

    settings = summary["settings"]
    table = Table(
        title=f"{settings['tables']} embedding tables, {settings['workers']} worker(s), "
        f"{settings['ps']} parameter server(s): median (minimum to maximum)"
    )
    table.add_column("")
    for mode in summary["modes"]:
        table.add_column(mode, justify="right", no_wrap=True)
    for key, text in (
        ("steps_per_s", "steps/s"),
        ("cpu_ms_per_step", "CPU ms per step, workers and servers"),
    ):
        cells = [numbers[key] for numbers in summary["modes"].values()]
        table.add_row(
            text, *(f"{c['median']:.1f} ({c['min']:.1f} to {c['max']:.1f})" for c in cells)
        )
    open_console().print(table)
    print(f"fused over stock: {summary['speed_up']:.2f} times the steps")
    if summary["losses_equal"] is not None:
        print("losses: " + ("equal, bit for bit" if summary["losses_equal"] else "DIFFERENT"))
