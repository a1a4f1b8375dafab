# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The script of test_gpu.py: tasks that share one GPU.

{"mode": "stock" or "plugin", "tables": of the trained model, "steps": that are counted}, or
{"mode": "probe"}: only tells how many GPUs TensorFlow sees.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests import scripted
from tests.scripted import emit


def run(spec: dict[str, Any]) -> None:
    """Runs a function that sends from CPU and GPU of a server to CPU and GPU of a worker."""
    import tensorflow as tf

    if spec["mode"] == "probe":
        emit("gpus", count=len(tf.config.list_physical_devices("GPU")))
        return
    plugin = spec["mode"] != "stock"
    with scripted.cluster(spec["mode"], 1, 1) as cluster:
        if plugin:
            scripted.set_fuse_recv(True, do_fuse_gpu=True)
        devices = [f"device:{kind}:0" for kind in ("CPU", "GPU")]
        variables = []
        for place in devices:
            with tf.device(f"/job:ps/replica:0/task:0/{place}"):
                # Small, empty, large enough to travel beside the frame, and of odd lengths.
                variables += [
                    tf.Variable(tf.range(3.0)),
                    tf.Variable(tf.zeros([0, 4])),
                    tf.Variable(tf.range(300_001.0)),
                    tf.Variable(tf.cast(tf.range(7), tf.int64)),
                    tf.Variable(tf.cast(tf.range(5), tf.float16)),
                ]

        @tf.function
        def step(x):
            results = []
            for place in devices:
                with tf.device(f"/job:worker/replica:0/task:0/{place}"):
                    results += [v * tf.cast(x, v.dtype) for v in variables]
                    # Shapes are host memory on a GPU.
                    results.append(tf.fill(tf.shape(variables[0]) + 1, 2.0))
            return results

        def call(x):
            with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
                return [t.numpy() for t in step(tf.constant(x))]

        values = call(2.0)
        before = scripted.metrics() if plugin else {}
        values += call(3.0)
        counted = scripted.difference(before, scripted.metrics()) if plugin else {}
        emit("step", values=[scripted.exact(v) for v in values], counted=counted)
        _train(cluster.strategy, plugin, spec["tables"], spec["steps"])


def _train(strategy: Any, plugin: bool, count: int, steps: int) -> None:
    """Train lookups and two layers by `strategy.run`, which computes on the worker's GPU."""
    import tensorflow as tf

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        tables = [tf.Variable(_numbers([100, 4], seed)) for seed in range(count)]
        weights = [tf.Variable(_numbers(shape, 9)) for shape in ([4 * count, 16], [16, 1])]
    places = []

    def on_worker(number):
        ids = tf.random.stateless_uniform([count, 32], [7, number], 0, 100, tf.int32)
        with tf.GradientTape() as tape:
            rows = tf.concat([tf.gather(t, ids[k]) for k, t in enumerate(tables)], 1)
            out = tf.nn.relu(rows @ weights[0]) @ weights[1]
            loss = tf.reduce_mean(tf.square(out - 1.0))
        places.append(out.device)
        of_tables, of_weights = tape.gradient(loss, [tables, weights])
        for table, gradient in zip(tables, of_tables, strict=True):
            table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
        for weight, gradient in zip(weights, of_weights, strict=True):
            weight.assign_sub(0.1 * gradient)
        return loss

    @tf.function
    def step(number):
        return strategy.run(on_worker, args=(number,))

    def call(number):
        return coordinator.schedule(step, args=(tf.constant(number),)).fetch()

    losses = [call(0)]  # traces
    before = scripted.metrics() if plugin else {}
    losses += [call(number) for number in range(1, 1 + steps)]
    counted = scripted.difference(before, scripted.metrics()) if plugin else {}
    values = [scripted.exact(v) for v in (*losses, *(w.numpy() for w in (*tables, *weights)))]
    emit("training", place=places[-1], values=values, counted=counted)


def _numbers(shape: list[int], seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


scripted.main(run)
