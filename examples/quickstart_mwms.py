# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Train on two workers of `MultiWorkerMirroredStrategy`, without and with tf_fuse.

Without TF_CONFIG the program starts its two workers on this machine by `tf-fuse launch`, first with
the protocol "grpc", then with "grpc+fuse". On a cluster, start it in each task with that task's
TF_CONFIG.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

WIDTH, STEPS = 1024, 20


def work():
    """Run one worker; print its steps per second, and write them where the caller said."""
    import tensorflow as tf

    import tf_fuse  # noqa: F401  (adds the option "tf_fuse" and the protocol "grpc+fuse")

    config = json.loads(os.environ["TF_CONFIG"])
    if config["rpc_layer"] == "grpc+fuse":
        tf.config.optimizer.set_experimental_options({"tf_fuse": True})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        layers = [tf.keras.layers.Dense(WIDTH, "relu") for _ in range(4)]
        model = tf.keras.Sequential([tf.keras.Input([WIDTH]), *layers])
        optimizer = tf.keras.optimizers.Adam(0.001)
        optimizer.build(model.trainable_variables)

    @tf.function
    def step(x):
        def replica(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - x) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.run(replica, args=(x,))

    x = tf.random.normal([32, WIDTH])
    step(x)  # traces the function
    began = time.perf_counter()
    for _ in range(STEPS):
        step(x)
    rate = STEPS / (time.perf_counter() - began)
    print(f"{rate:.1f} steps/s")
    if sys.argv[1:] and config["task"]["index"] == 0:
        pathlib.Path(sys.argv[1]).write_text(json.dumps(rate))


def start_workers(protocol):
    """Run two workers; return the steps per second of the first."""
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder) / "rate.json"
        launch = [sys.executable, "-m", "tf_fuse", "launch", "--workers", "2"]
        subprocess.run([*launch, "--protocol", protocol, __file__, result], check=True)
        return json.loads(result.read_text())


if "TF_CONFIG" in os.environ:
    work()
else:
    stock, fused = start_workers("grpc"), start_workers("grpc+fuse")
    print(f"steps/s: {stock:.1f} without, {fused:.1f} with tf_fuse: {fused / stock:.1f} times")
