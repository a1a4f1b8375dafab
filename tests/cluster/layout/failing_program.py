# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""One of two processes that run a plan, where a call fails in both, and then in the second alone.

    failing_program.py NUMBER JOBS

JOBS are the addresses of both processes, separated by commas. Each process gives one result. By the
variable LAYOUT_TEST_FAILURE, what fails in the second process alone: "ids" or "shape"; by
LAYOUT_TEST_PIPE, the pipe by which they wait for each other.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests import scripted
from tests.cluster.layout import processes as layout_processes
from tf_fuse import layout
from tf_fuse.layout.execution.communication import barriers

NUMBER, JOBS = int(sys.argv[1]), sys.argv[2]
ROWS = 8


def main() -> None:
    mesh = layout.Mesh({"x": 2})
    devices = layout_processes.begin(mesh, NUMBER, JOBS)
    table = tf.Variable(tf.ones([ROWS, 2]), name="table")

    def step(ids: Any) -> Any:
        rows = tf.gather(table, ids)
        table.assign_add(tf.ones([ROWS, 2]))
        return tf.reduce_sum(rows)

    plan = layout.plan(step, mesh, [tf.TensorSpec([4], tf.int32)], mode="data")
    run = layout.execute(plan, devices, data_per_process=True)
    fine = np.zeros(2, np.int32)
    wrong = np.zeros(3, np.int32)

    def said(ids: Any) -> str:
        try:
            return str(float(run(ids)))
        except (layout.LayoutError, tf.errors.OpError) as error:
            return f"{type(error).__name__}: {error}"

    found = [said(fine), said(wrong), said(fine)]
    # The first one does not fail, so the second one waits in vain.
    barriers.FAILURE_LIMIT_S = 1
    last = {"ids": np.full(2, ROWS, np.int32), "shape": wrong}[os.environ["LAYOUT_TEST_FAILURE"]]
    found.append(said(last if NUMBER else fine))
    # Not by a barrier: over grpc the coordination service is lost. Here each waits for the other.
    with Path(os.environ["LAYOUT_TEST_PIPE"]).open("r" if NUMBER else "w"):
        pass
    scripted.give(found)
    if NUMBER == 0:
        sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
