# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""examples/keras_mwms.py trains by `fit` in two workers."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

_ROOT = Path(__file__).resolve().parents[3]


def test_both_workers_learn_the_same(run_program):
    """Whose lines begin with them, as `tf-fuse launch` shows logs."""
    lines = run_program(_ROOT / "examples" / "keras_mwms.py")
    printed = re.sub(r"^\[worker:\d\] ", "", lines, flags=re.MULTILINE)
    one, other = re.findall(r"^accuracy: (.*)$", printed, re.MULTILINE)
    assert one == other
    assert 0.9 < float(one) <= 1.0
    (saved,) = re.findall(r"^accuracy of the saved model: (.*)$", printed, re.MULTILINE)
    assert 0.9 < float(saved) <= 1.0
    (restored,) = re.findall(r"^accuracy of the checkpoint: (.*)$", printed, re.MULTILINE)
    assert restored == one  # of the last epoch
