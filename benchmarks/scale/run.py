# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How well the planner predicts jobs of this machine: predicted beside measured steps per second.

    tf-fuse calibrate --out costs.json
    python benchmarks/scale/run.py --rates costs.json --json scale.json --plot scale.svg

None of the configurations is part of the calibration: neither the models nor, mostly, the numbers
of tasks. `--only features --part 0/4` runs a part, and `--json` adds to what the file holds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from rich.table import Table

from benchmarks.scale import models
from examples import two_hosts
from examples.progress import open_console
from examples.session import Session, SessionError
from tf_fuse.cli.load import model as load_model
from tf_fuse.scale.rates import Rates, load_rates
from tf_fuse.scale.simulation.job import simulate
from tf_fuse.scale.simulation.setting import Setting

_WARM_UP_STEPS = 20
_ROUND_S = 1.0
_ROUNDS = 3
# Of each worker, that are simulated of a round at most.
_MOST_STEPS = 20
# Coordinator and workers on one side of an emulated link, servers on the other.
_SIDES = {"chief": 0, "worker": 0, "ps": 1}
# Model, workers, servers, and megabits per second of a link; every one runs stock and fused.
_LINKS = (("features", 2, 3, 200.0), ("rfc", 4, 1, 400.0), ("dense", 1, 4, 1000.0))
# Workers and servers of each model without such a link; every one runs stock and fused.
_TASKS = {
    "features": ((2, 1), (1, 4), (4, 2), (6, 3)),
    "rfc": ((2, 1), (1, 2), (4, 2), (16, 3)),
    "dense": ((2, 1), (1, 2), (4, 3), (6, 6)),
    "mixed": ((1, 1), (2, 4), (3, 2), (12, 1)),
}
# Likewise, added behind the last change of the simulator: nothing was chosen by them.
_ADDED = {
    "features": ((3, 1), (5, 4)),
    "rfc": ((3, 1), (8, 2)),
    "dense": ((3, 3), (2, 4)),
    "mixed": ((4, 2), (1, 3)),
}


@dataclasses.dataclass(frozen=True)
class Configuration:
    """A job that is predicted and measured."""

    model: str
    workers: int
    ps: int
    mode: str
    mbit: float = 0.0

    @property
    def name(self) -> str:
        """For tables and files."""
        link = f" {self.mbit:g} Mbit/s" if self.mbit else ""
        return f"{self.model} {self.workers}x{self.ps}{link} {self.mode}"


def configurations() -> list[Configuration]:
    """Return all of them."""
    return [
        Configuration(model, workers, ps, mode)
        for model, tasks in [*_TASKS.items(), *_ADDED.items()]
        for workers, ps in tasks
        for mode in ("stock", "fused")
    ] + [
        Configuration(model, workers, ps, mode, mbit)
        for model, workers, ps, mbit in _LINKS
        for mode in ("stock", "fused")
    ]


def measure(one: Configuration) -> dict[str, Any]:
    """Run a job; return its steps per second and CPU ms per step.

    Raises:
      SessionError: the job failed.
      TwoHostsError: there can be no link here.
    """
    if not one.mbit:
        return _measure(one, {})
    with two_hosts.TwoHosts("veth") as hosts:
        hosts.shape(mbit=one.mbit)
        return _measure(one, {"hosts": hosts.of(_SIDES)})


def _measure(one: Configuration, more: dict[str, Any]) -> dict[str, Any]:
    spec = {
        **more,
        **models.SPECS[one.model],
        "mode": one.mode,
        "workers": one.workers,
        "ps": one.ps,
    }
    with Session(spec) as session:
        session.wait_ready()
        session.run(_WARM_UP_STEPS * max(1, one.workers // 2))
        first = session.run(max(_WARM_UP_STEPS, 4 * one.workers))
        steps = max(4 * one.workers, round(first["steps_per_s"] * _ROUND_S))
        rounds = [session.run(steps) for _ in range(_ROUNDS)]
    return {
        "steps_per_s": statistics.median(r["steps_per_s"] for r in rounds),
        "slowest": min(r["steps_per_s"] for r in rounds),
        "fastest": max(r["steps_per_s"] for r in rounds),
        "cpu_ms": {
            role: statistics.median(r["cpu_ms_per_step"][role] for r in rounds)
            for role in rounds[0]["cpu_ms_per_step"]
        },
        "recv_rpcs": rounds[0]["recv_rpcs_per_step"],
        "round_steps": steps,
    }


class Predictor:
    """Predicts configurations; a model is traced and measured in one process once."""

    def __init__(self, rates: Rates, cores: float):
        """Take what things cost here."""
        self._rates, self._cores = rates, cores
        self._models: dict[str, tuple[Any, float]] = {}

    def predict(
        self, one: Configuration, round_steps: int, cpu_s: float | None = None
    ) -> dict[str, Any]:
        """Return what the planner says of a configuration.

        Args:
          one: the configuration.
          round_steps: that were measured at a time.
          cpu_s: of the model's step in one process; None to measure it, once for each model.
        """
        if one.model not in self._models:
            traced = load_model.load(
                f"benchmarks.scale.models:{one.model}", models.SPECS[one.model]["options"]["batch"]
            )
            cpu_s = cpu_s or load_model.measure_cpu_s(traced)
            assert cpu_s is not None  # It has arguments, not specifications.
            self._models[one.model] = traced, cpu_s
        traced, cpu_s = self._models[one.model]
        scale = self._rates.compute_scale(traced.on(1)[0], cpu_s)
        graph = traced.on(one.ps, one_host=not one.mbit)[one.mode == "fused"]
        setting = Setting(
            one.workers,
            self._cores,
            one.mbit * 1e6 / 8,
            one_host=True,
            compute_scale=scale,
            sides={"coordinator": "a", "worker": "a", "ps": "b"} if one.mbit else None,
            link_burst_bytes=two_hosts.BURST_BYTES if one.mbit else 0,
        )
        steps = min(round_steps, _MOST_STEPS * one.workers)
        found = simulate(graph, self._rates, setting, steps, whole_round=True)
        return {
            "steps_per_s": found.steps_per_s,
            "cpu_ms": {role: seconds * 1e3 for role, seconds in found.cpu_s.items()},
            "rpcs": graph.rpcs,
            "compute_scale": scale,
            "cpu_s": cpu_s,
        }


def errors(rows: Mapping[str, Any]) -> list[float]:
    """Return predicted over measured steps per second, less 1, of each configuration."""
    return [
        row["predicted"]["steps_per_s"] / row["measured"]["steps_per_s"] - 1
        for row in rows.values()
    ]


def render(rows: Mapping[str, Any]) -> Table:
    """Return the table of all configurations."""
    shares = [abs(one) for one in errors(rows)]
    table = Table(
        title=f"{len(rows)} configurations: median error {statistics.median(shares):.1%}, worst "
        f"{max(shares):.1%}"
    )
    for name in ("configuration", "measured, steps/s (min to max)", "predicted", "error",
                 "CPU ms: measured", "predicted"):  # fmt: skip
        table.add_column(name, justify="left" if name == "configuration" else "right")
    for (name, row), error in zip(rows.items(), errors(rows), strict=True):
        measured, predicted = row["measured"], row["predicted"]
        table.add_row(
            name,
            f"{measured['steps_per_s']:.1f} ({measured['slowest']:.1f} to "
            f"{measured['fastest']:.1f})",
            f"{predicted['steps_per_s']:.1f}",
            f"{error:+.1%}",
            " ".join(f"{measured['cpu_ms'][r]:.1f}" for r in ("coordinator", "worker", "ps")),
            " ".join(f"{predicted['cpu_ms'][r]:.1f}" for r in ("coordinator", "worker", "ps")),
        )
    return table


def plot(rows: Mapping[str, Any], path: Path) -> None:
    """Draw predicted over measured steps per second."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 4.5), layout="constrained")
    axes = figure.subplots()
    for mode in ("stock", "fused"):
        own = [row for name, row in rows.items() if name.endswith(mode)]
        axes.plot(
            [row["measured"]["steps_per_s"] for row in own],
            [row["predicted"]["steps_per_s"] for row in own],
            "o",
            label=mode,
        )
    ends = [min(r["measured"]["steps_per_s"] for r in rows.values()) / 1.5]
    ends.append(max(r["measured"]["steps_per_s"] for r in rows.values()) * 1.5)
    axes.plot(ends, ends, lw=0.8, color="grey")
    axes.fill_between(ends, [0.75 * e for e in ends], [1.25 * e for e in ends], alpha=0.15)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("measured, steps/s")
    axes.set_ylabel("predicted, steps/s")
    axes.legend()
    figure.savefig(path)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Compare predicted and measured jobs.")
    parser.add_argument("--rates", type=Path, required=True, help="what tf-fuse calibrate wrote")
    parser.add_argument("--only", help="configurations whose name contains this")
    parser.add_argument("--part", default="0/1", help="every n-th, beginning with the k-th: k/n")
    parser.add_argument("--again", action="store_true", help="predict measured ones again; no job")
    parser.add_argument("--json", type=Path, help="add all figures to this file")
    parser.add_argument("--plot", type=Path, help="draw all in this file")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; see --help."""
    args = parse(argv)
    console = open_console()
    rows: dict[str, Any] = {}
    if args.json and args.json.exists():
        rows = json.loads(args.json.read_text())["configurations"]
    predictor = Predictor(load_rates(args.rates), float(os.cpu_count() or 1))
    at, of = map(int, args.part.split("/"))
    wanted = [c for c in configurations() if not args.only or args.only in c.name]
    for one in wanted[at::of]:
        try:
            if args.again:
                if one.name not in rows:
                    continue
                measured = rows[one.name]["measured"]
            else:
                measured = measure(one)
        except (SessionError, two_hosts.TwoHostsError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        cpu_s = rows[one.name]["predicted"]["cpu_s"] if args.again else None
        predicted = predictor.predict(one, measured["round_steps"], cpu_s)
        rows[one.name] = {"measured": measured, "predicted": predicted}
        console.print(f"{one.name}: {errors({'': rows[one.name]})[0]:+.1%}", highlight=False)
        if args.json:
            args.json.write_text(json.dumps({"configurations": rows}, indent=1) + "\n")
    rows = {c.name: rows[c.name] for c in configurations() if c.name in rows}
    console.print(render(rows))
    if args.plot:
        plot(rows, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
