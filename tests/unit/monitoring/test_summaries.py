# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Scalars for TensorBoard: what was counted since the last call."""

import contextlib
import gc

import pytest
import tensorflow as tf

import tf_fuse
from tests.tensorboard_events import scalars
from tf_fuse.monitoring import summaries
from tf_fuse.monitoring.metrics import WAITS

_PS = "/job:ps/replica:0/task:0"
_WORKER = "/job:worker/replica:0/task:{}"


def _counters(fused=0, single=0, waits=(), workers=(), updates=0):
    """`waits` has key, count and microseconds; `workers` name, updates and sum of staleness."""
    none = {key: {"counts": [0, 0], "sum_us": 0} for key in WAITS}
    some = {key: {"counts": [1, count - 1], "sum_us": us} for key, count, us in waits}
    return {
        "fused_rpcs": fused,
        "single_rpcs": single,
        "waits": {"bounds_us": [100], **none, **some},
        "server_updates": {
            "variables": {"a": {"updates": updates}, "b": {"updates": updates}} if updates else {},
            "workers": {
                name: {"updates": count, "staleness_sum": total} for name, count, total in workers
            },
        },
    }


@pytest.fixture
def tasks(monkeypatch):
    """What the tasks answer; a test changes it."""
    answers = {}
    monkeypatch.setattr(summaries, "cluster_metrics", lambda timeout_s: dict(answers))
    return answers


def test_scalars(tasks, tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))
    tasks[_PS] = _counters(
        waits=[("requests", 4, 6000), ("locks", 2, 1000)],
        workers=[(_WORKER.format(0), 4, 2), (_WORKER.format(1), 4, 10)],
        updates=10,
    )
    tasks[_WORKER.format(0)] = _counters(30, 10, waits=[("receives", 3, 9000)])
    tf_fuse.write_summaries(writer, 10)
    tasks[_PS] = _counters(
        waits=[("requests", 8, 8000), ("locks", 2, 1000)],
        workers=[(_WORKER.format(0), 4, 2), (_WORKER.format(1), 8, 11)],
        updates=40,
    )
    tasks[_WORKER.format(0)] = _counters(40, 10, waits=[("receives", 4, 9500)])
    tasks[_WORKER.format(1)] = {"error": "it has ended"}
    tf_fuse.write_summaries(writer, 14)
    writer.flush()
    assert scalars(tmp_path) == {
        "tf_fuse/rpcs_per_step/worker:0": {10: 4.0, 14: 2.5},
        "tf_fuse/receive_wait_ms/worker:0": {10: 3.0, 14: 0.5},
        "tf_fuse/request_wait_ms/ps:0": {10: 1.5, 14: 0.5},
        "tf_fuse/lock_wait_ms/ps:0": {10: 0.5},
        "tf_fuse/updates_per_step/ps:0": {10: 2.0, 14: 15.0},
        "tf_fuse/staleness/worker:0": {10: 0.5},
        "tf_fuse/staleness/worker:1": {10: 2.5, 14: 0.25},
        "tf_fuse/tasks_without_answer": {10: 0.0, 14: 1.0},
    }


def test_staleness_is_the_mean_over_servers(tasks, tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))
    for index, updates, total in ((0, 1, 9), (1, 3, 3)):
        workers = [(_WORKER.format(0), updates, total)]
        tasks[_PS.replace("task:0", f"task:{index}")] = _counters(workers=workers)
    tf_fuse.write_summaries(writer, 1)
    writer.flush()
    assert scalars(tmp_path)["tf_fuse/staleness/worker:0"] == {1: 3.0}


def test_a_task_that_was_started_again(tasks, tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))
    worker = _WORKER.format(0)
    for step, answer in ((10, _counters(100)), (20, {"error": "gone"}), (30, _counters(50))):
        tasks[worker] = answer
        tf_fuse.write_summaries(writer, step)
    writer.flush()
    found = scalars(tmp_path)
    assert found["tf_fuse/rpcs_per_step/worker:0"] == {10: 10.0, 30: 5.0}
    assert found["tf_fuse/tasks_without_answer"] == {10: 0.0, 20: 1.0, 30: 0.0}


def test_steps(tasks, tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))
    tasks[_WORKER.format(0)] = _counters(3)
    tf_fuse.write_summaries(writer, 0)  # No step yet: nothing per step.
    tf_fuse.write_summaries(writer, 5)
    tf_fuse.write_summaries(writer, 5)  # No step since: nothing per step.
    with pytest.raises(ValueError, match="step is 4, must be 5 or more"):
        tf_fuse.write_summaries(writer, 4)
    with pytest.raises(ValueError, match="step is -1, must be 0 or more"):
        tf_fuse.write_summaries(tf.summary.create_noop_writer(), -1)
    writer.flush()
    assert scalars(tmp_path)["tf_fuse/rpcs_per_step/worker:0"] == {5: 0.0}


def test_writers_are_apart_and_end(tasks, tmp_path):
    tasks[_WORKER.format(0)] = _counters(8)
    writers = [tf.summary.create_file_writer(str(tmp_path / name)) for name in "ab"]
    for writer in writers:
        tf_fuse.write_summaries(writer, 4)
        writer.flush()
    for name in "ab":
        assert scalars(tmp_path / name)["tf_fuse/rpcs_per_step/worker:0"] == {4: 2.0}
    known = len(summaries._last)
    del writer, writers
    gc.collect()
    assert len(summaries._last) <= known - 2


def test_a_process_alone(tmp_path):
    writer = tf.summary.create_file_writer(str(tmp_path))
    tf_fuse.write_summaries(writer, 1)
    writer.flush()
    assert scalars(tmp_path)["tf_fuse/tasks_without_answer"] == {1: 0.0}


def test_without_eager_execution(tasks, tmp_path):
    """As after `tf.compat.v1.disable_eager_execution`: `tf.summary` would write nothing."""
    writer = tf.summary.create_file_writer(str(tmp_path))
    with tf.Graph().as_default(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(tf, "init_scope", contextlib.nullcontext)
        with pytest.raises(RuntimeError, match="needs eager execution, which this program has"):
            tf_fuse.write_summaries(writer, 1)


def test_within_a_function(tasks, tmp_path):
    """Of the trace: a function counts nothing when it runs."""
    writer = tf.summary.create_file_writer(str(tmp_path))
    tasks[_WORKER.format(0)] = _counters(8)
    tf.function(lambda: tf_fuse.write_summaries(writer, 4), autograph=False)()
    writer.flush()
    assert scalars(tmp_path)["tf_fuse/rpcs_per_step/worker:0"] == {4: 2.0}
