# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How much slower steps are while they are recorded for a report.

    python benchmarks/report/run.py --features 300 --json record.json

One job on this machine: embedding tables on parameter servers, as in benchmarks/fuse_recv. Rounds
of steps run in turn: not recorded, recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from rich.progress import track
from rich.table import Table

from examples.compare import spread
from tf_fuse._console import open_console

_WARM_UP_STEPS = 20
# Of the wait before and after the steps that count, so that all of them are recorded.
_MARGIN_S = 0.5


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds.

    Args:
      args: the command line.

    Returns:
      What `--json` writes: `ms_per_step` by variant, `ratio` of each round's two, and `settings`.
    """
    import tensorflow as tf

    import tf_fuse.report
    from examples.features.model import Features
    from tf_fuse.cluster import LocalCluster

    tf.config.optimizer.set_experimental_options({"tf_fuse": True})
    cluster = LocalCluster(workers=args.workers, ps=args.ps)
    strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        program = Features(features=args.features).build()
    batches = iter(coordinator.create_per_worker_dataset(lambda: program.dataset(0, 1)))
    step = tf.function(lambda iterator: program.step(next(iterator)))

    def ms_per_step(steps: int) -> float:
        began = time.perf_counter()
        for _ in range(steps):
            coordinator.schedule(step, args=(batches,))
        coordinator.join()
        return (time.perf_counter() - began) / steps * 1e3

    def recorded(expected_s: float) -> float:
        record = threading.Thread(
            target=tf_fuse.report.record, args=(expected_s + 2 * _MARGIN_S,), daemon=True
        )
        record.start()
        time.sleep(_MARGIN_S)
        found = ms_per_step(args.steps)
        record.join()
        return found

    ms_per_step(_WARM_UP_STEPS * args.workers)
    usual_s = ms_per_step(args.steps) * args.steps / 1e3
    rounds: dict[str, list[float]] = {"not recorded": [], "recorded": []}
    for _ in track(range(args.rounds), description="rounds"):
        rounds["not recorded"].append(ms_per_step(args.steps))
        rounds["recorded"].append(recorded(usual_s))
    pairs = zip(rounds["recorded"], rounds["not recorded"], strict=True)
    return {
        "settings": {key: getattr(args, key) for key in _SETTINGS},
        "ms_per_step": {name: spread(found) for name, found in rounds.items()},
        "ratio": spread(one / other for one, other in pairs),
        "rounds": rounds,
    }


_SETTINGS = ("features", "workers", "ps", "steps", "rounds")


def render(result: Mapping[str, Any]) -> Table:
    """Return the result as a table."""
    settings = result["settings"]
    table = Table(
        title=f"{settings['features']} tables, {settings['workers']} worker(s), {settings['ps']} "
        f"server(s): median (minimum to maximum) of {settings['rounds']} rounds"
    )
    table.add_column("steps")
    table.add_column("ms per step", justify="right")
    for name, one in result["ms_per_step"].items():
        table.add_row(name, f"{one['median']:.2f} ({one['min']:.2f} to {one['max']:.2f})")
    return table


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="What recording steps for a report costs.")
    parser.add_argument("--features", type=int, default=300, help="embedding tables")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--ps", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="of each round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write all numbers here")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark and print its table; see --help."""
    args = parse(argv)
    result = measure(args)
    console = open_console()
    console.print(render(result))
    share = result["ratio"]["median"] - 1
    console.print(f"recorded steps take {share:+.1%} time", highlight=False)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
        console.print(f"all numbers: {args.json}", highlight=False)
    sys.stdout.flush()
    os._exit(0)  # A coordinator cannot leave a cluster.


if __name__ == "__main__":
    main()
