# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""examples/keras_ps.py trains by `fit` and by its own loop."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

_ROOT = Path(__file__).resolve().parents[3]


def test_both_ways_learn(tmp_path, isolated_env):
    done = subprocess.run(
        [sys.executable, str(_ROOT / "examples" / "keras_ps.py")],
        cwd=tmp_path,
        env={**isolated_env, "PYTHONPATH": os.fspath(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^accuracy after (.*): (.*)$", done.stdout, re.MULTILINE))
    assert list(found) == ["fit", "the loop"]
    assert all(0.9 < float(accuracy) <= 1.0 for accuracy in found.values()), found
    assert len(re.findall(r"^epoch \d: loss", done.stdout, re.MULTILINE)) == 4
