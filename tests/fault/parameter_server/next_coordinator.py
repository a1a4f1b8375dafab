# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A coordinator that goes on from a checkpoint with the tasks of another one that has ended.

python tests/fault/parameter_server/next_coordinator.py MODE FOLDER SPECIFICATION
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.fault import coordinator
from tests.fault.parameter_server.gated_steps import ON, Steps


def run_next(mode, cluster, folder, is_killed):
    """Runs another coordinator of the same tasks; what it says. It is killed while a step waits."""
    spec = json.dumps({"cluster": cluster, "is_killed": is_killed})
    process = subprocess.Popen(
        [sys.executable, __file__, mode, str(folder), spec], stdout=subprocess.PIPE, text=True
    )
    try:
        said = next((line for line in process.stdout if line.startswith("{")), "")
    finally:
        process.kill()
        process.wait()
    assert said, f"the coordinator ended by itself, with status {process.returncode}"
    return json.loads(said)


def _go_on(mode, folder, cluster, is_killed):
    """What such a coordinator does."""
    import tensorflow as tf

    from tests.fault import everything

    is_on = mode in ON
    coordinator.Job("on" if is_on else mode, cluster=cluster)
    if is_on:
        everything.switch(True)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(cluster), rpc_layer="grpc+fuse" if is_on else "grpc"
    )
    steps = Steps(resolver, mode)
    model = steps.model
    model.checkpoint().read(str(folder / "saved")).assert_existing_objects_matched()
    said = {"restored": model.state()}
    assert coordinator.wait_until(lambda: _reaches(model))
    model.call(steps.plain)
    said["then"] = model.state()
    if is_killed:
        since = int(steps.entered.numpy())
        model.coordinator.schedule(steps.gated, args=(tf.constant(everything.IDS),))
        said["entered"] = steps.has_entered(since)
    os.write(1, (json.dumps(said) + "\n").encode())
    signal.pause()


def _reaches(model):
    """Whether the worker reaches the servers: it waits a while after one was not there."""
    import tensorflow as tf

    try:
        model.call(model.function(lambda ids: model.losses(ids)[0]))
    except tf.errors.UnavailableError:
        return False
    return True


if __name__ == "__main__":
    _mode, _folder, _spec = sys.argv[1:]
    _go_on(_mode, Path(_folder), **json.loads(_spec))
