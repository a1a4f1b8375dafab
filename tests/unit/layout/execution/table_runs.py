# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tables whose rows are gathered and updated, by plans on two devices and on one."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tests import scripted
from tf_fuse import layout
from tf_fuse.layout.execution.execute import Execution

MESH = layout.Mesh({"x": 2})
ROWS, WIDTH, BATCH, STEPS = 12, 4, 6, 3
IDS = np.array([0, 11, 5, 6, 5, 0], np.int32)


def values(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Model:
    """A table before a layer; `way` says how it is updated and read."""

    def __init__(self, way: str):
        whole = values(1, ROWS, WIDTH)
        self.table = tf.Variable(whole, name="table")
        if way == "in parts":
            self.parts: list[Any] = []
            self.table = layout.variable_in_parts([ROWS, WIDTH], self.part_of, name="table")
        self.slot = tf.Variable(tf.fill([ROWS, WIDTH], 0.1), name="slot")
        self.kernel = tf.Variable(values(2, WIDTH, 3), name="kernel")
        self.way = way

    def part_of(self, begin: Any, shape: Any) -> Any:
        self.parts.append([list(begin), list(shape)])
        return values(1, ROWS, WIDTH)[begin[0] : begin[0] + shape[0]]

    def step(self, ids: Any) -> Any:
        variables = [self.table, self.kernel]
        self.slot.value()
        with tf.GradientTape() as tape:
            made = tf.gather(self.table, ids) @ self.kernel
            loss = tf.reduce_mean(tf.square(made))
        rows, gradient = tape.gradient(loss, variables)
        if self.way == "slots":
            tf.raw_ops.ResourceSparseApplyAdagradV2(
                var=self.table.handle, accum=self.slot.handle, lr=0.5, epsilon=1e-7,
                grad=rows.values, indices=rows.indices,
            )  # fmt: skip
        else:
            self.table.scatter_sub(tf.IndexedSlices(0.5 * rows.values, rows.indices))
        self.kernel.assign_sub(0.5 * gradient)
        if self.way == "read after":
            # Of the new rows.
            loss += tf.reduce_sum(tf.gather(self.table, ids))
        if self.way == "read whole":
            loss += tf.reduce_sum(tf.square(self.table))
        if self.way == "checked":
            tf.debugging.assert_less(ids, ROWS - 1)
        return loss

    def values(self) -> list[np.ndarray]:
        return [one.numpy() for one in (self.table, self.slot, self.kernel)]


def run_of(model: Model) -> Any:
    problem = layout.function_problem(model.step, MESH, [tf.TensorSpec([BATCH], tf.int32)])
    return layout.execute(problem.search("propagate", "rows:x", {"table": ["rows", None]}))


def ways() -> dict[str, Any]:
    """Losses, values, and how many copies of a shard a call makes for its updates."""
    found = {}
    for way in ("rows", "slots", "read after", "read whole"):
        alone, model = Model(way), Model(way)
        step = tf.function(alone.step)
        run = run_of(model)
        wanted = [float(step(tf.constant(IDS))) for _ in range(STEPS)]
        got = [float(run(IDS)) for _ in range(STEPS)]
        pairs = zip(model.values(), alone.values(), strict=True)
        found[way] = {
            "losses": max(abs(a - b) for a, b in zip(got, wanted, strict=True)),
            "values": max(float(np.abs(a - b).max()) for a, b in pairs),
            "layout": str(run.plan.variables["table"]),
            # Of variables that live in a call alone.
            "copies": sum(
                one.type == "VarHandleOp" for one in run._function.graph.get_operations()
            ),
        }
    return found


def in_parts() -> dict[str, Any]:
    """A table that each device makes its part of."""
    alone, model = Model("rows"), Model("in parts")
    before = bool(model.table.is_initialized())
    run = run_of(model)
    made = list(model.parts)
    step = tf.function(alone.step)
    wanted = [float(step(tf.constant(IDS))) for _ in range(STEPS)]
    got = [float(run(IDS)) for _ in range(STEPS)]
    run.release()
    pairs = zip(model.values(), alone.values(), strict=True)
    wrong = Model("in parts")
    wrong.part_of = lambda begin, shape: tf.zeros(shape[:1])  # type: ignore[method-assign]
    wrong.table = layout.variable_in_parts([ROWS, WIDTH], wrong.part_of, name="table")
    try:
        run_of(wrong)
    except layout.LayoutError as error:
        said = str(error)
    return {
        "before": before,
        "made": made,
        "losses": max(abs(a - b) for a, b in zip(got, wanted, strict=True)),
        "values": max(float(np.abs(a - b).max()) for a, b in pairs),
        "said": said,
    }


def random_parts() -> dict[str, Any]:
    """Parts of random numbers, on a mesh where two devices hold each slice."""
    mesh = layout.Mesh({"x": 2, "y": 2})
    calls = []

    def part_of(begin: Any, shape: Any) -> Any:
        calls.append(list(begin))
        return tf.random.normal(shape)

    table = layout.variable_in_parts([ROWS, WIDTH], part_of, name="table")
    specs = [tf.TensorSpec([BATCH], tf.int32)]
    problem = layout.function_problem(lambda ids: tf.gather(table, ids), mesh, specs)
    layout.execute(problem.search("propagate", "rows:x", {"table": ["rows", None]}))
    held = [one.numpy() for one in table.tf_fuse_shards.variables.values()]
    return {
        "calls": calls,
        "equal": [np.array_equal(held[0], one) for one in held],
        "later": [np.array_equal(held[2], one) for one in held],
    }


def failed_execution() -> dict[str, Any]:
    """A plan that fails after its variables were laid out: one in parts is not put together."""
    model = Model("in parts")
    ids = [tf.TensorSpec([BATCH], tf.int32)]
    plan = layout.function_problem(model.step, MESH, ids).search(
        "propagate", "rows:x", {"table": ["rows", None]}
    )
    traced = Execution._traced

    def fails(self: Any) -> Any:
        raise layout.LayoutError("no kernel")

    Execution._traced = fails  # type: ignore[method-assign]
    try:
        layout.execute(plan)
    except layout.LayoutError as error:
        said = str(error)
    Execution._traced = traced  # type: ignore[method-assign]
    found = {
        "said": said,
        "initialized": bool(model.table.is_initialized()),
        "bytes": model.table.read_value().shape.num_elements(),
        "kernel": np.array_equal(model.kernel.numpy(), values(2, WIDTH, 3)),
    }
    model.parts.clear()
    layout.execute(plan)
    found["made"] = list(model.parts)
    found["values"] = np.array_equal(model.table.numpy(), values(1, ROWS, WIDTH))
    return found


def failed_check() -> dict[str, Any]:
    """A check fails, after which the table has its values still."""
    model = Model("checked")
    run = run_of(model)
    before = model.values()
    try:
        run(IDS)
    except tf.errors.InvalidArgumentError:
        failed = True
    else:
        failed = False
    kept = all(np.array_equal(a, b) for a, b in zip(before, model.values(), strict=True))
    fine = float(run(np.minimum(IDS, ROWS - 2)))
    return {"failed": failed, "kept": kept, "fine": np.isfinite(fine).item()}


def main() -> None:
    cpus = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    cases = {
        "failed check": failed_check,
        "failed execution": failed_execution,
        "in parts": in_parts,
        "random parts": random_parts,
        "ways": ways,
    }
    scripted.give(cases[sys.argv[1]]())


if __name__ == "__main__":
    main()
