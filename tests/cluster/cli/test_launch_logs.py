# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The logs of jobs that use one --log-dir after each other."""

import re

import pytest

from tests import forking
from tests.cluster.cli.launch_program import run

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

# Fails until the job has started again.
_FAILS_ONCE = """
    import sys
    from pathlib import Path
    mark = Path(sys.argv[1])
    print("first" if not mark.exists() else "again", flush=True)
    if not mark.exists():
        mark.touch()
        sys.exit(5)
    mark.unlink()
"""


def test_the_logs_of_a_second_job_follow_those_of_the_first(tmp_path):
    """In the files, and whole on the terminal; also those of tasks that start again."""
    logs = tmp_path / "logs"
    texts, outputs = [], []
    for _ in range(2):
        status, output = run(
            tmp_path,
            _FAILS_ONCE,
            *("--workers", "1", "--ps", "1", "--max-restarts", "1"),
            arguments=[tmp_path / "mark"],
            variables=forking.LAUNCHED,
        )
        assert status == 0, output
        outputs.append(output)
        texts.append({str(path.relative_to(logs)): path.read_text() for path in logs.rglob("*.*")})
    first, both = texts
    assert sorted(first) == [
        "chief-0.log", "ps-0.log", "restart-1/chief-0.log", "restart-1/ps-0.log",
        "restart-1/worker-0.log", "worker-0.log",
    ]  # fmt: skip
    assert sorted(both) == sorted(first)
    for name, text in first.items():
        assert both[name].startswith(text)
        new = both[name].removeprefix(text).splitlines()
        assert new
        task = re.sub(r".*?(\w+)-0\.log", r"\1:0", name)
        assert {f"[{task}] {line}" for line in new} <= set(outputs[1].splitlines())
    for output in outputs:
        assert len(re.findall(r"^\[(?:ps|worker):0\] .*serve: ready ", output, re.MULTILINE)) == 4
        assert output.count("[chief:0] first\n") == output.count("[chief:0] again\n") == 1
