# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Counts the operations that a device runs, and gives them.

A process of its own, since logical devices have to be made before TensorFlow uses any.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import tensorflow as tf

from tests import scripted
from tf_fuse import layout

PAIR: Final = layout.Mesh({"x": 2})
SQUARE: Final = layout.Mesh({"x": 2, "y": 2})
# What belongs to relayouts, or is gone before the graph runs.
LEFT_OUT: Final = ("ConcatV2", "Const", "Identity", "Split")
ROWS, TABLE, IDS = tf.TensorSpec([8, 16]), tf.TensorSpec([16, 4]), tf.TensorSpec([8], tf.int32)

CASES: Final[dict[str, tuple[Any, list[Any], str]]] = {
    "Softmax": (tf.nn.softmax, [ROWS], "d1"),
    "LogSoftmax": (tf.nn.log_softmax, [ROWS], "d1"),
    "SoftmaxCrossEntropyWithLogits": (
        lambda x, y: tf.nn.softmax_cross_entropy_with_logits(y, x), [ROWS, ROWS], "classes",
    ),
    "SparseSoftmaxCrossEntropyWithLogits": (
        lambda x, y: tf.nn.sparse_softmax_cross_entropy_with_logits(y, x), [ROWS, IDS], "classes",
    ),
    "GatherV2": (tf.gather, [TABLE, IDS], "vocabulary"),
    "UnsortedSegmentSum": (
        lambda x, y: tf.math.unsorted_segment_sum(x, y, 16), [tf.TensorSpec([8, 4]), IDS],
        "vocabulary",
    ),
    "OneHot": (lambda y: tf.one_hot(y, 16), [IDS], "depth"),
}  # fmt: skip


def on_last(run: Any, left_out: tuple[str, ...] = LEFT_OUT) -> Counter[str]:
    """The operations on the last device, which feeds nothing and puts nothing together."""
    last = max(run.devices.names.values())
    operations = run._function.graph.get_operations()
    return Counter(
        one.type for one in operations if one.device.endswith(last) and one.type not in left_out
    )


def planned_and_run(kind: str) -> tuple[int, int]:
    """How many operations a split costs more, by the rule and in the graph."""
    function, specs, factor = CASES[kind]
    problem = layout.function_problem(function, PAIR, specs)
    (name,) = (one.name for one in problem.graph.operations if one.kind == kind)
    counts = []
    for how in ("replicate", f"split {factor}"):
        plan = problem.search("propagate", constraints={name: how})
        chosen = zip(problem.graph.operations, problem.graph.chosen(plan.plan), strict=True)
        (strategy,) = (one for operation, one in chosen if operation.name == name)
        counts.append((strategy.operations, sum(on_last(layout.execute(plan)).values())))
    (a, b), (c, d) = counts
    return c - a, d - b


def slices() -> int:
    """Of a tensor that is whole and is split along both of its dimensions: one for both."""
    problem = layout.function_problem(tf.nn.relu, SQUARE, [ROWS])
    constraints = {}
    for one in problem.graph.operations:
        if one.kind == "Placeholder":
            constraints[one.name] = "replicate, replicate"
        if one.kind == "Relu":
            constraints[one.name] = "split d0, split d1"
    run = layout.execute(problem.search("propagate", constraints=constraints))
    (read,) = (one.reads[0] for one in run.program.instructions if one.operation.kind == "Relu")
    assert [step.kind for step in read.relayout.steps] == ["slice", "slice"]
    values = tf.random.stateless_normal(ROWS.shape, [1, 2])
    assert bool(tf.reduce_all(run(values) == tf.nn.relu(values)))
    return on_last(run)["Slice"]


if __name__ == "__main__":
    cpus = [tf.config.LogicalDeviceConfiguration()] * SQUARE.size
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    found = {"rules": {k: planned_and_run(k) for k in CASES}, "slices": slices()}
    scripted.give(found)
