# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Runs whole programs, as a user does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def run_program(tmp_path, isolated_env):
    """A function that runs a Python file in a folder of its own; returns what it printed."""

    def run(path):
        done = subprocess.run(
            [sys.executable, str(path)],
            cwd=tmp_path,
            env={**isolated_env, "PYTHONPATH": os.fspath(_ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
