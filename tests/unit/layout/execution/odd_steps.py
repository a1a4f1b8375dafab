# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs steps with rare operations by plans, beside the same on one device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import tensorflow as tf

from tests import scripted
from tf_fuse import layout

MESH: Final = layout.Mesh({"x": 2})
STEPS: Final = 3
X: Final = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)


def slice_assignment() -> tuple[Any, list[Any]]:
    """TensorFlow names its operation "_assign", which begins no name outside of a scope."""
    w = tf.Variable(X, name="w")

    def step(x: Any) -> Any:
        w[2:5].assign(x[:3] + w[1:4])
        w.scatter_nd_add([[0], [3]], x[:2])
        return tf.reduce_sum(w)

    return step, [w]


def rows() -> tuple[Any, list[Any]]:
    """Shapes of its gradients follow from numbers that TensorFlow reads when a graph runs."""
    w = tf.Variable(X, name="w")

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            found = tf.gather_nd(w, [[3], [3], [0], [1], [2], [7], [6], [1]]) * x
            loss = tf.reduce_mean(tf.boolean_mask(found, np.arange(8) % 3 > 0) ** 2)
        w.assign_sub(tf.convert_to_tensor(tape.gradient(loss, w)))
        return loss

    return step, [w]


def ctc() -> tuple[Any, list[Any]]:
    """A loss whose loop is of functions of `tf.compat.v1`."""
    w = tf.Variable(X[:4], name="w")

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.nn.ctc_loss(
                tf.constant([[1, 2], [3, 1]]), tf.reshape(x @ w, [4, 2, 4]), tf.fill([2], 2),
                tf.fill([2], 4), blank_index=0,
            )  # fmt: skip
            loss = tf.reduce_mean(losses)
        w.assign_sub(tape.gradient(loss, w))
        return loss

    return step, [w]


def captured() -> tuple[Any, list[Any]]:
    """A tensor that was made outside is brought to the devices as what is fed."""
    w, mask = tf.Variable(X, name="w"), tf.constant(X > 0)

    def step(x: Any) -> Any:
        loss = tf.reduce_mean(tf.where(mask, w * x, 0.0))
        w.assign_add(x)
        return loss

    return step, [w]


CASES: Final[dict[str, Callable[[], tuple[Any, list[Any]]]]] = {
    one.__name__: one for one in (captured, ctc, rows, slice_assignment)
}


def worst(got: Any, wanted: Any) -> float:
    both = zip(tf.nest.flatten(got), tf.nest.flatten(wanted), strict=True)
    return max(float(np.abs(np.asarray(a, "f8") - np.asarray(b, "f8")).max()) for a, b in both)


def compared(case: Callable[[], tuple[Any, list[Any]]]) -> dict[str, float]:
    """By mode, the distance of all results and variables from those of one device."""
    step, variables = case()
    stock = tf.function(step)
    wanted = [stock(tf.constant(X)) for _ in range(STEPS)]
    found = {}
    for mode in ("data", "auto"):
        step, mine = case()
        links = {"x": layout.Link(1e-9, 1e-12)}
        plan = layout.plan(step, MESH, [tf.TensorSpec(X.shape)], mode=mode, links=links)
        run = layout.execute(plan)
        assert run.traffic.received_bytes == run.program.received_bytes
        got = [run(X) for _ in range(STEPS)]
        found[mode] = worst([got, mine], [wanted, variables])
        run.release()
    return found


def main() -> None:
    cpus = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    scripted.give({name: compared(CASES[name]) for name in sys.argv[1].split()})


if __name__ == "__main__":
    main()
