# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Plans that run in several processes over grpc."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import scripted
from tf_fuse.cluster.ports import HeldPorts

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TIMEOUT_S = 280


def results(program: str, processes: int, env: dict[str, str], folder: Path) -> list[Any]:
    """What each process gives."""
    logs = [folder / f"{number}.log" for number in range(processes)]
    running = []
    path = {"PYTHONPATH": str(ROOT)}
    with HeldPorts(processes) as held, contextlib.ExitStack() as stack:
        files = [stack.enter_context(scripted.result_file(env | path)) for _ in logs]
        jobs = ",".join(sorted(f"localhost:{port}" for port in held.numbers))
        try:
            for number, (log, (whole, _)) in enumerate(zip(logs, files, strict=True)):
                with log.open("w") as file:
                    running.append(
                        subprocess.Popen(
                            [sys.executable, str(HERE / program), str(number), jobs],
                            env=whole,
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
        return [json.loads(one.read_text()) for _, one in files]


@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_plans_have_the_values_of_one_device(processes, isolated_env, tmp_path):
    """Of two processes each has two devices, so that groups lie within and across processes."""
    found = results("execution_program.py", processes, isolated_env, tmp_path)[0]
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


@pytest.mark.slow
def test_training_in_four_processes_has_the_losses_of_one_device(isolated_env, tmp_path):
    """A Transformer by its own step, and a Keras model by fit, evaluate and predict."""
    found = results("training_program.py", 4, isolated_env, tmp_path)[0]
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


def test_a_process_that_saves_alone_gets_an_error_and_goes_on(isolated_env, tmp_path):
    """A callback in the first process only: the others never come, and are in the next step."""
    first, second = results("lone_reader.py", 2, isolated_env, tmp_path)
    said = first.pop("said")
    assert said.startswith(
        "to read, save or release variable 'weight' takes all 2 processes, and they did not all do "
        "it within 3 s ("
    )
    assert "task:1" in said
    assert said.endswith(
        "); do it in all of them, as with a ModelCheckpoint in each, and in the same order"
    )
    assert second.pop("said") == "nothing"
    assert first == second == {
        "first": 128.0, "after": [32.0, 32.0], "second": 192.0, "read": 48.0,
        # The coordination service keeps each name that it was asked for.
        "meetings": [20, 8],
    }  # fmt: skip


def test_processes_that_measure_have_the_same_rates(isolated_env, tmp_path):
    """To the last bit, though the clock of the second one runs ten times as fast."""
    first, second = results("rates_program.py", 2, isolated_env, tmp_path)
    assert first == second
    assert first["mesh"] == "x:2"
    assert max(first["link"]) > 0 and max(first["compute"]) > 0
    assert 0 <= first["overlap"] <= 1
