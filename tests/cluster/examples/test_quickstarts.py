# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each program examples/quickstart_*.py runs and prints its speed-up; README has the first one."""

import ast
import re
from pathlib import Path

import pytest

from tests.cluster.examples import quickstarts

pytestmark = pytest.mark.cluster

_ROOT = Path(__file__).resolve().parents[3]
_MOST_LINES = 25


@pytest.fixture
def run(tmp_path, run_program):
    """A function that runs the text of a program; returns the lines it printed."""

    def run(program):
        (tmp_path / "program.py").write_text(program)
        return run_program("program.py").splitlines()

    return run


def test_there_is_a_program_for_each_kind_of_job():
    kinds = ["keras", "mwms", "ps", "session"]
    assert [f"quickstart_{kind}.py" for kind in kinds] == quickstarts.NAMES


@pytest.mark.parametrize("name", quickstarts.NAMES)
def test_a_program_runs_and_prints_its_speed_up(name, run):
    lines = run(quickstarts.shortened(name))
    assert len([line for line in lines if re.fullmatch(quickstarts.SPEED_UP, line)]) == 1
    for line in lines:
        if found := re.fullmatch(r"loss: (\S+) without, (\S+) with tf_fuse", line):
            assert found[1] == found[2]


def test_the_readme_has_the_program_for_parameter_servers():
    tree = ast.parse(quickstarts.text("quickstart_ps.py"))
    docstring = tree.body[0]
    program = "\n".join(
        quickstarts.text("quickstart_ps.py").splitlines()[docstring.end_lineno :]
    ).strip()
    lines = [line for line in program.splitlines() if line.strip()]
    assert len(lines) <= _MOST_LINES
    readme = (_ROOT / "README.md").read_text(encoding="utf-8")
    assert f"```python\n{program}\n```" in readme
