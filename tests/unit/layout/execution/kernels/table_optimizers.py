# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train tables by optimizers that compute the distinct rows of a gradient, by plans and alone.

Two tables have the same gradient: one by Keras's layer, the other by rows that repeat and miss.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

import keras
import numpy as np
import tensorflow as tf

from tests import scripted
from tf_fuse import layout

MESHES: Final = {"2": layout.Mesh({"x": 2}), "2x2": layout.Mesh({"x": 2, "y": 2})}
STEPS: Final = 3
ROWS, WIDTH = 8, 4
# Some rows several times, and some not at all.
IDS: Final = np.array([[5, 0, 5, 3], [0, 0, 6, 5], [3, 5, 5, 5], [1, 6, 6, 6]], np.int32)
LABELS: Final = np.array([0, 2, 1, 3], np.int32)


def optimizer(library: Any, name: str) -> Any:
    given = {
        "SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.5, "centered": True},
    }.get(name, {})  # fmt: skip
    return getattr(library.optimizers, name)(0.1, **given)


def trained(library: Any, name: str) -> tuple[Any, list[Any]]:
    library.utils.set_random_seed(5)
    model = library.Sequential([
        library.layers.Input((4,), batch_size=4, dtype="int32"),
        library.layers.Embedding(ROWS, WIDTH),
        library.layers.Flatten(),
        library.layers.Dense(4),
    ])  # fmt: skip
    rule = optimizer(library, name)
    rule.build(model.trainable_variables)

    def step(ids: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(ids))
            loss = tf.reduce_mean(losses)
        weights = model.trainable_variables
        rule.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    slots = rule.variables if library is keras else rule.variables()
    return step, [*model.variables, *slots]


def values(some: list[Any]) -> list[np.ndarray]:
    return [np.asarray(one) for one in some]


def worst(first: Any, second: Any) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True))


def compared(library: Any, on: str, name: str) -> dict[str, float]:
    """By mesh and layout of the table, the distance of losses, weights and slots."""
    step, variables = trained(library, name)
    stock = tf.function(step)
    wanted = values([stock(tf.constant(IDS), tf.constant(LABELS)) for _ in range(STEPS)])
    wanted += values(variables)
    found = {}
    for rows in ("", "rows:x"):
        step, variables = trained(library, name)
        args = [tf.TensorSpec(IDS.shape, tf.int32), tf.TensorSpec([4], tf.int32)]
        table = str(getattr(variables[0], "path", variables[0].name)).removesuffix(":0")
        given: dict[str, Any] = {"mode": "data"}
        if rows:
            given = {"mode": "propagate", "rules": rows, "dimensions": {table: ["rows", None]}}
        run = layout.execute(layout.plan(step, MESHES[on], args, **given))
        got = values([run(IDS, LABELS) for _ in range(STEPS)]) + values(variables)
        split = str(run.plan.variables[table])
        found[f"{on} {split.partition(' on ')[0]}"] = worst(got, wanted)
        run.release()
    return found


def used_by_hand(mode: str) -> dict[str, Any]:
    """A table whose distinct rows are looked up once, and updated by an operation of TensorFlow."""
    mesh = MESHES["2"]
    begin = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)

    def made() -> tuple[Any, list[Any]]:
        table, slot = tf.Variable(begin, name="table"), tf.Variable(begin * 0 + 1, name="slot")

        def step(ids: Any) -> Any:
            distinct, numbers = tf.unique(ids)
            with tf.GradientTape() as tape:
                rows = tf.gather(table, distinct)
                loss = tf.reduce_sum(tf.gather(rows, numbers) ** 2)
            gradient = tape.gradient(loss, rows)
            slot.value()
            tf.raw_ops.ResourceSparseApplyMomentum(
                var=table.handle, accum=slot.handle, lr=0.01, grad=gradient, indices=distinct,
                momentum=0.5,
            )  # fmt: skip
            return loss

        return step, [table, slot]

    ids = np.array([5, 0, 5, 3, 0, 0, 6, 5], np.int64)
    step, variables = made()
    stock = tf.function(step)
    wanted = values([stock(tf.constant(ids)) for _ in range(STEPS)]) + values(variables)
    step, mine = made()
    names = {"table": ["rows", None], "slot": ["rows", None]}
    given = {"rules": "rows:x", "dimensions": names} if mode == "propagate" else {}
    plan = layout.plan(step, mesh, [tf.TensorSpec(ids.shape, tf.int64)], mode=mode, **given)
    run = layout.execute(plan)
    got = values([run(ids) for _ in range(STEPS)]) + values(mine)
    wrong = "nothing"
    try:
        run(np.array([5, 0, 5, 8, 0, 0, 6, 5], np.int64))
    except tf.errors.InvalidArgumentError as error:
        wrong = error.message
    return {"worst": worst(got, wanted), "wrong": "is not in [0," in wrong}


def not_finite() -> dict[str, Any]:
    """Keras 3 divides by a sum of squares, another way where that has zeros or NaNs."""
    step, variables = trained(keras, "Adagrad")
    args = [tf.TensorSpec(IDS.shape, tf.int32), tf.TensorSpec([4], tf.int32)]
    run = layout.execute(layout.plan(step, MESHES["2"], args, mode="data"))
    run(IDS, LABELS)
    slot = next(one for one in variables if "accumulator" in one.path and one.shape[0] == ROWS)
    kept = slot.numpy()
    slot.assign(np.where(np.arange(ROWS)[:, None] == 2, np.nan, kept))
    before = values(variables)
    text = "nothing"
    try:
        run(IDS, LABELS)
    except tf.errors.InvalidArgumentError as error:
        text = error.message
    same = all(np.array_equal(a, b, True) for a, b in zip(before, values(variables), strict=True))
    slot.assign(kept)
    return {"text": text, "same": same, "again": bool(np.isfinite(run(IDS, LABELS)))}


def main() -> None:
    cpus = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    kind, *names = sys.argv[1].split()
    if kind == "by_hand":
        scripted.give({mode: used_by_hand(mode) for mode in ("data", "auto", "propagate")})
    elif kind == "not_finite":
        scripted.give(not_finite())
    else:
        scripted.give(compared(importlib.import_module(kind), *names))


if __name__ == "__main__":
    main()
