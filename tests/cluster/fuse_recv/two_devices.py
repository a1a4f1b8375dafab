# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The script of test_two_devices.py: tasks with two logical CPUs each.

{"mode": "stock" or "plugin"}.
"""

from __future__ import annotations

from typing import Any

from tests import scripted
from tests.scripted import emit


def run(spec: dict[str, Any]) -> None:
    """Runs a function on both devices of a worker and of two servers."""
    with scripted.cluster(spec["mode"], 1, 2, cpus=2):
        import tensorflow as tf

        plugin = spec["mode"] != "stock"
        if plugin:
            scripted.set_fuse_recv(True)
        servers = [f"/job:ps/replica:0/task:{i}" for i in range(2)]
        workers = [f"/job:worker/replica:0/task:0/device:CPU:{i}" for i in range(2)]
        variables = []
        for server in servers:
            with tf.device(f"{server}/device:CPU:0"):
                variables.append([tf.Variable(tf.range(3.0) + i) for i in range(3)])

        @tf.function
        def step(x):
            shares = []
            for server, of_server in zip(servers, variables, strict=True):
                with tf.device(f"{server}/device:CPU:1"):
                    # From CPU:0 of the same task: no RPC.
                    shares.append([tf.sqrt(v * 4.0) for v in of_server])
            sums = []
            for i, worker in enumerate(workers):
                with tf.device(worker):
                    mine = [v * x for vs in variables for v in vs]
                    mine += [s + x for share in shares for s in share]
                    sums.append(tf.add_n([tf.round(m) for m in mine]) * float(i + 1))
            with tf.device(workers[0]):
                return sums[0] - sums[1], shares

        def call():
            with tf.device(workers[0]):
                return [t.numpy() for t in tf.nest.flatten(step(tf.constant(2.0)))]

        values = call()
        before = scripted.metrics() if plugin else {}
        values += call()
        counted = scripted.difference(before, scripted.metrics()) if plugin else {}
        emit("step", values=[scripted.exact(v) for v in values], counted=counted)


scripted.main(run)
