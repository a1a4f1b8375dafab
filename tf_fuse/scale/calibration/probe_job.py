# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run the probes of one kind of job on a local cluster, and write what they take as JSON.

    python tf_fuse/scale/calibration/probe_job.py '{"mode": "stock", "workers": 1, "ps": 2}' RESULT

`measure` runs this file by its path, so that the mode "stock" does not import tf_fuse.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import statistics
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

_FOLDER = Path(__file__).resolve().parent
_PACKAGE = _FOLDER.parents[1]
_WARM_UP_STEPS = 12
#: Of each probe.
ROUNDS = 3
_ROUND_S = 0.7


def _modules(mode: str) -> tuple[ModuleType, ModuleType]:
    """Import `tf_fuse.cluster` and the probes; in the mode "stock" without `tf_fuse`."""
    sys.path[0] = str(_PACKAGE.parent if mode == "fused" else _PACKAGE)
    cluster = importlib.import_module("tf_fuse.cluster" if mode == "fused" else "cluster")
    sys.path[0] = str(_FOLDER)
    probes = importlib.import_module("probe_programs")
    del sys.path[0]
    return cluster, probes


def _cpu(cluster: Any) -> dict[str, float]:
    """Return CPU seconds so far, by "coordinator", "worker" and "ps"."""
    found = {"coordinator": time.process_time(), "worker": 0.0, "ps": 0.0}
    for task, seconds in cluster.cpu_seconds().items():
        found[task.partition(":")[0]] += seconds
    return found


def _measure(train: Any, cluster: Any, workers: int) -> dict[str, Any]:
    """Return the median seconds per step of rounds, and the CPU seconds per step of each role."""
    train(_WARM_UP_STEPS * workers)
    began = time.perf_counter()
    train(_WARM_UP_STEPS)
    per_step = (time.perf_counter() - began) / _WARM_UP_STEPS
    steps = max(_WARM_UP_STEPS, round(_ROUND_S / per_step))
    seconds, before = [], _cpu(cluster)
    for _ in range(ROUNDS):
        began = time.perf_counter()
        train(steps)
        seconds.append((time.perf_counter() - began) / steps)
    after = _cpu(cluster)
    return {
        "seconds": statistics.median(seconds),
        "cpu_s": {role: (after[role] - before[role]) / (steps * ROUNDS) for role in after},
        "steps": steps * ROUNDS,
    }


def run(mode: str, workers: int, ps: int, probes: list[str]) -> dict[str, Any]:
    """Run probes, one after the other.

    Args:
      mode: "stock" or "fused".
      workers: tasks that run steps.
      ps: parameter servers.
      probes: keys of `probe_programs.PROBES`.

    Returns:
      By probe: "seconds" per step of all workers together, "cpu_s" of each role per step.
    """
    package, programs = _modules(mode)
    import tensorflow as tf

    if mode == "fused":
        tf.config.optimizer.set_experimental_options({"do_fuse_recv": True})
    protocol = "grpc+fuse" if mode == "fused" else "grpc"
    with package.LocalCluster(workers=workers, ps=ps, protocol=protocol) as cluster:
        strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        iterator = iter(coordinator.create_per_worker_dataset(programs.numbers))
        results = {}
        for name in probes:
            with strategy.scope():
                step = tf.function(programs.build(name))

            def train(count: int, step: Any = step) -> None:
                # A program that reads its losses keeps them, which costs the coordinator CPU.
                kept = []
                for _ in range(count):
                    kept.append(coordinator.schedule(step, args=(iterator,)))
                coordinator.join()

            results[name] = _measure(train, cluster, workers)
            print(name, flush=True)
        return results


def run_local(probes: list[str]) -> dict[str, Any]:
    """Run probes in this process, without a cluster; see `run`."""
    sys.path[0] = str(_FOLDER)
    programs = importlib.import_module("probe_programs")
    import tensorflow as tf

    class Alone:
        @staticmethod
        def cpu_seconds() -> dict[str, float]:
            return {}

    iterator = iter(programs.numbers())
    results = {}
    for name in probes:
        step = tf.function(programs.build(name))

        def train(count: int, step: Any = step) -> None:
            for _ in range(count):
                step(iterator)

        results[name] = _measure(train, Alone, 1)
        print(name, flush=True)
    return results


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    found = run_local(settings["probes"]) if settings["mode"] == "local" else run(**settings)
    Path(sys.argv[2]).write_text(json.dumps(found))
    os._exit(0)  # a coordinator cannot leave a cluster
