# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One of several processes that make a table of random numbers, in parts.

    parts_program.py NUMBER JOBS

JOBS are the addresses of all processes, separated by commas. Devices of several processes hold each
part; in three processes the middle one has devices of both rows of the mesh.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.layout import processes as layout_processes
from tf_fuse import layout

NUMBER, JOBS = int(sys.argv[1]), sys.argv[2]
ROWS, WIDTH, HIDDEN = 6, 4, 6


def main() -> None:
    three = len(JOBS.split(",")) == 3
    mesh = layout.Mesh({"x": 2, "y": 3 if three else 2})
    devices = layout_processes.begin(mesh, NUMBER, JOBS)
    rules = "rows:x;hidden:y" if three else "rows:y;hidden:x"
    kernel = tf.Variable(tf.ones([WIDTH, HIDDEN]), name="kernel")
    ids = np.array([0, 5, 3, 1], np.int32)

    def executed(part_of: Any, value: Any = None) -> tuple[Any, Any]:
        table = layout.variable_in_parts([ROWS, WIDTH], part_of, name="table")
        if value is not None:
            table.assign(value)

        def step(ids: Any) -> Any:
            return tf.reduce_sum(tf.gather(table, ids) @ kernel)

        problem = layout.function_problem(step, mesh, [tf.TensorSpec([4], tf.int32)])
        names = {"table": ["rows", None], "kernel": [None, "hidden"]}
        return layout.execute(problem.search("propagate", rules, names), devices), table

    def random(begin: Any, shape: Any) -> Any:
        return tf.random.normal(shape)

    def broken(begin: Any, shape: Any) -> Any:
        if NUMBER == 0:
            raise ValueError("the file is gone")
        return tf.zeros(shape)

    run, table = executed(random)
    found: dict[str, Any] = {"layout": str(run.plan.variables["table"])}
    whole = table.numpy()
    found["random"] = whole.tolist()
    found["difference"] = abs(float(run(ids)) - HIDDEN * float(whole[ids].sum()))
    run.release()
    # As after a checkpoint that the first process alone has read.
    ones = np.ones([ROWS, WIDTH], np.float32)
    run, table = executed(random, ones if NUMBER == 0 else None)
    found["of the first"] = float(run(ids)), float(table.numpy().sum())
    run.release()
    try:
        executed(broken)
    except (layout.LayoutError, ValueError) as error:
        found["said"] = str(error)
    layout_processes.end(NUMBER, found)


if __name__ == "__main__":
    main()
