# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The verifier finds each thing that could be wrong with weights that are in shards."""

import os
import re

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tests.unit.shard_update.gather_jobs import Job, plain, two_buckets, update_both


def _gathered_twice(job):
    (gather,) = job.of("TfFuse>AllGather")
    node = job.rewritten.node_def.add()
    node.CopyFrom(gather)
    node.name = f"{gather.name}_again"
    job.of("TfFuse>ReduceScatter")[0].input.append(f"^{node.name}")


def _changed_early(job):
    (scatter,) = job.of("TfFuse>ReduceScatter")
    for node in job.of("AssignSubVariableOp", "v"):
        if f"^{scatter.name}" in node.input:
            node.input.remove(f"^{scatter.name}")


def _gathers_another(job):
    (gather,) = job.of("TfFuse>AllGather")
    gather.input[0] = gather.input[1]


def _splits_otherwise(job):
    (gather,) = job.of("TfFuse>AllGather")
    gather.attr["bounds"].list.i.extend([0, 6, 12, 0, 5, 5])


def test_the_verifier_finds_what_is_gathered_behind_the_update():
    job = Job(two_buckets)
    assert job.verify() == ""
    gather, _ = job.of("TfFuse>AllGather")
    scatter, other = job.of("TfFuse>ReduceScatter")
    (sink,) = job.of("AssignSubVariableOp", "w")
    (read,) = [n for n in job.of("ReadVariableOp", "w") if n.name.endswith("/first/part")]
    # The gather of the first bucket goes behind its update, and in front of the second bucket.
    for node in list(job.rewritten.node_def):
        if node.op == "Identity" and node.input[0].startswith(f"{gather.name}:"):
            node.input[0] = "x"
    sink.input.remove(f"^{read.name}")
    scatter.input.remove(f"^{gather.name}")
    read.input.append(f"^{sink.name}")
    other.input.append(f"^{gather.name}")
    assert re.search(rf"{gather.name} has \w+ as {sink.name} leaves it", job.verify())


def test_the_verifier_finds_what_no_all_reduce_waits_for():
    def body(job, x, y):
        loss = tf.cumsum(job.w), tf.cumsum(job.v)
        update_both(job, x, y)
        return loss

    job = Job(body)
    assert job.verify() == ""
    (gather,), (scatter,) = job.of("TfFuse>AllGather"), job.of("TfFuse>ReduceScatter")
    scatter.input.remove(f"^{gather.name}")
    gather.input.append(f"^{scatter.name}")
    assert re.search(f"no all-reduce waits for {gather.name}", job.verify()), job.verify()


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (_gathered_twice, "is in shards, and gathered 2 times"),
        (_gathers_another, "is in shards, and gathered [02] times"),
        (_splits_otherwise, r"splits \w+ at \[0, 6, 12\], not at \[0, 12, 12\]"),
        (_changed_early, "changes .* before all replicas are in the step"),
    ],
)
def test_the_verifier_finds(change, wrong):
    job = Job(plain)
    assert job.verify() == ""
    change(job)
    assert re.search(wrong, job.verify()), job.verify()
