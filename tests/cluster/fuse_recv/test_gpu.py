# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Fused receives from and to GPU memory (do_fuse_gpu): runs only where there is a GPU."""

import os
from pathlib import Path

import pytest

from tests import scripted

pytestmark = pytest.mark.cluster

_SCRIPT = Path(__file__).parent / "gpu.py"
# Several tasks share the memory of one GPU.
_ENV = {**os.environ, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


@pytest.fixture(scope="module")
def runs():
    gpus = scripted.run(_SCRIPT, {"mode": "probe"}, _ENV)[0]["count"]
    if gpus == 0:
        pytest.skip("TensorFlow sees no GPU here: the copies from and to GPU memory are not run")
    return {mode: scripted.run(_SCRIPT, {"mode": mode}, _ENV)[0] for mode in ("stock", "plugin")}


def test_values_are_the_same_bits(runs):
    assert runs["plugin"]["values"] == runs["stock"]["values"]


def test_each_pair_of_devices_is_fused(runs):
    worker = runs["plugin"]["counted"]["worker:0"]
    # From two devices to two, with tensors in host memory apart on the GPU.
    assert worker["fused_rpcs"] >= 4
    assert "not_cpu" not in worker.get("skipped", {})
