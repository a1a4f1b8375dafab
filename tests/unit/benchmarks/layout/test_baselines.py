# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The baseline of the relayout benchmark is what DTensor does by itself."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests import scripted

GATHER = "LOWER_DTENSOR_GATHER_TO_COLLECTIVE_GATHER_V2"
HERE = Path(__file__).resolve().parent


@pytest.mark.slow
def test_the_baseline_is_what_dtensor_does():
    """Kinds of collectives, their bytes, and whether the values are right, of stock relayouts."""
    environment = {name: text for name, text in os.environ.items() if name != GATHER}
    environment["PYTHONPATH"] = str(HERE.parents[3])
    command = [sys.executable, str(HERE / "dtensor_programs.py")]
    assert scripted.result_of(command, environment, 280) == {
        "2x4": {"pairs": 42, "wrong": 0, "differ": []},
        "2x2x2": {"pairs": 81, "wrong": 4, "differ": []},
    }
