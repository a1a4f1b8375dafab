# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The soak test (`soak.py`) in short: one fault of each kind. `make soak` is the long form."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.fault.soak import faults as soak_faults
from tests.fault.soak import job as soak_job
from tests.fault.soak import replicas

pytestmark = [pytest.mark.cluster, pytest.mark.fault]

_STEPS = 480
_EVERY = 80  # six faults


def test_each_fault_once(isolated_env, tmp_path):
    kinds = set(soak_faults.DECK)
    if reason := soak_faults.may_drop():
        warnings.warn(f"no connection was dropped, the other faults were: {reason}", stacklevel=1)
        kinds.remove("connection_dropped")
    out = tmp_path / "soak.jsonl"
    picture = tmp_path / "soak.svg"
    command = [sys.executable, str(Path(__file__).with_name("soak.py")), "--each-once"]
    command += ["--steps", str(_STEPS), "--fault-every", str(_EVERY), "--seed", "1"]
    command += ["--json", str(out), "--plot", str(picture)]
    done = subprocess.run(
        command, env=isolated_env, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all losses equal, growth not judged" in done.stdout.splitlines()
    *samples, result = map(json.loads, out.read_text().splitlines())
    assert result["findings"] == []
    assert set(result["faults"]) == kinds
    # What it met is what docs/faults.md says of these faults in stock TensorFlow.
    assert result["errors"]["server killed: UnavailableError"] == result["faults"]["server_killed"]
    ends = {kind: n for kind, n in result["errors"].items() if kind.startswith("cancelled: ")}
    assert sum(ends.values()) == 3 * result["faults"]["cancelled"]
    assert set(ends) <= {"cancelled: CancelledError", "cancelled: in time"}
    last = samples[-1]
    assert last["steps"] == _STEPS
    assert last["coordinators"] == 1 + result["faults"]["server_killed"]
    assert sorted(last["tasks"]) == ["chief:0", "ps:0", "ps:1", "worker:0", "worker:1"]
    # Worker 0 lived through all of it, and fused both ways.
    counters = last["counters"]["/job:worker/replica:0/task:0"]
    assert 0 < counters["dynamic_requests"] < counters["fused_rpcs"]
    assert counters["channel_frames"] > 0
    for gauges in last["gauges"].values():
        assert set(gauges) == set(soak_job.GAUGES)
    assert picture.stat().st_size > 0


def test_two_replicas(isolated_env, tmp_path):
    out = tmp_path / "replicas.jsonl"
    command = [sys.executable, str(Path(__file__).with_name("replicas.py"))]
    done = subprocess.run(
        [*command, "--steps", "400", "--json", str(out)],
        env=isolated_env, capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "all weights equal, growth not judged"
    samples = [json.loads(line) for line in out.read_text().splitlines()]
    assert [sample["steps"] for sample in samples] == [*range(2, 401, 2)]
    # What is wrong is found.
    assert replicas.findings(samples, judged=False) == []
    samples[7]["replicas"][0]["weights"] = "others"
    samples[8]["replicas"][1]["bytes"] = 0
    samples[-1]["replicas"][1]["gauges"]["lent_chunks"] = 1
    assert replicas.findings(samples, judged=False) == [
        "after 16 steps the replicas' weights differ",
        "after 18 steps worker:1 had no chunk by shared memory",
        "worker:1 is not at rest at the end: {'lent_chunks': 1, 'pending_requests': 0}",
    ]
