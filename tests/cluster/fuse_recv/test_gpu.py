# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fused receives from and to GPU memory (do_fuse_gpu): runs only where there is a GPU."""

import os
from pathlib import Path

import pytest

from tests import scripted

pytestmark = pytest.mark.cluster

TABLES, STEPS = 10, 4
_SCRIPT = Path(__file__).parent / "gpu.py"
# Several tasks share the memory of one GPU.
_ENV = {**os.environ, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


@pytest.fixture(scope="module")
def runs():
    gpus = scripted.run(_SCRIPT, {"mode": "probe"}, _ENV)[0]["count"]
    if gpus == 0:
        pytest.skip("TensorFlow sees no GPU here: the copies from and to GPU memory are not run")
    result = {}
    for mode in ("stock", "plugin"):
        spec = {"mode": mode, "tables": TABLES, "steps": STEPS}
        result[mode] = {case["case"]: case for case in scripted.run(_SCRIPT, spec, _ENV)}
    return result


def test_values_are_the_same_bits(runs):
    assert runs["plugin"]["step"]["values"] == runs["stock"]["step"]["values"]


def test_training_on_the_worker_s_gpu_gives_the_same_bits(runs):
    for case in (runs["plugin"]["training"], runs["stock"]["training"]):
        assert "GPU" in case["place"]
    assert runs["plugin"]["training"]["values"] == runs["stock"]["training"]["values"]


def test_training_receives_no_table_alone(runs):
    counted = runs["plugin"]["training"]["counted"]
    assert "not_cpu" not in counted["worker:0"].get("skipped", {})
    for task in ("worker:0", "ps:0"):
        assert counted[task]["fused_rpcs"] >= STEPS, task
        assert counted[task].get("single_rpcs", 0) < STEPS * TABLES, task


def test_each_pair_of_devices_is_fused(runs):
    worker = runs["plugin"]["step"]["counted"]["worker:0"]
    # From two devices to two, with tensors in host memory apart on the GPU.
    assert worker["fused_rpcs"] >= 4
    assert "not_cpu" not in worker.get("skipped", {})
