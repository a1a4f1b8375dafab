# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Every line of tf_fuse in the logs of a normal job, of replicas and of parameter servers.

As a script, this file is one of the job's programs; its argument says which.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples import standalone
from tests import forking

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

_ROOT = Path(__file__).resolve().parents[3]


def _ours(log):
    """Lines of tf_fuse, without times, processes, and ports."""
    lines = [re.sub(r"^\w\d{4} [\d:.]+ +\d+ ", "", one) for one in log.splitlines()]
    lines = [re.sub(r"localhost:\d+|pid=\d+", "X", one) for one in lines]
    # (TensorFlow prints the options of a session.)
    return [one for one in lines if "tf_fuse" in one and one.strip() != 'name: "tf_fuse"']


def _started(role, env, tmp_path):
    removed = ("TF_CONFIG", "TF_CPP_MIN_LOG_LEVEL", "TF_FUSE_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(removed)}
    kept |= {
        "PYTHONPATH": str(_ROOT),
        "CUDA_VISIBLE_DEVICES": "-1",
        forking.VARIABLE: "0",  # how programs begin and end is in the log
    }
    return subprocess.Popen(
        [sys.executable, __file__, role],
        env=kept | env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _ended(programs):
    logs = []
    try:
        for program in programs:
            logs.append(program.communicate(timeout=280)[0])
            assert program.returncode == 0 and "\ntrained\n" in logs[-1], logs[-1]
    finally:
        for program in programs:
            program.kill()
            program.communicate()
    return logs


def test_replicas(tmp_path):
    with standalone.cluster_package().ports.HeldPorts(2) as ports:
        cluster = {"worker": [f"127.0.0.1:{port}" for port in ports.numbers]}
        configs = [
            {"cluster": cluster, "task": {"type": "worker", "index": i}, "rpc_layer": "grpc+fuse"}
            for i in range(2)
        ]
        logs = _ended(
            [_started("replica", {"TF_CONFIG": json.dumps(one)}, tmp_path) for one in configs]
        )
    assert [_ours(log) for log in logs] == [[], []]


def test_one_process(tmp_path):
    """The option turns fused receives on, too, which need a server; here nobody misses it."""
    (log,) = _ended([_started("mirrored", {}, tmp_path)])
    assert _ours(log) == []


def test_parameter_servers(tmp_path):
    (log,) = _ended([_started("coordinator", {}, tmp_path)])
    assert _ours(log) == []
    assert "remote target" not in log  # what TensorFlow logs of calls to tasks that have ended
    for task in ("worker-0", "ps-0", "ps-1"):
        assert _ours((tmp_path / "logs" / f"{task}.log").read_text()) == [
            f"tf_fuse serve: ready task={task.replace('-', ':')} address=X protocol=grpc+fuse X"
        ]


def _model(keras):
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Embedding(200, 16), keras.layers.Flatten(), keras.layers.Dense(64)]
    model = keras.Sequential([keras.Input([4], dtype="int32"), *layers, keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(0.05)
    optimizer.build(model.trainable_variables)
    return model, optimizer


def _train(strategy, call):
    """Trains some steps that return their reduced loss."""
    import keras
    import tensorflow as tf

    with strategy.scope():
        model, optimizer = _model(keras)

    def replica(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(ids, training=True) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(ids):
        return strategy.reduce("MEAN", strategy.run(replica, args=(ids,)), axis=None)

    for _ in range(3):
        call(step, (tf.constant([[1, 2, 3, 4], [5, 6, 1, 2]]),))
    for one in optimizer.variables:
        one.numpy()
    return step


def _main(role):
    import tensorflow as tf

    import tf_fuse
    from tf_fuse.cluster import LocalCluster

    set_options = tf.config.optimizer.set_experimental_options
    if role == "mirrored":
        cpus = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
        set_options({"tf_fuse": True})
        _train(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), lambda step, args: step(*args))
    elif role == "replica":
        set_options({"shard_weight_update": True, "shard_weight_update_always": True})
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        step = _train(strategy, lambda step, args: step(*args))
        report = tf_fuse.weight_update_report()
        assert report["sharded"], report
        del step  # (The report is of functions that exist.)
    else:
        set_options({"do_fuse_recv": True, "shard_weight_update": True})
        with LocalCluster(1, 2, log_dir="logs") as cluster:
            strategy = tf.distribute.ParameterServerStrategy(cluster.resolver())
            coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

            def call(step, args):
                coordinator.schedule(step, args=args)
                coordinator.join()

            _train(strategy, call)
    print("\ntrained", flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
