# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train embedding tables on a local cluster, and write as JSON how long the steps took.

    python tf_fuse/cli/bench_job.py '{"mode": "stock", "tables": 100, ...}' RESULT

`tf_fuse.cli.bench` runs this file by path, so that the mode "stock" does not import tf_fuse.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

_PACKAGE = Path(__file__).resolve().parent.parent
_ROWS, _COLUMNS, _BATCH, _WARM_UP_STEPS = 1000, 16, 64, 10


def _cluster_package(mode: str) -> ModuleType:
    """Import `tf_fuse.cluster`; in the mode "stock" as "cluster", without `tf_fuse`."""
    fused = mode == "fused"
    sys.path[0] = str(_PACKAGE.parent if fused else _PACKAGE)
    package = importlib.import_module("tf_fuse.cluster" if fused else "cluster")
    del sys.path[0]
    return package


def run(mode: str, tables: int, workers: int, ps: int, steps: int) -> dict[str, Any]:
    """Train in one mode.

    Args:
      mode: "stock" or "fused".
      tables: embedding tables, and so the least number of tensors that a step receives.
      workers: tasks that run steps.
      ps: parameter servers.
      steps: of all workers together.

    Returns:
      steps_per_s, cpu_ms_per_step of all workers and servers, and losses, one per step.
    """
    package = _cluster_package(mode)
    import tensorflow as tf

    if mode == "fused":
        tf.config.optimizer.set_experimental_options({"tf_fuse": True})
    protocol = "grpc+fuse" if mode == "fused" else "grpc"
    with package.LocalCluster(workers=workers, ps=ps, protocol=protocol) as cluster:
        strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            variables = [
                tf.Variable(tf.random.stateless_normal([_ROWS, _COLUMNS], [i, 0]))
                for i in range(tables)
            ]

        @tf.function
        def step(number: Any) -> Any:
            ids = tf.random.stateless_uniform([_BATCH], [number, 1], 0, _ROWS, tf.int32)
            rows = [tf.gather(variable, ids) for variable in variables]
            loss = tf.reduce_mean(tf.add_n(rows) ** 2)
            for variable, gradient in zip(variables, tf.gradients(loss, rows), strict=True):
                variable.scatter_sub(tf.IndexedSlices(0.01 * gradient, ids))
            return loss

        def train(first: int, count: int) -> list[Any]:
            numbers = range(first, first + count)
            losses = [coordinator.schedule(step, args=(tf.constant(i),)) for i in numbers]
            coordinator.join()
            return losses

        train(0, _WARM_UP_STEPS)
        cpu_before, began = sum(cluster.cpu_seconds().values()), time.perf_counter()
        losses = train(_WARM_UP_STEPS, steps)
        seconds = time.perf_counter() - began
        cpu_s = sum(cluster.cpu_seconds().values()) - cpu_before
        return {
            "steps_per_s": steps / seconds,
            "cpu_ms_per_step": cpu_s * 1e3 / steps,
            "losses": [float(loss.fetch()) for loss in losses],
        }


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(run(**json.loads(sys.argv[1]))))
    os._exit(0)  # a coordinator cannot leave a cluster
