# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/tutorial.md do what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

_ROOT = Path(__file__).resolve().parents[3]
_PAGE = (_ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
_PRINTED = r"([\d.]+) steps/s, (\d+) receive RPCs per step, last loss ([\d.]+)"


def _program(begins_with):
    programs = re.findall(r"^```python\n(.*?)^```$", _PAGE, re.DOTALL | re.MULTILINE)
    (program,) = [text for text in programs if text.startswith(begins_with)]
    return program


@pytest.fixture
def run(tmp_path, isolated_env):
    """A function that runs Python with a command line, in a fresh folder; what it has printed."""
    env = {**isolated_env, "PYTHONPATH": os.fspath(_ROOT)}

    def run(*arguments):
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_job_has_the_calls_and_the_losses_that_are_printed(tmp_path, run):
    program = _program("import os\n")
    shorter = program.replace("STEPS = 30, 1000, 64, 100", "STEPS = 30, 1000, 64, 5")
    (tmp_path / "wide_deep.py").write_text(shorter + _program("import tf_fuse.explain\n"))
    off, fused, _ = re.findall(_PRINTED, _PAGE)
    found_off, found_fused = (
        re.fullmatch(_PRINTED, run("wide_deep.py", mode).strip()) for mode in ("off", "fused")
    )
    assert (found_off[2], found_fused[2]) == (off[1], fused[1])
    assert found_off[3] == found_fused[3]
    assert "before, " in run("-m", "tf_fuse", "explain", "step.pb")


def test_the_plan_splits_a_weight(tmp_path, run):
    (tmp_path / "plan.py").write_text(_program("import tensorflow as tf\n"))
    assert re.search(r"w +│ \[256, 512\] │ S\(1\)", run("plan.py"))
