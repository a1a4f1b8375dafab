# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The report of placements: it adds up, it is read by explain, and long names are whole."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import json

import pytest
import tensorflow as tf

import tf_fuse.parameter_server as parameter_server
from tests.unit.parameter_server.placed_graphs import placed_graph, sizes
from tf_fuse.cli import main
from tf_fuse.parameter_server import Costs, PsStrategy

# --- The report ----------------------------------------------------------------------------------


def test_the_report_adds_up(tmp_path, capsys):
    strategy = PsStrategy(2, Costs(slots=0, workers=2))
    placed_graph(strategy, sizes())
    report = json.loads(json.dumps(parameter_server.placement_report(strategy)))
    assert [one["kept_bytes"] for one in report["servers"]] == [4036, 4036]
    assert [one["read_bytes_per_step"] for one in report["servers"]] == [8072, 8072]
    assert report["imbalance"]["kept_bytes"] == 1.0
    assert [(v["variable"], v["server"], v["kept_bytes"]) for v in report["variables"]] == [
        ("s1000/v", 0, 4000),
        ("s999/v", 1, 3996),
        ("s10/v", 1, 40),
        ("s9/v", 0, 36),
    ]
    assert report["partitions"] == report["plans"] == []
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    assert main(["explain", str(path)]) == 0
    out = capsys.readouterr().out
    assert "Parameter servers" in out and "s1000/v" in out and "4,036" in out
    assert main(["explain", str(path), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == report
    path.write_text(json.dumps({**report, "variables": [{}]}))
    assert main(["explain", str(path)]) == 1
    assert "placement_report() of this version" in capsys.readouterr().err


def test_long_names_of_a_report_are_whole(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")  # as in a file
    name = "sequential/" + "transformer_block_0123456789/" * 3 + "kernel"
    strategy = PsStrategy(2)
    placed_graph(strategy, lambda: tf.compat.v1.get_variable(name, [10]))
    parameter_server.print_placement_report(strategy)
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith("sequential/"))
    column = len(lines[at].split()[0])
    assert name in "".join(line.strip()[:column] for line in lines[at : at + 8])


def test_a_report_of_another_strategy():
    with pytest.raises(TypeError, match="got MirroredStrategy"):
        parameter_server.placement_report(tf.distribute.MirroredStrategy(["CPU:0"]))
