# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Variables in parts, used eagerly, in a process with two logical devices."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, sys
import tensorflow as tf
cpus = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
from tf_fuse import layout
w, other = tf.Variable(tf.ones([8, 4]), name="w"), tf.Variable(3.0, name="other")
args = [tf.TensorSpec([4, 8])]
names = {"w": [None, "h"]}
mesh = layout.Mesh({"x": 2})
plan = layout.plan(lambda x: x @ w, mesh, args, mode="propagate", rules="h:x", dimensions=names)
run = layout.execute(plan)
found = {
    "l2": float(tf.nn.l2_loss(w)), "mean": float(tf.reduce_mean(w, 0)[0]),
    "shape": tf.shape(w).numpy().tolist(), "square": tf.square(w).shape.as_list(),
}
both = tf.train.Checkpoint(w=w, other=other)
path = both.write(sys.argv[1])
w.assign(w * 2)
other.assign(5.0)
both.read(path).assert_consumed()
found["restored"] = [float(tf.reduce_sum(w)), float(other)]
run.release()
try:
    run(tf.ones([4, 8]))
except layout.LayoutError as error:
    found["released"] = str(error)
print(json.dumps(found))
"""


def test_variables_in_parts_are_read_and_restored_whole(isolated_env, tmp_path):
    """By calls that read the buffer by themselves; and beside a variable that has no plan."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "both")],
        env=isolated_env, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert "was released; execute the plan again" in found.pop("released")
    assert found == {
        "l2": 16.0, "mean": 1.0, "shape": [8, 4], "square": [8, 4], "restored": [32.0, 3.0],
    }  # fmt: skip
