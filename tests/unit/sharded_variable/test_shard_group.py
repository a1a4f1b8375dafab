# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Who puts weights together waits until all replicas have ended the step."""

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest
import tensorflow as tf

from tf_fuse.sharded_variable.choose_sources import Copies
from tf_fuse.sharded_variable.local_shards import ShardRanges
from tf_fuse.sharded_variable.peers import Peers
from tf_fuse.sharded_variable.shard_group import ShardGroup, after_a_death, key_of

_OWN = "/job:localhost/replica:0/task:0/device:CPU:0"
_OTHER = "/job:worker/replica:0/task:1/device:CPU:0"


class _Reader:
    """Reads of another replica, which ends its steps while it is asked."""

    def __init__(self, ended):
        self.peers = Peers((_OWN, _OTHER), (0,), "")
        self.ended, self.asked = list(ended), []

    def run(self, key, build):
        self.asked.append(key[0])
        if key[0] == "ended":
            return [2, self.ended.pop(0)]
        # The other one's marks `overwritten`.
        return [-1, -1]


def _sharded_group(reader, is_weight):
    variables = [tf.Variable(tf.zeros([4])) for _ in range(2)]
    held = [
        ShardRanges((4,), tf.float32, ((0, 2), (2, 4)), is_weight=one) for one in (False, is_weight)
    ]
    shard_group = ShardGroup(0, held, {0: [v.handle for v in variables]}, Copies(reader, {}))
    shard_group.variables = variables
    shard_group._unsharder._join = lambda chunk, version: reader.asked.append("values")
    shard_group.shard()
    shard_group.ended()
    shard_group.ended()
    return shard_group


def test_values_are_read_when_all_have_ended_the_step():
    reader = _Reader([0, 1, 2])
    _sharded_group(reader, True).join()
    assert reader.asked == ["ended"] * 3 + ["values"]


def test_a_replica_that_is_ahead_is_not_waited_for():
    # A step without an all-reduce waits for nobody.
    reader = _Reader([3])
    _sharded_group(reader, True).join()
    assert reader.asked == ["ended", "values"]


def test_slots_alone_are_there_when_the_weights_are():
    reader = _Reader([])
    _sharded_group(reader, False).join()
    assert reader.asked == ["values"]


def test_a_replica_that_does_not_end_its_step_is_an_error(monkeypatch):
    monkeypatch.setenv("TF_FUSE_STATE_TIMEOUT_S", "0")
    reader = _Reader([1] * 1000)
    shard_group = _sharded_group(reader, True)
    with pytest.raises(tf.errors.DeadlineExceededError) as caught:
        shard_group.join()
    assert f"{_OTHER} has ended step 1, and not step 2, after 0 s" in str(caught.value)
    assert "values" not in reader.asked
    assert shard_group.is_sharded


class _Handle:
    pass


def test_a_variable_that_is_gone_is_not_taken_for_a_new_one():
    """A new optimizer's slot may have the id of an old one, beside a weight that is the same."""
    weight, slot = _Handle(), _Handle()
    held = [ShardRanges((4,), tf.float32, ((0, 2), (2, 4)), is_weight=one) for one in (False, True)]
    key, old = key_of(held, {0: [slot, weight]}), id(slot)
    assert key_of(held, {0: [slot, weight]}) == key
    del slot
    made = [_Handle()]
    while id(made[-1]) != old:
        made.append(_Handle())
    assert key_of(held, {0: [made[-1], weight]}) != key


_LOST = "If a task was killed, its shards are lost: restart the program from its last checkpoint."


@pytest.mark.parametrize(
    ("replicas", "groups", "text"),
    [
        (2, 1, f"{_LOST} (shard_weight_update_group_size keeps each shard in several processes, if "
               "it divides their number; nothing between 1 and 2 divides 2.)"),
        (6, 1, f"{_LOST} With shard_weight_update_group_size=3, 2 processes keep each shard, and "
               "the death of one loses nothing."),
        (4, 2, "If a task was killed, 1 other had the same shards, which can be read and saved; if "
               "none of them is left, restart the program from its last checkpoint."),
        (6, 3, "If a task was killed, 2 others had the same shards, which can be read and saved; "
               "if none of them is left, restart the program from its last checkpoint."),
    ],
)  # fmt: skip
def test_an_error_says_what_a_death_costs(replicas, groups, text):
    size = replicas // groups
    owns = tuple((rank % size, rank % size + 1) for rank in range(replicas))
    held = ShardRanges((size,), tf.float32, owns, groups=groups)
    assert after_a_death(held) == text
