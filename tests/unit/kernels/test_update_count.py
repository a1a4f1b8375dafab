# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Updates that are counted: by variable and worker, how stale, and what does not count."""

import json
import threading

import pytest
import tensorflow as tf

import tf_fuse
from tf_fuse import _native
from tf_fuse.v1 import update_pb2


def _program(size=2):
    message = update_pb2.UpdateProgram(size=size)
    message.variable_types.append(tf.float32.as_datatype_enum)
    message.input_types.append(tf.float32.as_datatype_enum)
    message.steps.add(op="AssignAddVariableOp", inputs=[0])
    return message.SerializeToString()


def _update(variable, begun, worker="", subject=0):
    _native.load().tf_fuse_elementwise_update(
        variables=[variable.handle],
        inputs=[tf.ones([2])],
        begun=begun,
        Tout=[],
        shapes=[],
        program=_program(),
        worker=worker,
        subject=subject,
    )


def _count(variable):
    return _native.load().tf_fuse_update_count(variable=variable.handle)


@pytest.fixture
def variable():
    return tf.Variable([1.0, 2.0], name="counted")


def test_counts_and_staleness(variable):
    before = tf_fuse.metrics()["server_updates"]["workers"].get("w", {"updates": 0})["updates"]
    first = _count(variable)
    assert int(first) == 0
    for _ in range(4):
        _update(variable, [first], worker="w")
    assert int(_count(variable)) == 4
    worker = tf_fuse.metrics()["server_updates"]["workers"]["w"]
    assert worker["updates"] == before + 4
    # 0, 1, 2 and 3 others were made meanwhile.
    assert worker["staleness"][:4] == [1, 1, 2, 0]
    assert (worker["staleness_sum"], worker["staleness_max"]) == (6, 3)
    assert variable.numpy().tolist() == [5.0, 6.0]


def test_what_is_not_counted(variable):
    _update(variable, [])
    assert int(_count(variable)) == 0


@pytest.mark.parametrize(
    ("begun", "subject", "text"),
    [
        (2, 0, "2 counts, expected 0 or 1, of variable 0 of 1"),
        (1, 1, "1 counts, expected 0 or 1, of variable 1 of 1"),
        (1, -1, "1 counts, expected 0 or 1, of variable -1 of 1"),
    ],
)
def test_what_is_no_count_is_an_error(variable, begun, subject, text):
    with pytest.raises(tf.errors.InvalidArgumentError, match=text):
        _update(variable, [_count(variable)] * begun, subject=subject)
    assert variable.numpy().tolist() == [1.0, 2.0]


def test_a_count_of_another_shape_is_not_taken(variable):
    workers = tf_fuse.metrics()["server_updates"]["workers"]
    for begun in (tf.zeros([0], tf.int64), tf.zeros([3], tf.int64)):
        _update(variable, [begun], worker="odd")
    assert int(_count(variable)) == 2
    assert tf_fuse.metrics()["server_updates"]["workers"].get("odd") == workers.get("odd")


def test_names_are_quoted():
    odd = tf.Variable([1.0, 2.0], name="odd")
    worker = 'a"b\\c\nd'
    _update(odd, [_count(odd)], worker=worker)
    told = json.loads(json.dumps(tf_fuse.metrics()["server_updates"]))
    assert told["workers"][worker]["updates"] == 1


def test_threads(variable):
    threads = [
        threading.Thread(target=lambda: [_update(variable, [_count(variable)]) for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(_count(variable)) == 200
    assert variable.numpy().tolist() == [201.0, 202.0]
