# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs plans on logical CPU devices, and gives what came of it.

A process of its own, since logical devices have to be made before TensorFlow uses any.
"""

from __future__ import annotations

import random
import sys
import threading
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from tests import scripted
from tests.unit.layout.execution import operators
from tests.unit.layout.execution.execution_errors import errors, told
from tf_fuse import layout
from tf_fuse.layout.cost.model import Rates
from tf_fuse.layout.strategies.strategy import Allowed

MESH = layout.Mesh({"x": 2, "y": 2})
# b, d_io, d_h of Mesh-TensorFlow's example.
B, IO, H = 8, 16, 64


def flat(made: Any) -> list[np.ndarray]:
    return [np.asarray(one) for one in tf.nest.flatten(made)]


def distance(got: Any, wanted: Any) -> float:
    """The largest difference, by the size of the values; infinite if something else differs."""
    worst = 0.0
    for a, b in zip(flat(got), flat(wanted), strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        a, b = (one.astype(np.float64) if one.dtype.kind not in "c" else one for one in (a, b))
        if not np.array_equal(np.isnan(a), np.isnan(b)):
            return float("inf")
        if a.size:
            worst = max(worst, float(np.nanmax(np.abs(a - b) / (1 + np.abs(b)))))
    return worst


def one_by_one(mesh: layout.Mesh, more: bool) -> dict[str, Any]:
    """Each operation with each of its strategies: how many, and the worst distance."""
    found: dict[str, Any] = {}
    for name, function, args in operators.CASES:
        if (name in operators.MORE) != more:
            continue
        wanted = tf.function(function)(*map(tf.constant, args))
        problem = layout.function_problem(function, mesh, list(map(tf.constant, args)))
        kinds = {one.kind for one in problem.graph.operations}
        assert problem.function.unknown == {}, (name, problem.function.unknown)
        count, worst = 0, 0.0
        graph = problem.graph
        target = next(i for i, one in enumerate(graph.operations) if one.kind == name.split("/")[0])
        for strategy in graph.strategies[target]:
            constraints = {graph.operations[target].name: str(strategy)}
            run = layout.execute(problem.search("propagate", constraints=constraints))
            worst = max(worst, distance(run(*args), wanted))
            assert run.traffic.received_bytes == run.program.received_bytes, (name, str(strategy))
            count += 1
        assert name.split("/")[0] in kinds
        found[name] = [count, worst]
    return found


class Layers:
    """Mesh-TensorFlow's two layers, whose input is a variable, too, so that all has a gradient."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        # Whole numbers, so that sums are exact in any order.
        self.x, self.w, self.v = (
            tf.Variable(rng.integers(-2, 3, shape).astype(np.float32), name=name)
            for name, shape in (("x", (B, IO)), ("w", (IO, H)), ("v", (H, IO)))
        )

    def step(self) -> Any:
        parts = [self.x, self.w, self.v]
        with tf.GradientTape() as tape:
            y = tf.nn.relu(self.x @ self.w) @ self.v
            loss = tf.reduce_sum(y)
        for one, gradient in zip(parts, tape.gradient(loss, parts), strict=True):
            one.assign_sub(gradient)
        return loss

    def values(self) -> list[np.ndarray]:
        return [one.numpy() for one in (self.x, self.w, self.v)]


NAMES = {"x": ["batch", "io"], "w": ["io", "hidden"]}


def layers(mesh: layout.Mesh, rules: str) -> dict[str, Any]:
    """The two layers as rules say: whether all is the same, and the bytes."""
    alone, model = Layers(), Layers()
    wanted = tf.function(alone.step)()
    problem = layout.function_problem(
        model.step, mesh, rates=Rates(mesh, links(mesh), 1e-9), allowed=Allowed(stacked=False)
    )
    run = layout.execute(layout.plan_by_rules(problem, rules, NAMES))
    same = np.array_equal(run(), wanted) and all(
        np.array_equal(a, b) for a, b in zip(model.values(), alone.values(), strict=True)
    )
    return {
        "same": bool(same),
        "planned": run.program.received_bytes,
        "received": run.traffic.received_bytes,
        "operations": sorted(
            {one.type for one in run._function.graph.get_operations()} & operators.KNOWN_BAD
        ),
    }


def _sparse_step(table: Any, slot: Any) -> Any:
    def step(ids: Any, rows: Any) -> Any:
        slot.value()
        table.scatter_add(tf.IndexedSlices(rows, ids))
        tf.raw_ops.ResourceSparseApplyAdagradV2(
            var=table.handle, accum=slot.handle, lr=0.1, epsilon=0.01, grad=rows, indices=ids
        )
        return tf.gather(table, ids)

    return step


def sparse() -> dict[str, Any]:
    """Updates of some rows of a table whose rows, or columns, are split."""
    mesh = layout.Mesh({"x": 2})
    rows = operators.real(4, 4)
    good, wrong = np.array([5, 0, 5, 3], np.int32), np.array([5, 0, 8, 3], np.int32)
    found = {}
    for kind, dims in (
        (np.int32, ["rows", None]),
        (np.int64, ["rows", None]),
        (np.int32, [None, "rows"]),
    ):
        good, wrong = good.astype(kind), wrong.astype(kind)
        specs = [tf.TensorSpec([4], kind), tf.TensorSpec([4, 4])]
        table, slot = (
            tf.Variable(np.arange(32, dtype=np.float32).reshape(8, 4), name="table"),
            tf.Variable(tf.ones([8, 4]), name="slot"),
        )
        step = _sparse_step(table, slot)
        begin = [table.numpy(), slot.numpy()]
        wanted = [tf.function(step)(tf.constant(good), tf.constant(rows))]
        wanted += [table.numpy(), slot.numpy()]
        table.assign(begin[0])
        slot.assign(begin[1])
        problem = layout.function_problem(step, mesh, specs)
        names = {"table": dims, "slot": dims}
        run = layout.execute(problem.search("propagate", "rows:x", names))
        name = f"{run.plan.variables['table']} {kind.__name__}"
        found[name] = distance([run(good, rows), table.numpy(), slot.numpy()], wanted)
        found[f"{name} wrong"] = "nothing" not in told(partial(run, wrong, rows))
    return {**found, "unknown": problem.function.unknown}


def links(mesh: layout.Mesh) -> dict[str, layout.Link]:
    return dict.fromkeys(mesh.axes, layout.Link(1e-9, 1e-12))


def chance() -> dict[str, Any]:
    """The two layers with strategies by chance: the number of runs that are all the same."""
    draw = random.Random(7)
    alone = Layers()
    wanted = tf.function(alone.step)()
    good, moved = 0, set()
    for _ in range(12):
        model = Layers()
        problem = layout.function_problem(model.step, MESH)
        constraints = {
            one.name: str(draw.choice(mine))
            for one, mine in zip(problem.graph.operations, problem.graph.strategies, strict=True)
        }
        try:
            plan = problem.search("propagate", constraints=constraints)
        except layout.LayoutError:  # What is partial cannot always become what was drawn.
            continue
        run = layout.execute(plan)
        good += np.array_equal(run(), wanted) and all(
            np.array_equal(a, b) for a, b in zip(model.values(), alone.values(), strict=True)
        )
        assert run.traffic.received_bytes == run.program.received_bytes
        moved.add(run.program.received_bytes)
    return {"good": int(good), "different": len(moved)}


def threads() -> dict[str, Any]:
    """Four threads that call one execution: what they lose of each other's updates."""
    mesh, calls = layout.Mesh({"x": 2}), 150
    total = tf.Variable(tf.zeros([2, 8]), name="total")
    row = tf.Variable(tf.zeros([2, 8]), name="row")

    def step(x: Any) -> Any:
        # What a scatter changes is in a variable of its own while the call runs.
        row.assign(x)
        row.scatter_nd_add([[0, 0]], x[0, :1])
        total.assign_add(x)
        return row.read_value() - x

    names = {"total": [None, "columns"]}
    args = [tf.TensorSpec([2, 8])]
    plan = layout.plan(step, mesh, args, mode="propagate", rules="columns:x", dimensions=names)
    run = layout.execute(plan)
    wrong: list[Any] = []

    def work(number: int) -> None:
        x = tf.fill([2, 8], float(number))
        wanted = np.zeros([2, 8], np.float32)
        wanted[0, 0] = number
        for _ in range(calls):
            try:
                made = run(x).numpy()
            except Exception as error:
                wrong.append(str(error))
            else:
                wrong.extend([] if np.array_equal(made, wanted) else [made.tolist()])
            total.assign_add(x)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    lost = 2 * calls * (1 + 2 + 3 + 4) - total.numpy()
    handles = [one for one in run._function.graph.get_operations() if one.type == "VarHandleOp"]
    names_of = {one.get_attr("shared_name").decode() for one in handles}
    return {
        "wrong": wrong[:3],
        "lost": float(np.abs(lost).max()),
        "temporaries": [len(handles) > 0, names_of == {context.anonymous_name()}],
    }


def _descent(variable: Any) -> Any:
    def step(x: Any, rate: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(x @ variable))
        variable.assign_sub(rate * tape.gradient(loss, variable))
        return {"loss": loss}

    return step


def sizes() -> dict[str, Any]:
    """A function that is called with batches of several sizes, by a plan for each."""
    mesh = layout.Mesh({"x": 2})
    found: dict[str, Any] = {}
    for mode in ("data", "auto"):
        alone, mine = (tf.Variable(tf.ones([4, 2]), name="w") for _ in range(2))

        stock = tf.function(_descent(alone))
        run = layout.lay_out(_descent(mine), mesh, mode=mode)
        losses = []
        for count in (8, 4, 3, 8, 1):
            x = np.random.default_rng(count).normal(size=(count, 4)).astype(np.float32)
            losses.append(distance(run(x, 0.1), stock(tf.constant(x), tf.constant(0.1))))
        plans = [str(one.inputs["x"]) for one in run.plans]
        layouts = {str(one.variables["w"]) for one in run.plans}
        empty = "has shape [0, 4]" in told(lambda call=run: call(np.zeros((0, 4), np.float32), 0.1))
        run.release()
        found[mode] = {
            "worst": max(*losses, distance(mine, alone)),
            "plans": plans,
            "variables": len(layouts),
            "empty": empty,
            "released": [type(mine).__name__, run.plans == ()],
        }
    return found


def main() -> None:
    devices = [tf.config.LogicalDeviceConfiguration()] * 8
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    two = layout.Mesh({"x": 2})
    results = {
        "operators": lambda: one_by_one(two, more=False),
        "more operators": lambda: one_by_one(two, more=True),
        "layers": lambda: {
            "": layers(two, ""),
            "batch:x": layers(two, "batch:x"),
            "hidden:x": layers(two, "hidden:x"),
            "batch:x;hidden:y": layers(MESH, "batch:x;hidden:y"),
        },
        "chance": chance,
        "errors": errors,
        "sizes": sizes,
        "sparse": sparse,
        "threads": threads,
    }[sys.argv[1]]()
    scripted.give(results)


if __name__ == "__main__":
    main()
