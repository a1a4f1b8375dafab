# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_fuse explain REPORT.json`: what a program's report says of its weight updates."""

import json
import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest

from tf_fuse import cli
from tf_fuse.shard_update import report as report_module
from tf_fuse.shard_update.decision import FUNCTION_REASONS, Decision
from tf_fuse.shard_update.families import REASONS, Family, Pack
from tf_fuse.shard_update.plan import Plan
from tf_fuse.shard_update.profit import profit


def _decision(name, *reasons, reason=None, pack_reason=None):
    families = [Family(f"gradient_{i}", (1000, 1000)) for i in range(len(reasons))]
    shapes = {}
    for family, why in zip(families, reasons, strict=True):
        family.members = {family.root, f"{family.root}/scaled"}
        family.sinks = [f"{family.root}/assign"]
        shapes.update(dict.fromkeys(family.members, family.shape))
        if why is not None:
            family.leave(why, "some/node")
    pack = Pack("reduce", [], families)
    pack.profit = profit(pack, shapes, 4, 2)
    if pack_reason:
        pack.reason, pack.detail = pack_reason, str(pack.profit)
    decision = Decision(name, Plan([pack]), reason, "", 2)
    decision.element_bytes = {"reduce": 4}
    return decision


@pytest.fixture
def report():
    decisions = [
        _decision("step_1", None, None, "not_elementwise"),
        _decision("step_2", None, None, reason="nothing_to_cut", pack_reason="no_profit"),
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
        "cut over 2 replicas: 2 variables of the optimizer, 8,000,000 of 16,000,000 bytes here; "
        "7 steps"
    ) in lines
    assert "train.py:42 (3)" in lines
    assert "reduce gradient_0 1000 x 1000 4,000,000 in parts" in lines
    not_elementwise = f"{REASONS['not_elementwise']}: some/node"
    assert f"reduce gradient_2 1000 x 1000 4,000,000 {not_elementwise}" in lines
    assert f"not cut: {FUNCTION_REASONS['verification']}" in lines
    assert "step_2" in lines
    # 4 MB, of two gradients two results and an assignment each; a half is saved.
    assert (
        "reduce: cutting it saves 0.96 ms = 0.08 ns x 24,000,000 bytes of the update x (1 - 1/2); "
        "costs 2.39 ms = 0.5 ms + 30 us x 3 gradients + 0.15 ns x 12,000,000 bytes on the wire."
    ) in lines
    sums = lines[lines.index("Gradients: 2 updated in parts, 5 whole.") :]
    assert sums == [
        "Gradients: 2 updated in parts, 5 whole.",
        "escapes: 1",
        "no_profit: 2",
        "not_elementwise: 1",
        "verification: 1",
        "The optimizer's variables in parts: 8,000,000 bytes here, in place of 16,000,000.",
    ]


def test_json(report, tmp_path, capsys):
    path, other = tmp_path / "report.json", tmp_path / "told.json"
    path.write_text(json.dumps(report))
    status, out, _ = _explain(capsys, path, "--json", "-")
    data = json.loads(out)
    assert status == 0
    assert data.pop("totals") == {
        "functions_cut": 1,
        "functions_left": {"nothing_to_cut": 1, "verification": 1},
        "gradients_cut": 2,
        "gradients_left": {"escapes": 1, "no_profit": 2, "not_elementwise": 1, "verification": 1},
        "state_bytes": 8_000_000,
        "whole_state_bytes": 16_000_000,
        "updates_in_one": 0,
        "assignments_left": {},
    }
    assert data == json.loads(json.dumps(report))
    estimate = data["functions"][0]["packs"][0]["profit"]
    assert estimate["saved_s"] == pytest.approx(0.08e-9 * 24e6 / 2)
    assert estimate["cost_s"] == pytest.approx(0.5e-3 + 3 * 30e-6 + 0.15e-9 * 12e6)
    status, out, _ = _explain(capsys, path, "--json", other)
    assert (status, "Gradients: 2" in out) == (0, True)
    assert "totals" in json.loads(other.read_text())


def test_a_program_without_the_option(tmp_path, capsys):
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"sharded": False, "reason": "it is off", "functions": []}))
    status, out, _ = _explain(capsys, path)
    assert (status, "Weight updates are not cut: it is off." in out) == (0, True)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
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
