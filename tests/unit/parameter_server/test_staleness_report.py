# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What updates on servers have met: sums over tasks, tables, the picture, and Prometheus."""

import json

import pytest

import tf_fuse
from tf_fuse import cli, prometheus
from tf_fuse.monitoring.metrics import DESCRIPTIONS
from tf_fuse.parameter_server import staleness_report

_PS, _WORKER = "/job:ps/replica:0/task:{}", "/job:worker/replica:0/task:{}"


def _counted(updates, wait_us=0, **staleness):
    buckets = [0] * 16
    for worker in staleness.values():
        buckets = worker
    name = _WORKER.format(0)
    worker = {"updates": sum(buckets), "staleness_sum": 9, "staleness_max": 5, "staleness": buckets}
    variable = {"updates": updates, "update_us": 500, "waits": int(wait_us > 0), "wait_us": wait_us,
                "max_wait_us": wait_us}  # fmt: skip
    return {"server_updates": {"variables": {"w": variable, "a": variable},
                               "workers": {name: worker}}}  # fmt: skip


@pytest.fixture
def tasks():
    return {
        _PS.format(1): _counted(3, 2000, worker=[1, 1, 0, 1] + [0] * 12),
        _PS.format(0): _counted(5, worker=[4, 0, 0, 1] + [0] * 12),
        _WORKER.format(0): {"server_updates": {"variables": {}, "workers": {}}},
        _WORKER.format(1): {"error": "it runs the protocol 'grpc'"},
        _WORKER.format(2): {},
    }


def test_sums(tasks):
    one = {"updates": 3, "update_us": 500, "waits": 1, "wait_us": 2000, "max_wait_us": 2000}
    report = staleness_report.merged(tasks)
    assert list(report["servers"]) == [_PS.format(0), _PS.format(1)]
    assert report["servers"][_PS.format(1)] == {
        "updates": 6,
        "update_us": 1000,
        "waits": 2,
        "wait_us": 4000,
        "max_wait_us": 2000,
        "variables": {"a": one, "w": one},
    }
    assert report["workers"] == {
        _WORKER.format(0): {
            "updates": 8,
            "mean_staleness": 18 / 8,
            "max_staleness": 5,
            "staleness": [[0, 0, 5], [1, 1, 1], [2, 3, 0], [4, 7, 2]],
        }
    }
    assert report["errors"] == {
        _WORKER.format(1): "it runs the protocol 'grpc'",
        _WORKER.format(2): "its version of tf_fuse does not count updates",
    }


def test_a_task_that_does_not_tell_how_long_updates_take(tasks):
    server = _PS.format(1)
    for variable in tasks[server]["server_updates"]["variables"].values():
        variable.pop("update_us", None)
    assert staleness_report.merged(tasks)["servers"][server]["update_us"] == 0


def test_tables(tasks, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")  # as in a file
    path = tmp_path / "report.json"
    path.write_text(json.dumps(staleness_report.merged(tasks)))
    assert cli.main(["explain", str(path)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "/job:worker/replica:0/task:1 did not report: it runs the protocol 'grpc'" in lines
    assert "│ ps:1 │ 2 │ 6 │ 1.0 │ 2 │ 4.0 │ 2.0 │" in lines
    full = "█" * 15
    assert f"│ worker:0 │ 8 │ 2.25 │ 5 │ 0 {full} 62% │" in lines
    assert "│ │ │ │ │ 4 to 7 ██████ 25% │" in lines


def test_json_and_what_is_none(tasks, tmp_path, capsys):
    path = tmp_path / "report.json"
    report = staleness_report.merged(tasks)
    path.write_text(json.dumps(report))
    assert cli.main(["explain", str(path), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == report
    path.write_text('{"servers": {"a": 1}, "workers": {}, "errors": {}}')
    assert cli.main(["explain", str(path)]) == 1
    assert "not what tf_fuse.server_update_report() of this" in capsys.readouterr().err


def test_nothing_yet(capsys):
    tf_fuse.print_server_update_report(staleness_report.merged({}))
    assert "No update has been made as one operation on a server yet." in capsys.readouterr().out


def test_picture(tasks, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    for name, report in (
        ("some", staleness_report.merged(tasks)),
        ("none", staleness_report.merged({})),
    ):
        tf_fuse.plot_server_update_report(report, tmp_path / f"{name}.svg")
        assert "</svg>" in (tmp_path / f"{name}.svg").read_text()


def test_prometheus(tasks):
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    server = _PS.format(1)
    of_server = {server: {**dict.fromkeys(DESCRIPTIONS, 0), **tasks[server]}}
    client = prometheus._client()
    families = [
        *prometheus._server_families(client, of_server),
        *prometheus._former(client, of_server),
    ]
    samples = {
        (s.name, s.labels.get("le"), s.labels.get("worker")): s.value
        for family in families
        for s in family.samples
    }
    worker = _WORKER.format(0)
    assert samples["tf_fuse_server_updates_total", None, None] == 6
    assert samples["tf_fuse_server_update_seconds_total", None, None] == pytest.approx(1e-3)
    assert samples["tf_fuse_server_update_waits_total", None, None] == 2
    assert samples["tf_fuse_server_update_wait_seconds_total", None, None] == pytest.approx(4e-3)
    for name in ("tf_fuse_staleness", "tf_fuse_staleness_updates"):
        assert samples[f"{name}_bucket", "0.0", worker] == 1
        assert samples[f"{name}_bucket", "1.0", worker] == 2
        assert samples[f"{name}_bucket", "3.0", worker] == 2
        assert samples[f"{name}_bucket", "7.0", worker] == 3
        assert samples[f"{name}_bucket", "+Inf", worker] == 3
        assert samples[f"{name}_count", None, worker] == 3
        assert samples[f"{name}_sum", None, worker] == 9
