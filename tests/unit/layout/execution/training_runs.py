# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains models by plans on logical CPU devices, and gives what came of it."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf

import tf_fuse
from tests import scripted
from tf_fuse import layout
from tf_fuse.layout.cost.model import Rates
from tf_fuse.layout.strategies.strategy import Allowed

MESH = layout.Mesh({"rows": 2, "cols": 2})
BATCH, LENGTH, WIDTH, HEADS, INNER, VOCABULARY = 4, 6, 8, 2, 16, 12
STEPS = 4
LAYOUT = "batch:rows;tokens:rows;vocabulary:cols;d_ff:cols;heads:cols"


def values(seed: int, *shape: int) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=shape) * 0.3).astype(np.float32)


class Block:
    """A language model of one Transformer block, by TensorFlow's operations and variables."""

    SHAPES: Final = {
        "table": (VOCABULARY, WIDTH), "query": (WIDTH, HEADS, 4), "key": (WIDTH, HEADS, 4),
        "value": (WIDTH, HEADS, 4), "merge": (HEADS, 4, WIDTH), "up": (WIDTH, INNER),
        "down": (INNER, WIDTH), "out": (WIDTH, VOCABULARY),
    }  # fmt: skip

    def __init__(self) -> None:
        self.weights = {
            name: tf.Variable(values(i, *shape), name=name)
            for i, (name, shape) in enumerate(self.SHAPES.items())
        }

    def loss(self, ids: Any, labels: Any) -> Any:
        w = self.weights
        x = tf.gather(w["table"], ids)
        q, k, v = (tf.einsum("bsd,dhk->bhsk", x, w[one]) for one in ("query", "key", "value"))
        scores = tf.nn.softmax(tf.einsum("bhsk,bhtk->bhst", q, k) * 0.5)
        x += tf.einsum("bhsk,hkd->bsd", tf.einsum("bhst,bhtk->bhsk", scores, v), w["merge"])
        hidden = tf.nn.relu(tf.einsum("bsd,df->bsf", x, w["up"]))
        x += tf.einsum("bsf,fd->bsd", hidden, w["down"])
        logits = tf.einsum("bsd,dv->bsv", x, w["out"])
        logits = tf.reshape(logits, [BATCH * LENGTH, VOCABULARY])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_mean(losses)

    def step(self, ids: Any, labels: Any) -> Any:
        parts = list(self.weights.values())
        with tf.GradientTape() as tape:
            loss = self.loss(ids, labels)
        for one, gradient in zip(parts, tape.gradient(loss, parts), strict=True):
            one.assign_sub(0.5 * tf.convert_to_tensor(gradient))
        return loss


NAMES = {
    "ids": ["batch", None], "labels": ["tokens"], "table": ["vocabulary", None],
    **{name: [None, "heads", None] for name in ("query", "key", "value")},
    "up": [None, "d_ff"], "out": [None, "vocabulary"],
}  # fmt: skip


def text() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(9)
    return (
        rng.integers(0, VOCABULARY, (BATCH, LENGTH)).astype(np.int32),
        rng.integers(0, VOCABULARY, BATCH * LENGTH).astype(np.int32),
    )


def rates(mesh: layout.Mesh) -> Rates:
    return Rates(mesh, dict.fromkeys(mesh.axes, layout.Link(1e-9, 1e-12)), 1e-9)


def worst(first: Any, second: Any) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True))


def transformer() -> dict[str, Any]:
    """Vocabulary, d_ff and heads on one axis and the batch on the other; and what is found."""
    ids, labels = text()
    alone = Block()
    step = tf.function(alone.step)
    wanted = [float(step(tf.constant(ids), tf.constant(labels))) for _ in range(STEPS)]
    found = {"falls": wanted[0] - wanted[-1]}
    args = [tf.TensorSpec(ids.shape, tf.int32), tf.TensorSpec(labels.shape, tf.int32)]
    for name in ("rules", "data"):
        model = Block()
        problem = layout.function_problem(
            model.step, MESH, args, rates=rates(MESH), allowed=Allowed(stacked=name == "data")
        )
        if name == "rules":
            plan = layout.plan_by_rules(problem, LAYOUT, NAMES)
        else:
            plan = problem.search("data")
        run = layout.execute(plan)
        got = [float(run(ids, labels)) for _ in range(STEPS)]
        found[name] = {
            "losses": worst(got, wanted),
            "weights": worst(
                [one.numpy() for one in model.weights.values()],
                [one.numpy() for one in alone.weights.values()],
            ),
            "layouts": {key: layout.to_sbp(one) and str(layout.to_sbp(one))
                        for key, one in plan.variables.items()},
            "exact": run.traffic.received_bytes == run.program.received_bytes,
            "moved": run.program.received_bytes > 0,
        }  # fmt: skip
    return found


def keras_model(dropout: float = 0.25) -> tuple[Any, Any, Callable[..., Any]]:
    """A model with normalization and dropout, Adam, and a step as Keras's guides write it."""
    keras.utils.set_random_seed(4)
    model = keras.Sequential([
        keras.Input((8,), batch_size=4),
        keras.layers.Dense(16, activation="gelu"),
        keras.layers.LayerNormalization(),
        keras.layers.Dropout(dropout, seed=2),
        keras.layers.Dense(4),
    ])  # fmt: skip
    optimizer = keras.optimizers.Adam(0.02)
    optimizer.build(model.trainable_variables)
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(x: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = losses(labels, model(x, training=True))
        weights = model.trainable_variables
        optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}

    return model, optimizer, step


ARGS = [tf.TensorSpec([4, 8]), tf.TensorSpec([4], tf.int32)]


def batch() -> tuple[np.ndarray, np.ndarray]:
    return values(3, 4, 8), np.array([0, 3, 1, 2], np.int32)


def planned(step: Any, rules: str, names: dict[str, Any], mesh: layout.Mesh) -> Any:
    problem = layout.function_problem(step, mesh, ARGS, rates=rates(mesh))
    return problem.search("propagate", rules, names) if rules else problem.search("data")


def keras_training() -> dict[str, Any]:
    """Adam, dropout and layer norm, split by rules; weights are saved and read by Keras."""
    mesh = layout.Mesh({"x": 2})
    x, labels = batch()
    _, _, step = keras_model()
    stock = tf.function(step)
    wanted = [float(stock(tf.constant(x), tf.constant(labels))["loss"]) for _ in range(STEPS)]
    model, optimizer, step = keras_model()
    kernel = model.layers[0].kernel.path
    moment = optimizer._momentums[0].path
    names = {kernel: [None, "hidden"], moment: [None, "hidden"]}
    run = layout.execute(planned(step, "hidden:x", names, mesh))
    got = [float(run(x, labels)["loss"]) for _ in range(STEPS)]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "some.weights.h5")
        model.save_weights(path)
        other, _, _ = keras_model()
        other.load_weights(path)
        saved = worst(
            [one.numpy() for one in other.weights], [one.numpy() for one in model.weights]
        )
        for one in model.weights:
            one.assign(tf.zeros(one.shape, one.dtype) if one.dtype != "uint32" else one)
        model.load_weights(path)
    again = float(run(x, labels)["loss"])
    return {
        "losses": worst(got, wanted),
        "weights": worst(
            [one.numpy() for one in model.trainable_variables],
            [one.numpy() for one in other.trainable_variables],
        ) > 0,
        "saved": saved,
        "next": abs(again - float(stock(tf.constant(x), tf.constant(labels))["loss"])),
        "layout": str(run.plan.variables[kernel]),
        "slot": str(run.plan.variables[moment]),
        "steps": int(optimizer.iterations.numpy()),
        "exact": run.traffic.received_bytes == run.program.received_bytes,
    }  # fmt: skip


def checkpoints() -> dict[str, Any]:
    """Written under one mesh and layout; read under another one, by one device, and back.

    Without dropout, whose seed Keras leaves out of checkpoints.
    """
    x, labels = batch()
    first, first_optimizer, step = keras_model(0.0)
    kernel = first.layers[0].kernel.path
    run = layout.execute(
        planned(step, "hidden:x", {kernel: [None, "hidden"]}, layout.Mesh({"x": 4}))
    )
    for _ in range(STEPS):
        run(x, labels)
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(model=first, optimizer=first_optimizer).write(f"{folder}/a")
        written = bits(first, first_optimizer)
        alone, optimizer, alone_step = keras_model(0.0)
        tf.train.Checkpoint(model=alone, optimizer=optimizer).read(path).assert_consumed()
        on_one = bits(alone, optimizer) == written
        other, other_optimizer, other_step = keras_model(0.0)
        kernel = other.layers[0].kernel.path
        rows = {kernel: ["io", None]}
        run_other = layout.execute(planned(other_step, "io:x", rows, layout.Mesh({"x": 2})))
        run_other(x, labels)
        read = tf.train.Checkpoint(model=other, optimizer=other_optimizer)
        read.read(path).assert_consumed()
        on_other = bits(other, other_optimizer) == written
        back = read.write(f"{folder}/b")
        tf.train.Checkpoint(model=alone, optimizer=optimizer).read(back).assert_consumed()
        returned = bits(alone, optimizer) == written
    stock = tf.function(alone_step)
    wanted = float(stock(tf.constant(x), tf.constant(labels))["loss"])
    losses = [float(one(x, labels)["loss"]) - wanted for one in (run, run_other)]
    run_other.release()
    free = float(tf.function(other_step)(tf.constant(x), tf.constant(labels))["loss"])
    return {
        "one device": on_one,
        "another mesh": on_other,
        "and back": returned,
        "layouts": [str(run.plan.variables[first.layers[0].kernel.path]),
                    str(run_other.plan.variables[kernel])],
        "losses": max(map(abs, losses)),
        "released": bool(np.isfinite(free)),
    }  # fmt: skip


def fused_updates() -> dict[str, Any]:
    """Trained with the option off and on, on two devices."""
    mesh = layout.Mesh({"x": 2})
    found, losses = [], []
    for on in (False, True):
        tf.config.optimizer.set_experimental_options({"fuse_weight_update": on})
        model, optimizer, step = keras_model()
        names = {model.layers[0].kernel.path: [None, "hidden"]}
        run = layout.execute(planned(step, "hidden:x", names, mesh))
        losses.append([float(run(*batch())["loss"]) for _ in range(STEPS)])
        run.release()
        found.append(bits(model, optimizer))
    counts = tf_fuse.metrics()["weight_updates"]
    return {
        "losses": losses[0] == losses[1],
        "bits": found[0] == found[1],
        "fused": counts["updates_fused"],
        "left": counts["assignments_left"],
    }


def bits(model: Any, optimizer: Any) -> list[tuple[str, bytes]]:
    return [
        (str(one.dtype), one.numpy().tobytes()) for one in (*model.variables, *optimizer.variables)
    ]


def main() -> None:
    devices = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    cases = {
        "checkpoints": checkpoints, "fused updates": fused_updates, "keras": keras_training,
        "transformer": transformer,
    }  # fmt: skip
    scripted.give(cases[sys.argv[1]]())


if __name__ == "__main__":
    main()
