# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions that do more than make results, run by plans on two devices; gives what came of it.

A process of its own, since logical devices have to be made before TensorFlow uses any.
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.util import event_pb2

from tests import scripted
from tf_fuse import layout

MESH = layout.Mesh({"x": 2})
SPEC = [tf.TensorSpec([4, 8])]
GOOD = np.arange(1, 33, dtype=np.float32).reshape(4, 8)


def told(function: Any, *args: Any) -> str:
    """The kind of error, and what of its text everybody says; or that there was none."""
    try:
        function(*args)
    except tf.errors.OpError as error:
        known = ("too small", "assertion failed", "is not finite", "has a NaN", "shut")
        return " ".join([type(error).__name__, *(one for one in known if one in str(error))])
    return "nothing"


def split(function: Any, args: Any = SPEC) -> Any:
    """The plan of a function whose first input is split."""
    problem = layout.function_problem(function, MESH, args)
    name = problem.function.inputs[0]
    return problem.search("propagate", "batch:x", {name: ["batch", None]})


def guards() -> dict[str, Any]:
    """Checks: what one device says of good and bad values, and what a plan says."""
    weight = tf.Variable(tf.ones([8, 2]), name="weight")
    steps = tf.Variable(0, dtype=tf.int64, name="steps")

    def looped(x: Any) -> Any:
        for _ in tf.range(2):
            tf.debugging.assert_less(x, 99.0, "too small")
        return x @ weight

    def inside(x: Any) -> Any:
        y = tf.debugging.check_numerics(x @ weight, "is not finite")
        tf.debugging.assert_all_finite(y, "has a NaN")
        return y

    def written(x: Any) -> Any:
        tf.debugging.assert_positive(x, "too small")
        steps.assign_add(1)
        weight.assign_add(tf.ones([8, 2]))
        return x @ weight

    bodies = {
        "positive": lambda x: (tf.debugging.assert_positive(x, "too small"), x @ weight)[1],
        "of the output": lambda x: (
            tf.debugging.assert_positive(tf.reduce_sum(x @ weight), "too small"),
            x @ weight,
        )[1],
        "Assert": lambda x: (tf.debugging.Assert(tf.reduce_all(x > 0), [x]), x @ weight)[1],
        "unread": lambda x: (tf.debugging.check_numerics(x - 50.0, "is not finite"), x * 2)[1],
        "of a variable": lambda x: (
            tf.cond(
                tf.reduce_any(x < 0),
                lambda: tf.debugging.Assert(tf.reduce_sum(weight) < 0, [weight]),
                tf.no_op,
            ),
            x @ weight,
        )[1],
        # Each device's term is finite, and their sum is not.
        "overflow": lambda x: tf.debugging.check_numerics(tf.reduce_sum(x), "is not finite"),
        "inside": inside,
        "looped": tf.function(looped),
        "written": written,
    }
    found = {}
    for name, body in bodies.items():
        nan = name in ("unread", "inside")
        bad = np.where(GOOD == 32, np.nan if nan else (1e9 if name == "looped" else -1e9), GOOD)
        if name == "overflow":
            bad = np.where((GOOD == 1) | (GOOD == 32), 3e38, 0.0)
        bad = tf.constant(bad, tf.float32)
        stock = tf.function(body)
        wanted = [told(stock, tf.constant(GOOD)), told(stock, bad)]
        weight.assign(tf.ones([8, 2]))
        steps.assign(0)
        run = layout.execute(split(body))
        got = [told(run, GOOD), told(run, bad)]
        found[name] = [wanted, got, float(weight.numpy().sum()), int(steps.numpy())]
        assert run.traffic.received_bytes == run.program.received_bytes
        run.release()
    return found


def printed() -> list[str]:
    """What a plan prints, into a file: once, and whole."""
    path = Path(sys.argv[1]) / "printed"

    def step(x: Any) -> Any:
        total = tf.reduce_sum(x)
        tf.print("total", total, output_stream=f"file://{path}")
        tf.print("big", tf.boolean_mask(x, x > 30), output_stream=f"file://{path}")
        for row in tf.range(2):
            tf.print("row", row, output_stream=f"file://{path}")
        return x * 2

    run = layout.execute(split(tf.function(step)))
    run(GOOD)
    return [*path.read_text().splitlines(), *run.plan.function.effects]


def summaries() -> list[Any]:
    """Steps and values of a summary that is written every second step."""
    folder = Path(sys.argv[1]) / "summaries"
    writer = tf.summary.create_file_writer(str(folder))
    step = tf.Variable(0, dtype=tf.int64, name="step")

    def body(x: Any) -> Any:
        step.assign_add(1)
        with writer.as_default(), tf.summary.record_if(tf.equal(step % 2, 0)):
            tf.summary.write("mean", tf.reduce_mean(x), step=step)
        return x * 2

    run = layout.execute(split(body))
    for i in range(4):
        run(GOOD + i)
    writer.close()
    (path,) = folder.iterdir()
    records = tf.data.TFRecordDataset(str(path))
    events = [event_pb2.Event.FromString(one.numpy()) for one in records]
    return [
        [event.step, one.tag, float(tf.make_ndarray(one.tensor))]
        for event in events
        for one in event.summary.value
    ]


def tables() -> list[float]:
    """A table that is filled by a plan; its keys are strings."""
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, -1.0)

    def body(x: Any) -> Any:
        table.insert(tf.constant(["a", "b", "c", "d"]), tf.reduce_sum(x, 1))
        return x * 2

    layout.execute(split(body))(GOOD)
    found = table.lookup(tf.constant(["a", "d", "e"])).numpy().tolist()
    return [*found, float(table.size())]


def left_out() -> list[str]:
    """What is said of what cannot run."""
    called: list[float] = []

    def body(x: Any) -> Any:
        tf.py_function(lambda one: called.append(float(one)), [tf.reduce_sum(x)], [])
        return x * 2

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = split(body)
    layout.execute(plan)(GOOD)
    import rich

    with contextlib.redirect_stdout(io.StringIO()) as text:
        rich.print(plan.table())
    notes = " ".join(text.getvalue().split("note: ")[-1].split())
    return [*(str(one.message) for one in caught), notes, str(called)]


def main() -> None:
    cpus = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    found = {one.__name__: one() for one in (guards, printed, summaries, tables, left_out)}
    scripted.give(found)


if __name__ == "__main__":
    main()
