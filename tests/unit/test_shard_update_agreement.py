# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Replicas that wait for the decisions of others, which are played here."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tf_fuse.shard_update.agreement import Agreement, describe
from tf_fuse.shard_update.cluster import Cluster
from tf_fuse.shard_update.families import Family, Pack
from tf_fuse.shard_update.plan import Plan

_OWN = "/job:localhost/replica:0/task:0/device:CPU:0"
_OTHER = "/job:worker/replica:0/task:1/device:CPU:0"


class _Other:
    """Another replica: whether its option is on, and when it has decided what."""

    def __init__(self, is_on, late, text=""):
        self.is_on, self.late, self.text = is_on, late, text

    def run(self, key, build):
        what, name = key
        if what == "read":
            return self.text.encode()
        if name == "tf_fuse/plan/on":
            return self.is_on
        self.late -= 1
        return self.late < 0


def _agreement(other):
    return Agreement(Cluster((_OWN, _OTHER), (0,), ""), {1: other})


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch):
    monkeypatch.setenv("TF_FUSE_PLAN_WAIT_S", "0")


def test_a_replica_with_the_option_on_is_waited_for():
    other = _Other(True, 3, describe("f_1", None, "why"))
    _agreement(other).reach("f_1", None, "why")
    assert other.late == -1


def test_a_replica_without_a_sign_of_the_option_is_an_error():
    other = _Other(False, 10**9)
    with pytest.raises(tf.errors.FailedPreconditionError) as caught:
        _agreement(other).reach("f_1", None, "why")
    assert f"After 0 s (TF_FUSE_PLAN_WAIT_S) {_OTHER} has not called any function" in str(
        caught.value
    )
    assert _OWN in str(caught.value)


def test_a_replica_that_decided_otherwise_is_an_error():
    other = _Other(True, 0, describe("f_1", None, "another reason"))
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"why.*another reason"):
        _agreement(other).reach("f_1", None, "why")


def test_names_that_depend_on_the_process_do_not_matter():
    theirs = _plan("other/CollectiveReduceV2", "cond_true_99")
    other = _Other(True, 0, describe("f_7", theirs, None))
    _agreement(other).reach("f_1", _plan("reduce/CollectiveReduceV2", "cond_true_1"), None)
    assert other.late == -1


def test_the_same_is_agreed_on_once():
    plan = _plan("reduce", "where")
    other = _Other(True, 0, describe("f_1", plan, None))
    agreement = _agreement(other)
    agreement.reach("f_1", plan, None)
    # It has never decided about another trace.
    other.late = 10**9
    agreement.reach("f_2", _plan("reduce", "where"), None)
    assert other.late == 10**9


def _plan(node, detail):
    families = [Family("split:output:0", (3,)), Family("split:output:1", (4,))]
    families[0].leave("in_branch", detail)
    return Plan([Pack(node, [], families)])
