# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How well the planner predicts replicas of this machine: predicted beside measured ms per step.

    tf-fuse calibrate --out costs.json
    python benchmarks/scale/replicas.py --rates costs.json --json replicas.json

Models of `benchmarks/shard_update`, 2 to 8 replicas, whole and sharded updates. `--part 0/2` runs a
part, `--json` adds to what the file holds, and `--again` predicts what it holds anew.
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

from benchmarks.common.rank_group import RankError
from benchmarks.shard_update import models
from benchmarks.shard_update.modes import ModeGroup
from examples.progress import open_console
from tf_fuse.scale.collective_rates import CollectiveRates
from tf_fuse.scale.rates import load_collectives
from tf_fuse.scale.replicas.job import Setting, simulate
from tf_fuse.scale.replicas.step import Part, ReplicaStep, measured_step

_MODELS: Mapping[str, Mapping[str, int]] = {
    "mlp": {"layers": 4, "width": 1024},
    "transformer": {"blocks": 2, "width": 256},
    "resnet": {"width": 32},
}
_REPLICAS = (2, 4, 8)
# The benchmark's name of a mode, and the simulation's.
_MODES = {"stock": "stock", "unsharded_fused": "fused", "sharded": "sharded"}
_OPTIMIZER, _LEARNING_RATE = "adam", 1e-3
_WARM_UP, _STEPS, _ROUNDS, _TIMEOUT_S = 3, 10, 3, 300.0


def step_of(model: str) -> ReplicaStep:
    """Measure the parts of a model's step in this process."""
    import tensorflow as tf

    from benchmarks.shard_update.keras_models import build_model, loss_of, make_optimizer

    sizes = models.sizes_of(model, _MODELS[model])
    net, weights = build_model(model, sizes)
    optimizer = make_optimizer(_OPTIMIZER, _LEARNING_RATE)
    optimizer.build(weights)
    batch = tuple(tf.constant(part) for part in models.batches(model, sizes, 0)[0])

    def gradients() -> list[Any]:
        with tf.GradientTape() as tape:
            loss = loss_of(model, net, batch)
        found = tape.gradient(loss, [weight.value for weight in weights])
        return [tf.convert_to_tensor(one) for one in found]

    def update(found: list[Any]) -> None:
        optimizer.apply_gradients(zip(found, weights, strict=True))

    return measured_step(model, weights, gradients, update)


def measure(model: str, replicas: int) -> dict[str, dict[str, float]]:
    """Run all modes; return ms per step and CPU ms of a replica, by mode.

    Raises:
      RankError: a replica failed.
    """
    spec = {
        "model": model,
        "sizes": models.sizes_of(model, _MODELS[model]),
        "optimizer": _OPTIMIZER,
        "learning_rate": _LEARNING_RATE,
        "group_size": 0,
    }
    found = {}
    for mode in _MODES:
        group = ModeGroup(mode, sys.executable, replicas, _TIMEOUT_S, spec)
        try:
            group.wait_ready()
            group.build(_WARM_UP)
            rounds = [group.measure("step", _STEPS) for _ in range(_ROUNDS)]
        finally:
            group.close()
        found[mode] = {
            "ms": statistics.median(1e3 * one.seconds / one.calls for one in rounds),
            "cpu_ms": statistics.median(1e3 * one.cpu_s / one.calls / replicas for one in rounds),
        }
    return found


def predict(step: ReplicaStep, replicas: int, rates: CollectiveRates) -> dict[str, Any]:
    """Return the same, simulated."""
    setting = Setting(replicas, 1, float(os.cpu_count() or 1))
    simulated = {name: simulate(step, mode, rates, setting) for name, mode in _MODES.items()}
    return {
        name: {"ms": 1e3 * one.step_s, "cpu_ms": 1e3 * one.cpu_s} for name, one in simulated.items()
    }


def render(rows: Mapping[str, Any]) -> Table:
    """Return the table, with the median and the largest error."""
    errors = [
        row["predicted"][mode]["ms"] / row["measured"][mode]["ms"] - 1
        for row in rows.values()
        for mode in _MODES
    ]
    shares = sorted(map(abs, errors))
    table = Table(
        title=f"{len(shares)} configurations: median error {statistics.median(shares):.1%}, worst "
        f"{shares[-1]:.1%}"
    )
    table.add_column("ms per step: measured, predicted")
    for mode in _MODES:
        table.add_column(mode, justify="right")
    for name, row in rows.items():
        table.add_row(
            name,
            *(
                f"{row['measured'][mode]['ms']:.1f}, {row['predicted'][mode]['ms']:.1f}"
                for mode in _MODES
            ),
        )
    return table


def _step_from(content: Mapping[str, Any]) -> ReplicaStep:
    parts = {name: Part(**content[name]) for name in ("compute", "update", "fused_update")}
    return ReplicaStep(**{**content, **parts})


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; see --help."""
    parser = argparse.ArgumentParser(description="Compare predicted and measured replicas.")
    parser.add_argument("--rates", type=Path, required=True, help="what tf-fuse calibrate wrote")
    parser.add_argument("--part", default="0/1", help="every n-th, beginning with the k-th: k/n")
    parser.add_argument("--again", action="store_true", help="predict measured ones again; no job")
    parser.add_argument("--json", type=Path, required=True, help="add all figures to this file")
    args = parser.parse_args(argv)
    console = open_console()
    content: dict[str, Any] = {"steps": {}, "rows": {}}
    if args.json.exists():
        content = json.loads(args.json.read_text())
    at, of = map(int, args.part.split("/"))
    wanted = [(model, replicas) for model in _MODELS for replicas in _REPLICAS][at::of]
    for model, replicas in wanted if not args.again else ():
        try:
            measured = measure(model, replicas)
        except RankError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        if model not in content["steps"]:
            content["steps"][model] = dataclasses.asdict(step_of(model))
        content["rows"][f"{model}, {replicas} replicas"] = {
            "model": model,
            "replicas": replicas,
            "measured": measured,
        }
        args.json.write_text(json.dumps(content, indent=1) + "\n")
    rates = load_collectives(args.rates)
    for row in content["rows"].values():
        step = _step_from(content["steps"][row["model"]])
        row["predicted"] = predict(step, row["replicas"], rates)
    args.json.write_text(json.dumps(content, indent=1) + "\n")
    console.print(render(content["rows"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
