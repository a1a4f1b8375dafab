# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""examples/keras_mwms.py trains by `fit` in two workers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

_ROOT = Path(__file__).resolve().parents[3]


def test_both_workers_learn_the_same(tmp_path, isolated_env):
    done = subprocess.run(
        [sys.executable, str(_ROOT / "examples" / "keras_mwms.py")],
        cwd=tmp_path,
        env={**isolated_env, "PYTHONPATH": os.fspath(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    one, other = re.findall(r"^accuracy: (.*)$", done.stdout, re.MULTILINE)
    assert one == other
    assert 0.9 < float(one) <= 1.0
    (saved,) = re.findall(r"^accuracy of the saved model: (.*)$", done.stdout, re.MULTILINE)
    assert 0.9 < float(saved) <= 1.0
