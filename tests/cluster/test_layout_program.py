# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans that run in several processes over grpc."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tf_fuse.cluster.ports import HeldPorts

PROGRAM = Path(__file__).resolve().parent / "layout_program.py"
ROOT = PROGRAM.parents[2]
TIMEOUT_S = 280


def results(processes: int, env: dict[str, str], folder: Path) -> dict:
    """What the first process prints."""
    logs = [folder / f"{number}.log" for number in range(processes)]
    running = []
    with HeldPorts(processes) as held:
        jobs = ",".join(sorted(f"localhost:{port}" for port in held.numbers))
        try:
            for number, log in enumerate(logs):
                with log.open("w") as file:
                    running.append(
                        subprocess.Popen(
                            [sys.executable, str(PROGRAM), str(number), jobs],
                            env={**env, "PYTHONPATH": str(ROOT)},
                            stdin=subprocess.PIPE,
                            stdout=file,
                            stderr=file,
                        )
                    )
            # The first one, which the others ask whether all are there, is to end last.
            for one, log in reversed(list(zip(running, logs, strict=True))):
                one.stdin.close()
                assert one.wait(TIMEOUT_S) == 0, log.read_text()[-3000:]
        finally:
            for one in running:
                if one.poll() is None:
                    os.kill(one.pid, signal.SIGKILL)
                    one.wait()
    return json.loads(logs[0].read_text().splitlines()[-1])


@pytest.mark.parametrize("processes", [2, 4])
def test_plans_have_the_values_of_one_device(processes, isolated_env, tmp_path):
    """Of two processes each has two devices, so that groups lie within and across processes."""
    found = results(processes, isolated_env, tmp_path)
    assert found.pop("disagreement") == (
        "the processes run different plans; save the plan in one of them, and load it in the others"
    )
    layouts = {name: one.pop("layouts") for name, one in found.items()}
    assert set(layouts) == {"batch", "hidden", "both", "vocabulary", "blocks"}
    assert layouts["hidden"]["first"] == "[16, 32/y] on x:2;y:2"
    assert layouts["vocabulary"]["table"] == "[8/x, 16] on x:2;y:2"
    assert layouts["blocks"]["first"] == "[16/x, 32/y] on x:2;y:2"
    for one in found.values():
        assert one["loss"] < 5e-6
        assert one["variables"] < 5e-6
        assert one["classes"]
        # Each process receives its share of the plan's bytes.
        assert one["received"] * processes == one["planned"] > 0
        assert one["restored"]
    assert sum(found["batch"]["collectives"].values()) > 0
