# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whose updates are one operation each, by the options."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

_PROGRAM = Path(__file__).with_name("shard_update_default.py")
_ROOT = Path(__file__).resolve().parents[2]


# With both replicas' updates in the step, each of a weight and two slots.
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"shard_weight_update": True}, [["step", "fused", 2]]),
        ({"shard_weight_update": True, "fuse_weight_update": False}, []),
        ({"shard_weight_update": True, "fuse_weight_update": True},
         [["step", "fused", 2], ["other", "fused", 1]]),
        ({"fuse_weight_update": True}, [["step", "fused", 2], ["other", "fused", 1]]),
        ({"shard_weight_update": False}, []),
    ],
)  # fmt: skip
def test_functions(options, told):
    done = subprocess.run(
        [sys.executable, str(_PROGRAM), json.dumps(options)],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout) == told
