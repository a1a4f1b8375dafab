# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Replicas of one process that leave as if each had its own, and what they log."""

from __future__ import annotations

import logging
import queue

import tensorflow as tf

from tf_fuse.shard_update.runtime import exit_handover
from tf_fuse.sharded_variable.local_shards import ShardRanges
from tf_fuse.sharded_variable.peers import Peers
from tf_fuse.sharded_variable.state import ShardGroups

_CPUS = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(_CPUS[0], [tf.config.LogicalDeviceConfiguration()] * 3)
UNREACHABLE = tf.errors.UnavailableError(None, None, "unreachable")
log: list[str] = []
logged: queue.SimpleQueue[str] = queue.SimpleQueue()


class _Reader:
    """Runs graphs on other replicas' devices.

    Attributes:
      asked: the keys of all runs.
      before: is called before each run, with its key.
    """

    def __init__(self, peers):
        self.peers, self.asked, self.before = peers, [], lambda key: None

    def run(self, key, build, seconds=None):
        self.asked.append(key)
        self.before(key)

        def built():
            results = build()
            if isinstance(results, tf.Operation):
                with tf.control_dependencies([results]):
                    return tf.constant(0)
            return results

        return tf.nest.map_structure(lambda t: t.numpy(), tf.compat.v1.wrap_function(built, [])())


class _Replica:
    """One replica, whose variable has the number of the last step everywhere."""

    def __init__(self, rank, count):
        devices = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(count)]
        peers = Peers(tuple(devices), (rank,), "")
        self.rank, self.all = rank, _Reader(peers)
        self.readers = {i: _Reader(peers) for i in range(count) if i != rank}
        self.state = ShardGroups(self.all, self.readers)
        self.state._copies.reader = lambda ranks: self.all
        with tf.device(devices[rank]):
            self.variable = tf.Variable(tf.zeros([32 * count]))
        owns = tuple((32 * i, 32 * i + 32) for i in range(count))
        held = [ShardRanges((32 * count,), tf.float32, owns)]
        self.shard_group = self.state.shard_group(held, {rank: [self.variable.handle]})
        self.exit_barrier = exit_handover.ExitBarrier(peers, self.state, self.readers)

    def step(self):
        """One whole step."""
        with self.state.step(self.shard_group):
            self.write(self.shard_group.version + 1)

    def write(self, number):
        """What a step does to the shard."""
        shard = self.shard_group._replicas[0].shards[0]
        shard.assign(tf.fill(shard.read().shape, float(number)))

    def fail(self, number=None):
        """A step that fails, perhaps after it has changed the shard."""
        try:
            with self.state.step(self.shard_group):
                if number is not None:
                    self.write(number)
                raise ValueError("on purpose")
        except ValueError:
            pass

    def leave(self, after_sigterm=False):
        """Hands over."""
        until = exit_handover.time.monotonic() + 60
        (self.exit_barrier.may_end if after_sigterm else self.exit_barrier.leave)(until)

    def dies(self, *others):
        """Cannot be reached any more; what it has goes wrong."""

        def fail(key):
            raise UNREACHABLE

        self.write(-1)
        for other in others:
            other.readers[self.rank].before = fail

    def lose(self, *ranks):
        """Fails to read others' own parts."""

        def fail(key):
            if any((rank, rank) in source for source in key[2:3] for rank in ranks):
                raise UNREACHABLE

        self.all.before = fail

    def read(self):
        """The values of the variable."""
        self.shard_group.join()
        return sorted(set(self.variable.read_value().numpy().tolist()))

    def marks(self):
        """What it was handed."""
        return self.shard_group.inherited()


def start_replicas(count=2, steps=3):
    replicas = [_Replica(rank, count) for rank in range(count)]
    for _ in range(steps):
        for replica in replicas:
            replica.step()
    return replicas


def is_error(replica):
    try:
        return replica.read()
    except tf.errors.UnavailableError as error:
        assert "restart the program from its last checkpoint" in error.message
        return "error"


class Handler(logging.Handler):
    def emit(self, record):
        log.append(record.getMessage())
        logged.put(record.getMessage())
