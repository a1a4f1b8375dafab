# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""`tf_fuse.explain` and `python -m tf_fuse explain`: functions, files, SavedModels, examples."""

import json
import re
from pathlib import Path

import pytest
import tensorflow as tf
from google.protobuf import text_format

from tests.unit.passes.pass_testing import (
    PS0,
    PS1,
    W0,
    W1,
    groups,
    partitions,
    recv,
    send,
    skips,
    source,
    trace,
    use,
    verdicts,
)
from tests.unit.passes.pass_testing import const as placeholder
from tf_fuse import cli, explain
from tf_fuse.cli import example_graphs
from tf_fuse.cli import explain as explain_command

_ROOT = Path(__file__).resolve().parents[3]


def _explain(capsys, *arguments):
    """Runs the command; returns (exit status, standard output, standard error)."""
    status = cli.main(["explain", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def _step():
    """A traced function that reads two values of a server, on whatever device it is called."""

    @tf.function(autograph=False)
    def step(x):
        with tf.device(PS0):
            a = tf.random.uniform([3, 2], name="a")
            b = tf.random.uniform([5], dtype=tf.float64, name="b")
        return tf.concat([tf.reshape(a, [-1]), tf.cast(b, tf.float32), x], 0)

    return step.get_concrete_function(tf.TensorSpec([None], tf.float32))


def test_function():
    result = explain.explain_function(_step(), W1)
    (group,) = result.report.groups
    assert (group.send_device, group.recv_device, group.depth) == (PS0, W1, 1)
    assert [s.sender_node for s in group.slots] == ["a/RandomUniform", "b/RandomUniform"]
    assert sorted(result.before) == sorted(result.after) == [PS0, W1]


def test_function_runs_on_the_first_worker_that_it_names():
    @tf.function(autograph=False)
    def step():
        with tf.device(PS0):
            values = [tf.random.uniform([2]) for _ in range(2)]
        with tf.device(W1):
            tf.no_op()
        with tf.device(W0):
            tf.no_op()
        return tf.add_n(values)

    (group,) = explain.explain_function(step.get_concrete_function()).report.groups
    assert group.recv_device == W0


@pytest.mark.parametrize("inlined", [True, False])
def test_functions_within_are_inlined_unless_they_must_not_be(inlined):
    attributes = {} if inlined else {"_noinline": True}

    @tf.function(autograph=False, experimental_attributes=attributes)
    def inner():
        with tf.device(PS0):
            return [tf.random.uniform([2], name=name) for name in ("a", "b")]

    @tf.function(autograph=False)
    def outer():
        with tf.device(W0):
            return tf.add_n(inner())

    result = explain.explain_function(outer.get_concrete_function())
    senders = [[name.split("/")[-2] for name in group] for group in groups(result)]
    assert senders == ([["a", "b"]] if inlined else [])


def test_looking_at_sizes_changes_nothing():
    result = explain.rewrite(trace(lambda: use(W0, "sum", source(PS0, "x"), source(PS0, "y"))))
    before = {device: graph.SerializeToString() for device, graph in result.before.items()}
    assert set(explain.known_bytes(result).values()) == {None}
    assert before == {device: graph.SerializeToString() for device, graph in result.before.items()}


def test_captured_variables_are_where_they_are():
    variable = tf.Variable([1.0, 2.0])
    graph = explain.placed_graph(tf.function(lambda: variable + 1.0).get_concrete_function(), W0)
    (argument,) = (n for n in graph.node if n.op == "_Arg")
    assert argument.attr["T"].type == tf.resource.as_datatype_enum
    assert argument.device == variable.handle.device


def test_peers_without_the_plugin():
    task = "/job:worker/replica:0/task:0"
    result = explain.explain_function(_step(), W0, plain_tasks=[task])
    assert set(verdicts(result).values()) == {"peer_without_plugin"}
    with pytest.raises(ValueError) as caught:
        explain.explain_function(_step(), W0, plain_tasks=task)
    assert str(caught.value) == (
        f"plain_tasks: give a sequence of tasks, got the text {task!r}; write [{task!r}]"
    )


def test_known_bytes():
    result = explain.explain_function(_step(), W0)
    sizes = {size for size in explain.known_bytes(result).values()}
    assert sizes == {3 * 2 * 4, 5 * 8}


def test_sizes_that_are_not_known():
    def build():
        use(W0, "sum", source(PS0, "x"), source(PS0, "y", shape=(None,)))

    described = explain_command.describe(explain.rewrite(trace(build)))
    (group,) = described["groups"]
    assert (group["known_bytes"], group["unknown_sizes"]) == (0, 2), "no shapes in the file"
    with tf.Graph().as_default() as graph:
        build()
    described = explain_command.describe(explain.rewrite(graph.as_graph_def(add_shapes=True)))
    (group,) = described["groups"]
    assert (group["known_bytes"], group["unknown_sizes"]) == (8, 1)
    assert [slot["bytes"] for slot in group["slots"]] == [8, None]


def test_sender_that_is_not_visible_has_no_size():
    graphs = partitions(recv("x", PS0, W0))
    (skip,) = explain_command.describe(explain.rewrite(graphs))["skips"]
    assert (skip["reason"], skip["bytes"]) == ("sender_not_visible", None)


def test_file_of_a_saved_function(tmp_path, capsys):
    path = tmp_path / "step.pb"
    explain.save_function(_step(), path, W0)
    report = tmp_path / "report.json"
    status, out, err = _explain(capsys, path, "--json", report)
    assert (status, err) == (0, "")
    assert re.search(r"ps:0 +worker:0 +1 +2 +64 ", out)
    # Runs group by cost by default.
    assert out.endswith(
        "Grouping: level. A run uses cost by default: --grouping cost.\n"
        "Receives between tasks: 2 before, 1 after, 50% fewer.\n"
    )
    described = json.loads(report.read_text())
    assert described == explain_command.describe(explain.explain_function(_step(), W0))
    assert [slot["bytes"] for slot in described["groups"][0]["slots"]] == [24, 40]


def test_text_file(tmp_path, capsys):
    path = tmp_path / "graph.pbtxt"
    graph = trace(lambda: use(W0, "sum", source(PS0, "x"), source(PS1, "y")))
    path.write_text(text_format.MessageToString(graph))
    status, out, _ = _explain(capsys, path, "--json", "-")
    described = json.loads(out)
    assert status == 0
    assert (described["grouping"], described["groups"]) == ("level", [])
    assert [(s["reason"], s["sender_node"]) for s in described["skips"]] == [
        ("alone", "x"),
        ("alone", "y"),
    ]
    assert (described["receives"], described["receives_after"]) == (2, 2)
    assert all(s["meaning"] == explain_command.REASONS["alone"] for s in described["skips"])


@pytest.fixture(scope="module")
def saved_model(tmp_path_factory):
    """A SavedModel with the signatures "serving_default" and "nothing"."""

    class Model(tf.Module):
        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.float32)])
        def step(self, x):
            with tf.device(PS0):
                a, b = (tf.random.uniform([2], name=name) for name in ("a", "b"))
            with tf.device(W0):
                return {"sum": a + b + x[:2]}

        @tf.function(autograph=False, input_signature=[])
        def nothing(self):
            return {}

    model = Model()
    folder = tmp_path_factory.mktemp("model")
    signatures = {"serving_default": model.step, "nothing": model.nothing}
    tf.saved_model.save(model, str(folder), signatures)
    return folder


def test_saved_model(saved_model, capsys):
    status, out, _ = _explain(capsys, saved_model, "--json", "-")
    assert status == 0
    (group,) = json.loads(out)["groups"]
    assert (group["send_device"], group["recv_device"], group["tensors"]) == (PS0, W0, 2)


@pytest.mark.parametrize(
    ("signature", "text"),
    [
        ("train", r"has no signature 'train'; it has \[.*'serving_default'\]$"),
        ("nothing", "the signature 'nothing' of .* returns no dense tensor, so nothing is run"),
    ],
)
def test_signatures_that_cannot_be_explained(saved_model, capsys, signature, text):
    status, out, err = _explain(capsys, saved_model, "--signature", signature)
    assert (status, out) == (1, "")
    assert re.search(text, err.strip())


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("missing.pb", None, "No such file or directory"),
        ("folder", "", "is not a SavedModel: it has no file saved_model.pb"),
        ("empty.pb", b"", "is not a GraphDef: it has no nodes"),
        ("noise.pb", b"\xff\xff\xff", "is not a GraphDef: "),
        ("noise.pbtxt", b"node {", "is not a GraphDef: "),
        ("latin.pbtxt", b"\xe9", "is not a GraphDef: 'utf-8' codec"),
        ("local.pb", b"\x0a\x09\x0a\x01x\x12\x04NoOp", "no node of the graph names a device"),
    ],
)
def test_files_that_cannot_be_explained(tmp_path, capsys, name, content, text):
    path = tmp_path / name
    if content == "":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    status, out, err = _explain(capsys, path)
    assert (status, out) == (1, "")
    assert err.startswith("error: ")
    assert text in err
    assert str(path) in err or name == "local.pb"


def test_report_that_cannot_be_written(tmp_path, capsys):
    path = tmp_path / "absent" / "report.json"
    status, _, err = _explain(capsys, "--example", "cond", "--json", path)
    assert status == 1
    assert "No such file or directory" in err


@pytest.mark.parametrize("arguments", [[], ["graph.pb", "--example", "cond"]])
def test_a_file_or_an_example(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        cli.main(["explain", *arguments])
    assert caught.value.code == 2
    assert "explain takes a file or --example, one of both" in capsys.readouterr().err


def test_examples_are_those_of_the_command():
    assert sorted(example_graphs.EXAMPLES) == list(cli._EXAMPLES)


def test_example_of_a_conditional(capsys):
    status, out, _ = _explain(capsys, "--example", "cond")
    assert status == 0
    result = explain.rewrite(example_graphs.build("cond"))
    assert list(map(len, groups(result))) == [2, 2, 2]
    doubted = [s.sender_node for g in result.report.groups for s in g.slots if s.may_be_dead]
    assert len([name for name in doubted if "server" in name]) == len(doubted) == 4
    described = explain_command.describe(result)["groups"]
    assert sum(group["may_be_dead"] for group in described) == 4
    assert [s["sender_node"] for g in described for s in g["slots"] if s["may_be_dead"]] == doubted
    assert "dead?" in out
    assert groups(result)[2] == ["chosen", "negated"]
    assert list(skips(result)) == ["alone"]
    assert f"alone: {explain_command.REASONS['alone'].split(', or')[0]}" in out


@pytest.mark.parametrize(
    ("name", "receives", "fused", "skipped"),
    [
        # Per table: keys, rows, gradient; per variable of a dense layer: value, gradient.
        # The only table: its keys go to a server that needs nothing else at that depth, and its
        # rows come at one at which no weight does.
        ("dense", 3 + 2 * 2 * 12, 6, {"alone": ["keys_keys_sent", "keys_rows"]}),
        ("features", 3 * 300 + 2 * 4, 8, {}),
        ("wide_deep", 3 * 52 + 2 * 6, 8, {}),
        ("rfc", 3 * 40 * 4 + 2 * 6, 4, {}),
    ],
)
def test_examples_of_training(name, receives, fused, skipped):
    result = explain.rewrite(example_graphs.build(name))
    described = explain_command.describe(result)
    assert {reason: sorted(senders) for reason, senders in skips(result).items()} == skipped
    assert (described["receives"], described["receives_after"]) == (receives, fused)
    assert sum(group["unknown_sizes"] for group in described["groups"]) == 0


def test_operations_that_run_as_one_are_shown(capsys):
    """Each of two servers has 150 tables and two dense layers."""
    status, out, _ = _explain(capsys, "--example", "features", "--grouping", "level")
    assert status == 0
    _, _, table = out.partition("Operations that run as one")
    rows = [re.split(r" {2,}", line.strip()) for line in table.splitlines()]
    assert ["on", "operations", "sends"] in rows
    for server in ("ps:0", "ps:1"):
        assert [row[1:] for row in rows if row[0] == server] == [
            ["2 ReadVariableOp, 2 _Send", "1"],
            ["150 ResourceGather, 150 _Send", "1"],
            ["150 ResourceScatterSub", "0"],
        ]
        # These, two receives, and two updates of dense layers; before, each of these by itself.
        assert f"Operations on {server}: 758 before, 7 after.\n" in out
    described = explain_command.describe(
        explain.rewrite(example_graphs.build("features"), fuse_operations=True)
    )
    assert described["operations"][PS0] == described["operations"][PS1] == [758, 7]


def test_no_operations_are_shown_where_none_run_as_one(capsys):
    status, out, _ = _explain(capsys, "--example", "cond")
    assert status == 0
    assert "Operations" not in out


def test_example_of_a_loop(capsys):
    status, out, _ = _explain(capsys, "--example", "loop")
    assert status == 0
    assert re.search(r"dead\? +loop", out)
    described = explain_command.describe(explain.rewrite(example_graphs.build("loop")))
    assert {group["loop"] for group in described["groups"]} == {"steps"}
    # Of each server: keys (with the condition and a control edge), rows, gradients, and that the
    # updates are done.
    tensors = sorted((group["depth"], group["tensors"]) for group in described["groups"])
    assert tensors == [(1, 5), (1, 5), (2, 3), (2, 3), (3, 3), (3, 3), (4, 3), (4, 3)]
    assert described["skips"] == []


def test_estimates_are_shown_for_the_grouping_by_cost(capsys):
    status, out, _ = _explain(capsys, "--example", "dense", "--grouping", "cost")
    assert status == 0
    assert re.search(r"bytes +ready µs +tail µs", out)
    assert "\nGrouping: cost, as in runs. (Each task is taken to have a host of its own.)\n" in out
    status, out, _ = _explain(capsys, "--example", "dense", "--grouping", "cost", "--json", "-")
    result = explain.rewrite(example_graphs.build("dense"), splitting="cost")
    described = json.loads(out)
    assert described["grouping"] == "cost"
    assert len(described["groups"]) == len(result.report.groups) > 0
    for shown, group in zip(described["groups"], result.report.groups, strict=True):
        estimates = [slot.estimate for slot in group.slots]
        assert shown["ready_us"] == round(max(e.ready_us for e in estimates), 1)
        assert shown["tail_us"] == round(max(e.tail_us for e in estimates), 1)
    # Other groupings need none.
    _, out, _ = _explain(capsys, "--example", "dense", "--json", "-")
    assert not any("ready_us" in group for group in json.loads(out)["groups"])


def test_options_of_the_command(capsys):
    _, out, _ = _explain(capsys, "--example", "cond", "--grouping", "dynamic", "--json", "-")
    assert json.loads(out)["grouping"] == "dynamic"
    assert all(group["dynamic"] for group in json.loads(out)["groups"])
    # What is stamped is what the pass decides where it sees the whole graph.
    of_session, of_function = (
        json.loads(_explain(capsys, "--example", "features", *more, "--json", "-")[1])
        for more in (["--session"], [])
    )
    assert of_session["receives_after"] == of_function["receives_after"] == 8


def test_every_reason_has_a_sentence_and_a_place_in_the_docs():
    header = (_ROOT / "cc" / "passes" / "fuse_recv" / "plan.h").read_text()
    reasons = re.findall(r'inline constexpr char k\w+\[\] = "(\w+)"', header)
    assert len(reasons) >= 14
    assert sorted(explain_command.REASONS) == sorted(reasons)
    docs = (_ROOT / "docs" / "fuse_recv.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \|", docs, re.MULTILINE)
    assert set(reasons) <= set(documented)


def test_graph_that_is_partitioned_needs_no_default_device():
    graphs = partitions(placeholder("x", PS0), send("x", "x", PS0, W0), recv("x", PS0, W0))
    assert skips(explain.rewrite(graphs)) == {"alone": ["x"]}
