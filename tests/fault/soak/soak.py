# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Soak test: many steps with faults at random, and nothing grows, and no loss differs.

    python tests/fault/soak/soak.py --steps 100000 --seed 1 --json soak.jsonl --plot soak.png

Two workers, two servers, a coordinator (`job.py`) that trains four small models at once, with all
options and data channels.
Faults (`faults.py`) come at random: tasks are stopped and continued, steps cancelled,
connections dropped, workers and servers killed and started again on the same port. After the
death of a server stock TensorFlow needs a new coordinator, which takes the variables up from the
last save; so does this one. Now and then everything is let come to rest, and memory, threads,
descriptors and gauges of each task are noted; `report.py` has the rule by which they are flat.
Growth is judged from 20,000 steps on; that all comes to rest, and the losses, always: these must be
those of the same steps in one process, where no fault is.

With --mode stock the same happens to TensorFlow without the plugin.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[3]))
sys.path.append(str(Path(__file__).resolve().parents[2]))

from rich.console import Console

from examples import standalone
from examples.progress import display
from tests.fault.soak import faults as soak_faults
from tests.fault.soak import models
from tests.fault.soak import report as soak_report
from tests.fault.soak.coordinator import Coordinator, environment
from tests.fault.soak.run_with_faults import Soak


def reference(steps: int) -> list[list[str]]:
    """The losses of a run without faults.

    Raises:
      SoakError: its process failed.
    """
    process = Coordinator({"reference": steps // models.MODELS}, environment())
    losses: list[list[str]] = []
    try:
        while len(losses) < steps // models.MODELS:
            losses += process.expect("reference")["losses"]
    finally:
        process.close()
    return losses


def differences(losses: Sequence[Any], expected: Sequence[Any]) -> list[str]:
    """How losses differ from those without faults; the first three."""
    found = [
        f"round {i}: losses {a}, without faults {b}"
        for i, (a, b) in enumerate(zip(losses, expected, strict=True))
        if a != b
    ]
    return found[:3] + ([f"{len(found) - 3} more rounds differ"] if len(found) > 3 else [])


def soak(args: argparse.Namespace) -> dict[str, Any]:
    """Runs a soak test.

    Returns:
      "findings", empty if all is well; "samples"; "faults"; "errors"; "growth" by process.

    Raises:
      SoakError: the cluster did not recover where stock TensorFlow does.
    """
    console = Console()
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(display(console))
        bar = progress.add_task(f"{args.mode}: starting the cluster", total=args.steps)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tf_fuse_soak_")))
        lines = None
        if args.json:
            args.json.parent.mkdir(parents=True, exist_ok=True)
            lines = stack.enter_context(args.json.open("w"))

        def write(value: Any) -> None:
            if lines:
                lines.write(json.dumps(value) + "\n")
                lines.flush()

        cluster = stack.enter_context(
            standalone.cluster_package().LocalCluster(
                2, 2, "grpc" if args.mode == "stock" else "grpc+fuse", env=environment()
            )
        )
        run = Soak(args, cluster, folder, write)
        stack.callback(run.close)

        def on_steps(steps: int) -> None:
            faults = sum(run.faults.counts.values())
            progress.update(
                bar, completed=steps, description=f"{args.mode}: {faults} faults, steps"
            )

        run.run(on_steps)
        run.close()
        progress.update(bar, description="the losses without faults")
        found = soak_report.restless(run.samples)
        if args.judge:
            found += soak_report.grown(run.samples, soak_faults.KEPT)
        found += differences(run.losses, reference(args.steps))
        growths = soak_report.growths(run.samples)
        result = {
            "findings": found,
            "faults": run.faults.counts,
            "errors": dict(sorted(run.errors.items())),
        }
        plain = {p: {k: dataclasses.asdict(g) for k, g in of.items()} for p, of in growths.items()}
        write({**result, "growth": plain})
        return {**result, "growth": growths, "samples": run.samples}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Train for long with faults at random.")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mode", choices=("on", "off", "stock"), default="on")
    parser.add_argument("--fault-every", type=int, default=400, help="steps between two faults")
    parser.add_argument("--each-once", action="store_true", help="as many faults of each kind")
    parser.add_argument("--json", type=Path, help="write a line per sample here, while it runs")
    parser.add_argument("--plot", type=Path, help="write a picture here")
    args = parser.parse_args(argv)
    if args.steps % models.MODELS or args.steps < 1:
        parser.error(f"--steps must be a positive multiple of {models.MODELS}, got {args.steps}")
    args.judge = args.steps >= soak_report.LEAST_STEPS
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the test and prints what it found.

    Returns:
      0 if all came to rest and all losses are equal, and, where growth is judged, memory, threads
      and descriptors are flat; else 1.
    """
    args = parse(argv)
    result = soak(args)
    print(soak_report.describe(result["growth"]))
    print(f"faults: {result['faults']}\nerrors met: {result['errors']}")
    if args.plot:
        title = f"{args.mode}: {args.steps} steps, {sum(result['faults'].values())} faults"
        soak_report.plot(result["samples"], args.plot, title)
        print(f"picture: {args.plot}")
    for finding in result["findings"]:
        print(f"FINDING: {finding}")
    print(soak_report.verdict(result["findings"], args.judge, "all losses equal"))
    return 1 if result["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
