# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How the processes of DTensor begin and end that `test_execution.py` starts."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from tensorflow.dtensor.python import mesh_util
from tensorflow.experimental import dtensor as stock

from tests import scripted
from tf_fuse import layout


def begin(mesh: layout.Mesh, number: int, jobs: str) -> Any:
    """Joins the others.

    Args:
      mesh: of which each process has as many devices as the others.
      number: of this process.
      jobs: the addresses of all processes, separated by commas.

    Returns:
      The `dtensor.Mesh`.
    """
    os.environ.update(DTENSOR_CLIENT_ID=str(number), DTENSOR_JOB_NAME="worker", DTENSOR_JOBS=jobs)
    own = mesh.size // len(jobs.split(","))
    stock.initialize_accelerator_system("CPU", num_logical_cpu_devices=own)
    return stock.create_distributed_mesh(list(mesh.dims), device_type="CPU")


def end(number: int, devices: Any, found: Any) -> NoReturn:
    """Ends this process when all have come here, the first one when the others have ended.

    Args:
      number: of this process.
      devices: what `begin` returned.
      found: what it gives.
    """
    # Nobody goes while another one still waits for what it sent.
    mesh_util.barrier(devices)
    if number == 0:
        # The others ask this one whether all have come to the barrier.
        sys.stdin.read()
    scripted.give(found)
    # DTensor cannot be shut down in several processes, and what it leaves running does not end.
    os._exit(0)
