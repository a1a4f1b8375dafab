# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions that ask for layouts, and Keras models by a `LayoutMap`, beside one device."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests import scripted
from tests.unit.layout.execution import keras_fits as fits
from tf_fuse import layout

MESH = layout.Mesh((2, 2), ("x", "y"))
STEPS = 3
SPECS = {
    "both": ("x", "y"),
    "rows twice": (("x", "y"),),
    "placements": (layout.Replicate(), layout.Shard(1)),
    "partial": (layout.Partial(), layout.Shard(0)),
}


def values(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


class Model:
    """Two layers, with the layout of what is between them."""

    def __init__(self, spec: Any):
        self.weights = [tf.Variable(values(i, 16, 16), name=f"w{i}") for i in range(2)]
        self.spec = spec

    def step(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            hidden = layout.constrain(tf.nn.relu(x @ self.weights[0]), self.spec)
            loss = tf.reduce_mean(tf.square(hidden @ self.weights[1]))
        gradients = tape.gradient(loss, self.weights)
        for one, gradient in zip(self.weights, gradients, strict=True):
            one.assign_sub(0.1 * gradient)
        return loss, hidden, gradients


def worst(first: Any, second: Any) -> float:
    pairs = zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True)
    arrays = [(np.asarray(a), np.asarray(b)) for a, b in pairs]
    return max(float((np.abs(a - b) / (1 + np.abs(b))).max()) for a, b in arrays)


def functions() -> dict[str, Any]:
    """Losses, results, gradients and weights of each layout; and a checkpoint."""
    x = tf.constant(values(7, 8, 16))
    found = {}
    for name, spec in SPECS.items():
        alone, model = Model(spec), Model(spec)
        step = tf.function(alone.step)
        wanted = [step(x) for _ in range(STEPS)]
        run = layout.execute(layout.plan(model.step, MESH, [tf.TensorSpec(x.shape)]))
        got = [run(x) for _ in range(STEPS)]
        with tempfile.TemporaryDirectory() as folder:
            path = tf.train.Checkpoint(parts=model.weights).write(f"{folder}/own")
            restored = Model(())
            tf.train.Checkpoint(parts=restored.weights).read(path).assert_consumed()
        found[name] = {
            "results": worst(got, wanted),
            "weights": worst([one.numpy() for one in model.weights], alone.weights),
            "checkpoint": worst([one.numpy() for one in model.weights], restored.weights),
            "exact": run.traffic.received_bytes == run.program.received_bytes,
        }
    return found


def layout_map() -> dict[str, Any]:
    """Keras's loops by a `LayoutMap`, and by the same in a dictionary."""
    devices = keras.distribution.DeviceMesh((2, 2), ("x", "y"), [f"cpu:{i}" for i in range(4)])
    given = keras.distribution.LayoutMap(devices)
    given[".*hidden/kernel"] = (None, "y")
    given[".*out/kernel"] = ("y", None)
    x, y = fits.examples(2 * fits.BATCH)
    found: dict[str, Any] = {"layouts": []}
    results = []
    for layouts in (None, given, {**given, "x": ("x", None), "adam.*/.*hidden_kernel.*": "x"}):
        model = fits.model_of(keras)
        if layouts is not None:
            laid_out = layout.lay_out(model, MESH, layouts=layouts)
        history = model.fit(x, y, fits.BATCH, 2, 0, validation_data=(x, y)).history
        results.append([
            *(history[one] for one in sorted(history)), model.predict(x, fits.BATCH, 0),
            *model.get_weights(),
        ])  # fmt: skip
        if layouts is not None:
            plan = laid_out.plans["train"][0]
            slot = next(one for one in plan.variables if "hidden_kernel" in one)
            names = [model.layers[0].kernel.path, model.layers[3].kernel.path]
            found["layouts"].append([str(plan.variables[one]) for one in names])
    found["slot"], found["input"] = str(plan.variables[slot]), str(plan.inputs["x"])
    found["different"] = [worst(one, results[0]) for one in results[1:]]
    model = fits.model_of(keras)
    layout.lay_out(model, MESH, layouts={".*hiden/kernel": (None, "y")})
    try:
        model.fit(x, y, fits.BATCH, 1, 0)
    except layout.LayoutError as error:
        found["misspelt"] = str(error).partition(";")[0]
    return found


def main() -> None:
    devices = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    scripted.give({"functions": functions, "layout map": layout_map}[sys.argv[1]]())


if __name__ == "__main__":
    main()
