# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One of several processes in whose loops and conditionals devices communicate.

    bodies_program.py NUMBER JOBS

JOBS are the addresses of all processes, separated by commas. Each process gives one result.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.layout import processes as layout_processes
from tests.cluster.layout.relayout_program import counted
from tests.unit.layout.execution.communicating_bodies import (
    BATCH,
    COLUMNS,
    HIDDEN,
    Functions,
    split_gates,
)
from tests.unit.layout.execution.control_flow_runs import quick, recurrent, worst
from tf_fuse import layout

NUMBER, JOBS = int(sys.argv[1]), sys.argv[2]
# The processes are along the first axis.
MESH = layout.Mesh({"x": 2, "y": 2})
CASES = {
    "layer": COLUMNS, "classes": COLUMNS, "branches": HIDDEN, "nested": HIDDEN, "until": BATCH,
    "steps": HIDDEN,
}  # fmt: skip
# Parts of those steps: where there are four processes, which is slow, alone, too.
PARTS = {"layers": HIDDEN, "gradient": HIDDEN}
# By this variable all cases of two processes run; else those of `FEW`.
ALL = "LAYOUT_TEST_ALL"
FEW = ("classes", "branches", "until")
ROWS, IO, STEPS = 2, 16, 3


def case(run: Any, calls: Any) -> dict[str, Any]:
    """What calls of an execution give, and what the last one received."""
    got, before = [], counted()
    for one in calls:
        before = counted()
        got.append(run(*one))
    after = counted()
    traffic = run.traffic
    return {
        "got": numbers(got),
        "planned": run.program.received_bytes,
        "traffic": traffic.received_bytes,
        "returned": traffic.returned_bytes,
        "received": {path: after[path] - before[path] for path in after},
        "regions": len(run.program.communicating),
    }


def numbers(made: Any) -> list[float]:
    """All elements of what calls gave."""
    return [float(one) for part in tf.nest.flatten(made) for one in np.ravel(part)]


def functions(devices: Any) -> dict[str, Any]:
    x = np.random.default_rng(1).normal(size=(ROWS, IO)).astype(np.float32) + 0.2
    found = {}
    cases = CASES if len(JOBS.split(",")) == 2 else CASES | PARTS
    for name, how in cases.items():
        if ALL not in os.environ and name not in FEW:
            continue
        alone = Functions()
        stock = tf.function(getattr(alone, name))
        wanted = [stock(tf.constant(x * sign)) for sign in (1, -1, 1)]
        mine = Functions()
        plan = layout.plan(
            getattr(mine, name), MESH, [tf.TensorSpec(x.shape)], links=quick(MESH), **how
        )
        run = layout.execute(plan, devices)
        found[name] = case(run, [(x * sign,) for sign in (1, -1, 1)])
        run.release()
        after = worst([mine.w, mine.v, mine.count], [alone.w, alone.v, alone.count])
        found[name]["worst"] = max(after, worst(found[name].pop("got"), numbers(wanted)))
    return found


def layers(devices: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(8, 5, 3)).astype(np.float32), np.arange(8, dtype=np.int32) % 3
    args = [tf.TensorSpec(x.shape), tf.TensorSpec([8], tf.int32)]
    model, _, step = recurrent("LSTM")
    stock = tf.function(step)
    wanted = [float(stock(tf.constant(x), tf.constant(labels))) for _ in range(STEPS)]
    mine, _, step = recurrent("LSTM")
    plan = split_gates(layout.function_problem(step, MESH, args, links=quick(MESH)))
    run = layout.execute(plan, devices)
    found = case(run, [(x, labels)] * STEPS)
    run.release()
    weights = worst(mine.get_weights(), model.get_weights())
    found["worst"] = max(weights, worst(found.pop("got"), wanted))
    return found


def main() -> None:
    devices = layout_processes.begin(MESH, NUMBER, JOBS)
    found = functions(devices)
    if ALL in os.environ:
        found["LSTM"] = layers(devices)
    layout_processes.end(NUMBER, found)


if __name__ == "__main__":
    main()
