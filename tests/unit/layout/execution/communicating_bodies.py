# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs plans in whose loops and conditionals devices communicate, beside one device."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests import scripted
from tests.unit.layout.execution.control_flow_runs import MESHES, quick, recurrent, worst
from tests.unit.layout.execution.executions import distance
from tf_fuse import layout
from tf_fuse.layout.cost.model import Rates

ROWS, IO, TRIPS = 2, 16, 3
STEPS = 3


class Functions:
    """Functions of weights that are much larger than what is fed."""

    def __init__(self) -> None:
        rng = np.random.default_rng(2)
        self.w, self.v = (
            tf.Variable(rng.normal(size=(IO, IO)).astype(np.float32) / 4, name=name)
            for name in ("w", "v")
        )
        self.count = tf.Variable(0, name="count")

    def layer(self, x: Any) -> Any:
        for _ in tf.range(TRIPS):
            x = tf.tanh(x @ self.w)
        return x

    def layers(self, x: Any) -> Any:
        for _ in tf.range(TRIPS):
            x = tf.tanh(tf.nn.relu(x @ self.w) @ self.v)
        return x

    def classes(self, x: Any) -> Any:
        """The sums of a softmax are taken over what is split."""
        for _ in tf.range(2):
            x = tf.matmul(tf.nn.softmax(x @ self.w), self.w, transpose_b=True)
        return x

    def branches(self, x: Any) -> Any:
        if tf.reduce_sum(x) > 0:
            y = tf.tanh(tf.nn.relu(x @ self.w) @ self.v)
            self.count.assign_add(1)
        else:
            y = x * 2
        return y

    def nested(self, x: Any) -> Any:
        for i in tf.range(TRIPS):
            if tf.reduce_sum(x) > 0:
                for _ in tf.range(2):
                    x = tf.tanh(tf.nn.relu(x @ self.w) @ self.v)
                self.count.assign_add(i)
            x = x * 1.5
        return x

    def until(self, x: Any) -> Any:
        """What decides is itself a sum over what is split."""
        while tf.reduce_sum(x * x) < 500.0:
            x = x + tf.abs(x @ self.w)
            self.count.assign_add(1)
        return x

    def draws(self, x: Any) -> Any:
        """Each device draws its part of the same numbers, other ones in each trip."""
        for i in tf.range(TRIPS):
            y = tf.nn.relu(x @ self.w)
            kept = tf.random.stateless_uniform([ROWS, IO], [i, 3]) > 0.25
            x = tf.tanh(tf.where(kept, y, 0.0) @ self.v)
        return x

    def gradient(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(self.layers(x) ** 2)
        parts = [self.w, self.v]
        for one, gradient in zip(parts, tape.gradient(loss, parts), strict=True):
            one.assign_sub(0.1 * gradient)
        return loss

    def steps(self, x: Any) -> Any:
        """Several training steps in one call."""
        loss = 0.0
        for _ in tf.range(TRIPS):
            loss += self.gradient(x)
        return loss


COLUMNS = {"layouts": {"w": (None, "x")}}
HIDDEN = {"layouts": {"w": (None, "x"), "v": ("x", None)}}
BATCH = {"layouts": {"x": ("x", None)}}
# By function, how it is laid out.
CASES = {
    "layer": COLUMNS, "layers": HIDDEN, "classes": COLUMNS, "branches": HIDDEN, "nested": HIDDEN,
    "draws": HIDDEN, "until": COLUMNS, "until ": BATCH, "gradient": HIDDEN, "steps": HIDDEN,
}  # fmt: skip


def functions(axes: str) -> dict[str, Any]:
    """By function: the distance, whether bytes are as planned, how many, and where."""
    (mesh,) = (one for one in MESHES if str(one) == axes)
    x = np.random.default_rng(1).normal(size=(ROWS, IO)).astype(np.float32) + 0.2
    found = {}
    for name, how in CASES.items():
        alone, mine = Functions(), Functions()
        stock = tf.function(getattr(alone, name.strip()))
        wanted = [stock(tf.constant(x * sign)) for sign in (1, -1)]
        plan = layout.plan(
            getattr(mine, name.strip()), mesh, [tf.TensorSpec(x.shape)], links=quick(mesh), **how
        )
        run = layout.execute(plan)
        got = [run(x * sign) for sign in (1, -1)]
        planned, traffic = run.program.received_bytes, run.traffic
        regions = plan.function.control_flow.regions
        run.release()
        after = worst([mine.w, mine.v, mine.count], [alone.w, alone.v, alone.count])
        found[name] = {
            "worst": max(worst(got, wanted), after),
            "exact": traffic.received_bytes == planned,
            "planned": planned,
            "unknown": sorted(plan.unknown),
            "regions": [len(run.program.communicating), len(regions)],
        }
    return found


def data() -> dict[str, Any]:
    """Mode "data": training steps in a loop, and a loop that runs until a sum is reached."""
    x = np.random.default_rng(1).normal(size=(8, IO)).astype(np.float32)
    found = {}
    for name in ("steps", "until", "layer"):
        alone, mine = Functions(), Functions()
        wanted = tf.function(getattr(alone, name))(tf.constant(x))
        plan = layout.plan(
            getattr(mine, name), MESHES[0], [tf.TensorSpec(x.shape)], mode="data",
            links=quick(MESHES[0]),
        )  # fmt: skip
        run = layout.execute(plan)
        got = run(x)
        planned, received = run.program.received_bytes, run.traffic.received_bytes
        run.release()
        after = distance([mine.w, mine.v, mine.count], [alone.w, alone.v, alone.count])
        found[name] = {
            "worst": max(distance(got, wanted), after),
            "bytes": [planned, received],
            "unknown": sorted(plan.unknown),
            "inputs": str(plan.inputs["x"]),
        }
    return found


def split_gates(problem: Any) -> Any:
    """A plan in which the columns of weights are split where loops multiply by them, and back."""
    flow, others = problem.function.control_flow, len(problem.rates.mesh.axes) - 1
    constraints = {
        one.name: ", ".join([f"split {'k' if one.attribute('transpose_b') else 'n'}"]
                            + ["replicate"] * others)
        for one in problem.graph.operations
        if one.kind == "MatMul" and flow.block(one.name) and not one.attribute("transpose_a")
    }  # fmt: skip
    return problem.search("propagate", constraints=constraints)


def recurrent_layers(kind: str) -> dict[str, Any]:
    """Training steps of layers whose gates are split, by names of their weights' dimensions."""
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(8, 5, 3)).astype(np.float32), np.arange(8, dtype=np.int32) % 3
    args = [tf.TensorSpec(x.shape), tf.TensorSpec([8], tf.int32)]
    model, _, step = recurrent(kind)
    stock = tf.function(step)
    wanted = [stock(tf.constant(x), tf.constant(labels)) for _ in range(STEPS)]
    weights = model.get_weights()
    mine, _, step = recurrent(kind)
    names = [one.cell.recurrent_kernel.path for one in mine.layers[:2]]
    plan = split_gates(layout.function_problem(step, MESHES[0], args, links=quick(MESHES[0])))
    run = layout.execute(plan)
    got = [run(x, labels) for _ in range(STEPS)]
    return {
        "worst": worst([got, mine.get_weights()], [wanted, weights]),
        "exact": run.traffic.received_bytes == run.program.received_bytes,
        "unknown": sorted(plan.unknown),
        "layouts": sorted({str(plan.variables[name]) for name in names}),
        "regions": len(run.program.communicating),
    }


def chosen() -> dict[str, Any]:
    """What the search finds for an LSTM whose weights are large, and whose batch is one row."""
    units, length = 32, 4
    x = np.random.default_rng(0).normal(size=(1, length, units)).astype(np.float32)
    args = [tf.TensorSpec(x.shape), tf.TensorSpec([1, units])]

    def made() -> tuple[Any, Any]:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input(x.shape[1:], batch_size=1), keras.layers.LSTM(units)])
        optimizer = keras.optimizers.Adam(0.05)
        optimizer.build(model.trainable_variables)

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
            return loss

        return model, step

    y = np.ones([1, units], np.float32)
    model, step = made()
    stock = tf.function(step)
    wanted = [stock(tf.constant(x), tf.constant(y)) for _ in range(STEPS)]
    mesh = MESHES[0]
    slow = {"x": layout.Link(1e-3, 1e-6)}
    cases = {
        "faster": dict(rates=Rates(mesh, quick(mesh), 1e-9)),
        "slower": dict(rates=Rates(mesh, slow, 1e-9)),
        "smaller": dict(rates=Rates(mesh, slow, 1e-9)),
    }
    found: dict[str, Any] = {}
    for name, how in cases.items():
        mine, step = made()
        if name == "smaller":
            limit = int(0.55 * found["slower"]["memory"])
            how["memory_limit_bytes"] = limit
        plan = layout.plan(step, mesh, args, **how)
        run = layout.execute(plan)
        got = [run(x, y) for _ in range(STEPS)]
        weight = mine.layers[0].cell.recurrent_kernel.path
        inside = [
            one
            for one, size in run.program.received_bytes_by_operation().items()
            if size and plan.function.control_flow.block(one)
        ]
        found[name] = {
            "worst": worst([got, mine.get_weights()], [wanted, model.get_weights()]),
            "exact": run.traffic.received_bytes == run.program.received_bytes,
            "layout": str(plan.variables[weight]),
            "communicating": [len(run.program.communicating), bool(inside)],
            "memory": plan.memory_bytes,
            "gains": plan.seconds < plan.one_device_seconds,
        }
        run.release()
    return found


def main() -> None:
    cpus = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    cases = {
        "chosen": chosen, "data": data, "functions": functions, "recurrent": recurrent_layers,
    }  # fmt: skip
    what, *given = sys.argv[1].split()
    scripted.give(cases[what](*given))


if __name__ == "__main__":
    main()
