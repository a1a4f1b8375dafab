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

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TIMEOUT_S = 280


def results(program: str, processes: int, env: dict[str, str], folder: Path) -> list[str]:
    """The last line that each process prints."""
    logs = [folder / f"{number}.log" for number in range(processes)]
    running = []
    with HeldPorts(processes) as held:
        jobs = ",".join(sorted(f"localhost:{port}" for port in held.numbers))
        try:
            for number, log in enumerate(logs):
                with log.open("w") as file:
                    running.append(
                        subprocess.Popen(
                            [sys.executable, str(HERE / program), str(number), jobs],
                            env={**env, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'unit'}"},
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
    return [log.read_text().splitlines()[-1] for log in logs]


@pytest.mark.parametrize("processes", [2, 4])
def test_plans_have_the_values_of_one_device(processes, isolated_env, tmp_path):
    """Of two processes each has two devices, so that groups lie within and across processes."""
    found = json.loads(results("layout_program.py", processes, isolated_env, tmp_path)[0])
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
    found = json.loads(results("layout_training_program.py", 4, isolated_env, tmp_path)[0])
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


def test_processes_that_measure_have_the_same_rates(isolated_env, tmp_path):
    """To the last bit, though the clock of the second one runs ten times as fast."""
    lines = results("layout_rates_program.py", 2, isolated_env, tmp_path)
    first, second = map(json.loads, lines)
    assert set(first) == {"bench", "dtensor_bench"}
    assert first == second
    for rates in first.values():
        assert rates["mesh"] == "x:2"
        assert max(rates["link"]) > 0 and max(rates["compute"]) > 0
        assert 0 <= rates["overlap"] <= 1
