# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One of two processes that train by a plan; the first one alone saves, as a callback does.

    lone_reader.py NUMBER JOBS

JOBS are the addresses of both processes, separated by commas. Each process gives one result.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from tests.cluster.layout import processes as layout_processes
from tf_fuse import layout
from tf_fuse.layout.execution.communication import barriers

NUMBER, JOBS = int(sys.argv[1]), sys.argv[2]
LIMIT_S = 3


def main() -> None:
    mesh = layout.Mesh({"x": 2})
    devices = layout_processes.begin(mesh, NUMBER, JOBS)
    weight = tf.Variable(tf.ones([8, 2]), name="weight")

    def step(x: Any) -> Any:
        weight.assign_add(tf.ones([8, 2]))
        return tf.reduce_sum(x @ weight)

    names = {"weight": ["rows", None]}
    args = [tf.TensorSpec([4, 8])]
    plan = layout.plan(step, mesh, args, mode="propagate", rules="rows:x", dimensions=names)
    reached: list[str] = []
    ours = context.context()
    wait = ours.wait_at_barrier
    ours.wait_at_barrier = lambda name, limit: (reached.append(name), wait(name, limit))
    run = layout.execute(plan, devices)
    model = keras.Model(inputs=(given := keras.Input((8,))), outputs=keras.layers.Dense(2)(given))
    model.layers[1].kernel._value = weight
    found: dict[str, Any] = {"first": float(run(tf.ones([4, 8])))}
    said = "nothing"
    if NUMBER == 0:
        before, barriers.BARRIER_LIMIT_S = barriers.BARRIER_LIMIT_S, LIMIT_S
        with tempfile.TemporaryDirectory() as folder:
            callback = keras.callbacks.ModelCheckpoint(
                f"{folder}/best.weights.h5", save_weights_only=True
            )
            callback.set_model(model)
            try:
                callback.on_epoch_end(0, {})
            except layout.LayoutError as error:
                said = str(error)
        barriers.BARRIER_LIMIT_S = before
    # What another one reads before would be what the first one waits for.
    wait("after the first one", 200_000)
    # Nothing was begun that the others are waited for in, so reading and training go on, also where
    # the name of the barrier that failed is used again.
    found["after"] = [float(np.sum(weight.numpy())) for _ in range(2)]
    found["second"] = float(run(tf.ones([4, 8])))
    found["read"] = float(np.sum(weight.numpy()))
    reached.clear()
    for _ in range(20):
        run(tf.ones([4, 8]))
        weight.numpy()
    found["barriers"] = [len(reached), len(set(reached))]
    layout_processes.end(NUMBER, {**found, "said": said})


if __name__ == "__main__":
    main()
