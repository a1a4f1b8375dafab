# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The RPCs of one training step, counted from the wire, do not grow with the number of tables."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import standalone
from tests.fault.call_counter import CallCounter
from tests.slow_cases import slow

pytestmark = pytest.mark.cluster

_STEPS = 10
# To the processes that each task receives from: job, task, number.
_CHANNELS = (("worker", 0, 4), ("ps", 0, 2), ("ps", 1, 2))
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "GRPC_FAIL_FAST": "use_caller",
    "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def _calls(tables, paths, *options, enqueues=0):
    """Returns the gRPC calls of `_STEPS` steps, by task and method.

    Waits until the worker has got `enqueues` of the method Enqueue.
    """
    counters, spec = {}, {}
    environment = {"TF_FUSE_COLLECTIVE_PATHS": paths}
    with standalone.cluster_package().LocalCluster(1, 2, "grpc+fuse", env=environment) as cluster:
        for job in ("worker", "ps"):
            spec[job] = []
            for index, address in enumerate(cluster.cluster_spec[job]):
                counter = CallCounter(int(address.rpartition(":")[2]))
                counters[f"{job}:{index}"] = counter
                spec[job].append(f"127.0.0.1:{counter.port}")
        # A process of its own: while it connects, TensorFlow lets no other thread run.
        coordinator = subprocess.Popen(
            [sys.executable, __file__, json.dumps(spec), str(tables), paths, *options],
            env=os.environ | _ENVIRONMENT | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert coordinator.stdout.readline() == "warm\n"
            for one in counters.values():
                one.take()
            coordinator.stdin.write("go\n")
            coordinator.stdin.flush()
            assert coordinator.stdout.readline() == "done\n"
            calls = {task: one.take() for task, one in counters.items()}
            while calls["worker:0"]["Enqueue"] < enqueues:  # pytest ends it if they do not come.
                calls["worker:0"] += counters["worker:0"].take()
            return calls
        finally:
            coordinator.kill()
            coordinator.communicate()


@pytest.mark.parametrize("tables", [slow(6), 60])
def test_calls_do_not_grow_with_the_number_of_tables(tables):
    """Of each task: one to begin its part, of a server one to clean up, and one per need.

    The worker is asked for ids and gradients by each server, a server for rows. FuseRecvTensor
    travels as RecvTensor.
    """
    server = {"RunComponentFunction": _STEPS, "RecvTensor": _STEPS, "Enqueue": _STEPS}
    assert _calls(tables, "grpc") == {
        "worker:0": {"Enqueue": _STEPS, "RecvTensor": 4 * _STEPS},
        "ps:0": server,
        "ps:1": server,
    }


def test_a_loss_is_three_more_calls_and_nothing_waits_for_the_servers():
    """The coordinator makes the worker send it, asks for it, and lets go of it in the end."""
    calls = _calls(6, "grpc", "loss")
    server = {"RunComponentFunction": _STEPS, "RecvTensor": _STEPS, "Enqueue": _STEPS}
    # (It may let go of the last loss of the steps before, and not yet of its own last one.)
    assert 3 * _STEPS - 1 <= calls["worker:0"].pop("Enqueue") <= 3 * _STEPS + 1
    assert calls == {"worker:0": {"RecvTensor": 5 * _STEPS}, "ps:0": server, "ps:1": server}


def test_data_channels_leave_grpc_what_begins_and_what_ends_a_step():
    """A message to a server says of several steps that they have ended."""
    calls = _calls(6, "shm,grpc")
    assert calls["worker:0"] == {"Enqueue": _STEPS}
    for server in ("ps:0", "ps:1"):
        assert set(calls[server]) <= {"Enqueue"}
        assert calls[server].get("Enqueue", 0) <= _STEPS


def test_data_channels_let_the_coordinator_let_go_of_several_losses_by_one_call():
    """It makes the worker send each; what it lets go of is not more calls than it would be."""
    calls = _calls(6, "shm,grpc", "loss", enqueues=2 * _STEPS + 1)
    assert set(calls["worker:0"]) == {"Enqueue"}
    assert calls["worker:0"]["Enqueue"] <= 3 * _STEPS


def _open_channels(tf_fuse, run):
    """Runs steps until each task has its channels; they are opened in the background."""
    expected = {f"/job:{job}/replica:0/task:{i}": n for job, i, n in _CHANNELS}
    for _ in range(500):
        run(1)
        tasks = tf_fuse.cluster_metrics()
        if {k: v["data_channels"] for k, v in tasks.items() if k in expected} == expected:
            return
    raise AssertionError(f"no data channels after 500 steps: {tasks}")


def _main(spec, count, paths, returns_loss):
    import tensorflow as tf

    import tf_fuse

    tf.config.optimizer.set_experimental_options({"tf_fuse": True, "fuse_grouping": "level"})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec), rpc_layer="grpc+fuse"
    )
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        tables = [tf.Variable(tf.ones([50, 4])) for _ in range(count)]
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
        return loss if returns_loss else None

    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    def run(steps):
        for _ in range(steps):
            loss = coordinator.schedule(step)
            coordinator.join()
            loss.fetch()

    run(3)
    if "shm" in paths:
        _open_channels(tf_fuse, run)
    print("warm", flush=True)
    sys.stdin.readline()
    run(_STEPS)
    print("done", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3], "loss" in sys.argv[4:])
