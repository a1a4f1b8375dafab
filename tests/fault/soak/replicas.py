# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Soak test of collectives: two replicas train long with sharded updates, and nothing grows.

    python tests/fault/soak/replicas.py --steps 100000 --json replicas.jsonl

`tf-fuse launch` starts the two replicas, which run this file again. Now and then each notes its
memory, threads, descriptors and gauges, and a sum over its weights: both must have the same bits.
Growth is judged from 20,000 steps on, by the rule of `report.py`. (TensorFlow alone keeps 1.1 KB of
each step: a record of each collective, and a tensor of each Python number.)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[3]))

from tests.fault.soak import report as soak_report
from tests.fault.soak.coordinator import environment
from tests.fault.soak.run_with_faults import resources

_TASKS = ("worker:0", "worker:1")
_SAMPLES = 200
_WIDTH, _LAYERS, _BATCH = 32, 4, 16
_GAUGES = ("lent_chunks", "pending_requests")


def train(folder: Path, steps: int) -> None:
    """Train one replica; writes its samples into a file of the folder."""
    import numpy as np
    import tensorflow as tf

    import tf_fuse

    options = {"tf_fuse": True, "shard_weight_update": True}
    tf.config.optimizer.set_experimental_options(options)
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layers = [tf.keras.layers.Dense(_WIDTH, "tanh") for _ in range(_LAYERS)]
        model = tf.keras.Sequential([tf.keras.Input([_WIDTH]), *layers])
        optimizer = tf.keras.optimizers.Adam(0.001)
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any) -> None:
        def replica(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - x) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        strategy.run(replica, args=(x,))

    x = tf.constant(np.random.default_rng(index).normal(size=(_BATCH, _WIDTH)), tf.float32)
    every = max(1, steps // _SAMPLES)
    with (folder / f"worker_{index}").open("w", encoding="utf-8") as file:
        for done in range(every, steps + 1, every):
            for _ in range(every):
                step(x)
            weights = b"".join(one.numpy().tobytes() for one in model.trainable_variables)
            metrics = tf_fuse.metrics()
            sample = {
                "steps": done,
                "weights": hashlib.sha256(weights).hexdigest(),
                "gauges": {name: metrics[name] for name in _GAUGES},
                "bytes": metrics["collective_bytes_shm"],
                "task": resources(os.getpid()),
            }
            file.write(json.dumps(sample) + "\n")
            file.flush()


def joined(of_tasks: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return samples as those of `soak.py`, of the samples of both replicas."""
    return [
        {
            "steps": pair[0]["steps"],
            "faults": {},
            "tasks": {task: one["task"] for task, one in zip(_TASKS, pair, strict=True)},
            "replicas": pair,
        }
        for pair in zip(*of_tasks, strict=True)
    ]


def findings(samples: Sequence[Mapping[str, Any]], judged: bool) -> list[str]:
    """Return what is wrong: weights that differ, chunks that stay, growth."""
    found = []
    for sample in samples:
        first, second = sample["replicas"]
        if first["weights"] != second["weights"]:
            found.append(f"after {sample['steps']} steps the replicas' weights differ")
        for task, one in zip(_TASKS, sample["replicas"], strict=True):
            if one["bytes"] == 0:
                found.append(f"after {sample['steps']} steps {task} had no chunk by shared memory")
    for task, one in zip(_TASKS, samples[-1]["replicas"], strict=True):
        if any(one["gauges"].values()):
            found.append(f"{task} is not at rest at the end: {one['gauges']}")
    return found + (soak_report.grown(samples, _TASKS) if judged else [])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the test, or one of its replicas; returns 0 if nothing is wrong."""
    parser = argparse.ArgumentParser(description="Train two replicas for long.")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--json", type=Path, help="write all samples here, a line each")
    parser.add_argument("--replica", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.replica:
        train(args.replica, args.steps)
        return 0
    with tempfile.TemporaryDirectory(prefix="tf_fuse_soak_") as folder:
        command = [sys.executable, "-m", "tf_fuse", "launch", "--workers", "2", __file__]
        root = str(Path(__file__).resolve().parents[3])
        subprocess.run(
            [*command, "--steps", str(args.steps), "--replica", folder],
            env={**environment(), "PYTHONPATH": root},
            check=True,
        )
        files = [Path(folder) / f"worker_{i}" for i in range(len(_TASKS))]
        samples = joined([[*map(json.loads, one.read_text().splitlines())] for one in files])
    if args.json:
        args.json.write_text("".join(json.dumps(one) + "\n" for one in samples))
    judged = args.steps >= soak_report.LEAST_STEPS
    found = findings(samples, judged)
    print(soak_report.describe(soak_report.growths(samples)))
    for finding in found:
        print(f"FINDING: {finding}")
    print(soak_report.verdict(found, judged, "all weights equal"))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
