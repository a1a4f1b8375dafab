# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The script of test_gpu.py: tasks that share one GPU.

{"mode": "stock" or "plugin"}, or "probe": only tells how many GPUs TensorFlow sees.
"""

from __future__ import annotations

from typing import Any

from tests import scripted
from tests.scripted import emit


def run(spec: dict[str, Any]) -> None:
    """Runs a function that sends from CPU and GPU of a server to CPU and GPU of a worker."""
    import tensorflow as tf

    if spec["mode"] == "probe":
        emit("gpus", count=len(tf.config.list_physical_devices("GPU")))
        return
    plugin = spec["mode"] != "stock"
    with scripted.cluster(spec["mode"], 1, 1):
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


scripted.main(run)
