# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs plans of functions with loops and conditionals beside the same on one device."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests import scripted
from tf_fuse import layout

MESHES = (layout.Mesh({"x": 2}), layout.Mesh({"x": 2, "y": 2}))
STEPS = 3


def quick(mesh: layout.Mesh) -> dict[str, layout.Link]:
    """Links with which small tensors are worth splitting."""
    return {axis: layout.Link(1e-9, 1e-9) for axis in mesh.axes}


def worst(got: Any, wanted: Any) -> float:
    both = zip(tf.nest.flatten(got), tf.nest.flatten(wanted), strict=True)
    return max(float(np.abs(np.asarray(a, "f8") - np.asarray(b, "f8")).max()) for a, b in both)


class Functions:
    """Functions with variables of their own."""

    def __init__(self) -> None:
        self.w = tf.Variable(tf.eye(4) * 0.5, name="w")
        self.count = tf.Variable(0, name="count")

    def loop(self, x: Any) -> Any:
        for _ in tf.range(3):
            x = tf.nn.relu(x @ self.w) + 1
        return x

    def swap(self, x: Any) -> Any:
        y = x * 2
        for _ in tf.range(3):
            x, y = y, x
        return x, y

    def conditional(self, x: Any) -> Any:
        if tf.reduce_sum(x) > 0:
            x = x @ self.w
            self.count.assign_add(1)
        else:
            x = tf.nn.softmax(x, 0)
        return x

    def nested(self, x: Any) -> Any:
        """What is added to a variable stays a sum of terms until the loop has ended."""
        for i in tf.range(5):
            self.w.assign_add(tf.matmul(x, x, transpose_a=True) * 0.01)
            if i % 2 == 0:
                self.count.assign_add(i)
                for _ in tf.range(2):
                    x = x * 0.9
        return x

    def never(self, x: Any) -> Any:
        """A loop whose body never runs, by a number that is fed."""
        i = tf.cast(tf.reduce_max(x) * 0, tf.int32)
        while i < 0:
            x = x @ self.w
            i += 1
        return x

    def gradient(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            y = x
            for _ in tf.range(3):
                y = tf.tanh(y @ self.w)
            loss = tf.reduce_sum(y * y)
        self.w.assign_sub(0.1 * tape.gradient(loss, self.w))
        return loss

    def halves(self, x: Any) -> Any:
        x = tf.cast(x, tf.float16)
        for _ in tf.range(3):
            x = x + tf.reduce_mean(x, 1, keepdims=True)
        return x

    def arrays(self, x: Any) -> Any:
        """A list that a loop writes."""
        found = tf.TensorArray(tf.float32, 3, element_shape=[8, 4])
        for i in tf.range(3):
            found = found.write(i, x * tf.cast(i, tf.float32))
        return found.stack()


def functions(axes: str, mode: str, *names: str) -> dict[str, Any]:
    """Each function: the distance, whether bytes are as planned, and the splits."""
    (mesh,) = (one for one in MESHES if str(one) == axes)
    x = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32) + 0.5
    found = {}
    for name in names:
        alone, mine = Functions(), Functions()
        stock = tf.function(getattr(alone, name))
        wanted = [stock(tf.constant(x * sign)) for sign in (1, -1)]
        plan = layout.plan(
            getattr(mine, name), mesh, [tf.TensorSpec(x.shape)], mode=mode, links=quick(mesh)
        )
        run = layout.execute(plan)
        got = [run(x * sign) for sign in (1, -1)]
        same = run.traffic.received_bytes == run.program.received_bytes
        run.release()
        after = worst([mine.w, mine.count], [alone.w, alone.count])
        found[name] = [
            max(worst(got, wanted), after), same, sorted(plan.unknown), str(plan.inputs["x"])
        ]  # fmt: skip
    return found


def recurrent(kind: str) -> tuple[Any, Any, Any]:
    keras.utils.set_random_seed(1)
    layer = getattr(keras.layers, kind)
    model = keras.Sequential([
        keras.Input((5, 3), batch_size=8), layer(4, return_sequences=True), layer(6, dropout=0.25),
        keras.layers.Dense(3),
    ])  # fmt: skip
    optimizer = keras.optimizers.Adam(0.05)
    optimizer.build(model.trainable_variables)
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = losses(labels, model(x, training=True))
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    return model, optimizer, step


def recurrent_layers(kind: str, mode: str) -> dict[str, Any]:
    """Training steps, and a checkpoint in the middle that one device goes on with."""
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(8, 5, 3)).astype(np.float32), np.arange(8, dtype=np.int32) % 3
    args = [tf.TensorSpec(x.shape), tf.TensorSpec([8], tf.int32)]
    model, optimizer, step = recurrent(kind)
    stock = tf.function(step)
    wanted = [stock(tf.constant(x), tf.constant(labels)) for _ in range(STEPS)]
    weights = model.get_weights()
    mine, optimizer, step = recurrent(kind)
    plan = layout.plan(step, MESHES[0], args, mode=mode, links=quick(MESHES[0]))
    run = layout.execute(plan)
    got = [run(x, labels) for _ in range(STEPS)]
    with tempfile.TemporaryDirectory() as folder:
        saved = tf.train.Checkpoint(model=mine, optimizer=optimizer).write(f"{folder}/a")
        other, other_optimizer, _ = recurrent(kind)
        tf.train.Checkpoint(model=other, optimizer=other_optimizer).read(saved)
        restored = worst(other.get_weights(), mine.get_weights())
    flow = plan.function.control_flow
    inside = [one for name, one in plan.layouts.items() if flow.block(name)]
    return {
        "worst": worst([got, mine.get_weights()], [wanted, weights]),
        "restored": restored,
        "unknown": sorted(plan.unknown),
        "split": sum(any(one.splits) for one in inside) > len(inside) / 3,
        "partial": any(one.partial for one in inside),
        "exact": run.traffic.received_bytes == run.program.received_bytes,
    }


def optimizers(name: str, mode: str) -> list[Any]:
    """Keras's fit with conditionals in its optimizer: all variables are those of one device."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 6)).astype(np.float32), rng.integers(0, 3, 32)
    made = keras.optimizers
    cases = {
        "accumulation": lambda: made.Adam(0.05, gradient_accumulation_steps=2),
        "average": lambda: made.SGD(0.05, use_ema=True, ema_overwrite_frequency=3),
        "loss_scale": lambda: made.LossScaleOptimizer(
            made.Adam(0.05), initial_scale=1024.0, dynamic_growth_steps=2
        ),
    }
    results, conditionals, regions = [], set(), set()
    for how in ("", mode):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([
            keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)
        ])  # fmt: skip
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(cases[name](), losses, jit_compile=False)
        laid_out = layout.lay_out(model, MESHES[0], mode=how) if how else None
        history = model.fit(x, y, 8, 2, 0, shuffle=False).history["loss"]
        state = [one.numpy() for one in model.optimizer.variables]
        results.append([history, state, model.get_weights()])
        if laid_out is not None:
            (plan,) = laid_out.plans["train"]
            conditionals |= {"If", "StatelessIf"} & set(plan.unknown)
            regions.add(len(plan.function.control_flow.regions))
    return [worst(*results), sorted(conditionals), sorted(regions)]


def whole() -> dict[str, Any]:
    """A loop that all devices run whole, since the names of dimensions meet within it."""
    w = tf.Variable(tf.eye(4), name="w")

    def step(x: Any) -> Any:
        for _ in tf.range(3):
            x = x + tf.nn.relu(x @ w)
        return x

    problem = layout.function_problem(step, MESHES[0], [tf.TensorSpec([8, 4])])
    plan = problem.search("propagate", "hidden:x", {"w": [None, "hidden"]})
    with tempfile.TemporaryDirectory() as folder:
        plan.save(f"{folder}/plan")
        loaded = problem.load(f"{folder}/plan")
    return {
        "unknown": sorted(plan.unknown),
        "layout": str(plan.variables["w"]),
        "loaded": str(loaded.variables["w"]),
    }


def main() -> None:
    cpus = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    cases = {
        "functions": functions,
        "optimizers": optimizers,
        "recurrent": recurrent_layers,
        "whole": whole,
    }
    what, *given = sys.argv[1].split()
    scripted.give(cases[what](*given))


if __name__ == "__main__":
    main()
