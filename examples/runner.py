# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Run a workload in rounds of steps, on a cluster or in one process, and measure each round."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from examples.workload import Program, Workload

OnSteps = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Round:
    """What one round of steps took.

    Attributes:
      steps: steps of all workers together.
      seconds: wall time from the first schedule to the last step's end.
      losses: one per step, in the order of scheduling (with one worker: of execution).
      cpu_s: role ("coordinator", "worker", "ps") to CPU seconds of its processes; without a
        cluster the only role is "local".
      recv_rpcs: receive RPCs of all tasks; None when nothing counts them.
      server_cpu_s: server ("ps:0") to CPU seconds of its process; empty without a cluster.
    """

    steps: int
    seconds: float
    losses: list[float]
    cpu_s: dict[str, float]
    recv_rpcs: int | None = None
    server_cpu_s: dict[str, float] = dataclasses.field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """All fields and what follows from them: steps/s, CPU ms and receive RPCs per step."""
        per_step = None if self.recv_rpcs is None else self.recv_rpcs / self.steps
        return {
            **dataclasses.asdict(self),
            "steps_per_s": self.steps / self.seconds,
            "recv_rpcs_per_step": per_step,
            "cpu_ms_per_step": {r: s / self.steps * 1e3 for r, s in self.cpu_s.items()},
        }


class LocalRunner:
    """One process, no cluster, no strategy: the floor."""

    def __init__(self, workload: Workload):
        """Build the workload's program in this process."""
        self.program: Program = workload.build()
        self._iterator = iter(self.program.dataset(0, 1))
        self._step = tf.function(lambda iterator: self.program.step(next(iterator)))

    def run(self, steps: int, on_steps: OnSteps | None = None) -> Round:
        """Run `steps` steps; `on_steps` gets the number done so far, now and then."""
        losses = []
        cpu_before, start = time.process_time(), time.perf_counter()
        for done in range(1, steps + 1):
            losses.append(self._step(self._iterator))
            if on_steps and done % _chunk(steps) == 0:
                on_steps(done)
        seconds = time.perf_counter() - start
        cpu = time.process_time() - cpu_before
        return Round(steps, seconds, [float(loss) for loss in losses], {"local": cpu})


class ClusterRunner:
    """Workers and servers under ParameterServerStrategy; this process is the coordinator."""

    def __init__(
        self,
        workload: Workload,
        resolver: Any,
        *,
        synchronous: bool = False,
        steps_per_call: int = 1,
        cpu_seconds: Callable[[], Mapping[str, float]] | None = None,
        recv_rpcs: Callable[[], int] | None = None,
    ):
        """Connect to the cluster and build the workload's program on its servers.

        Args:
          workload: the job.
          resolver: cluster resolver whose servers are running.
          synchronous: feed the batches of one process in their order, and wait for each step
            before the next is scheduled: the losses do not depend on which worker takes a step.
          steps_per_call: how many steps of its dataset a worker runs in one call; above 1, with
            `tf_fuse.parameter_server.repeat`.
          cpu_seconds: gives task name ("worker:0") to CPU seconds so far; None: not measured.
          recv_rpcs: gives the cluster's receive RPCs so far; None: not counted.
        """
        # See tf_fuse/cluster/serve.py: a lost peer must be reported, not waited for.
        os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
        self._strategy = tf.distribute.ParameterServerStrategy(
            resolver, variable_partitioner=workload.partitioner()
        )
        self._workers = len(resolver.cluster_spec().as_dict()["worker"])
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        with self._strategy.scope():
            self.program: Program = workload.build()
        if synchronous:
            self._batches = iter(self.program.dataset(0, 1))
            self._step = tf.function(self.program.step)
        else:
            self._iterator = iter(self._coordinator.create_per_worker_dataset(self._dataset))
            self._step = tf.function(self._next_step)
        if steps_per_call > 1:
            import tf_fuse

            self._step = tf_fuse.parameter_server.repeat(self._next_step, steps_per_call)
        self._steps_per_call = steps_per_call
        self._synchronous = synchronous
        self._cpu_seconds = cpu_seconds
        self._recv_rpcs = recv_rpcs

    def _next_step(self, iterator: Any) -> tf.Tensor:
        return self.program.step(next(iterator))

    def _dataset(self) -> tf.data.Dataset:
        # The index is a placeholder that each worker's copy of the dataset fills in; with one
        # worker it is left out, so that the graph is the same as in one process.
        if self._workers == 1:
            return self.program.dataset(0, 1)
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        return self.program.dataset(worker, self._workers)

    def run(self, steps: int, on_steps: OnSteps | None = None) -> Round:
        """Run `steps` steps, all workers together.

        Args:
          steps: how many; a multiple of `steps_per_call`.
          on_steps: called with the number done so far, about twenty times. The workers run dry
            for a moment at each call; without it, only at the end.

        Returns:
          The round; its losses are fetched after the clock is stopped.
        """
        losses: list[Any] = []
        chunk = 1 if self._synchronous else _chunk(steps) if on_steps else steps
        rpcs_before = self._count_rpcs()
        before, start = self._cpu(), time.perf_counter()
        calls = steps // self._steps_per_call
        while len(losses) < calls:
            for _ in range(min(chunk, calls - len(losses))):
                argument = next(self._batches) if self._synchronous else self._iterator
                losses.append(self._coordinator.schedule(self._step, args=(argument,)))
            self._coordinator.join()
            if on_steps:
                on_steps(len(losses) * self._steps_per_call)
        seconds = time.perf_counter() - start
        cpu = {task: after - before[task] for task, after in self._cpu().items()}
        rpcs = self._recv_rpcs() - rpcs_before if self._recv_rpcs else None
        by_role: dict[str, float] = {}
        for task, used in cpu.items():
            role = task.partition(":")[0]
            by_role[role] = by_role.get(role, 0.0) + used
        return Round(
            steps,
            seconds,
            [float(loss) for call in losses for loss in np.ravel(call.fetch())],
            by_role,
            rpcs,
            {task: used for task, used in sorted(cpu.items()) if task.startswith("ps:")},
        )

    def _count_rpcs(self) -> int:
        """Receive RPCs so far, those of a second look at the counters included.

        To read a remote counter is itself a receive. What one look costs is known after two.
        """
        if not self._recv_rpcs:
            return 0
        first, second = self._recv_rpcs(), self._recv_rpcs()
        return second + (second - first)

    def _cpu(self) -> dict[str, float]:
        """Task ("ps:0", "coordinator") to CPU seconds so far."""
        tasks = self._cpu_seconds() if self._cpu_seconds else {}
        return {"coordinator": time.process_time(), **tasks}


def _chunk(steps: int) -> int:
    """How many steps run before the workers run dry: enough that it does not tell."""
    return max(20, steps // 20)
