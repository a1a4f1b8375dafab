# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The coordinator of a soak test (`soak.py`), and the same steps in one process without a cluster.

    python tests/fault/soak/job.py '{"mode": "on", "cluster": {...}, "state": "PATH"}'

Two models take steps that can be repeated: a step reads one copy of the variables and writes the
other one. So a step that a fault cut short is simply run again, and the losses are those of a run
without faults. The others train as users' models do, by Keras's Adam; their losses depend on what a
step that was cut short had done, and must be numbers.

With the mode "on" everything is: options, and data channels for frames of any size. Two rounds are
fused by level and two dynamically, in turns: what each leaves behind is there while the other one
runs.

Commands come as JSON lines on stdin, events go as JSON lines to stdout:

* {"run": N, "cancel": [I, ...]}: N rounds of one step per model; rounds that begin with a step that
  is cancelled. Event "ran": "losses" (per round, per model that repeats steps, as hexadecimal
  floats), "errors" (class to number) and "cancelled". Event "lost" instead, if the cluster does not
  recover.
* {"until_lost": true}: rounds until one fails; event "lost".
* {"gauges": N}: event "gauges", "tasks" and their gauges once they are at rest, where
  N coordinators have been; their "counters"; and what is "waiting" even then.
* {"save": true}: writes the variables and the round's number to "state"; event "saved".

With {"reference": N} alone it computes the losses of N rounds in one process; events "reference".
"""

from __future__ import annotations

import faulthandler
import gc
import json
import math
import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fault.soak import models

GAUGES = (
    "open_steps",
    "pending_requests",
    "pending_receives",
    "pending_bytes",
    "unsent_frame_bytes",
    "partial_tensors",
)
COUNTERS = ("dynamic_requests", "fused_rpcs", "channel_frames")  # all ways were taken
_OPTIONS = {"tf_fuse": True, "shard_weight_update": True, "fuse_weight_update": True}
_PART = 1000  # losses in one event
_REST_S = 60.0  # until gauges are at rest
_RECOVERY_S = 90.0  # until a step succeeds again


def emit(event: str, **fields: Any) -> None:
    """Writes one event as a JSON line."""
    os.write(1, (json.dumps({"event": event, **fields}) + "\n").encode())


def forsaken(
    waiting: Mapping[str, Sequence[Mapping[str, Any]] | None],
) -> tuple[Counter[str], Counter[str]]:
    """The receives that wait for a step that their sender does not run.

    When a task dies, TensorFlow may cancel a step's part on one task before it begins on another
    one, which then waits for ever for what the first would send: with the plugin or without it.

    Args:
      waiting: as `tf_fuse.cluster_waiting`, when no steps run.

    Returns:
      How many of these receives each task has, and of their requests.
    """
    entries = [one for of_task in waiting.values() for one in of_task or ()]
    requests = [one for one in entries if one["sending"] and one["step_not_begun"]]
    receives = {(one["task"], one["peer"], one["step_id"]) for one in entries if not one["sending"]}
    pairs = [
        (r["peer"], r["task"]) for r in requests if (r["peer"], r["task"], r["step_id"]) in receives
    ]
    return Counter(receiver for receiver, _ in pairs), Counter(sender for _, sender in pairs)


def is_at_rest(
    gauges: Mapping[str, int], coordinators: int, receives: int = 0, requests: int = 0
) -> bool:
    """Whether nothing is under way in a task.

    A coordinator's eager context has a step of its own on each task, for as long as TensorFlow
    keeps the context: some minutes longer than the coordinator lives.

    Args:
      gauges: of the task.
      coordinators: that there have been.
      receives: of the task that are `forsaken`; each keeps its step open.
      requests: theirs.
    """
    expected = dict.fromkeys(GAUGES, 0) | {
        "pending_receives": receives,
        "pending_requests": requests,
        "open_steps": gauges.get("open_steps", -1),
    }
    if requests:
        expected["pending_bytes"] = gauges.get("pending_bytes", -1)
    return gauges == expected and 0 <= expected["open_steps"] <= coordinators + receives


def grouping(number: int) -> str:
    """How the round of that number is fused. Each copy of the variables is read both ways."""
    return ("level", "dynamic")[number // 2 % 2]


class Job:
    """The models on a cluster."""

    def __init__(self, mode: str, cluster: dict[str, list[str]], state: Path):
        """Connects to a cluster that runs, and takes the models up where `save` left them."""
        import numpy as np
        import tensorflow as tf

        self._mode, self._state = mode, state
        if mode != "stock":
            import tf_fuse  # noqa: F401  (loads the plugin)
        if mode == "on":
            tf.config.optimizer.set_experimental_options(_OPTIONS)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), rpc_layer="grpc" if mode == "stock" else "grpc+fuse"
        )
        self._strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        self.number = 0
        with self._strategy.scope():
            self._models = models.made()
        if state.exists():
            with np.load(state) as saved:
                self.number = int(saved["number"])
                for i, model in enumerate(self._models):
                    count = len(model.variables(self.number))
                    model.restore([saved[f"{i}_{k}"] for k in range(count)])
        self._workers = len(cluster["worker"])

    def save(self) -> None:
        """Writes the variables to the state, at once or not at all."""
        import numpy as np

        arrays = {
            f"{i}_{k}": variable.numpy()
            for i, model in enumerate(self._models)
            for k, variable in enumerate(model.variables(self.number))
        }
        partial = self._state.with_suffix(".partial.npz")
        np.savez(partial, number=self.number, **arrays)
        partial.rename(self._state)

    def run(self, rounds: int, cancel: set[int]) -> dict[str, Any]:
        """Runs rounds; a round that fails is repeated until it does not.

        Args:
          rounds: how many.
          cancel: before these (0 is the first), a step of the round is cancelled.
        """
        losses, errors, cancelled = [], Counter(), Counter()
        for i in range(rounds):
            if i in cancel:
                cancelled[self._cancelled_step(i)] += 1
            losses.append(self._round(errors))
            self.number += 1
        return {"losses": losses, "errors": dict(errors), "cancelled": dict(cancelled)}

    def run_until_lost(self) -> None:
        """Runs rounds; raises the error of the first that fails."""
        while True:
            self._round(Counter(), recovery_s=0)
            self.number += 1

    def _round(self, errors: Counter[str], recovery_s: float = _RECOVERY_S) -> list[str]:
        import numpy as np
        import tensorflow as tf

        if self._mode == "on":
            # Of the calls from now on; a function is instantiated once for each.
            options = {**_OPTIONS, "fuse_grouping": grouping(self.number)}
            tf.config.optimizer.set_experimental_options(options)
        # (Of a number of Python, TensorFlow would keep the tensor for ever.)
        number = tf.convert_to_tensor(np.array(self.number, np.int32))
        deadline = time.monotonic() + recovery_s
        while True:
            try:
                results = [
                    self._coordinator.schedule(model.steps[self.number % 2], args=(number,))
                    for model in self._models
                ]
                self._coordinator.join()
                losses = [float(result.fetch()) for result in results]
                if not all(map(math.isfinite, losses)):
                    raise RuntimeError(f"round {self.number}: losses {losses}")
                return [loss.hex() for loss in losses[: models.REPEATING]]
            except tf.errors.OpError as error:
                errors[type(error).__name__] += 1
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)  # a task that is gone refuses at once, again and again

    def _cancelled_step(self, salt: int) -> str:
        """Starts a step of the round and cancels it; returns how it ended."""
        import tensorflow as tf
        from tensorflow.python.eager import cancellation, context, executor

        manager = cancellation.CancellationManager()
        own = executor.new_executor(enable_async=False)
        ended = threading.Event()
        outcome = []

        def call() -> None:
            try:
                with (
                    context.executor_scope(own),
                    tf.device(f"/job:worker/replica:0/task:{salt % self._workers}"),
                    cancellation.CancellationManagerContext(manager),
                ):
                    model = self._models[salt % models.MODELS]
                    float(model.steps[self.number % 2](tf.constant(self.number)))
                outcome.append("in time")
            except tf.errors.OpError as error:
                outcome.append(type(error).__name__)
                own.clear_error()  # it would be printed when the executor goes
            ended.set()

        thread = threading.Thread(target=call)
        thread.start()
        ended.wait((salt % 5) * 0.002)  # at another moment of the step each time
        manager.start_cancel()
        thread.join()
        return outcome[0]

    def gauges(self, coordinators: int) -> dict[str, dict[str, Any]]:
        """Task to its gauges ("tasks"), when all are at rest or after a while, and its "counters".

        Args:
          coordinators: that there have been.

        Returns:
          These two, and "waiting": `tf_fuse.cluster_waiting()`; empty if nothing does.
        """
        if self._mode == "stock":
            return {"tasks": {}, "counters": {}, "waiting": {}}
        import tf_fuse

        gc.collect()  # graphs that a restart of a task has left would be in its memory
        deadline = time.monotonic() + _REST_S
        while True:
            metrics = tf_fuse.cluster_metrics()
            tasks = _chosen(metrics, GAUGES)
            waiting = {}
            resting = all(is_at_rest(g, coordinators) for g in tasks.values())
            if not resting:
                waiting = tf_fuse.cluster_waiting()
                receives, requests = forsaken(waiting)
                resting = all(
                    is_at_rest(g, coordinators, receives[task], requests[task])
                    for task, g in tasks.items()
                )
            if resting or time.monotonic() > deadline:
                counters = _chosen(metrics, COUNTERS)
                return {"tasks": tasks, "counters": counters, "waiting": waiting}
            time.sleep(0.05)  # between two questions


def _chosen(metrics: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    return {task: {name: m[name] for name in names if name in m} for task, m in metrics.items()}


def _listen(commands: queue.Queue[dict[str, Any]]) -> None:
    for line in sys.stdin:
        command = json.loads(line)
        if "waiting" in command:  # while the main thread waits for a step
            import tf_fuse

            emit("waiting", tasks=tf_fuse.cluster_waiting())
            continue
        commands.put(command)
    os._exit(0)  # the caller is gone, whatever runs


def _serve(job: Job) -> None:
    commands: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(commands,), daemon=True).start()
    emit("ready", pid=os.getpid(), number=job.number)
    while True:
        command = commands.get()
        if "run" in command:
            emit("ran", **job.run(command["run"], set(command.get("cancel", ()))))
        elif "until_lost" in command:
            job.run_until_lost()
        elif "gauges" in command:
            emit("gauges", **job.gauges(command["gauges"]))
        elif "save" in command:
            job.save()
            emit("saved", number=job.number)


def main(spec: dict[str, Any]) -> None:
    """Runs a specification; the process ends inside, as it owns a server."""
    faulthandler.enable()  # SIGABRT shows where it hangs
    status = 1
    try:
        if "reference" in spec:
            losses = models.reference_losses(spec["reference"])
            for first in range(0, len(losses), _PART):
                emit("reference", losses=losses[first : first + _PART])
        else:
            _serve(Job(spec["mode"], spec["cluster"], Path(spec["state"])))
        status = 0
    except Exception as error:
        emit("lost", error=type(error).__name__, text=str(error)[:2000])
    finally:
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
