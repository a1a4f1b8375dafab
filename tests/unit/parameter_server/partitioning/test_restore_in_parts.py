# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""How a checkpoint is divided into parts that are restored one after the other."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tf_fuse._tensorflow.variables.checkpoint_saver import Restored
from tf_fuse.parameter_server.partitioning.restore_in_parts import _bytes, split


def _restored(task, function, key="k", slice_spec="", dtype=tf.float32):
    return Restored(f"/job:ps/task:{task}", key, slice_spec, dtype, function)


def test_bytes_of_tensors_and_slices():
    shapes = {"k": [100, 8]}
    assert _bytes(_restored(0, "a"), shapes) == 3200
    assert _bytes(_restored(0, "a", slice_spec="100 8 25,10:-"), shapes) == 320
    assert _bytes(_restored(0, "a", slice_spec="100 8 25,10:0,8"), shapes) == 320
    assert _bytes(_restored(0, "a", dtype=tf.int64), shapes) == 6400
    assert _bytes(_restored(0, "a", key="missing"), shapes) == 0


def test_no_task_reads_more_than_the_limit():
    found = [_restored(0, "a"), _restored(1, "a"), _restored(0, "b"), _restored(1, "c")]
    assert split(found, [6, 1, 6, 6], 10) == [{"a", "c"}, {"b"}]
    assert split(found, [6, 1, 6, 6], 100) == [{"a", "b", "c"}]
    assert split(found, [60, 1, 6, 6], 10) == [{"a", "c"}, {"b"}]
    assert split([], [], 10) == []


_TENSORS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 40)))


@given(_TENSORS, st.integers(1, 50))
def test_parts_have_everything_once(tensors, limit):
    found = [_restored(task, function) for task, function, _ in tensors]
    sizes = [size for _, _, size in tensors]
    parts = split(found, sizes, limit)
    assert sorted(one for part in parts for one in part) == sorted({f for _, f, _ in tensors})
    assert all(parts)
    for part in parts:
        for task in range(3):
            mine = {}
            for number, function, size in tensors:
                if number == task and function in part and size:
                    mine[function] = mine.get(function, 0) + size
            assert len(mine) < 2 or sum(mine.values()) <= limit
