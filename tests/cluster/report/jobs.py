# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a small job, and write its report: `python jobs.py JOB FOLDER`.

The jobs: `features` and `wide_deep` on parameter servers, `mlp` on two replicas with sharded
updates, and `transformer`, whose layouts are planned.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

import tf_fuse
import tf_fuse.report
from tests.fault import coordinator

JOBS = ("features", "wide_deep", "mlp", "transformer")
#: A value of a variable, and of an environment variable: in no report.
SECRET_NUMBER, SECRET_WORD = 123.456789, "correct-horse-battery"


class _Features:
    """A table of embeddings for each of some features, and a layer; updated in place."""

    def __init__(self) -> None:
        self._tables = [
            tf.Variable(tf.random.stateless_normal([50, 4], [i, 0]), name=f"table_{i:04d}")
            for i in range(24)
        ]
        self._weights = tf.Variable(tf.ones([24 * 4, 1]), name="weights")

    def dataset(self, worker: Any, workers: int) -> Any:
        return tf.data.Dataset.from_tensors(tf.constant([1, 2], tf.int64)).repeat()

    def step(self, seed: Any) -> Any:
        ids = tf.unstack(tf.random.stateless_uniform([24, 8], seed, maxval=50, dtype=tf.int32))
        rows = [tf.gather(table, one) for table, one in zip(self._tables, ids, strict=True)]
        loss = tf.reduce_mean((tf.concat(rows, 1) @ self._weights) ** 2)
        gradients = tf.gradients(loss, [*rows, self._weights])
        for table, one, row in zip(self._tables, ids, gradients, strict=False):
            table.scatter_sub(tf.IndexedSlices(0.01 * row, one))
        self._weights.assign_sub(0.01 * gradients[-1])
        return loss


def _on_servers(name: str, page: Path) -> dict[str, Any]:
    from examples.keras_models.model import KerasModel
    from tf_fuse.cluster import LocalCluster

    tf.config.optimizer.set_experimental_options({"tf_fuse": True, "shard_weight_update": True})
    cluster = LocalCluster(workers=1, ps=2)
    strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
    run = tf.distribute.coordinator.ClusterCoordinator(strategy)
    wide_deep = KerasModel("wide_deep", batch=8, tables=6, rows=50, dim=4)
    with strategy.scope():
        program = _Features() if name == "features" else wide_deep.build()
        hidden = tf.Variable([SECRET_NUMBER], name="hidden")
    batches = iter(run.create_per_worker_dataset(lambda: program.dataset(0, 1)))

    def train(iterator: Any) -> Any:
        return program.step(next(iterator)) + 0.0 * tf.reduce_sum(hidden)

    step = tf.function(train)
    run.schedule(step, args=(batches,))
    run.join()
    recorded = _recorded(run, step, batches)
    counted = tf_fuse.cluster_metrics()["/job:worker/replica:0/task:0"]
    report = tf_fuse.report.write(page, benchmarks=[page.with_name("bench.txt")])
    return {
        "recorded": recorded,
        "steps": len(report.timeline.steps) if report.timeline else 0,
        "fused_rpcs": counted["fused_rpcs"],
        "notes": [[one.part, one.text] for one in report.notes],
    }


def _recorded(run: Any, step: Any, batches: Any) -> bool:
    """Record while steps run; again, if a busy machine ran none of them meanwhile."""
    for seconds in (1.0, 4.0, 16.0):
        ended = time.monotonic() + seconds + 1.0

        def steps(ended: float = ended) -> None:
            while time.monotonic() < ended:
                for _ in range(5):
                    run.schedule(step, args=(batches,))
                run.join()

        thread = threading.Thread(target=steps)
        thread.start()
        timeline = tf_fuse.report.record(seconds)
        thread.join()
        if timeline is not None and timeline.steps:
            return True
    return False


def _mlp(page: Path) -> dict[str, Any]:
    import keras

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    tf.config.optimizer.set_experimental_options(
        {"shard_weight_update": True, "shard_weight_update_always": True}
    )
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layers = [keras.layers.Dense(32, activation="relu", name=f"layer_{i}") for i in range(3)]
        model = keras.Sequential([keras.Input([16]), *layers, keras.layers.Dense(1, name="last")])
        model.compile("adam", "mse")
    model.fit(tf.ones([16, 16]), tf.ones([16, 1]), batch_size=8, verbose=0)
    report = tf_fuse.report.write(page)
    (functions,) = (one["functions"] for one in report.weight_updates.values())
    return {"sharded": [one["sharded"] for one in functions]}


def _transformer(page: Path) -> dict[str, Any]:
    from benchmarks.layout import step_models
    from tf_fuse import layout

    model = step_models.transformer(16, 32, 128)
    plan = layout.plan(model.step, layout.Mesh({"x": 2}), model.specs)
    report = tf_fuse.report.write(page, plans=[plan])
    return {"seconds": plan.seconds, "operations": len(report.layouts[0].operations)}


def main() -> None:
    """Run the job that the command line names."""
    name, folder = sys.argv[1:]
    os.environ["TF_FUSE_TEST_SECRET"] = SECRET_WORD
    page = Path(folder) / f"{name}.html"
    bench = {
        "workload": "features",
        "modes": {
            "fused": {"steps_per_s": {"median": 82.5}, "recv_rpcs_per_step": 7},
            "stock": {"steps_per_s": {"median": 18.25}, "recv_rpcs_per_step": 903},
        },
    }
    page.with_name("bench.txt").write_text(json.dumps(bench))
    jobs = {"mlp": _mlp, "transformer": _transformer}
    run = jobs.get(name, lambda page: _on_servers(name, page))
    coordinator.finish({name: lambda: run(page)})


if __name__ == "__main__":
    main()
