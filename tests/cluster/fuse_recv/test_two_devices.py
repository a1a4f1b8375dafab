# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Tasks with two logical CPUs: each pair of devices of two tasks has frames of its own."""

import os
from pathlib import Path

import pytest

from tests import scripted

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def runs():
    script = Path(__file__).parent / "two_devices.py"
    return {
        mode: scripted.run(script, {"mode": mode}, os.environ)[0] for mode in ("stock", "plugin")
    }


def test_values_are_the_same_bits(runs):
    assert runs["plugin"]["values"] == runs["stock"]["values"]


def test_each_pair_of_devices_has_one_frame(runs):
    counted = runs["plugin"]["counted"]
    assert counted["worker:0"]["fused_rpcs"] == 8, "two servers, two devices there and two here"
    for server in ("ps:0", "ps:1"):
        assert counted[server]["served_rpcs"] == 4
        # The shares, which the function returns, go back to the device that made them. Nothing
        # between two devices of a task is an RPC.
        assert counted[server]["fused_rpcs"] == 1
        assert "single_rpcs" not in counted[server]
    assert "single_rpcs" not in counted["worker:0"]
