# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One of several processes that run plans on a mesh, and hold the results against one device's.

    execution_program.py NUMBER JOBS

JOBS are the addresses of all processes, separated by commas. Each process gives one result.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.layout import processes as layout_processes
from tf_fuse import layout
from tf_fuse.layout.cost.model import Rates
from tf_fuse.layout.strategies.strategy import Allowed

NUMBER, JOBS = int(sys.argv[1]), sys.argv[2]
ROWS, IO, HIDDEN, CLASSES = 8, 16, 32, 8
STEPS = 3


def values(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Model:
    """Two layers and their training step, by the same code everywhere."""

    def __init__(self, seed: int):
        self.first = tf.Variable(values(seed, IO, HIDDEN), name="first")
        self.second = tf.Variable(values(seed + 1, HIDDEN, CLASSES), name="second")
        self.table = tf.Variable(values(seed + 2, ROWS, IO), name="table")
        self.steps = tf.Variable(0, dtype=tf.int64, name="steps")

    def reset(self, seed: int) -> None:
        """Begins again."""
        parts = vars(Model(seed))
        for name, one in vars(self).items():
            one.assign(parts[name])

    def step(self, ids: Any, labels: Any) -> tuple[Any, Any]:
        weights = [self.table, self.first, self.second]
        with tf.GradientTape() as tape:
            hidden = tf.nn.relu(tf.gather(self.table, ids) @ self.first)
            logits = hidden @ self.second
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        for one, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            one.assign_sub(0.1 * tf.convert_to_tensor(gradient))
        self.steps.assign_add(1)
        return loss, tf.argmax(logits, 1)

    def values(self) -> list[np.ndarray]:
        return [one.numpy() for one in (self.table, self.first, self.second, self.steps)]


BATCH = np.arange(ROWS, dtype=np.int32)[::-1].copy(), np.arange(ROWS, dtype=np.int32) % CLASSES
# Name, and the mode, rules and names of dimensions that a plan is searched with.
CASES: dict[str, tuple[Any, ...]] = {
    "batch": ("propagate", "batch:x", {"ids": ["batch"], "labels": ["batch"]}),
    "hidden": ("propagate", "hidden:y", {"first": [None, "hidden"]}),
    "both": ("propagate", "batch:x;hidden:y", {"ids": ["batch"], "first": [None, "hidden"]}),
    "vocabulary": ("propagate", "rows:x;classes:y",
                   {"table": ["rows", None], "second": [None, "classes"]}),
    "blocks": ("propagate", "io:x;hidden:y", {"first": ["io", "hidden"]}),
}  # fmt: skip


def restored(model: Model) -> bool:
    """Whether a checkpoint that this process writes has all bits, and is read into slices."""
    before = model.values()
    parts = dict(zip("abcd", (model.table, model.first, model.second, model.steps), strict=True))
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(**parts).write(f"{folder}/own")
        for one in parts.values():
            one.assign(tf.zeros(one.shape, one.dtype))
        assert not any(one.any() for one in model.values())
        tf.train.Checkpoint(**parts).read(path).assert_consumed()
    return all(np.array_equal(a, b) for a, b in zip(before, model.values(), strict=True))


def disagreement(mesh: layout.Mesh, devices: Any) -> str:
    """What is said where the first process has another plan than the others."""
    weight = tf.Variable(values(0, IO, HIDDEN), name="weight")
    problem = layout.function_problem(lambda x: x @ weight, mesh, [tf.TensorSpec([ROWS, IO])])
    names = {"weight": ["io", "hidden"]}
    plan = problem.search("propagate", "hidden:x" if NUMBER == 0 else "hidden:y", names)
    try:
        layout.execute(plan, devices)
    except layout.LayoutError as error:
        return str(error)
    return "nothing"


def main() -> None:
    mesh = layout.Mesh({"x": 2, "y": 2})
    devices = layout_processes.begin(mesh, NUMBER, JOBS)
    alone = Model(5)
    step = tf.function(alone.step)
    wanted = [step(*map(tf.constant, BATCH)) for _ in range(STEPS)]
    rates = Rates(mesh, dict.fromkeys(mesh.axes, layout.Link(1e-9, 1e-12)), 1e-9)
    found = {}
    model = Model(0)
    specs = [tf.TensorSpec([ROWS], tf.int32), tf.TensorSpec([ROWS], tf.int32)]
    problem = layout.function_problem(
        model.step, mesh, specs, rates=rates, allowed=Allowed(stacked=False)
    )
    for name, how in CASES.items():
        # Every process begins with other values; those of the first one count.
        model.reset(5 + NUMBER)
        run = layout.execute(problem.search(*how), devices)
        got = [run(*BATCH) for _ in range(STEPS)]
        found[name] = {
            "loss": max(abs(float(a - b)) for (a, _), (b, _) in zip(got, wanted, strict=True)),
            "classes": all(
                np.array_equal(a, b) for (_, a), (_, b) in zip(got, wanted, strict=True)
            ),
            "variables": max(
                float(np.abs(a - b).max())
                for a, b in zip(model.values(), alone.values(), strict=True)
            ),
            "layouts": {key: str(one) for key, one in run.plan.variables.items()},
            "planned": run.program.received_bytes,
            "received": run.traffic.received_bytes,
            "collectives": dict(run.traffic.collectives),
            "restored": restored(model),
        }
        run.release()
    found["disagreement"] = disagreement(mesh, devices)
    layout_processes.end(NUMBER, found)


if __name__ == "__main__":
    main()
