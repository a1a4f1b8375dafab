# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions and calls that cannot run by a plan, and the texts of their errors."""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf

from tf_fuse import layout


def told(action: Any) -> str:
    """The text of the error that something raises."""
    try:
        action()
    except (layout.LayoutError, ValueError, tf.errors.OpError) as error:
        return str(error)
    return "nothing"


def errors() -> dict[str, Any]:
    """What is said of what cannot run."""
    mesh = layout.Mesh({"x": 2})
    spec = [tf.TensorSpec([4, 6])]

    def executed(function: Any, devices: Any = None, **given: Any) -> layout.FunctionPlan:
        return layout.execute(layout.plan(function, mesh, spec, **given), devices)

    weight = tf.Variable(tf.ones([6, 2]), name="weight")
    stale = tf.function(lambda x: x @ weight)
    stale(tf.ones([4, 6]))

    def product(x: Any) -> Any:
        return x @ weight

    def rows_of_handle(x: Any) -> Any:
        return tf.raw_ops.ResourceGather(resource=weight.handle, indices=[0], dtype=x.dtype)

    rows = {"rules": "io:x", "dimensions": {"weight": ["io", None]}, "mode": "propagate"}
    found = {
        "devices": told(lambda: executed(product, ["CPU:0"])),
        "unknown": told(lambda: executed(product, ["CPU:0", "CPU:9"])),
        "twice": told(lambda: executed(product, ["CPU:0", "CPU:0"])),
        "random": told(lambda: executed(tf.random.shuffle)),
        "inner": told(lambda: executed(lambda x: tf.map_fn(tf.random.shuffle, x))),
        "python": told(lambda: executed(_by_python)),
    }
    found["made"] = told(lambda: executed(_in_own_variable))
    found["handle"] = told(lambda: executed(rows_of_handle))
    run = executed(lambda x: (weight.read_value(), rows_of_handle(x))[1])
    found["read"] = run(tf.ones([4, 6])).numpy().tolist()
    run.release()
    # After an error variables are what they were.
    found["untouched"] = type(weight).__name__
    run = executed(product, **rows)
    found["taken"] = type(weight).__name__
    found["otherwise"] = told(lambda: executed(product))
    found["unplanned"] = told(lambda: tf.function(lambda: weight * 2, autograph=False)())
    found["stale"] = "has its value in slices" in told(lambda: stale(tf.ones([4, 6])))
    found["shape"] = told(lambda: weight.assign(tf.zeros([2, 6])))
    found["row"] = "is not in [0, 4)" in told(_wrong_row)
    found["label"] = [
        "outside the valid range of [0, 4)" in told(partial(_wrong_label, one)) for one in (-1, 4)
    ]
    found["arguments"] = [
        told(lambda: run(tf.ones([4, 5]))),
        told(lambda: run(tf.ones([4, 6], tf.int32))),
    ]
    weight.assign_add(tf.ones([6, 2]))
    weight.assign_sub(tf.fill([6, 2], 0.5))
    found["assigned"] = [float(weight.numpy().sum()), float(run(tf.ones([4, 6]))[0, 0])]
    run.release()
    found["released"] = [type(weight).__name__, float(stale(tf.ones([4, 6]))[0, 0])]
    return found


def _wrong_label(label: int) -> None:
    """A label that is not a class, where each device has some of the classes."""
    entropy = tf.nn.sparse_softmax_cross_entropy_with_logits
    args = [tf.TensorSpec([2, 4]), tf.TensorSpec([2], tf.int32)]
    problem = layout.function_problem(lambda x, y: entropy(y, x), layout.Mesh({"x": 2}), args)
    at = next(one for one in problem.graph.operations if one.kind.startswith("Sparse"))
    run = layout.execute(problem.search("propagate", constraints={at.name: "split classes"}))
    run(tf.ones([2, 4]), tf.constant([0, 3]))
    run(tf.ones([2, 4]), tf.constant([0, label]))


def _in_own_variable(x: Any) -> Any:
    handle = tf.raw_ops.VarHandleOp(dtype=x.dtype, shape=x.shape)
    tf.raw_ops.AssignVariableOp(resource=handle, value=x)
    return tf.raw_ops.ReadVariableOp(resource=handle, dtype=x.dtype)


def _by_python(x: Any) -> Any:
    found = tf.py_function(tf.sin, [x], x.dtype)
    found.set_shape(x.shape)
    return found


def _wrong_row() -> None:
    """A row that is in no device's slice of a table."""
    mesh = layout.Mesh({"x": 2})
    table = tf.Variable(tf.ones([8, 2]), name="table")
    args = [tf.TensorSpec([4], tf.int64)]
    names = {"table": ["rows", None]}
    problem = layout.function_problem(lambda ids: tf.gather(table, ids), mesh, args)
    run = layout.execute(layout.plan_by_rules(problem, "rows:x", names))
    run(tf.range(4, dtype=tf.int64))
    run(tf.constant([0, 1, 2, 8], tf.int64))
