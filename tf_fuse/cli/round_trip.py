# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Measure fused receives between a worker and a server on this machine, for `doctor`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

# Runs in a process of its own: a coordinator cannot leave a cluster.
#
# The worker reads its clock, sends four tensors to the server, which adds its four variables and
# sends the sums back, and reads its clock again: one fused receive there and one back. The server
# is heard first, so that starting its part of the function is not measured.
_PROGRAM = """
import time
started = time.monotonic()
import os
import statistics
import sys
import tensorflow as tf
import tf_fuse
from tf_fuse.cluster import LocalCluster

CALLS = 20
tf.config.optimizer.set_experimental_options({"do_fuse_recv": True})
with LocalCluster(workers=1, ps=1) as cluster:
    strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variables = [tf.Variable(float(i)) for i in range(4)]
    server = variables[0].device

    @tf.function
    def there_and_back():
        with tf.device(server):
            heard = variables[0] + 1.0
        with tf.control_dependencies([tf.identity(heard)]):
            start = tf.timestamp()
        one = tf.cast(start > 0.0, tf.float32)
        sent = [one * (i + 2.0) for i in range(4)]
        with tf.device(server):
            sums = [value + variable for value, variable in zip(sent, variables)]
        total = tf.add_n(sums)
        with tf.control_dependencies([total]):
            return total, tf.timestamp() - start

    coordinator.schedule(there_and_back).fetch()
    start_s = time.monotonic() - started
    values, seconds = zip(*(coordinator.schedule(there_and_back).fetch() for _ in range(CALLS)))
    counters = tf_fuse.cluster_metrics()
    fused = [counters[f"/job:{job}/replica:0/task:0"]["fused_rpcs"] for job in ("worker", "ps")]
    wrong = [float(value) for value in values if value != 20.0]
    if wrong:
        text = f"value {wrong[0]} (expected 20.0)"
    elif min(fused) <= CALLS:
        text = f"{fused} fused receives of worker and server (expected {CALLS + 1} each)"
    else:
        text = (
            f"{statistics.median(map(float, seconds)) * 1e3:.2f} ms from a worker to a server and "
            f"back, one fused receive each way (median of {CALLS} calls); starting both took "
            f"{start_s:.1f} s"
        )
    with open(sys.argv[1], "w") as file:
        file.write(text)
    code = 1 if wrong or min(fused) <= CALLS else 0
    cluster.close()
os._exit(code)
"""


def measure() -> str:
    """Exchange fused tensors between a worker and a server, and measure the time.

    Raises:
      RuntimeError: it failed, or took longer than two minutes.
    """
    with tempfile.TemporaryDirectory() as folder:
        # A file, since libraries log to stdout and stderr.
        path = Path(folder) / "found"
        path.touch()
        try:
            done = subprocess.run(
                [sys.executable, "-c", _PROGRAM, str(path)],
                capture_output=True,
                text=True,
                timeout=120,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError("no answer within 120 s") from error
        found = path.read_text()
        if done.returncode != 0:
            raise RuntimeError(
                f"exit status {done.returncode}: {found} {done.stderr.strip()[-1500:]}"
            )
        return found
