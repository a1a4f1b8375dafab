# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans that run in several processes over grpc."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parent / "layout_program.py"
RATES_PROGRAM = PROGRAM.with_name("layout_rates_program.py")
ROOT = PROGRAM.parents[2]
TIMEOUT_S = 280


def addresses(count: int) -> str:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("localhost", 0))
    found = sorted(f"localhost:{one.getsockname()[1]}" for one in sockets)
    for one in sockets:
        one.close()
    return ",".join(found)


def results(
    processes: int, env: dict[str, str], folder: Path, program: Path = PROGRAM
) -> list[str]:
    """The last line that each process prints."""
    jobs = addresses(processes)
    logs = [folder / f"{number}.log" for number in range(processes)]
    running = []
    try:
        for number, log in enumerate(logs):
            with log.open("w") as file:
                running.append(
                    subprocess.Popen(
                        [sys.executable, str(program), str(number), jobs],
                        env={**env, "PYTHONPATH": str(ROOT)},
                        stdout=file,
                        stderr=file,
                    )
                )
        for one, log in zip(running, logs, strict=True):
            assert one.wait(TIMEOUT_S) == 0, log.read_text()[-3000:]
    finally:
        for one in running:
            if one.poll() is None:
                os.kill(one.pid, signal.SIGKILL)
                one.wait()
    return [log.read_text().splitlines()[-1] for log in logs]


@pytest.mark.parametrize("processes", [2, 4])
def test_plans_have_the_values_of_one_device(processes, isolated_env, tmp_path):
    """Of two processes each has two devices, so that groups lie within and across processes."""
    found = json.loads(results(processes, isolated_env, tmp_path)[0])
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


def test_processes_that_measure_have_the_same_rates(isolated_env, tmp_path):
    """To the last bit, though the clock of the second one runs ten times as fast."""
    first, second = (json.loads(one) for one in results(2, isolated_env, tmp_path, RATES_PROGRAM))
    assert set(first) == {"bench", "dtensor_bench"}
    assert first == second
    for rates in first.values():
        assert rates["mesh"] == "x:2"
        assert max(rates["link"]) > 0 and max(rates["compute"]) > 0
        assert 0 <= rates["overlap"] <= 1
