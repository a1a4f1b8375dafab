# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What is recorded of a step: each small operation would be one more event."""

import os
import threading

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf

from tf_fuse.report.steps import recording


def test_small_operations_are_not_recorded(tmp_path, capfd):
    """TensorFlow 2.21 does not read the level if it is an `int`."""
    server = tf.distribute.Server.create_local_server()  # It has a profiler.
    address = server.target.removeprefix("grpc://")
    ended = threading.Event()

    @tf.function(input_signature=[tf.TensorSpec([8, 8])])
    def step(x):
        return tf.matmul(x, tf.reshape(x, [4, 16])[:, :8], transpose_b=True)

    def run():
        while not ended.is_set():
            step(tf.ones([8, 8]))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        task = "/job:worker/replica:0/task:0"
        assert recording._trace({task: address}, str(tmp_path), 0.5) == {}
    finally:
        ended.set()
        thread.join()
    (path,) = recording._profiles(tmp_path)
    space = recording._read(path)
    events = [one.name for plane in space.planes for one in plane.event_metadata.values()]
    types = {name.split(":")[-1] for name in events}
    assert "EagerExecute" in types, events
    assert types & {"MatMul", "Reshape"} == set(), events
    assert "expects an" not in capfd.readouterr().err
