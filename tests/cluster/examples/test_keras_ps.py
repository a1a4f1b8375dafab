# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""examples/keras_ps.py trains by `fit` and by its own loop."""

import re
import subprocess
import sys
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


def test_lost_tasks_will_be_noticed(isolated_env):
    """The variable is set before TensorFlow is imported; what the user has set stays."""
    program = (
        "import importlib.abc, os, sys\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'tensorflow':\n"
        "            print(os.environ.get('GRPC_FAIL_FAST'))\n"
        "            os._exit(0)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "import examples.keras_ps\n"
    )
    found = []
    for more in ({}, {"GRPC_FAIL_FAST": "false"}):
        env = {**isolated_env, "PYTHONPATH": str(_ROOT), **more}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        found.append(done.stdout.strip())
    assert found == ["use_caller", "false"]
