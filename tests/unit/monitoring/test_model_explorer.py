# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Graphs before and after in Model Explorer's JSON: nodes, edges between tasks, what was fused."""

import json

import pytest
import tensorflow as tf

from tests.unit.passes.pass_testing import PS0, W0, node, pair, partitions, two
from tf_fuse import cli, explain
from tf_fuse.cli import example_graphs
from tf_fuse.monitoring import model_explorer

_FUSED, _LEFT = {"backgroundColor": "#b7e1cd"}, {"backgroundColor": "#fce8b2"}


def _graphs(result):
    before, after = model_explorer.graph_collection(result)["graphs"]
    assert (before["id"], after["id"]) == ("before", "after")
    return [
        {one["id"].partition(";")[2]: one for one in graph["nodes"]} for graph in (before, after)
    ]


def _attributes(one):
    return {item["key"]: item["value"] for item in one["attrs"]}


def _edges(one):
    return [
        (edge["sourceNodeId"], edge["sourceNodeOutputId"], edge["targetNodeInputId"])
        for edge in one["incomingEdges"]
    ]


@pytest.fixture(scope="module")
def result():
    """Two values travel together; the client waits for the third one."""
    return explain.rewrite(
        partitions(
            *two(PS0, W0),
            node("z", "Placeholder", [], PS0, dtype=tf.float32),
            *pair("z", "z", PS0, W0, client_terminated=True),
            node("layer/sum", "AddV2", ["recv_x", "recv_y", "^recv_z"], W0, T=tf.float32),
        )
    )


def test_before(result):
    before, _ = _graphs(result)
    received = before["recv_x"]
    assert received["label"] == "_Recv" and received["namespace"] == "worker:0"
    assert received["style"] == _FUSED
    assert _edges(received) == [(f"{PS0};send_x", "0", "tensor 0")]
    (group,) = result.report.groups
    assert _attributes(received) == {
        "name": "recv_x",
        "device": W0,
        "becomes a part of": group.node,
        "client_terminated": "False",
        "send_device_incarnation": "1",
        "tensor_type": "float32",
        "tensors": "x",
    }
    left = before["recv_z"]
    assert left["style"] == _LEFT
    assert _attributes(left)["left alone"] == "client_terminated"
    total = before["layer/sum"]
    assert total["namespace"] == "worker:0/layer"
    assert _edges(total) == [
        (f"{W0};recv_x", "0", "0"),
        (f"{W0};recv_y", "0", "1"),
        (f"{W0};recv_z", "control", "2"),
    ]
    assert "style" not in total


def test_after(result):
    _, after = _graphs(result)
    (group,) = result.report.groups
    fused = after[group.node]
    assert fused["label"] == "_FuseRecv" and fused["style"] == _FUSED
    assert _edges(fused) == [
        (f"{PS0};send_x", "0", "tensor 0"),
        (f"{PS0};send_y", "0", "tensor 1"),
    ]
    assert _attributes(fused)["tensors"] == "x\ny"
    assert not {"recv_x", "recv_y"} & set(after)
    assert after["recv_z"]["style"] == _LEFT
    ids = {edge[:2] for edge in _edges(after["layer/sum"])}
    assert ids == {
        (f"{W0};{group.node}", "0"),
        (f"{W0};{group.node}", "1"),
        (f"{W0};recv_z", "control"),
    }


def test_numbers(result):
    graphs = model_explorer.graph_collection(result)["graphs"]
    assert [one["groupNodeAttributes"][""]["receives between tasks"] for one in graphs] == [
        "3",
        "2",
    ]


def test_no_values_and_no_paths():
    @tf.function(autograph=False)
    def step():
        with tf.device(PS0):
            read = tf.io.read_file("/secret/path")
            value = tf.constant([31337.0, 4711.0], name="value")
        with tf.device(W0):
            return tf.strings.length(read), value * 2.0

    text = json.dumps(
        model_explorer.graph_collection(explain.explain_function(step.get_concrete_function()))
    )
    assert "secret" not in text and "31337" not in text
    assert "ReadFile" in text


def test_shapes():
    graph = explain.placed_graph(tf.function(lambda: tf.zeros([2, 3])).get_concrete_function(), W0)
    (after,) = [
        one
        for one in model_explorer.graph_collection(explain.rewrite(graph))["graphs"][1]["nodes"]
        if one["label"] == "Const"
    ]
    shape = {"key": "shape", "value": "(2, 3)"}
    assert after["outputsMetadata"] == [{"id": "0", "attrs": [shape]}]


def test_export_changes_nothing(result):
    graphs = {**result.before, **{f"{k} after": v for k, v in result.after.items()}}
    before = {name: graph.SerializeToString() for name, graph in graphs.items()}
    model_explorer.graph_collection(result)
    assert before == {name: graph.SerializeToString() for name, graph in graphs.items()}


@pytest.mark.parametrize("example", sorted(example_graphs.EXAMPLES))
def test_the_command_writes_what_model_explorer_loads(example, tmp_path, capsys):
    path = tmp_path / "graphs.json"
    assert cli.main(["explain", "--example", example, "--model-explorer", str(path)]) == 0
    assert "Receives between tasks" in capsys.readouterr().out
    collection = json.loads(path.read_text(encoding="utf-8"))
    for graph in collection["graphs"]:
        ids = [one["id"] for one in graph["nodes"]]
        assert len(set(ids)) == len(ids) > 0
        sources = {edge[0] for one in graph["nodes"] for edge in _edges(one)}
        assert sources <= set(ids)
    dacite = pytest.importorskip("dacite", reason="ai-edge-model-explorer is not installed")
    builder = pytest.importorskip(
        "model_explorer.graph_builder", reason="ai-edge-model-explorer is not installed"
    )
    loaded = dacite.from_dict(builder.GraphCollection, collection, dacite.Config(strict=True))
    assert [len(graph.nodes) for graph in loaded.graphs] == [
        len(graph["nodes"]) for graph in collection["graphs"]
    ]


def test_a_file_that_cannot_be_written(tmp_path, capsys):
    path = tmp_path / "missing" / "graphs.json"
    assert cli.main(["explain", "--example", "cond", "--model-explorer", str(path)]) == 1
    assert f"No such file or directory: '{path}'" in capsys.readouterr().err


def test_a_saved_report_has_no_graphs(tmp_path, capsys):
    path = tmp_path / "report.json"
    path.write_text("{}")
    with pytest.raises(SystemExit):
        cli.main(["explain", str(path), "--model-explorer", "x"])
    assert "a report (.json) takes no option but --json" in capsys.readouterr().err
