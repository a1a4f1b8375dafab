# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Softmax and cross-entropy over split classes of rows that are not finite.

For each, in how many rows what comes out is not that of one device, and how many there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tests import scripted
from tf_fuse import layout

INF, NAN = np.inf, np.nan
ROWS = np.array([
    [1, 2, 3, 4, 5, 6], [INF, 1, 2, 3, 4, 5], [1, 2, 3, 4, INF, 5], [INF, 1, 2, INF, 3, 4],
    [-INF, 1, 2, 3, 4, 5], [1, 2, 3, -INF, -INF, -INF], [-INF] * 6, [-INF, -INF, -INF, 1, -INF, 0],
    [NAN, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, NAN], [INF, -INF, NAN, 1, 2, 3], [INF] * 6, [NAN] * 6,
    [1, 2, 3, NAN, NAN, NAN], [-INF, 1, NAN, INF, 2, 3], [-INF, -INF, -INF, NAN, 1, 2],
    [-INF, NAN, -INF, NAN, -INF, NAN], [-INF] * 5 + [NAN], [-INF] * 5 + [INF],
    [3e38, -3e38, 1, 2, 3e38, 0],
], np.float32)  # fmt: skip
LOGITS = np.tile(ROWS, (6, 1))
LABELS = np.repeat(np.arange(6), len(ROWS)).astype(np.int32)
ONES = np.eye(6, dtype=np.float32)[LABELS]
# Of every third row all labels are 0.
SHARES = ONES * (np.arange(len(LABELS)) % 3 > 0)[:, None] * 0.5


def dense(logits: Any, labels: Any) -> Any:
    return tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=logits, labels=labels)


def sparse(logits: Any, labels: Any) -> Any:
    return tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=logits, labels=labels)


CASES: dict[str, tuple[Any, list[np.ndarray]]] = {
    "dense": (dense, [LOGITS, ONES]),
    "log": (tf.nn.log_softmax, [LOGITS]),
    "shares": (dense, [LOGITS, SHARES.astype(np.float32)]),
    "softmax": (tf.nn.softmax, [LOGITS]),
    "softmax of doubles": (tf.nn.softmax, [LOGITS.astype(np.float64)]),
    "sparse": (sparse, [LOGITS, LABELS]),
}


def main() -> None:
    cpus = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    # oneDNN's softmax for AVX2 spreads a NaN to other places of a row, depending on where a vector
    # ends. There, compare only places where both results are numbers.
    leaks = bool(np.isnan(tf.nn.softmax(tf.constant([[1.0, 2, 3, 4, 5, NAN]] * 6))[0, 2].numpy()))
    found = {}
    for name, (function, args) in CASES.items():
        wanted = tf.nest.flatten(tf.function(function)(*map(tf.constant, args)))
        specs = list(map(tf.constant, args))
        problem = layout.function_problem(function, layout.Mesh({"x": 2}), specs)
        graph = problem.graph
        at = next(i for i, one in enumerate(graph.operations) if "oftmax" in one.kind)
        (split,) = [one for one in map(str, graph.strategies[at]) if one[6:] in ("classes", "d1")]
        constraints = {graph.operations[at].name: split}
        got = tf.nest.flatten(
            layout.execute(problem.search("propagate", constraints=constraints))(*args)
        )
        wrong = np.zeros(len(LOGITS), bool)
        for one, other in zip(got, wanted, strict=True):
            same = np.isclose(one, other, rtol=1e-6, atol=1e-6, equal_nan=True)
            if leaks and name == "softmax":
                same |= np.isnan(one) | np.isnan(other)
            wrong |= ~same.reshape(len(LOGITS), -1).all(1)
        found[name] = [int(wrong.sum()), len(wrong)]
    scripted.give(found)


if __name__ == "__main__":
    main()
