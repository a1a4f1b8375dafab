# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Training on a stock cluster gives, bit for bit, what one process gives; the examples work.

The coordinator owns a server and cannot be taken down inside a process, so every run is a session.
"""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from examples import demo, standalone
from examples.session import Session, SessionError
from examples.wide_deep import train
from examples.wide_deep.train import prepare

_ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.cluster

_STEPS = 5


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepare("criteo", tmp_path_factory.mktemp("data"), rows=600)


def _spec(mode, data, **changes):
    spec = {
        "mode": mode,
        "workload": "criteo",
        "ps": 2,
        "data": data.train,
        "evaluation": data.evaluation,
        "options": {"batch": 32},
    }
    return {**spec, **changes}


def _run(spec):
    with Session(spec) as session:
        ready = session.wait_ready()
        result = session.run(_STEPS)
        evaluation = session.evaluate() if "data" in spec else None
    return ready, result, evaluation


@pytest.fixture(scope="module")
def one_process(data):
    """The result and the evaluation of training in one process."""
    return _run(_spec("local", data))[1:]


def test_losses_and_weights_equal_one_process(data, one_process):
    ready, stock, stock_quality = _run(_spec("stock", data))
    local, local_quality = one_process
    assert ready["plugin_loaded"] is False
    assert stock["losses"] == local["losses"]
    assert len(set(stock["losses"])) == _STEPS  # it does train
    assert stock_quality == local_quality
    assert stock_quality["rows"] == 120
    assert sorted(stock["cpu_s"]) == ["coordinator", "ps", "worker"]
    assert stock["recv_rpcs"] is None


def test_fused_losses_equal_one_process(tmp_path_factory):
    data = prepare("criteo", tmp_path_factory.mktemp("fused"), rows=3000)
    options = {"batch": 128}
    steps = 10
    results = {}
    for mode in ("local", "fused"):
        with Session(_spec(mode, data, options=options)) as session:
            session.wait_ready()
            results[mode] = session.run(steps)
    # To the last bit: the rewritten function graph is optimized, and computes, like the stock one.
    assert results["fused"]["losses"] == results["local"]["losses"]
    # 26 embeddings and the wide columns need some two hundred receives per step when unfused.
    assert results["fused"]["recv_rpcs_per_step"] < 20


@pytest.mark.parametrize(
    ("workload", "options"),
    [
        ("features", {"features": 5, "batch": 16}),
        ("rfc", {"embeddings": 4, "batch": 16, "shards": 3}),
    ],
)
def test_benchmark_workloads_equal_one_process(workload, options):
    spec = {"workload": workload, "options": options, "ps": 2}
    _, stock, _ = _run({**spec, "mode": "stock"})
    _, local, _ = _run({**spec, "mode": "local"})
    assert stock["losses"] == pytest.approx(local["losses"], rel=0, abs=0)


def test_two_workers_synchronously(data):
    _, result, _ = _run(_spec("stock", data, workers=2, synchronous=True))
    assert len(result["losses"]) == _STEPS


def test_failure_reaches_the_caller(data):
    with pytest.raises(SessionError) as caught:
        _run(_spec("stock", data, options={"batch": 1000}))
    assert "mode stock failed (exit status 1): ValueError: " in str(caught.value)
    assert "480 rows, that is 0 batches of 1000; 1 worker(s) need one each" in str(caught.value)


def _free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_cluster_mode_trains_with_progress(data, one_process, isolated_env, tmp_path):
    arguments = ["--mode", "cluster", "--rows", "600", "--batch", "32", "--steps", "5", "--json"]
    with standalone.cluster_package().LocalCluster(1, 2, "grpc") as cluster:
        config = {
            "cluster": {**cluster.cluster_spec, "chief": [_free_address()]},
            "task": {"type": "chief", "index": 0},
            "rpc_layer": "grpc",
        }
        done = subprocess.run(
            [sys.executable, "-m", "examples.wide_deep.train", *arguments, str(tmp_path / "json")],
            cwd=_ROOT,
            # As on a terminal: what a log gets depends on how long the training takes.
            env={
                **isolated_env,
                "TF_CONFIG": json.dumps(config),
                "FORCE_COLOR": "1",
                "COLUMNS": "200",
            },
            capture_output=True,
            text=True,
            timeout=200,
        )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "json").read_text())
    local, quality = one_process
    assert result["losses"] == local["losses"]
    assert result["evaluation"] == {key: quality[key] for key in ("loss", "auc", "rows")}
    assert f"training, loss {local['losses'][-1]:.4f}" in done.stdout
    assert "5/5" in done.stdout
    assert f"AUC {quality['auc']:.6f}, 120 rows" in done.stdout


def test_parts_with_progress_are_one_round(data, one_process):
    events = []
    shown = train.train_session(
        "stock", "criteo", data, _STEPS, batch=32, on_event=lambda e: events.append(e["event"])
    )
    local, quality = one_process
    assert shown["losses"] == local["losses"]
    assert shown["evaluation"] == quality
    assert events == ["starting", "building", "ready", *["round"] * _STEPS, "evaluation"]


def test_demo_prints_a_table_and_writes_json(tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("TF_FUSE_DATA", raising=False)
    out = tmp_path / "demo.json"
    arguments = ["--modes", "stock", "local", "--rows", "600", "--batch", "32", "--steps", "4"]
    assert demo.main([*arguments, "--rounds", "2", "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert "all 8 equal, bit for bit" in text
    assert "receive RPCs per step" in text
    assert '"workload": "criteo"' in out.read_text()
