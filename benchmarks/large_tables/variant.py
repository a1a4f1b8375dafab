# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One job of one mode: the coordinator and its cluster; `run.py` starts it.

    python variant.py '{"mode": "all", "servers": 4, "workers": 2, ...}'

Each phase gives an event, a line of JSON, when it begins and when it ends.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Last: an installed tf_fuse has a library, while the checkout's need not have one.
sys.path.append(str(Path(__file__).resolve().parents[2]))

from benchmarks.large_tables import memory

# Of all modes but stock: options of TensorFlow.
OPTIONS: dict[str, dict[str, Any]] = {"count": {}, "all": {"tf_fuse": True}}
_WATCH_S = 0.5
_SAMPLES = 64  # rows of each table that are compared
_START_S = 60.0


def emit(event: str, **fields: Any) -> None:
    """Write one event as a line."""
    print(json.dumps({"event": event, **fields}), flush=True)


class Job:
    """A cluster, a model on it, and what was measured of its phases."""

    def __init__(self, settings: dict[str, Any]):
        """Start nothing yet.

        Args:
          settings: of `run.py`, and "mode", "servers", "workers", "columns".
        """
        self.settings = settings
        self._pids = {"coordinator": os.getpid()}

    def phase(self, name: str, function: Callable[[], dict[str, Any] | None]) -> None:
        """Measure a phase: its time, and the peak memory of each task."""
        emit("begin", phase=name)
        memory.begin(self._pids)
        start = time.perf_counter()
        more = function() or {}
        seconds = time.perf_counter() - start
        emit("phase", phase=name, seconds=seconds, peaks=memory.peaks(self._pids), **more)

    def start(self) -> None:
        """Start the tasks; this is not a phase: it takes as long as imports on this machine."""
        import tensorflow as tf

        from examples.standalone import cluster_package

        settings = self.settings
        stock = settings["mode"] not in OPTIONS
        if not stock:
            import tf_fuse  # noqa: F401  (loads the plugin)

            tf.config.optimizer.set_experimental_options(
                {**OPTIONS[settings["mode"]], **settings["options"]}
            )
        os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
        self.cluster = cluster_package().LocalCluster(
            workers=settings["workers"],
            ps=settings["servers"],
            protocol="grpc" if stock else "grpc+fuse",
            start_timeout_s=_START_S * (settings["workers"] + settings["servers"]),
        )
        self._pids |= self.cluster.pids

    def build(self) -> None:
        """Make all variables."""
        import keras
        import tensorflow as tf

        from benchmarks.large_tables import model

        settings = self.settings
        planned = settings["mode"] == "all"
        partitioner = None
        if planned:
            import tf_fuse

            partitioner = tf_fuse.parameter_server.CostPartitioner(settings["servers"])
        self.strategy = tf.distribute.ParameterServerStrategy(self.cluster.resolver(), partitioner)

        def make() -> Any:
            made = model.build(settings)
            optimizer = keras.optimizers.Adam(settings["learning_rate"])
            optimizer.build(made.trainable_variables)
            return made, optimizer

        with self.strategy.scope():
            self.model, self.optimizer = tf_fuse.parameter_server.build(make) if planned else make()
        self.checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)

    def prepare(self) -> None:
        """Trace a step, and run it on each worker."""
        import keras
        import tensorflow as tf

        from benchmarks.large_tables import model

        loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
        weights = self.model.trainable_variables

        def train(inputs: Any, labels: Any) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = loss_of(labels, self.model(list(inputs), training=True))
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return loss

        @tf.function
        def step(iterator: Any) -> tf.Tensor:
            return self.strategy.run(train, args=next(iterator))

        @tf.function
        def evaluate(iterator: Any) -> tf.Tensor:
            inputs, labels = next(iterator)
            return loss_of(labels, self.model(list(inputs), training=False))

        self._step, self._evaluate = step, evaluate
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        index = tf.distribute.coordinator.experimental_get_current_worker_index
        self._iterator = iter(
            self.coordinator.create_per_worker_dataset(
                lambda: model.batches(self.settings, index())
            )
        )
        self._run(step, self.settings["workers"])

    def _run(self, function: Any, steps: int) -> list[float]:
        results = [
            self.coordinator.schedule(function, args=(self._iterator,)) for _ in range(steps)
        ]
        self.coordinator.join()
        return [float(one.fetch()) for one in results]

    def train(self) -> dict[str, Any]:
        """Run the steps that count."""
        steps = self.settings["steps"]
        counted = self.settings["mode"] in OPTIONS
        self._run(self._step, self.settings["warm_up"])
        rpcs = 0
        if counted:
            first, second = self._rpcs(), self._rpcs()
            rpcs = second + (second - first)  # To read counters is a receive itself.
        gc.collect()  # It takes as long as ten steps.
        cpu, start = time.process_time(), time.perf_counter()
        losses = self._run(self._step, steps)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        return {
            "steps_per_s": steps / seconds,
            "coordinator_cpu_ms_per_step": cpu / steps * 1e3,
            "recv_rpcs_per_step": (self._rpcs() - rpcs) / steps if counted else None,
            "losses": losses,
        }

    def _rpcs(self) -> int:
        from examples.job import cluster_recv_rpcs

        return cluster_recv_rpcs()

    def evaluate(self) -> dict[str, Any]:
        """Compute the mean loss of some batches."""
        losses = self._run(self._evaluate, self.settings["evaluation_steps"])
        return {"loss": sum(losses) / len(losses)}

    def save(self) -> dict[str, Any]:
        """Write a checkpoint, as TensorFlow does."""
        prefix = self.checkpoint.write(self.settings["checkpoint"])
        files = Path(prefix).parent.glob(Path(prefix).name + ".*")
        return {"bytes": sum(one.stat().st_size for one in files)}

    def restore(self) -> None:
        """Read the checkpoint into variables that are there."""
        self.checkpoint.read(self.settings["checkpoint"]).assert_consumed()

    def samples(self) -> dict[str, Any]:
        """Return some rows of each table and of its slots, with the digest of their values."""
        from benchmarks.large_tables import samples

        return samples.digests(self.model, self.optimizer, _SAMPLES)


def watch(least: int) -> None:
    """End this process, and with it its tasks, before the machine runs out of memory.

    Args:
      least: bytes that must stay available.
    """

    def look() -> None:
        while True:
            left = memory.available()
            if left < least:
                emit("error", text=f"the machine has only {left >> 20} MiB left; ended the job")
                os._exit(3)
            time.sleep(_WATCH_S)

    threading.Thread(target=look, name="memory", daemon=True).start()


def main() -> None:
    """Run the phases that the settings name."""
    settings = json.loads(sys.argv[1])
    watch(settings["least_free"])
    status = 1
    try:
        job = Job(settings)
        for name in ("start", "build", *settings["phases"]):
            job.phase(name, getattr(job, name))
        job.cluster.close()
        emit("done")
        status = 0
    except BaseException as error:  # reported to the caller; the process ends
        emit("error", text=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
    sys.stdout.flush()
    os._exit(status)  # TensorFlow cannot stop a coordinator's server.


if __name__ == "__main__":
    main()
