# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""examples/keras_ps.py trains by `fit` and by its own loop."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

_ROOT = Path(__file__).resolve().parents[3]


def test_both_ways_learn(run_program):
    printed = run_program(_ROOT / "examples" / "keras_ps.py")
    found = dict(re.findall(r"^accuracy after (.*): (.*)$", printed, re.MULTILINE))
    assert list(found) == ["fit", "the loop"]
    assert all(0.9 < float(accuracy) <= 1.0 for accuracy in found.values()), found
    assert len(re.findall(r"^epoch \d: loss", printed, re.MULTILINE)) == 4
