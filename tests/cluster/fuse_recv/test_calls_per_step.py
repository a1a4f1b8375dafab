# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The RPCs of one training step, counted from the wire, do not grow with the number of tables."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault.call_counter import CallCounter

pytestmark = pytest.mark.cluster

_ROOT = Path(__file__).resolve().parents[3]
_STEPS = 10
_TASKS = ("worker:0", "ps:0", "ps:1")


def _calls(tables):
    """Returns the calls of `_STEPS` steps, by task and method."""
    counters = {task: CallCounter() for task in _TASKS}
    cluster = {
        job: [f"127.0.0.1:{one.port}" for task, one in counters.items() if task.startswith(job)]
        for job in ("worker", "ps")
    }
    environ = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "-1",
        "GRPC_FAIL_FAST": "use_caller",
        "PYTHONPATH": str(_ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }

    def start(role, **more):
        given = json.dumps({"cluster": cluster, "tables": tables, **more})
        return subprocess.Popen(
            [sys.executable, __file__, role, given],
            env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    processes = [start("task", task=task, port=one.target) for task, one in counters.items()]
    coordinator = start("coordinator")
    processes.append(coordinator)
    try:
        assert coordinator.stdout.readline() == "warm\n"
        for one in counters.values():
            one.take()
        coordinator.stdin.write("go\n")
        coordinator.stdin.flush()
        assert coordinator.stdout.readline() == "done\n"
        return {task: one.take() for task, one in counters.items()}
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("tables", [6, 60])
def test_calls_do_not_grow_with_the_number_of_tables(tables):
    """Of each task: one to begin its part, one to clean up, and one per server for what it needs.

    The worker is asked for ids and gradients, a server for rows and for the end of its updates.
    FuseRecvTensor travels as RecvTensor.
    """
    server = {"RunComponentFunction": _STEPS, "RecvTensor": 2 * _STEPS, "Enqueue": _STEPS}
    assert _calls(tables) == {
        "worker:0": {"Enqueue": 2 * _STEPS, "RecvTensor": 4 * _STEPS},
        "ps:0": server,
        "ps:1": server,
    }


def _run_task(given):
    import tensorflow as tf

    import tf_fuse  # noqa: F401

    job, _, index = given["task"].partition(":")
    server_def = tf.train.ServerDef(
        cluster=tf.train.ClusterSpec(given["cluster"]).as_cluster_def(),
        job_name=job,
        task_index=int(index),
        protocol="grpc+fuse",
        port=given["port"],
    )
    tf.distribute.Server(server_def).join()


def _coordinate(given):
    import tensorflow as tf

    import tf_fuse  # noqa: F401

    tf.config.optimizer.set_experimental_options({"tf_fuse": True, "fuse_grouping": "level"})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(given["cluster"]), rpc_layer="grpc+fuse"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        tables = [tf.Variable(tf.ones([50, 4])) for _ in range(given["tables"])]
        dense = tf.Variable(tf.ones([4, 1]))

    @tf.function
    def step():
        ids = tf.random.uniform([8], maxval=50, dtype=tf.int32)
        with tf.GradientTape() as tape:
            rows = tf.add_n([tf.gather(table, ids) for table in tables])
            loss = tf.reduce_mean(tf.square(rows @ dense - 1.0))
        variables = [*tables, dense]
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                scaled = tf.IndexedSlices(gradient.values * 0.1, gradient.indices)
                variable.scatter_sub(scaled)
            else:
                variable.assign_sub(gradient * 0.1)
        return loss

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def run(steps):
        for _ in range(steps):
            coordinator.schedule(step)
            coordinator.join()

    run(3)
    print("warm", flush=True)
    sys.stdin.readline()
    run(_STEPS)
    print("done", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    {"task": _run_task, "coordinator": _coordinate}[sys.argv[1]](json.loads(sys.argv[2]))
