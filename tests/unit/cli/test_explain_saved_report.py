# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_fuse explain REPORT.json`: what a program's report says of its weight updates."""

import json
import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from dataclasses import replace

import pytest

from tf_fuse import cli
from tf_fuse.shard_update import report as report_module
from tf_fuse.shard_update.cost_figures import UpdateCosts
from tf_fuse.shard_update.cost_model.profit import profit
from tf_fuse.shard_update.decision import FUNCTION_REASONS, Decision, VariableFacts
from tf_fuse.shard_update.plan import REASONS, Bucket, ShardedUpdate, UpdateCluster

_COSTS = UpdateCosts(operation_ns_per_byte=0.0812, gradient_us=35.5, origin="measured by someone")


def _decision(name, *reasons, reason=None, bucket_reason=None):
    clusters, shapes = [], {}
    for i, why in enumerate(reasons):
        root = f"gradient_{i}"
        members = frozenset({root, f"{root}/scaled"})
        cluster = UpdateCluster(root, (1000, 1000), members, sinks=(f"{root}/assign",))
        shapes.update(dict.fromkeys(members, cluster.shape))
        clusters.append(cluster if why is None else cluster.leave(why, "some/node"))
    bucket = Bucket("reduce", (), clusters)
    bucket = replace(bucket, profit=profit(bucket, shapes, 4, 2, costs=_COSTS))
    if bucket_reason:
        bucket = bucket.leave(bucket_reason, str(bucket.profit))
    facts = VariableFacts(element_bytes={"reduce": 4})
    return Decision(name, ShardedUpdate([bucket]), reason, "", 2, costs=_COSTS, facts=facts)


@pytest.fixture
def report():
    decisions = [
        _decision("step_1", None, None, "not_elementwise"),
        _decision("step_2", None, None, reason="nothing_to_shard", bucket_reason="no_profit"),
        _decision("step_3", None, "escapes", reason="verification"),
    ]
    functions = [report_module._function(decision) for decision in decisions]
    functions[0].update(state_bytes=8_000_000, whole_state_bytes=16_000_000, variables=2, steps=7)
    functions[0]["joins"] = {"count": 3, "bytes": 24, "seconds": 0.5, "by": {"train.py:42": 3}}
    return {"sharded": True, "reason": "", "functions": functions}


def _explain(capsys, *arguments):
    status = cli.main(["explain", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def test_tables_and_sums(report, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    status, out, err = _explain(capsys, path)
    assert (status, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert (
        "sharded over 2 replicas: 2 variables of the optimizer, 8,000,000 of 16,000,000 bytes "
        "here; 7 steps"
    ) in lines
    assert "train.py:42 (3)" in lines
    assert "reduce gradient_0 1000 x 1000 4,000,000 in shards" in lines
    not_elementwise = f"{REASONS['not_elementwise']}: some/node"
    assert f"reduce gradient_2 1000 x 1000 4,000,000 {not_elementwise}" in lines
    assert f"not sharded: {FUNCTION_REASONS['verification']}" in lines
    assert "step_2" in lines
    # 4 MB, of two gradients two results and an assignment each; a half is saved.
    assert (
        "reduce: sharding it saves 0.97 ms = 0.0812 ns x 24,000,000 bytes of the update x (1 - "
        "1/2); costs 2.41 ms = 0.5 ms + 35.5 us x 3 gradients + 0.15 ns x 12,000,000 bytes on the "
        "wire."
    ) in lines
    estimated = (
        "Estimated by operation_ns_per_byte=0.0812, wire_ns_per_byte=0.15, gradient_us=35.5, "
        "collective_us=500, share_us=200 (measured by someone)."
    )
    assert lines.count(estimated) == 3
    sums = lines[lines.index("Gradients: 2 updated in shards, 5 whole.") :]
    assert sums == [
        "Gradients: 2 updated in shards, 5 whole.",
        "escapes: 1",
        "no_profit: 2",
        "not_elementwise: 1",
        "verification: 1",
        "The optimizer's variables in shards: 8,000,000 bytes here, in place of 16,000,000.",
    ]


def test_json(report, tmp_path, capsys):
    path, other = tmp_path / "report.json", tmp_path / "told.json"
    path.write_text(json.dumps(report))
    status, out, _ = _explain(capsys, path, "--json", "-")
    data = json.loads(out)
    assert status == 0
    assert data.pop("totals") == {
        "functions_sharded": 1,
        "functions_cut": 1,
        "functions_left": {"nothing_to_shard": 1, "verification": 1},
        "gradients_sharded": 2,
        "gradients_cut": 2,
        "gradients_left": {"escapes": 1, "no_profit": 2, "not_elementwise": 1, "verification": 1},
        "state_bytes": 8_000_000,
        "whole_state_bytes": 16_000_000,
        "updates_in_one": 0,
        "assignments_left": {},
    }
    assert data == json.loads(json.dumps(report))
    estimate = data["functions"][0]["buckets"][0]["profit"]
    assert estimate["saved_s"] == pytest.approx(0.0812e-9 * 24e6 / 2)
    assert estimate["cost_s"] == pytest.approx(0.5e-3 + 3 * 35.5e-6 + 0.15e-9 * 12e6)
    assert data["functions"][0]["costs"] == {
        "operation_ns_per_byte": 0.0812,
        "wire_ns_per_byte": 0.15,
        "gradient_us": 35.5,
        "collective_us": 500.0,
        "share_us": 200.0,
        "origin": "measured by someone",
    }
    status, out, _ = _explain(capsys, path, "--json", other)
    assert (status, "Gradients: 2" in out) == (0, True)
    assert "totals" in json.loads(other.read_text())


def test_a_function_without_an_estimate_has_no_figures(report, tmp_path, capsys):
    decision = Decision("step_4", None, "no_group", "there is one replica", 1)
    report["functions"] = [report_module._function(decision)]
    assert report["functions"][0]["costs"] is None
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    status, out, _ = _explain(capsys, path)
    assert (status, "Estimated by" in out) == (0, False)


def test_figures_of_a_report_that_are_none_are_an_error(report, tmp_path, capsys):
    path = tmp_path / "report.json"
    for costs in ({"fast": 1}, 3, {"share_us": "slow"}):
        report["functions"][0]["costs"] = costs
        path.write_text(json.dumps(report))
        status, _, err = _explain(capsys, path)
        assert status == 1
        assert "not what tf_fuse.weight_update_report() of this version returns" in err


def test_a_program_without_the_option(tmp_path, capsys):
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"sharded": False, "reason": "it is off", "functions": []}))
    status, out, _ = _explain(capsys, path)
    assert (status, "Weight updates are not sharded: it is off." in out) == (0, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not what tf_fuse.weight_update_report() of this version returns"),
        ('{"functions": [{}]}', "(KeyError: 'sharded')"),
        ('{"functions": 3}', "TypeError"),
        ('{"functions": [], "sharded": false}', "(KeyError: 'reason')"),
    ],
)
def test_what_is_no_report_is_an_error(tmp_path, capsys, text, said):
    path = tmp_path / "report.json"
    path.write_text(text)
    status, out, err = _explain(capsys, path)
    assert (status, out) == (1, "")
    assert err.startswith("error: ")
    assert said in err


def test_a_file_that_is_not_there(tmp_path, capsys):
    status, _, err = _explain(capsys, tmp_path / "report.json")
    assert (status, "No such file" in err) == (1, True)


def test_options_of_graphs_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main(["explain", str(tmp_path / "report.json"), "--gpu"])
    assert "takes no option but --json" in capsys.readouterr().err
