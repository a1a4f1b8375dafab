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
from tests.cluster.layout import processes as layout_processes
from tests.slow_cases import slow
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
def test_relayouts_take_the_data_paths_of_the_plugin(processes, isolated_env, tmp_path):
    """Nothing comes by TensorFlow's transport; reduce-scatters and permutations are one operation.

    In four processes all of a plan's bytes are received, in two those that cross them.
    """
    ranks = results("relayout_program.py", processes, isolated_env, tmp_path)
    operations = {
        "all_gather": "TfFuse>AllGather",
        "all_reduce": "TfFuse>AllReduce",
        "all_to_all": "CollectiveAllToAllV2",
        "permute": "TfFuse>Permute",
        "reduce_scatter": "TfFuse>ReduceScatter",
    }
    assert len(ranks[0]) == 36
    for name in ranks[0]:
        what, kind = name.partition(",")[0].partition(" ")[0], name.rpartition(" ")[2]
        found = [rank[name] for rank in ranks]
        assert all(one["right"] for one in found), name
        assert {tuple(one["steps"]) for one in found} == {(what,)}, name
        assert sum(one["received"]["stock"] for one in found) == 0, name
        received = sum(sum(one["received"].values()) for one in found)
        assert sum(one["traffic"] for one in found) == received, name
        # TensorFlow and the plugin add up no bytes: they travel as int32.
        wide = 4 if what == "all_reduce" and kind == "uint8" else 1
        if processes == 4:
            assert received == found[0]["planned"] * wide, name
        crossing = [one["operations"] for one in found if one["operations"]]
        if kind == "float32":
            assert {one for some in crossing for one in some} <= {operations[what]}, name


@pytest.mark.parametrize("way", ["connect", slow("dtensor")])
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_plans_have_the_values_of_one_device(processes, way, isolated_env, tmp_path):
    """Of two processes each has two devices, so that groups lie within and across processes."""
    env = isolated_env | {layout_processes.WAY: way}
    found = results("execution_program.py", processes, env, tmp_path)[0]
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


@pytest.mark.parametrize("way", ["connect", pytest.param("dtensor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_neighbours_in_other_processes_send_rows(processes, way, isolated_env, tmp_path):
    """All processes together receive the plan's bytes, also where neighbours send unequal rows."""
    env = isolated_env | {layout_processes.WAY: way}
    found = results("halo_program.py", processes, env, tmp_path)
    for one in found:
        assert one["losses"] < 5e-6
        assert one["weights"] < 5e-6
        assert one["exchanges"] >= 9
        assert sum(one["collectives"].values()) > 0
    received = sum(one["received"] for one in found)
    if way == "connect":
        assert received == found[0]["planned"] > 0
    else:
        # TensorFlow's gather has blocks of one length.
        assert received >= found[0]["planned"] > 0


@pytest.mark.parametrize(
    ("processes", "way", "cases"),
    [(2, "connect", 3), slow(2, "connect", 7), slow(2, "dtensor", 7)]
    + [slow(4, "connect", 9), slow(4, "dtensor", 9)],
)
def test_devices_of_several_processes_communicate_in_bodies(
    processes, way, cases, isolated_env, tmp_path
):
    """In each trip of a loop and in branches, with the bytes that the plan has for them."""
    env = (
        isolated_env | {layout_processes.WAY: way} | ({"LAYOUT_TEST_ALL": "1"} if cases > 3 else {})
    )
    ranks = results("bodies_program.py", processes, env, tmp_path)
    assert len(ranks[0]) == cases
    for name in ranks[0]:
        found = [rank[name] for rank in ranks]
        assert all(one["worst"] < 1e-5 for one in found), name
        assert all(one["regions"] > 0 for one in found), name
        assert sum(one["traffic"] for one in found) == found[0]["planned"] > 0, name
        # A branch that is not taken, and trips that are not known before, send other numbers.
        if way == "connect" and processes == 4 and name not in ("branches", "nested", "until"):
            sent = sum(one["traffic"] + one["returned"] for one in found)
            assert sum(sum(one["received"].values()) for one in found) == sent, name


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
        "barriers": [20, 8],
    }  # fmt: skip


def test_processes_that_measure_have_the_same_rates(isolated_env, tmp_path):
    """To the last bit, though the clock of the second one runs ten times as fast."""
    first, second = results("rates_program.py", 2, isolated_env, tmp_path)
    assert first == second
    assert first["mesh"] == "x:2"
    assert max(first["link"]) > 0 and max(first["compute"]) > 0
    assert 0 <= first["overlap"] <= 1


@pytest.mark.parametrize(("processes", "layouts"), [(2, 3), slow(2, 5), slow(4, 5)])
def test_processes_that_feed_parts_have_the_values_of_one_device(
    processes, layouts, isolated_env, tmp_path
):
    """Functions and Keras's loops, by datasets and callables; and data that does not fit."""
    env = isolated_env | ({"LAYOUT_TEST_ALL": "1"} if layouts == 5 else {})
    found = results("data_program.py", processes, env, tmp_path)
    first = found[0]
    assert len(first["functions"]) == layouts
    for one in first["functions"].values():
        assert one["count"] == 3
        assert one["losses"] < 5e-6
        assert one["variables"] < 5e-6
        assert one["classes"] == 0.0
        assert one["planned"] and one["restored"]
    if processes == 2:
        # What lies as it is fed goes to the other device of the process alone: 4 rows of 4 bytes.
        fed = {name: one["fed"] for name, one in first["functions"].items()}
        assert fed["parts, dataset"] == fed["parts, callable"] == 2 * 4 * 4
        assert min(one for name, one in fed.items() if "parts" not in name) > 0
    assert first["whole_batch"].pop("losses") < 5e-6
    assert first["whole_batch"] == {"shards": [1, 0]}
    assert all(one["chief_alone"] == {"same": True} for one in found)
    for number, one in enumerate(found):
        assert one["errors"].pop("shards") == one["keras_fit"]["shards"] == [processes, number]
    assert first["keras_fit"]["different"] < 5e-6
    assert first["keras_fit"]["layout"] == "[8/x, 8] on x:2;y:2"
    last = found[-1]["errors"]
    assert last["broken"] == "the file is gone"
    if processes == 2:
        counts = "; give all of them the same number, as by take or repeat"
        assert first["keras_fit"]["shorter"] == (
            "the processes' datasets have other numbers of batches: 1 in process 0, 2 in process 1"
            + counts
        )
        assert first["keras_fit"]["uncounted"] == (
            "process 0 has no batch 1 of the step 'train' of model 'sequential_1', and others "
            "have; give all processes the same number of batches"
        )
        assert first["errors"] == {
            "shorter": "the processes' datasets have other numbers of batches: 3 in process 0, 2 "
            f"in process 1{counts}",
            "uncounted": "process 1 has no batch 2 of step, and others have; give all processes "
            "the same number of batches",
            "smaller": "the processes feed other shapes, or for other steps, as batch 0 of step; "
            "give all of them parts of one size, in the same order",
            "broken": "process 1 failed to read batch 1 of step",
            "whole": "input 'ids' of 'step' is int32[8], and each of 2 processes feeds its part, "
            "int32[4] of [8]; feed one of that shape and type, or plan for this one",
            "kind": "data is a tf.data.Dataset of whole batches, or a function of num_shards and "
            "shard_id that returns one of this process's parts, got 3",
            "after": 3,
            "odd": "input 'x' has a batch of 3, and with data_per_process it is split into 2 parts "
            "for 2 processes of mesh 'x:2;y:2'; pad it to 4, or feed the whole batch in each",
        }
    assert {one["keras_fit"]["again"] for one in found} == {"nothing"}


@pytest.mark.parametrize(
    ("failure", "cause", "way"),
    [
        ("ids", "indices[0] = 8 is not in [0, 8)", "connect"),
        slow("ids", "indices[0] = 8 is not in [0, 8)", "dtensor"),
        ("shape", "each of 2 processes feeds its part", "connect"),
    ],
)
def test_a_call_that_fails_in_one_process_ends_in_the_others(
    failure, cause, way, isolated_env, tmp_path
):
    """One that fails in all processes leaves them unchanged."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    env = isolated_env | {layout_processes.WAY: way}
    env |= {"LAYOUT_TEST_FAILURE": failure, "LAYOUT_TEST_PIPE": str(pipe)}
    first, second = results("failing_program.py", 2, env, tmp_path)
    for found in (first, second):
        assert found[0] == "8.0"
        assert "each of 2 processes feeds its part" in found[1]
        assert found[2] == "16.0"
    assert "all processes end this call, since a call of 'step' failed in process 1: " in first[3]
    assert cause in second[3]


@pytest.mark.parametrize("processes", [slow(2), 3])
def test_processes_hold_the_same_random_parts(processes, isolated_env, tmp_path):
    """Each part is made once. Of three processes the middle one has devices of two groups."""
    ranks = results("parts_program.py", processes, isolated_env, tmp_path)
    layouts = {2: "[6/y, 4] on x:2;y:2", 3: "[6/x, 4] on x:2;y:3"}
    assert ranks[0]["layout"] == layouts[processes]
    assert len({str(one["random"]) for one in ranks}) == 1
    assert max(one["difference"] for one in ranks) < 1e-4
    assert [one["of the first"] for one in ranks] == [[96.0, 24.0]] * processes
    assert [one["said"] for one in ranks] == ["the file is gone"] + [
        "variable 'table': process 0 failed to make its part; look at the error there"
    ] * (processes - 1)
