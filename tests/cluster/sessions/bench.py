# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the cases of `cases.py` stand on: tasks, graphs, and where they register."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1

Case = Callable[["Bench"], list[Any]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """Registers a case under its function's name."""
    CASES[function.__name__] = function
    return function


class Bench:
    """Sessions on a cluster of two workers and three servers, with or without the option.

    Attributes:
      scheme: of the targets, "grpc" or "grpc+fuse".
      master: job and index of the task that plans the graphs; None for the worker itself.
      with_faults: whether cases kill tasks.
      told: what a case has to say beside its values.
      reading: the counters of all tasks by name, {} in stock TensorFlow.
    """

    def __init__(
        self, cluster: Any, config: Callable[[], Any], reading: Callable[[], dict[str, Any]]
    ):
        """Takes a LocalCluster, and what makes the ConfigProto of a session (None for default)."""
        self.cluster = cluster
        self.config = config
        self.reading = reading
        self.scheme = "grpc"
        self.master: tuple[str, int] | None = None
        self.with_faults = False
        self.told: dict[str, Any] = {}

    def target(self, worker: int = 0) -> str:
        job, index = self.master or ("worker", worker)
        return f"{self.scheme}://{self.cluster.cluster_spec[job][index]}"

    def session(self, worker: int = 0) -> Any:
        return v1.Session(self.target(worker), config=self.config())

    @contextlib.contextmanager
    def started(self, worker: int = 0) -> Iterator[Any]:
        """A session whose variables have been initialized."""
        with self.session(worker) as session:
            session.run(v1.global_variables_initializer())
            yield session

    def monitored(self, worker: int = 0, is_chief: bool = True, **options: Any) -> Any:
        return v1.train.MonitoredTrainingSession(
            master=self.target(worker),
            is_chief=is_chief,
            config=self.config(),
            **{
                "log_step_count_steps": None,
                "save_checkpoint_secs": None,
                "save_summaries_steps": None,
                "save_summaries_secs": None,
                "stop_grace_period_secs": 1,
                **options,
            },
        )


PLAIN_PS = 2  # The server that lacks the plugin where the others have it.


def ps(number: int) -> str:
    return f"/job:ps/task:{number}"


def on_worker(worker: int = 0, servers: int = 2) -> Any:
    """Variables on the first servers in turn, the rest on a worker."""
    return v1.device(
        v1.train.replica_device_setter(ps_tasks=servers, worker_device=f"/job:worker/task:{worker}")
    )


def numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def variables(count: int, *shape: int, use_resource: bool = True) -> list[Any]:
    return [
        v1.get_variable(
            f"v{i}",
            initializer=tf.constant(numbers(i, *shape)),
            use_resource=use_resource,
        )
        for i in range(count)
    ]


def dense_network(x: Any, layers: int, width: int, use_resource: bool = True) -> Any:
    """Layers with a weight and a bias each, then the sum over each example: [batch, 1]."""
    for i in range(layers):
        weight = v1.get_variable(
            f"w{i}", initializer=tf.constant(numbers(i, width, width)), use_resource=use_resource
        )
        bias = v1.get_variable(
            f"b{i}", initializer=tf.constant(numbers(50 + i, width)), use_resource=use_resource
        )
        x = tf.tanh(tf.matmul(x, weight) + bias)
    return tf.reduce_sum(x, 1, keepdims=True)


def training_graph(optimizer: Any, worker: int = 0, use_resource: bool = True) -> dict[str, Any]:
    """Six dense layers, placeholders `x` and `y`, `loss`, and `train`, which counts steps."""
    with on_worker(worker):
        x = v1.placeholder(tf.float32, [None, 4], name="x")
        y = v1.placeholder(tf.float32, [None, 1], name="y")
        loss = tf.reduce_mean(tf.square(dense_network(x, 6, 4, use_resource) - y))
        step = v1.train.get_or_create_global_step()
        train = optimizer.minimize(loss, global_step=step)
    return {"x": x, "y": y, "loss": loss, "train": train, "step": step}


def batch(graph: dict[str, Any], seed: int) -> dict[Any, Any]:
    return {graph["x"]: numbers(seed, 8, 4), graph["y"]: numbers(1000 + seed, 8, 1)}


def all_variables(session: Any) -> list[Any]:
    return list(session.run(v1.global_variables()))
