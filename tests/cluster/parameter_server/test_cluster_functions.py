# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Functions of a coordinator stay in their place in memory: threads that add some move none."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forking

pytestmark = pytest.mark.cluster

_ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("protocol", "found"), [("grpc+fuse", ["1048576"]), ("grpc", [])])
def test_a_coordinator_has_room_for_its_functions(protocol, found):
    """Each connection reserves it once; stock servers are left alone."""
    done = subprocess.run(
        [sys.executable, __file__, protocol],
        env={
            **os.environ,
            forking.VARIABLE: "0",  # TensorFlow has read the last variable in a process that forks
            "CUDA_VISIBLE_DEVICES": "-1",
            "PYTHONPATH": str(_ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "0",
            "TF_CPP_VMODULE": "cluster_functions=1",
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert re.findall(r"functions have room for (\d+) parts", done.stderr) == found


def _main(protocol):
    from tests.fault import coordinator

    job = coordinator.Job("off", 1, 1, protocol=protocol)
    (variable,) = job.variables([2.0])
    assert variable.numpy() == 2.0


if __name__ == "__main__":
    _main(sys.argv[1])
    os._exit(0)
