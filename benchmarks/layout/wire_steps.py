# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run whole training steps in several processes, and count what they send; see `wire.py`.

Its arguments are those of `wire_relayouts.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks.layout import wire_relayouts

TOLERANCE = 1e-4


def main() -> int:
    """Start the ranks, or is one."""
    if len(sys.argv) > 2:
        return _rank(int(sys.argv[2]))
    return wire_relayouts.start(__file__)


def _rank(rank: int) -> int:
    from tensorflow.experimental import dtensor as stock

    from benchmarks.layout import step_models
    from tf_fuse import layout

    stock.initialize_accelerator_system("CPU")
    mesh = layout.Mesh({"x": 2, "y": 2})
    devices = stock.create_distributed_mesh(list(mesh.dims), device_type="CPU")
    rows = []
    for model in (
        step_models.two_layers(256, 256, 1024),
        step_models.transformer(8, 32, 128),
    ):
        rows += _steps(model, mesh, devices)
    wire_relayouts.give(rows, rank)
    wire_relayouts.leave(rank, devices)


def _steps(model: Any, mesh: Any, devices: Any) -> list[dict[str, Any]]:
    """Return a row for each layout of a model; the loss of the first step is that of one device."""
    import tensorflow as tf

    from tf_fuse import layout
    from tf_fuse.layout.strategies.strategy import Allowed

    begin = [one.numpy() for one in model.variables]
    wanted = float(tf.function(model.step)(*map(tf.constant, model.args)))
    problem = layout.function_problem(model.step, mesh, model.specs, allowed=Allowed(stacked=False))
    plans = {"found": problem.search()}
    for rules in model.rules:
        plans[rules] = layout.plan_by_rules(problem, rules, model.dimensions)
    rows = []
    for name, plan in plans.items():
        for one, value in zip(model.variables, begin, strict=True):
            one.assign(value)
        run = layout.execute(plan, devices)
        loss = float(run(*model.args))
        if abs(loss - wanted) > TOLERANCE * abs(wanted):
            raise AssertionError(f"{model.name}, {name}: the loss is {loss}, expected {wanted}")
        measured, _ = wire_relayouts.count(lambda run=run: run(*model.args).numpy(), devices)
        run.release()
        rows.append({
            "name": f"{model.name}, {name}",
            "plan": [f"step: {sum(run.traffic.collectives.values())} collectives"],
            "predicted_bytes": run.program.received_bytes,
            "measured_bytes": round(measured),
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    sys.exit(main())
