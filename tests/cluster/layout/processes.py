# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How the processes begin and end that `test_execution.py` starts."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, NoReturn

from tensorflow.experimental import dtensor as stock
from tensorflow.python.eager import context

from tests import scripted
from tf_fuse import layout

# By this variable, how the processes join: "connect" (the default), or "dtensor".
WAY = "LAYOUT_TEST_PROCESSES"
_END_MS = 250_000


def begin(mesh: layout.Mesh, number: int, jobs: str) -> Any:
    """Joins the others.

    Args:
      mesh: each process has as many of its devices as the others.
      number: of this process.
      jobs: the addresses of all processes, separated by commas.

    Returns:
      The devices, for `layout.execute`.
    """
    if os.environ.get(WAY) != "dtensor":
        task = {"type": "worker", "index": number}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": jobs.split(",")}, "task": task})
        return layout.connect(mesh)
    os.environ.update(DTENSOR_CLIENT_ID=str(number), DTENSOR_JOB_NAME="worker", DTENSOR_JOBS=jobs)
    own = mesh.size // len(jobs.split(","))
    stock.initialize_accelerator_system("CPU", num_logical_cpu_devices=own)
    return stock.create_distributed_mesh(list(mesh.dims), device_type="CPU")


def end(number: int, found: Any) -> NoReturn:
    """Ends this process when all have come here, the first one when the others have ended.

    Args:
      number: of this process.
      found: what it gives.
    """
    # Nobody goes while another one still waits for what it sent.
    context.context().wait_at_barrier("end", _END_MS)
    if number == 0:
        # The others ask this one whether all have come to the barrier.
        sys.stdin.read()
    scripted.give(found)
    # DTensor cannot be shut down in several processes, and what it leaves running does not end.
    os._exit(0)
