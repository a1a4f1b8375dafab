# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Why an update is not one operation with the bits of stock, and what the report says of it."""

import dataclasses
import json
import math
import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

import tf_fuse
from tests import decisions
from tf_fuse import cli
from tf_fuse.function_graph.function_lookup import op_defs, static_shapes
from tf_fuse.function_graph.view import ASSIGNS, GraphView
from tf_fuse.fuse_update import outline as outline_module
from tf_fuse.fuse_update.encode.elementwise import ElementwiseEncoder
from tf_fuse.fuse_update.outline import REASONS
from tf_fuse.shard_update import fusion_report
from tf_fuse.shard_update.fusion_report import lines

_SHAPE = [4, 4]


@pytest.fixture(autouse=True)
def _off():
    yield
    tf.config.optimizer.set_experimental_options({"fuse_weight_update": False})


class _Job:
    """A momentum update."""

    def __init__(self):
        self.w, self.m = tf.Variable(tf.ones(_SHAPE)), tf.Variable(tf.fill(_SHAPE, 2.0))
        self.one = tf.Variable([3.0])
        self.odd = tf.Variable(tf.ones(_SHAPE, tf.complex64))
        self.any = tf.Variable(tf.ones(_SHAPE), shape=tf.TensorShape(None))

    def update(self, g):
        self.m.assign(0.5 * self.m + g)
        self.w.assign_sub(0.25 * self.m)


def _outlined(body, is_here=lambda device, variable: True):
    job = _Job()
    function = tf.function(
        lambda g: body(job, g), autograph=False, input_signature=[tf.TensorSpec(_SHAPE)]
    ).get_concrete_function()
    view = GraphView(function.function_def, op_defs(lambda name: None))
    maker = ElementwiseEncoder(bytes)
    return outline_module.outline(view, static_shapes(view, function.graph), is_here, maker)


def _one_element(job, g):
    job.one.assign_sub(0.5 * job.one)


def _unrolled(job, g):
    for _ in range(4):
        job.update(g)


def _no_operation(job, g):
    job.m.assign_add(job.w.read_value())
    job.w.assign_sub(job.m.read_value())


def _complex(job, g):
    job.odd.assign(2.0 * job.odd)


def _two_devices(job, g):
    with tf.device("CPU:0"):
        job.m.assign(0.5 * job.m)
    job.m.assign_add(0.5 * g)


def _unknown_shape(job, g):
    job.any.assign(job.any * 2.0)


def _root_elsewhere(job, g):
    x = g * 0.3
    job.w.assign_sub(x * 0.1)
    job.one.assign([tf.reduce_sum(g * 0.3)])


def _assigned_first(job, g):
    job.m.assign(0.5 * g + g * g)


def _matmul(job, g):
    job.m.assign_sub(tf.matmul(g, g))


def _read_twice(job, g):
    new = 2.0 * g
    job.m.assign_add(new)
    job.one.assign([tf.reduce_sum(new)])


def _in_between(job, g):
    x = 0.3 * g
    job.m.assign_sub(x)
    job.w.assign_sub(x * tf.norm(job.m))


def _switch_of_1(job, g):
    new, _ = tf.raw_ops.Switch(data=2.0 * g, pred=tf.reduce_all(g > 0))
    job.m.assign_add(2.0 * new)


# By reason: a function, and how many assignments of it are left for that.
_CASES = {
    "control_flow": (_switch_of_1, 1),
    "not_elementwise": (_matmul, 1),
    "not_read": (_assigned_first, 1),
    "optimizer": (_root_elsewhere, 1),
    "read_elsewhere": (_read_twice, 1),
    "several_devices": (_two_devices, 2),
    "too_few": (_no_operation, 2),
    "too_many": (_unrolled, 8),
    "too_small": (_one_element, 1),
    "type": (_complex, 1),
    "unknown_shape": (_unknown_shape, 1),
    "waits_for_itself": (_in_between, 2),
}


@pytest.mark.parametrize("reason", sorted(_CASES))
def test_reasons(reason, monkeypatch):
    monkeypatch.setattr("tf_fuse.fuse_update.encode.elementwise._MOST_VALUES", 20)
    body, count = _CASES[reason]
    found = _outlined(body)
    assert [left.reason for left in found.left].count(reason) == count
    assert (found.clusters, found.function) == ((), None)


def test_a_variable_that_is_elsewhere():
    found = _outlined(lambda job, g: job.update(g), is_here=lambda *place: False)
    assert [left.reason for left in found.left] == ["device", "device"]


def test_every_reason_is_tried():
    # (Those of servers are in fuse_update/analysis/test_devices.py.)
    assert {*_CASES, "device", "no_plugin", "rows"} == REASONS.keys()


# --- The report -----------------------------------------------------------------------------------


@pytest.fixture
def told():
    """What the report says of a function with an update, and one that is left."""
    with decisions.kept():
        yield _told()


def _told():
    before = len(tf_fuse.weight_update_report()["operations"])
    job = _Job()

    @tf.function(autograph=False)
    def step(g):
        job.update(g)
        job.one.assign_add([tf.reduce_sum(g)])

    tf.config.optimizer.set_experimental_options({"fuse_weight_update": True})
    step(tf.ones(_SHAPE))
    (one,) = tf_fuse.weight_update_report()["operations"][before:]
    return one


def test_report(told):
    assert told.pop("function").startswith("__inference_step_")
    (left,), (each,) = told.pop("left"), told.pop("each")
    assert told == {"way": "fused", "updates": 1, "variables": 2}
    assert left.pop("assignment").startswith("AssignAddVariableOp")
    assert left.pop("detail").startswith("AssignAddVariableOp")
    assert left.pop("variable") == "Variable"
    assert len(each.pop("variables")) == 2
    assert each.pop("operations") > 2
    size = math.prod(_SHAPE)
    assert each == {"device": "", "elements": size, "exact": True, "by_row": False}
    assert left == {"reason": "too_small", "meaning": REASONS["too_small"]}


def test_variables_of_a_loop_have_the_names_of_the_program():
    before = len(tf_fuse.weight_update_report()["operations"])
    job = _Job()
    job.w, job.m = tf.Variable(tf.ones(_SHAPE), name="w"), tf.Variable(tf.ones(_SHAPE), name="m")

    @tf.function
    def steps(g):
        for _ in tf.range(3):
            job.update(g)

    tf.config.optimizer.set_experimental_options({"fuse_weight_update": True})
    steps(tf.ones(_SHAPE))
    (one,) = tf_fuse.weight_update_report()["operations"][before:]
    assert [sorted(each["variables"]) for each in one["each"]] == [["m", "w"]]


def test_an_update_is_where_its_variables_are(told):
    decision = fusion_report.fused()[-1]
    assert decision.function == told["function"]
    server = "/job:ps/replica:0/task:1/device:CPU:0"
    decision.view.device_of = lambda node: server if node.op in ASSIGNS else ""
    one = fusion_report._operation("fused", dataclasses.replace(decision, has_servers=True))
    assert [each["device"] for each in one["each"]] == [server]
    assert f" on {server}, of " in list(lines([one]))[1]


def test_explained(told, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    report = {"sharded": False, "reason": "it is off", "functions": [], "operations": [told]}
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    assert cli.main(["explain", str(path)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == [
        "Weight updates are not sharded: it is off.",
        f"{told['function']}: 1 update, of 2 variables, in one operation each (fused)",
        f"  1 left, too_small: {REASONS['too_small']} (Variable)",
    ]
    assert out[-2:] == ["Updates in one operation: 1; assignments left: 1.", "  too_small: 1"]
    assert cli.main(["explain", str(path), "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["totals"]["updates_in_one"] == 1
    assert data["totals"]["assignments_left"] == {"too_small": 1}
    assert data["operations"] == [told]


def test_updates_on_servers_are_printed_without_a_word_about_all_reduces(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    each = {"device": "/job:ps/task:0", "variables": ["m", "w"], "operations": 16}
    one = {"function": "f", "way": "fused", "updates": 1, "variables": 2, "left": []}
    one["each"] = [each | {"by_row": False, "exact": False}]
    tf_fuse.print_weight_update_report({"reason": "", "functions": [], "operations": [one]})
    assert capsys.readouterr().out.splitlines() == [
        "f: 1 update, of 2 variables, in one operation each (fused)",
        "  m, w on /job:ps/task:0, of 16 operations; last bits may be others",
    ]
    tf_fuse.print_weight_update_report({"reason": "", "functions": [], "operations": []})
    assert capsys.readouterr().out == "No function with an all-reduce has been called yet.\n"


def test_several_places_of_one_reason():
    left = [
        {"reason": "type", "meaning": "so", "variable": "v", "assignment": "a", "detail": f"w{i}"}
        for i in (2, 1, 2)
    ]
    one = {"function": "f", "way": "compiled", "updates": 0, "variables": 0, "each": []}
    one["left"] = left
    assert list(lines([one])) == [
        "f: 0 updates, of 0 variables, in one operation each (compiled)",
        "  3 left, type: so (v by w1 and 1 more)",
    ]


@pytest.mark.parametrize("operations", [3, [{}], [{"updates": 1}]])
def test_what_is_no_report(operations, tmp_path, capsys):
    path = tmp_path / "report.json"
    report = {"sharded": False, "reason": "", "functions": [], "operations": operations}
    path.write_text(json.dumps(report))
    assert cli.main(["explain", str(path)]) == 1
    assert "not what tf_fuse.weight_update_report()" in capsys.readouterr().err
