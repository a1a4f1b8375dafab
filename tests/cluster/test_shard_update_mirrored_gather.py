# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""MirroredStrategy with weights that are gathered before their first use."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

_PROGRAM = Path(__file__).with_name("shard_update_mirrored.py")
_ROOT = Path(__file__).resolve().parents[2]
_ELEMENTS = 10 * 37 + 37 + 37 * 5 + 5 + 5 * 1 + 1  # of all weights
_SLOTS = {"Adam": 2, "Lion": 1}


@pytest.mark.parametrize("replicas", [2, 3])
def test_the_bits_with_weights_in_parts(replicas):
    done = subprocess.run(
        [sys.executable, str(_PROGRAM), str(replicas), "0", "--first-use", *sorted(_SLOTS)],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["optimizer"] for result in results] == sorted(_SLOTS)
    for result in results:
        on, off = result["on"], result["off"]
        assert len(set(on["losses"])) == len(on["losses"])
        assert (on["losses"], on["reads"]) == (off["losses"], off["reads"])
        held = _SLOTS[result["optimizer"]] + 1
        ((here, whole, _, version),) = on["held"]
        assert version == 4
        assert whole == replicas * 4 * held * _ELEMENTS
        assert 4 * held * _ELEMENTS <= here <= 4 * held * (_ELEMENTS + replicas * 6 * 2 * 64)
        assert on["gathers"] == ["first_use"] * 6 * replicas
