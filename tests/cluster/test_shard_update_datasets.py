# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Datasets that read the optimizer's variables, which they may do at any time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(150)]

_PROGRAM = Path(__file__).with_name("shard_update_datasets.py")
_ROOT = Path(__file__).resolve().parents[2]


def test_what_a_dataset_reads_is_not_cut():
    done = subprocess.run(
        [sys.executable, str(_PROGRAM)],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    result = json.loads(done.stdout)
    assert result["given"] == result["had"]
    assert len(set(result["given"])) == 3
    (function,) = result["functions"]
    gradients = [one for pack in function["packs"] for one in pack["gradients"]]
    # Of both replicas, the weight whose slot it is; the three others are cut.
    assert [one["sharded"] for one in gradients].count(True) == 6
    assert [one["reason"] for one in gradients if not one["sharded"]] == ["several_weights"] * 2
    # One that is cut already is an error for a new dataset; its value is not.
    assert "a function of a dataset reads a variable of which each replica" in result["error"]
    assert "as with tf.constant(variable)" in result["error"]
    (given,), had = result["later"]
    assert given == had != 0
