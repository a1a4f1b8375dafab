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

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TIMEOUT_S = 280


def addresses(count: int) -> str:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("localhost", 0))
    found = sorted(f"localhost:{one.getsockname()[1]}" for one in sockets)
    for one in sockets:
        one.close()
    return ",".join(found)


def results(program: str, processes: int, env: dict[str, str], folder: Path) -> dict:
    """What the first process prints."""
    jobs = addresses(processes)
    logs = [folder / f"{number}.log" for number in range(processes)]
    running = []
    try:
        for number, log in enumerate(logs):
            with log.open("w") as file:
                running.append(
                    subprocess.Popen(
                        [sys.executable, str(HERE / program), str(number), jobs],
                        env={**env, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'unit'}"},
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
    return json.loads(logs[0].read_text().splitlines()[-1])


@pytest.mark.parametrize("processes", [2, 4])
def test_plans_have_the_values_of_one_device(processes, isolated_env, tmp_path):
    """Of two processes each has two devices, so that groups lie within and across processes."""
    found = results("layout_program.py", processes, isolated_env, tmp_path)
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


def test_training_in_four_processes_has_the_losses_of_one_device(isolated_env, tmp_path):
    """A Transformer by its own step, and a Keras model by fit, evaluate and predict."""
    found = results("layout_training_program.py", 4, isolated_env, tmp_path)
    block, keras = found["transformer"], found["keras"]
    assert block["falls"] > 0.1
    assert block["losses"] < 5e-6
    assert block["weights"] < 5e-6
    assert block["share"]
    columns = {name: block["layouts"][name] for name in ("query", "up", "out")}
    assert columns == {
        "query": "[8, 2/cols, 4] on rows:2;cols:2",
        "up": "[8, 16/cols] on rows:2;cols:2",
        "out": "[8, 12/cols] on rows:2;cols:2",
    }
    assert keras.pop("layouts") == [
        "[8, 16/cols] on rows:2;cols:2", "[8/rows, 8] on rows:2;cols:2",
    ]  # fmt: skip
    assert max(keras.values()) < 5e-6
    assert set(keras) == {"history", "evaluated", "predicted", "weights"}
