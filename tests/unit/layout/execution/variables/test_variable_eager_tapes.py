# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Gradient tapes over variables in shards, and methods that change these in place."""

from __future__ import annotations

import sys

from tests import scripted

TAPES = """
from tests import scripted
import numpy as np
import tensorflow as tf
cpus = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
from tf_fuse import layout
values = np.arange(32, dtype=np.float32).reshape(8, 4)
w = tf.Variable(values, name="w")
x, specs = tf.ones([4, 8]), [tf.TensorSpec([4, 8])]
given = {"mode": "propagate", "rules": "h:x", "dimensions": {"w": ["h", None]}}
mesh = layout.Mesh({"x": 2})
losses = {
    "matmul": lambda: tf.reduce_sum(tf.matmul(x, w) ** 2),
    "l2": lambda: tf.nn.l2_loss(w),
    "twice": lambda: tf.reduce_sum(w * w + 3 * w),
    "gather": lambda: tf.reduce_sum(tf.gather(w, [1, 1, 2]) ** 2),
    "gather_nd": lambda: tf.reduce_sum(tf.gather_nd(w, [[1, 2]]) ** 2),
    "slice": lambda: tf.reduce_sum(w[1:3]) ** 2,
}

def gradients():
    found = {}
    for name, loss in losses.items():
        for accessed in (True, False):
            with tf.GradientTape(watch_accessed_variables=accessed) as tape:
                if not accessed:
                    tape.watch(w)
                made = loss()
            gradient = tape.gradient(made, w)
            gradient = None if gradient is None else tf.convert_to_tensor(gradient).numpy()
            found[f"{name} {accessed}"] = gradient
    with tf.GradientTape() as outer:
        with tf.GradientTape() as tape:
            made = tf.reduce_sum(w**3)
        first = tape.gradient(made, w)
    found["second"] = outer.gradient(first, w).numpy()
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        made = losses["l2"]()
    found["unwatched"] = tape.gradient(made, w)
    return found

def changed():
    rows = tf.IndexedSlices(tf.fill([2, 4], 2.0), tf.constant([1, 5]), [8, 4])
    for name in ("add", "div", "max", "min", "mul", "sub", "update"):
        getattr(w, f"scatter_{name}")(rows)
    w[2:4, 1].assign([70.0, 80.0])
    for name in ("add", "max", "min", "sub", "update"):
        getattr(w, f"scatter_nd_{name}")([[1, 2], [7, 0]], [3.0, 5.0])
    return w.numpy()

def told(action):
    try:
        action()
    except layout.LayoutError as error:
        return str(error)
    return "nothing"

wanted = gradients(), changed()
w.assign(values)
plan = layout.plan(lambda x: x @ w, mesh, specs, **given)
run = layout.execute(plan)
got = gradients()
found = {name: bool(np.array_equal(one, wanted[0][name])) for name, one in got.items()}
found["unwatched"] = got["unwatched"] is None
found["changed"] = bool(np.array_equal(changed(), wanted[1]))
found["shards"] = type(w).__name__
one_row = tf.IndexedSlices(tf.ones([1, 4]), tf.constant([1]))
other = layout.Mesh({"y": 2})
f = lambda x: x @ w
def refused(action):
    try:
        action()
    except ValueError as error:
        return str(error)
    return "nothing"

def through(call, *sources):
    with tf.GradientTape() as tape:
        tape.watch(x)
        made = call(x)
    return tape.gradient(made, [*sources] or x)

nested = tf.function(run, autograph=False)
by_run = [
    told(lambda: through(run, w)), told(lambda: through(run)), told(lambda: through(nested, w)),
    told(tf.function(lambda: through(run, w), autograph=False)),
    told(tf.function(lambda: tf.gradients(run(x), [w.handle]), autograph=False)),
]
held = w.numpy()
refusals = [
    refused(lambda: w.assign(1.0)), refused(lambda: w.assign_add(tf.ones([1, 4]))),
    refused(lambda: w.assign_sub(1.0)), refused(lambda: w.assign_sub(tf.ones([3, 8, 4]))),
    refused(lambda: w.assign_add(tf.ones([8, 4], tf.int32))).split(":")[0],
]
found["left alone"] = bool(np.array_equal(w.numpy(), held))
errors = {
    "in place": told(tf.function(lambda: w.scatter_add(one_row), autograph=False)),
    "mesh": told(lambda: layout.execute(layout.plan(f, other, specs))),
    "devices": told(lambda: layout.execute(plan, ["CPU:1", "CPU:0"])),
    "kept mesh": told(lambda: layout.plan(f, other, specs, keep_layouts=True)),
    "asked": told(
        lambda: layout.plan(f, mesh, specs, constraints={"w": "replicate"}, keep_layouts=True)
    ),
}
# Where its own search would have it otherwise, a second plan takes what is there.
free, kept = layout.plan(f, mesh, specs), layout.plan(f, mesh, specs, keep_layouts=True)
layouts = [str(one.variables["w"]) for one in (plan, free, kept)]
same = np.array_equal(layout.execute(kept)(x), run(x))
told_all = [found, errors, refusals, layouts, bool(same), by_run]
scripted.give(told_all)
"""


def test_eager_tapes_and_methods_in_place(isolated_env):
    """Gradients of a variable in shards are those of a whole one, and so is what is changed."""
    command = [sys.executable, "-c", TAPES]
    found, errors, refusals, layouts, same, by_run = scripted.result_of(command, isolated_env)
    assert found.pop("shards") == "LaidOutResourceVariable"
    assert set(found) > {"matmul True", "slice False", "second", "unwatched", "changed"}
    assert all(found.values()), found
    assert errors == {
        "in place": "variable 'w' lies in slices, [8/x, 4] on x:2, and is assigned to in a "
        "function that has no plan; plan and execute that function on the same mesh too, or "
        "release the variable first",
        "mesh": "variable 'w' lies on mesh 'x:2' already, and this plan is for mesh 'y:2'; plan "
        "for the first one, or release the variable first",
        "devices": "variable 'w' lies on CPU:0, CPU:1 already, and this plan is to run on CPU:1, "
        "CPU:0; give the same devices, or release the variable first",
        "kept mesh": "variable 'w' lies on mesh 'x:2', and the plan is for 'y:2'; plan for the "
        "first one, or release the variable before",
        "asked": "variable 'w' lies as [8/x, 4] on x:2 already, and is asked for as one of "
        "replicate; leave it out of what is asked for, or release it first",
    }
    # Also where TensorFlow's addition would have broadcast it.
    shape = "variable 'w' has shape (8, 4), got {}; {} a value of its shape"
    assert refusals == [
        shape.format("()", "assign"), shape.format("(1, 4)", "add"), shape.format("()", "subtract"),
        shape.format("(3, 8, 4)", "subtract"),
        "Tensor conversion requested dtype float32 for Tensor with dtype int32",
    ]  # fmt: skip
    # A gradient through what a plan runs would be None for the variables.
    assert by_run == [
        "a gradient through '<lambda>' is asked for, which runs by a plan and has none; plan the "
        "function that asks for the gradient"
    ] * len(by_run)  # fmt: skip
    assert layouts[0] == layouts[2] == "[8/x, 4] on x:2" != layouts[1]
    assert same
