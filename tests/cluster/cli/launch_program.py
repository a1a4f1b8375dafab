# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Start `tf-fuse launch` with a program that a test writes."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]

# The text of a program that has each worker add to a variable on a server, and says so.
ON_SERVERS = """
import os
import tensorflow as tf
import tf_fuse

tf.config.optimizer.set_experimental_options({"tf_fuse": True})
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    count = tf.Variable(0)
for worker in range(len(resolver.cluster_spec().as_dict()["worker"])):
    with tf.device(f"/job:worker/task:{worker}"):
        tf.function(lambda: count.assign_add(1))()
print("counted", int(count.numpy()), flush=True)
os._exit(0)
"""


def start(tmp_path, program, *options, arguments=(), variables=()):
    """Start `tf-fuse launch` with a program of this text, and more variables."""
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    command = [sys.executable, "-m", "tf_fuse", "launch", "--log-dir", str(tmp_path / "logs")]
    env = {**os.environ, "PYTHONPATH": str(_ROOT), "GRPC_FAIL_FAST": "use_caller"}
    env["TMPDIR"] = str(tmp_path)
    env.pop("TF_CONFIG", None)
    env.update(variables)
    return subprocess.Popen(
        [*command, *options, str(file), *map(str, arguments)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(tmp_path, program, *options, **more):
    """Run it to the end; return its status and output."""
    launcher = start(tmp_path, program, *options, **more)
    output, _ = launcher.communicate(timeout=280)
    return launcher.returncode, output
