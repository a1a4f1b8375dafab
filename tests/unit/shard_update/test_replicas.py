# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Groups of replicas that each have everything once: which elements are whose, and who is read."""

import logging
import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from tensorflow.core.framework import node_def_pb2

from tf_fuse.shard_update.plan import Bucket, ShardedUpdate, UpdateCluster
from tf_fuse.shard_update.replicas import (
    Replicas,
    groups_of,
    ranges_of,
    summed_of,
    why_no_groups,
)
from tf_fuse.shard_update.runtime.plan_consensus import describe
from tf_fuse.sharded_variable.choose_sources import Copies
from tf_fuse.sharded_variable.peers import Peers

_FLOAT = 1


def _bucket(sizes):
    reduce = node_def_pb2.NodeDef(name="reduce", op="CollectiveReduceV2")
    reduce.attr["T"].type = _FLOAT
    return Bucket(
        "reduce", [], [UpdateCluster(f"g:{i}", (n,)) for i, n in enumerate(sizes)], reduce=reduce
    )


def _elements(ranges):
    return [(i, e) for i, (begin, end) in enumerate(ranges) for e in range(begin, end)]


@given(
    st.sampled_from([(4, 2), (6, 2), (6, 3), (8, 4), (8, 2), (3, 1), (4, 4)]),
    st.lists(st.integers(0, 90), min_size=1, max_size=6).filter(any),
)
def test_each_group_has_each_element_once(shape, sizes):
    count, groups = shape
    replicas, bucket = Replicas(count, {"": 0}, groups), _bucket(sizes)
    everything = [(i, e) for i, n in enumerate(sizes) for e in range(n)]
    size = count // groups
    for first in range(0, count, size):
        held = [_elements(ranges_of(replicas, bucket, r)) for r in range(first, first + size)]
        assert [e for one in held for e in one] == sorted(e for one in held for e in one)
        assert sorted(e for one in held for e in one) == everything
    # Each is summed once by one of those that have it.
    summed = [_elements(summed_of(replicas, bucket, rank)) for rank in range(count)]
    assert sorted(e for one in summed for e in one) == everything
    for rank, one in enumerate(summed):
        assert set(one) <= set(_elements(ranges_of(replicas, bucket, rank)))
        assert ranges_of(replicas, bucket, rank) == ranges_of(replicas, bucket, rank % size)


def test_chunks_are_those_of_the_ring():
    # 64 elements; the ring gives each of four replicas 32 of them at most, as in TensorFlow.
    replicas, bucket = Replicas(4, {"": 0}, 2), _bucket([64])
    assert [ranges_of(replicas, bucket, rank) for rank in range(4)] == [
        [(0, 64)],
        [(64, 64)],
    ] * 2
    assert [summed_of(replicas, bucket, rank) for rank in range(4)] == [
        [(0, 32)],
        [(64, 64)],
        [(32, 64)],
        [(64, 64)],
    ]


@pytest.mark.parametrize(
    ("replicas", "size", "groups"), [(4, 0, 1), (4, 4, 1), (4, 2, 2), (6, 2, 3), (2, 0, 1)]
)
def test_how_many_groups(replicas, size, groups):
    assert groups_of(replicas, size) == groups


@pytest.mark.parametrize(
    ("replicas", "size", "why"),
    [
        (4, 3, "it is 3, which does not divide 4 replicas evenly; set it to 2, or 0 for all of "
         "them"),
        (12, 5, "it is 5, which does not divide 12 replicas evenly; set it to 2, 3, 4, 6, or 0 for "
         "all of them"),
        (3, 2, "it is 2, which does not divide 3 replicas evenly; set it to 0, for all of them"),
        (2, 8, "it is 8, which does not divide 2 replicas evenly; set it to 0, for all of them"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_divide(replicas, size, why):
    assert groups_of(replicas, size) is None
    assert why_no_groups(replicas, size) == why


def test_groups_are_agreed_on():
    texts = set()
    for groups in (None, 2, 4):
        function = tf.function(lambda: 0).get_concrete_function().function_def
        node = function.node_def.add(name="gather", op="TfFuse>AllGather")
        if groups is not None:
            node.attr["groups"].i = groups
        texts.add(describe("f", ShardedUpdate([], function), None))
    assert len(texts) == 3
    assert sum(" in 2 groups" in text for text in texts) == 1


class _Task:
    """Another task: what it says of its last step and was handed, one answer after the other."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def run(self, key, build, seconds):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, tuple) else (answer, _NOTHING)


class _All:
    """The reader of all."""

    def __init__(self, peers):
        self.peers = peers


_DEVICES = tuple(f"/job:worker/replica:0/task:{i}/device:CPU:0" for i in range(6))
_NOTHING = (-1,) * len(_DEVICES)
_DEAD = tf.errors.UnavailableError(None, None, "gone")
_SILENT = tf.errors.DeadlineExceededError(None, None, "late")


def _copies(tasks, own=0):
    tasks = {rank: [0] for rank in range(len(_DEVICES)) if rank != own} | tasks
    return Copies(_All(Peers(_DEVICES, (own,), "")), {r: _Task(*a) for r, a in tasks.items()})


def _others(copies, version=7, groups=3, **here):
    here = {int(rank.removeprefix("rank")): of for rank, of in here.items()}
    return copies.others(groups, "scope", version, here, "it died")


def test_the_own_group_is_read_first():
    copies = _copies({}, own=3)
    assert copies.own_group(3) == (2, 3)
    assert copies.own_group(1) == tuple(range(6))
    assert copies.reader(tuple(range(6))) is copies.reader(copies.own_group(1))
    assert list(copies.reader((2, 3))._ranks) == [2, 3]


def test_another_group_is_read_if_it_has_ended_the_step(caplog):
    with caplog.at_level(logging.WARNING, "tf_fuse"):
        copies = _copies({1: [_DEAD], 3: [_DEAD], 5: [6, 6, 7]})
        assert _others(copies) == ((0, 0), (5, 5))
        assert _others(copies) == ((0, 0), (5, 5))
    (line,) = caplog.messages
    assert f"from {_DEVICES[5]}, which has what {_DEVICES[1]} has: it died" in line


def test_a_dead_task_is_not_asked_again_for_a_while(monkeypatch):
    copies = _copies({1: [7], 3: [_DEAD, 7], 5: [_SILENT, 7]})
    assert _others(copies) == ((0, 0), (1, 1))
    # One that was late may have come back.
    assert _others(copies) == ((0, 0), (5, 5))
    assert set(copies._lost) == {3}
    monkeypatch.setattr("tf_fuse.sharded_variable.choose_sources._LOST_S", 0)
    assert _others(copies) == ((0, 0), (3, 3))


def test_who_was_handed_parts_of_the_last_step_is_read(caplog):
    dead = {1: [_DEAD], 3: [_DEAD], 5: [_DEAD]}
    # Rank 2 was handed shards of an older step, and rank 4 those of rank 3, which are the same.
    copies = _copies(dead | {2: [(0, (-1, 6, -1, -1, -1, -1))], 4: [(0, (-1, 6, -1, 7, -1, -1))]})
    assert _others(copies) == ((0, 0), (3, 4))
    # This process itself is not asked, and nobody else is.
    copies = _copies({rank: [AssertionError("asked")] for rank in range(1, 6)})
    assert _others(copies, rank1=8) == ((0, 0), (1, 0))


def test_who_was_handed_whose_parts():
    tasks = {1: [_DEAD], 2: [(7, (-1, 7, -1, 6, -1, -1))], 5: [(9, (-1, -1, -1, -1, 7, -1))]}
    assert _copies(tasks).heirs("scope", 7) == {1: 2, 4: 5}
    # Who left in a step, or began another one later, has the mark -2 - 7: a reader that has begun
    # that step, too, knows nothing of that part, unless another one is known not to have begun it.
    tasks[2] = [(7, (-1, -9, -1, -1, -1, -1))]
    assert _copies(tasks).heirs("scope", 7) == {1: 2, 4: 5}
    assert _copies(tasks).heirs("scope", 7, has_begun=True) == {4: 5}
    tasks[2] = [(7, (-1, -9, -1, 7, -1, -1))]
    assert _copies(tasks).heirs("scope", 7, has_begun=True) == {1: 2, 3: 2, 4: 5}
    # The only other one, which may not answer, cannot have what is missing.
    two = Copies(_All(Peers(_DEVICES[:2], (0,), "")), {1: _Task(AssertionError("asked"))})
    assert two.heirs("scope", 7) == {}


def test_nobody_left_is_an_error():
    copies = _copies({1: [_SILENT], 3: [_DEAD], 5: [_DEAD]})
    with pytest.raises(tf.errors.UnavailableError) as caught:
        _others(copies)
    assert f"of {_DEVICES[1]}, {_DEVICES[3]}, {_DEVICES[5]}, which have" in str(caught.value)
    assert str(caught.value).endswith("it died")


def test_a_step_that_never_ends_is_not_waited_for_without_end(monkeypatch):
    monkeypatch.setenv("TF_FUSE_STATE_TIMEOUT_S", "0.1")
    copies = _copies({1: [_DEAD], 3: [6], 5: [6]})
    with pytest.raises(tf.errors.UnavailableError, match="none answers that its last step"):
        _others(copies)
