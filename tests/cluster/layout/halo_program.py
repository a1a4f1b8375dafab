# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One of several processes that split an image's rows, and hold the results against one device's.

    halo_program.py NUMBER JOBS

JOBS are the addresses of all processes, separated by commas. Each process gives one result.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.layout import processes as layout_processes
from tf_fuse import layout

NUMBER, JOBS = int(sys.argv[1]), sys.argv[2]
MESH = layout.Mesh({"x": 4})
ROWS = "split height"


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(list(shape)).normal(size=shape).astype(np.float32)


class Model:
    """Windows that need rows of both neighbours, and of one, more of one than of the other."""

    def __init__(self) -> None:
        self.weights = [
            tf.Variable(values(length, length, *channels) * 0.2, name=name)
            for name, length, channels in (("a", 3, (2, 4)), ("b", 4, (4, 4)), ("c", 3, (4, 2)))
        ]

    def step(self, x: Any) -> Any:
        a, b, c = self.weights
        with tf.GradientTape() as tape:
            y = tf.nn.relu(tf.nn.conv2d(x, a, 1, "SAME"))
            y = tf.nn.max_pool2d(tf.nn.conv2d(y, b, 1, "SAME"), 3, 2, "SAME")
            loss = tf.reduce_mean(tf.square(tf.nn.conv2d(y, c, 2, "SAME")))
        for one, slope in zip(self.weights, tape.gradient(loss, self.weights), strict=True):
            one.assign_sub(0.1 * slope)
        return loss


def main() -> None:
    devices = layout_processes.begin(MESH, NUMBER, JOBS)
    x = values(1, 32, 32, 2)
    alone, model = Model(), Model()
    step = tf.function(alone.step)
    wanted = [float(step(tf.constant(x))) for _ in range(3)]
    problem = layout.function_problem(model.step, MESH, [tf.TensorSpec(x.shape)])
    both = zip(problem.graph.operations, problem.graph.strategies, strict=True)
    constraints = {one.name: ROWS for one, mine in both if ROWS in map(str, mine)}
    plan = problem.search("propagate", constraints=constraints)
    run = layout.execute(plan, devices)
    got = [float(run(x)) for _ in range(3)]
    chosen = zip(plan.graph.operations, plan.graph.chosen(plan.plan), strict=True)
    exchanges = [each for _, how in chosen for each in how.forward]
    found = {
        "losses": max(abs(a - b) for a, b in zip(got, wanted, strict=True)),
        "weights": max(
            float(np.abs(one.numpy() - other.numpy()).max())
            for one, other in zip(model.weights, alone.weights, strict=True)
        ),
        "exchanges": len(exchanges),
        "planned": run.program.received_bytes,
        "received": run.traffic.received_bytes,
        "collectives": dict(run.traffic.collectives),
    }
    run.release()
    layout_processes.end(NUMBER, found)


if __name__ == "__main__":
    main()
