# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs plans of functions with random numbers that have a state, and gives what came of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tests import scripted
from tf_fuse import layout

MESHES = (layout.Mesh({"x": 1}), layout.Mesh({"x": 4}), layout.Mesh({"x": 2, "y": 2}))
X = np.eye(8, 6, dtype=np.float32)
RATE, CALLS = 0.25, 3


def draws(x: Any) -> Any:
    """Dropout with its gradient, and a draw of each other kind."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        made = tf.nn.dropout(x + 1, RATE)
        loss = tf.reduce_sum(made * made)
    return {
        "dropout": made,
        "gradient": tape.gradient(loss, x),
        "again": tf.random.uniform([8, 6]),
        "normal": tf.random.normal([8, 3]),
        "whole numbers": tf.random.uniform([8], 0, 1000, tf.int64),
        "truncated": tf.random.truncated_normal([8, 5], dtype=tf.float64),
    }


def bodies(x: Any) -> Any:
    """Draws in loops, in a loop of a loop, and in branches."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x + 1
        kept = tf.TensorArray(tf.float32, 3, element_shape=X.shape)
        for i in tf.range(3):
            dropped = tf.nn.dropout(y, RATE)
            kept = kept.write(i, dropped)
            y = y + dropped
        loss = tf.reduce_sum(y * y)
    noise = tf.TensorArray(tf.float32, 4, element_shape=X.shape)
    for i in tf.range(2):
        for j in tf.range(2):
            noise = noise.write(2 * i + j, tf.random.normal(X.shape))
    inner = x
    if tf.reduce_sum(x) > 0:
        inner += tf.random.uniform(X.shape)
    return {
        "trips": kept.stack(), "gradient": tape.gradient(loss, x), "noise": noise.stack(),
        "branch": inner,
    }  # fmt: skip


def calls(
    mesh: layout.Mesh, mode: str, seed: int, function: Any = draws
) -> list[dict[str, np.ndarray]]:
    tf.random.set_seed(seed)
    run = layout.execute(layout.plan(function, mesh, [tf.TensorSpec(X.shape)], mode=mode))
    return [{name: one.numpy() for name, one in run(X).items()} for _ in range(CALLS)]


def on_others(cases: tuple[str, ...], function: Any) -> Iterator[Any]:
    """What the calls make by each mesh and mode."""
    for case in cases:
        axes, mode = case.split()
        (mesh,) = (one for one in MESHES if str(one) == axes)
        yield from calls(mesh, mode, 3, function)


def numbers(*cases: str) -> dict[str, Any]:
    """What meshes and calls have in common."""
    alone = calls(MESHES[0], "auto", 3)
    different = [
        name
        for one, other in zip(alone * len(cases), on_others(cases, draws), strict=True)
        for name in one
        if not np.array_equal(one[name], other[name])
    ]
    repeated = [name for name in alone[0] if np.array_equal(alone[0][name], alone[1][name])]
    return {
        "different": different,
        "repeated": repeated,
        "same draws": bool(np.array_equal(alone[0]["again"] >= RATE, alone[0]["dropout"] != 0)),
        "masked": all(
            np.array_equal(one["gradient"] != 0, one["dropout"] != 0)
            and np.allclose(one["dropout"], (one["dropout"] != 0) * (X + 1) / (1 - RATE))
            for one in alone
        ),
    }


def in_bodies(*cases: str) -> dict[str, Any]:
    """What meshes, calls and trips have in common where loops and branches draw."""
    alone = calls(MESHES[0], "auto", 3, bodies)
    different = [
        name
        for one, other in zip(alone * len(cases), on_others(cases, bodies), strict=True)
        for name in one
        if not np.allclose(one[name], other[name], 1e-6)
    ]
    masks = [one["trips"][i] != 0 for one in alone for i in range(3)]
    gained = [one["gradient"] / (2 * np.prod([1 + m / (1 - RATE) for m in mine], 0) ** 2 * (X + 1))
              for one in alone for mine in [one["trips"] != 0]]  # fmt: skip
    numbers = [one["noise"][i] for one in alone for i in range(4)]
    numbers += [one["branch"] for one in alone]
    return {
        "different": different,
        "equal": sum(
            bool(np.array_equal(one, other))
            for some in (masks, numbers)
            for i, one in enumerate(some)
            for other in some[i + 1 :]
        ),
        "masked": bool(np.allclose(gained, 1, 1e-5)),
    }


def split() -> dict[str, str]:
    """How mode "data" draws: numbers for the rows of the batch are split."""
    plan = layout.plan(draws, MESHES[1], [tf.TensorSpec(X.shape)], mode="data")
    kinds = {one.outputs[0].name: one.kind for one in plan.function.operations}
    return {
        kinds[name]: str(plan.layouts[name])
        for name in plan.layouts
        if kinds[name].startswith(("Random", "Truncated"))
    }


def without_seed() -> dict[str, Any]:
    """Two executions of a function without seeds, over many numbers."""

    def function(x: Any) -> Any:
        return tf.nn.dropout(x, RATE), tf.nn.dropout(x, RATE)

    ones = np.ones((8, 3000), np.float32)
    made = []
    for _ in range(2):
        run = layout.execute(layout.plan(function, MESHES[1], [tf.TensorSpec(ones.shape)]))
        made += [one.numpy() != 0 for one in run(ones)]
    return {
        "equal": [
            bool(np.array_equal(one, other))
            for i, one in enumerate(made)
            for other in made[i + 1 :]
        ],
        "kept": [bool(abs(one.mean() - 1 + RATE) < 0.02) for one in made],
    }


def keras_fit() -> dict[str, Any]:
    """tf_keras's Dropout: `fit` on one device and on four by plans, from the same seeds."""
    import tf_keras as library

    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(24, 6)).astype(np.float32), rng.integers(0, 3, 24)
    found: dict[str, Any] = {}
    for mesh in MESHES[:2]:
        library.utils.set_random_seed(5)
        model = library.Sequential([
            library.layers.Dense(32, "relu"),
            library.layers.Dropout(RATE),
            library.layers.GaussianNoise(0.1),
            library.layers.Dense(3),
        ])  # fmt: skip
        model.build((None, 6))
        losses = library.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(library.optimizers.Adam(0.01), losses)
        laid_out = layout.lay_out(model, mesh, mode="data")
        history = model.fit(x, y, 8, 3, 0, shuffle=False).history["loss"]
        found[str(mesh)] = [*map(np.asarray, history), *model.get_weights()]
        found[f"predicted on {mesh}"] = model.predict(x, 8, 0)
        laid_out.release()
    one, other = (found[str(mesh)] for mesh in MESHES[:2])
    return {
        "worst": max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True)),
        "predicted": float(np.abs(found["predicted on x:1"] - found["predicted on x:4"]).max()),
    }


def told(function: Any, shape: tuple[int, ...] = (8, 6)) -> str:
    try:
        layout.execute(layout.plan(function, MESHES[1], [tf.TensorSpec(shape)]))
    except layout.LayoutError as error:
        return str(error)
    return "nothing"


def errors() -> list[str]:
    """The functions that take the place of draws that a plan cannot run."""
    made = (
        tf.random.shuffle,
        lambda x: tf.random.categorical(x, 2),
        lambda x: tf.random.gamma([8], x),
        lambda x: tf.random.poisson([8], tf.exp(x)),
        lambda x: tf.map_fn(tf.random.shuffle, x),
    )
    return [told(one).partition("; take ")[2].partition(" with a seed")[0] for one in made]


def main() -> None:
    cpus = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    cases = {
        "bodies": in_bodies,
        "errors": errors,
        "keras": keras_fit,
        "numbers": numbers,
        "split": split,
        "without seed": without_seed,
    }
    what, *given = sys.argv[1].split(",")
    scripted.give(cases[what](*given))


if __name__ == "__main__":
    main()
