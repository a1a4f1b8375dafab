# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""tf_fuse.collectives without servers: arguments, the bounds of shards, refusals."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tf_fuse import collectives
from tf_fuse.collectives import Group, shard_range


def test_group_by_size():
    group = Group(4)
    assert (group.size, group.key, group.timeout_seconds) == (4, (1 << 30) + 4, 0.0)
    assert repr(group) == "Group(size=4, key=1073741828, timeout_seconds=0.0)"
    assert Group(4).key == group.key != Group(3).key


def test_group_with_a_key():
    group = Group(1, key=2**31 - 1, timeout_seconds=2.5)
    assert (group.size, group.key, group.timeout_seconds) == (1, 2**31 - 1, 2.5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"size": 0}, "a group has 1 member or more, got 0"),
        ({"size": -3}, "a group has 1 member or more, got -3"),
        ({"size": 2, "key": 0}, "the key of a group is from 1 to 2**31 - 1, got 0"),
        ({"size": 2, "key": 2**31}, "the key of a group is from 1 to 2**31 - 1, got 2147483648"),
        ({"size": 2, "timeout_seconds": -0.5}, "timeout_seconds is 0 or more, got -0.5"),
    ],
)
def test_group_refuses(arguments, text):
    with pytest.raises(ValueError) as raised:
        Group(**arguments)
    assert str(raised.value) == text


def test_of_ranks_is_the_same_for_any_order():
    group = Group.of_ranks([2, 0], 4, timeout_seconds=3.0)
    assert (group.size, group.timeout_seconds) == (2, 3.0)
    assert 1 << 30 <= group.key < 1 << 31
    assert Group.of_ranks([0, 2], 4).key == group.key


def test_of_ranks_has_a_key_for_each_set():
    sets = [[r for r in range(8) if mask >> r & 1] for mask in range(1, 256)]
    assert len({Group.of_ranks(ranks, 8).key for ranks in sets}) == len(sets)
    assert Group.of_ranks([0, 1], 2).key != Group.of_ranks([0, 1], 3).key


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], "ranks are different and 1 or more, got []"),
        ([1, 1], "ranks are different and 1 or more, got [1, 1]"),
        ([-1, 0], "ranks are from 0 to 3, got [-1, 0]"),
        ([4, 0], "ranks are from 0 to 3, got [4, 0]"),
    ],
)
def test_of_ranks_refuses(ranks, text):
    with pytest.raises(ValueError) as raised:
        Group.of_ranks(ranks, 4)
    assert str(raised.value) == text


@settings(deadline=None)
@example(elements=2097149, size=2, width=8)
@given(elements=st.integers(1, 1 << 22), size=st.integers(1, 64), width=st.sampled_from([2, 4, 8]))
def test_shards_are_the_chunks_of_the_ring(elements, size, width):
    # As measured on TensorFlow's ring: filled up to 64 bytes, by 64 if nothing is missing.
    per_line = 64 // width
    chunk = -(-elements // size)
    chunk += per_line - chunk % per_line
    end_before = 0
    for rank in range(size):
        begin, end = shard_range(elements, width, size, rank)
        assert begin == end_before == min(rank * chunk, elements)
        assert end == min((rank + 1) * chunk, elements)
        end_before = end
    assert end_before == elements


def test_examples_of_shards():
    assert [shard_range(100, 4, 4, r) for r in range(4)] == [(0, 32), (32, 64), (64, 96), (96, 100)]
    assert [shard_range(64, 4, 2, r) for r in range(2)] == [(0, 48), (48, 64)]
    assert [shard_range(1, 8, 3, r) for r in range(3)] == [(0, 1), (1, 1), (1, 1)]
    assert [shard_range(0, 4, 2, r) for r in range(2)] == [(0, 0), (0, 0)]


_NO_STRATEGY = (
    "collectives need a group where no replica of a strategy runs: "
    "group=tf_fuse.collectives.Group(number of members)"
)


@pytest.mark.parametrize(
    "call",
    [
        lambda: collectives.all_reduce([1.0]),
        lambda: collectives.reduce_scatter([1.0]),
        lambda: collectives.all_gather([1.0], [1]),
    ],
)
def test_no_group_where_no_strategy_is(call):
    with pytest.raises(ValueError) as raised:
        call()
    assert str(raised.value) == _NO_STRATEGY


def test_a_shape_for_each_shard():
    import tensorflow as tf

    with pytest.raises(ValueError) as raised:
        collectives.all_gather([tf.zeros([1]), tf.zeros([2])], [[1]], Group(1))
    assert str(raised.value) == "2 shards, but 1 shapes"


def test_instance_keys_are_counted_for_each_group():
    a, b = Group(2, key=11), Group(2, key=12)
    first = collectives._instance_key(a)
    assert collectives._instance_key(b) == first == 1 << 30
    assert collectives._instance_key(a) == first + 1
