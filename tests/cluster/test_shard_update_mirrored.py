# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""MirroredStrategy with `shard_weight_update`: each replica of a process keeps a part."""

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


@pytest.mark.parametrize("replicas", [2, 3, 8])
def test_the_bits_in_a_part_of_the_memory(replicas):
    done = subprocess.run(
        [sys.executable, str(_PROGRAM), str(replicas), *sorted(_SLOTS)],
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
        slots = _SLOTS[result["optimizer"]]
        ((here, whole, _, version),) = on["held"]
        assert version == 4
        assert whole == replicas * 4 * slots * _ELEMENTS
        # Each element once, and what fills registers: of each slot's parts the first and last.
        assert 4 * slots * _ELEMENTS <= here <= 4 * slots * (_ELEMENTS + replicas * 6 * 2 * 64)
