# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions that were traced before their variables were laid out; gives what they do.

A process of its own, since logical devices have to be made before TensorFlow uses any.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests import scripted
from tf_fuse import layout

MESH = layout.Mesh({"x": 2})
VALUES = np.arange(1, 33, dtype=np.float32).reshape(8, 4)
IN_SLICES = "unless tf_fuse.layout has its value in slices"
# What XLA, and what applies gradients, say in their own words.
OTHERWISE = (
    "Trying to read variable with wrong dtype", "Trying to assign variable with wrong dtype",
    "Invalid variable reference.",
)  # fmt: skip


class Variables:
    """Of several shapes and types, with all that reads or writes them."""

    def __init__(self) -> None:
        self.w = tf.Variable(VALUES, name="w")
        self.b = tf.Variable(2.0, name="b")
        self.n = tf.Variable(3, dtype=tf.int64, name="n")
        self.on = tf.Variable([True, False], name="on")

    def reset(self) -> None:
        """Begins again."""
        for one, value in ((self.w, VALUES), (self.b, 2.0), (self.n, 3), (self.on, [True, False])):
            one.assign(value)

    def values(self) -> list[Any]:
        """What they hold."""
        return [one.numpy().tolist() for one in (self.w, self.b, self.n, self.on)]

    def product(self, x: Any) -> Any:
        """What is planned."""
        number = tf.cast(self.n, tf.float32) + tf.reduce_sum(tf.cast(self.on, tf.float32))
        return x @ self.w * self.b + number

    def functions(self) -> dict[str, Callable[[], Any]]:
        """By name; each has been traced, and run, once."""
        w, b = self.w, self.b
        row = tf.IndexedSlices(tf.ones([1, 4]), tf.constant([1]))
        bodies: dict[str, Callable[[], Any]] = {
            "sum": lambda: tf.reduce_sum(w),
            "norm": lambda: tf.linalg.global_norm([w]),
            "l2": lambda: tf.nn.l2_loss(w),
            "scalar": lambda: b * 2,
            "integer": lambda: self.n + 1,
            "bool": lambda: tf.reduce_any(self.on),
            "gather": lambda: tf.gather(w, [0]),
            "no rows": lambda: tf.reduce_sum(tf.gather(w, tf.zeros([0], tf.int32))),
            "gather_nd": lambda: tf.gather_nd(w, [[0, 1]]),
            "slice": lambda: w[1:2],
            "shape": lambda: tf.raw_ops.VariableShape(input=w.handle),
            "assign": lambda: w.assign(tf.zeros([8, 4])),
            "assign a number": lambda: b.assign(9.0),
            "add": lambda: b.assign_add(1.0),
            "scatter": lambda: w.scatter_add(row),
            "scatter_nd": lambda: w.scatter_nd_add([[0, 0]], [1.0]),
            "slice assign": lambda: w[1:2, 0].assign([1.0]),
            "descent": self._descend,
            "cond": lambda: tf.cond(tf.constant(True), lambda: tf.reduce_sum(w), lambda: 0.0),
            "loop": lambda: tf.map_fn(lambda i: tf.reduce_sum(w) * i, tf.ones([2])),
            "gradient": lambda: tf.gradients(tf.reduce_sum(w * w), [w]),
        }
        found: dict[str, Callable[[], Any]] = {
            name: tf.function(body, autograph=False) for name, body in bodies.items()
        }
        for name in ("sum", "assign"):
            found[f"{name} by XLA"] = tf.function(bodies[name], jit_compile=True, autograph=False)
        total = tf.function(lambda one: tf.reduce_sum(one), autograph=False)
        found["argument"] = lambda: total(w)
        found["summary"] = self._summary()
        data = tf.data.Dataset.range(2).map(lambda i: tf.reduce_sum(w))
        found["data"] = lambda: list(data)
        for function in found.values():
            function()
        return found

    def _descend(self) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(var=self.w.handle, alpha=1.0, delta=tf.ones([8, 4]))

    def _summary(self) -> Callable[[], Any]:
        writer = tf.summary.create_file_writer(sys.argv[1])

        @tf.function(autograph=False)
        def write() -> Any:
            with writer.as_default(), tf.summary.record_if(True):
                return tf.summary.write("w", self.w, step=tf.constant(0, tf.int64))

        return write


def told(function: Callable[[], Any]) -> str:
    """The text of the error, in short, or that there was none."""
    try:
        return f"returned {function()}"
    except (ValueError, tf.errors.OpError) as error:
        text = str(error)
        if IN_SLICES in text:
            return re.search(r"\(name '([^']+)/\d+'\)", text)[1] + " in slices"  # type: ignore[index]
        known = [one for one in OTHERWISE if one in text]
        return known[0] if known else text


class Module(tf.Module):
    """What is exported."""

    def __init__(self, w: Any):
        super().__init__()
        self.w = w
        self.total = tf.function(lambda: tf.reduce_sum(self.w), autograph=False)


def exported(module: Module, path: str) -> list[float]:
    """What a SavedModel of a module has: of its function, and of its variable."""
    tf.saved_model.save(module, path, signatures=None)
    again = tf.saved_model.load(path)
    return [float(again.total()), float(tf.reduce_sum(again.w))]


def _updated(metric: Any, x: Any) -> Any:
    metric.update_state(x)
    return metric.result()


def metrics() -> dict[str, Any]:
    """Metrics of both Keras versions, which were updated by functions that are traced."""
    import keras
    import tf_keras

    found = {}
    for library in (keras, tf_keras):
        one = library.metrics.Mean(name="mean")
        update = tf.function(lambda x, one=one: _updated(one, x), autograph=False)
        update(tf.constant([2.0, 4.0]))
        one.update_state([6.0])

        plan = layout.plan(lambda x, one=one: _updated(one, x), MESH, [tf.TensorSpec([4])])
        run = layout.execute(plan)
        wanted = float(run(tf.fill([4], 8.0)))
        stale = told(lambda update=update: update(tf.constant([1.0, 1.0])))  # type: ignore[misc]
        one.update_state([1.0])
        found[library.__name__] = [wanted, stale.endswith("in slices"), float(one.result())]
        run.release()
    return found


def main() -> None:
    cpus = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    variables = Variables()
    functions = variables.functions()
    module = Module(variables.w)
    module.total()
    variables.reset()
    before = variables.values()
    plan = layout.plan(variables.product, MESH, [tf.TensorSpec([4, 8])])
    # Nor is the plan's own trace to run unchanged.
    planned = tf.function(variables.product, input_signature=[tf.TensorSpec([4, 8])])
    layout.plan(planned, MESH)
    run = layout.execute(plan)
    functions["planned"] = lambda: planned(tf.ones([4, 8]))
    found: dict[str, Any] = {"stale": {name: told(one) for name, one in functions.items()}}
    found["kept"] = variables.values() == before
    # The one question that has a wrong answer in place of an error, as the docs say.
    found["initialized"] = [
        bool(tf.raw_ops.VarIsInitializedOp(resource=variables.w.handle)),
        bool(variables.w.is_initialized()),
    ]
    path = Path(sys.argv[1])
    found["exported"] = exported(module, str(path / "model"))
    found["traced to be exported"] = told(module.total)
    saver = tf.compat.v1.train.Saver({"w": variables.w})
    written = saver.save(None, str(path / "saver"), write_meta_graph=False)
    found["saver"] = float(tf.reduce_sum(tf.train.load_variable(written, "w")))
    found["restored"] = told(lambda: saver.restore(None, written))
    found["value"] = float(run(tf.ones([4, 8]))[0, 0])
    run.release()
    # Each works again, and changes what it changed before.
    found["again"] = {name: told(one).startswith("returned") for name, one in functions.items()}
    found["zeros"] = float(tf.reduce_sum(functions["sum"]()))
    found["metrics"] = metrics()
    scripted.give(found)


if __name__ == "__main__":
    main()
