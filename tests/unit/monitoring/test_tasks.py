# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A process without a cluster reports itself alone."""

import pytest
import tensorflow as tf

import tf_fuse
from tf_fuse import _native
from tf_fuse.monitoring import tasks, waiting
from tf_fuse.v1 import fuse_recv_pb2

_LOCAL = "/job:localhost/replica:0/task:0"


def test_nothing_waits():
    assert tf_fuse.waiting() == []
    # Without a server of ours to ask with, the op is what asks.
    assert tf_fuse.cluster_waiting() == {_LOCAL: []}


def test_cluster_of_one_process():
    counters = tf_fuse.metrics()
    del counters["weight_updates"]
    assert tf_fuse.cluster_metrics() == {_LOCAL: counters}
    assert list(tf_fuse.cluster_reports()) == [_LOCAL]
    assert tf_fuse.metrics()["pending_receives"] == tf_fuse.metrics()["pending_requests"] == 0


def test_a_question_of_another_version():
    assert tasks.ask_this_process(99) == b""
    with pytest.raises(tf.errors.InvalidArgumentError, match="TfFuse>Answer: unknown question 99"):
        _native.load().tf_fuse_answer(question=99)
    answers = tasks.ask_every_task(99, timeout_s=1.0)
    assert str(answers[_LOCAL]).startswith("InvalidArgumentError: ")


def test_answers_name_what_waits():
    receives = fuse_recv_pb2.WaitingReceives()
    receives.receives.add(
        task="/job:worker/task:0",
        peer="/job:ps/task:1",
        step_id=7,
        waited_micros=1_500_000,
        tensors=3,
        tensor_names=["a", "b", "c"],
    )
    receives.receives.add(sending=True, tensors=2, missing_known=True, missing=0)
    first, second = waiting._as_dicts(receives.SerializeToString())
    assert first == {
        "task": "/job:worker/task:0",
        "peer": "/job:ps/task:1",
        "sending": False,
        "step_id": 7,
        "waited_s": 1.5,
        "tensors": 3,
        "missing": None,
        "tensor_names": ["a", "b", "c"],
        "step_not_begun": False,
        "one_by_one": False,
    }
    assert (second["sending"], second["missing"]) == (True, 0)
