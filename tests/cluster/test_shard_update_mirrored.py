# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""MirroredStrategy with `shard_weight_update`: each replica of a process keeps a part."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cluster.shard_update_checks import ELEMENTS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(200)]

_PROGRAM = Path(__file__).with_name("shard_update_mirrored.py")
_ROOT = Path(__file__).resolve().parents[2]
_SLOTS = {"Adam": 2, "Lion": 1}


def _train(replicas, group_size, *optimizers, switches=()):
    done = subprocess.run(
        [sys.executable, str(_PROGRAM), str(replicas), str(group_size), *switches, *optimizers],
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [result["optimizer"] for result in results] == list(optimizers)
    return results


@pytest.mark.parametrize(
    ("replicas", "group_size"), [(2, 0), (3, 0), (8, 0), (4, 2), (6, 2), (6, 3)]
)
def test_the_bits_in_a_part_of_the_memory(replicas, group_size):
    groups = replicas // (group_size or replicas)
    for result in _train(replicas, group_size, *sorted(_SLOTS)):
        on, off = result["on"], result["off"]
        assert len(set(on["losses"])) == len(on["losses"])
        assert (on["losses"], on["reads"]) == (off["losses"], off["reads"])
        slots = _SLOTS[result["optimizer"]]
        ((here, whole, _, version),) = on["held"]
        assert version == 4
        assert whole == replicas * 4 * slots * ELEMENTS
        # Each element once, and what fills registers: of each slot's parts the first and last.
        once = groups * 4 * slots * ELEMENTS
        assert once <= here <= once + 4 * slots * replicas * 6 * 2 * 64
        assert [one["groups"] for one in on["functions"]] == [groups]


@pytest.mark.parametrize("replicas", [2, 3])
def test_the_bits_with_weights_in_parts(replicas):
    results = _train(replicas, 0, *sorted(_SLOTS), switches=["--first-use"])
    for result in results:
        on, off = result["on"], result["off"]
        assert len(set(on["losses"])) == len(on["losses"])
        assert (on["losses"], on["reads"]) == (off["losses"], off["reads"])
        held = _SLOTS[result["optimizer"]] + 1
        ((here, whole, _, version),) = on["held"]
        assert version == 4
        assert whole == replicas * 4 * held * ELEMENTS
        assert 4 * held * ELEMENTS <= here <= 4 * held * (ELEMENTS + replicas * 6 * 2 * 64)
        assert on["gathers"] == ["first_use"] * 6 * replicas


def test_norms_in_groups():
    (result,) = _train(6, 2, "Lamb")
    on, off = result["on"], result["off"]
    pairs = list(zip(on["values"], off["values"], strict=True))
    assert 0 < max(np.max(np.abs(np.subtract(a, b))) for a, b in pairs) <= 1e-5
    ((_, whole, _, _),) = on["held"]
    assert whole == 6 * 4 * 2 * ELEMENTS


def test_groups_of_another_size_than_replicas_allow():
    (result,) = _train(4, 3, "SGD")
    (function,) = result["on"]["functions"]
    assert (function["sharded"], function["reason"]) == (False, "group_size")
    assert result["on"]["losses"] == result["off"]["losses"]
