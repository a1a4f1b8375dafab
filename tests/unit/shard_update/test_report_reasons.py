# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Each reason for which an update stays unchanged, word by word, where people read it.

Other tests have the functions that are left alone for each of them.
"""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import re
from pathlib import Path

import pytest

from tf_fuse.fuse_update import outline
from tf_fuse.shard_update import report as report_module
from tf_fuse.shard_update.decision import FUNCTION_REASONS, Decision
from tf_fuse.shard_update.plan import (
    GATHER_REASONS,
    REASONS,
    Bucket,
    Gather,
    ShardedUpdate,
    UpdateCluster,
)

_GRADIENT = {
    "assigned_twice": "something else assigns the variable, during the update or after it",
    "cycle": "parts of the function would wait for one another",
    "escapes": "an operation other than reads and assignments gets the variable",
    "in_branch": "a branch has a part of the update, or the updates of several all-reduces",
    "nested": "the all-reduce is in a function that is called, and whose graph is not known",
    "no_profit": "the step would take longer by an estimate",
    "no_update": "no variable is updated from it, as from a loss or a metric",
    "not_all_replicas": "the all-reduce is of a part of the replicas",
    "not_elementwise": "an operation that is not elementwise reads a tensor of the update",
    "not_exact": "a sum, or a product of single numbers, would be taken in another order",
    "not_replicated": "the update reads a tensor that may differ from replica to replica",
    "one_replica": "something outside of the replicas uses a variable of one of them",
    "other_type": "the weight has another type than the gradients that are reduced",
    "read_after_update": "the weight is read whole between two assignments of the update",
    "read_whole": "the reduced bucket is read as a whole",
    "returned": "the function returns a tensor of the update",
    "several_weights": "the gradient alone changes more than one weight",
    "shared": "the update of another gradient reads or makes a tensor of this one",
    "unknown_shape": "the shape of a tensor is not known when the function is traced",
    "waits_for_weight": "the update waits for the new weight of another gradient of the bucket",
}
_FUNCTION = {
    "group_size": "the replicas cannot be in groups of shard_weight_update_group_size",
    "no_group": "it is not known which replicas train together",
    "nothing_to_shard": "no gradient's update can be sharded with profit",
    "one_replica": "the replicas of this process do not update their variables alike",
    "python_code": "an operation runs Python code in the step, which may use any variable",
    "traced_before": "it was traced before tf_fuse was imported",
    "verification": "the function that was made of it is wrong, which is an error of tf_fuse",
}
_GATHER = {
    "assigned_elsewhere": "something else than the update assigns the weight",
    "cycle": "parts of the function would wait for one another",
    "escapes": "an operation other than reads and assignments gets the weight",
    "in_branch": "the update is in a branch of a conditional",
    "in_groups": "the replicas are in groups that each keep everything",
    "not_read": "nothing reads the weight in front of its update",
    "read_after_update": "the weight is read whole after its update",
    "read_in_function": "a function that is called, a branch or a loop gets the weight",
    "returned": "the function returns the weight",
    "used_outside": "others than the function that updates the weight use it in the step",
}
_OUTLINE = {
    "control_flow": "the function has conditionals or loops of TensorFlow 1",
    "device": "the assignment or the variable is not on a CPU where it can run, as far as is known",
    "no_plugin": "the server that has the variable cannot run operations of tf_fuse",
    "not_elementwise": "the assigned value is made by an operation that is not elementwise",
    "not_read": "the variable may have no value before: it is assigned first",
    "optimizer": "TensorFlow's graph optimizer makes something else of the operations",
    "read_elsewhere": "the assigned value is read by something else, too",
    "rows": "what is done to rows of the variable is not all that is known to be done by rows",
    "several_devices": "the operations are on different devices",
    "too_few": "fewer than 2 operations and assignments make one fusion cluster",
    "too_many": "there are more operations than one operation can have",
    "too_small": "the variable has fewer elements than are worth a call",
    "type": "of the types of the operations, one is not computed alike in one operation",
    "unknown_shape": "a shape is not known when the function is traced, or not the variable's",
    "waits_for_itself": "something in between waits for a part of the operations",
}


@pytest.fixture
def printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")

    def show(decision):
        functions = [report_module._function(decision)]
        report = {"sharded": False, "reason": "", "functions": functions}
        report_module.print_weight_update_report(report)
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    return show


def _decision(cluster=None, reason=None, detail="", bucket_reason=None):
    clusters = [UpdateCluster("split:output:0", (2, 3))] if cluster is None else [cluster]
    bucket = Bucket("reduce", [], clusters, bucket_reason, "some/node" if bucket_reason else "")
    return Decision("f_1", ShardedUpdate([bucket]), reason, detail, 2)


def test_no_reason_is_missing():
    assert REASONS == _GRADIENT
    assert FUNCTION_REASONS == _FUNCTION
    assert GATHER_REASONS == _GATHER
    assert outline.REASONS == _OUTLINE


@pytest.mark.parametrize("reason", sorted(_GRADIENT.keys() - {"no_update"}))
def test_gradients(printed, reason):
    cluster = UpdateCluster("split:output:0", (2, 3)).leave(reason, "some/node")
    _, line = report_module.summary(_decision(cluster))
    assert line == (
        "sharded over 2 replicas: 0 of 1 gradients, and 0 variables of the optimizer, which take 0 "
        f"bytes here in place of 0 (0 saved); left alone: 1 {reason} ({_GRADIENT[reason]})"
    )
    decision = _decision(cluster, reason="nothing_to_shard")
    told = f"reduce split:output:0 2 x 3 0 {_GRADIENT[reason]}: some/node"
    assert printed(decision)[-2:] == [told, ""]


def test_what_updates_nothing_is_no_gradient(printed):
    cluster = UpdateCluster("split:output:0", (2, 3)).leave("no_update", "split:output:0")
    assert report_module.summary(_decision(cluster))[1].startswith(
        "sharded over 2 replicas: 0 of 0 "
    )
    decision = _decision(cluster, reason="nothing_to_shard")
    assert printed(decision)[-2:] == [f"reduce split:output:0 2 x 3 0 {_GRADIENT['no_update']}", ""]


@pytest.mark.parametrize("reason", sorted(_GRADIENT))
def test_all_reduces(printed, reason):
    lines = printed(_decision(reason="nothing_to_shard", bucket_reason=reason))
    assert f"reduce {_GRADIENT[reason]}: some/node" in lines


@pytest.mark.parametrize("reason", sorted(_FUNCTION))
def test_functions(printed, reason):
    cluster = UpdateCluster("split:output:0", (2, 3)).leave("escapes", "some/node")
    decision = _decision(cluster, reason=reason, detail="some/node")
    _, line = report_module.summary(decision)
    assert line == (
        f"not sharded: {_FUNCTION[reason]}: some/node; left alone: 1 escapes "
        f"({_GRADIENT['escapes']})"
    )
    assert f"not sharded: {_FUNCTION[reason]} (some/node)" in printed(decision)


@pytest.mark.parametrize("reason", sorted(_GATHER))
def test_gathers(reason):
    gather = Gather(reason=reason, detail="some/node")
    cluster = UpdateCluster("split:output:0", (2, 3), weights=("w",), gather=gather)
    told = report_module._gradient(cluster, _decision(cluster), "reduce", 4, False)
    assert told["gather_meaning"] == _GATHER[reason]
    assert report_module._gathering(told) == (
        f", gathered at the end ({_GATHER[reason]}: some/node)"
    )


def test_each_of_an_outline_is_met_by_a_test():
    folder = Path(__file__).parents[1] / "fuse_update"
    names = [
        "test_outline.py",
        "test_pipeline_functions.py",
        "analysis/test_devices.py",
        "encode/test_elementwise.py",
    ]
    text = "".join((folder / name).read_text(encoding="utf-8") for name in names)
    assert set(re.findall(r'"(\w+)"', text)) >= _OUTLINE.keys()
