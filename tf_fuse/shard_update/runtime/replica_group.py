# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Hold what the replicas that train together share: peers, consensus, reader, exit barrier."""

from __future__ import annotations

import atexit

from tf_fuse.shard_update.cost_figures import UpdateCosts
from tf_fuse.shard_update.runtime.cost_consensus import CostConsensus
from tf_fuse.shard_update.runtime.exit_handover import ExitBarrier
from tf_fuse.shard_update.runtime.plan_consensus import PlanConsensus
from tf_fuse.sharded_variable.peers import Peers, Reader
from tf_fuse.sharded_variable.state import ShardGroups


class ReplicaGroup:
    """The replicas that train together."""

    def __init__(self, peers: Peers):
        """Take their devices, and connects to none of them yet."""
        self.peers = peers
        self.reader = Reader(peers)
        others = set(range(len(peers.devices))) - set(peers.own)
        self.readers = {rank: Reader(peers, [rank]) for rank in sorted(others)}
        self.state = ShardGroups(self.reader, self.readers)
        self._calibration = CostConsensus(peers)
        self.consensus = PlanConsensus(peers, self.readers, self._calibration.word)
        self._exit_barrier: ExitBarrier | None = None
        for each in [self.reader, *self.readers.values()]:
            atexit.register(each.abandon)

    def costs(self) -> UpdateCosts:
        """By which updates are weighed, the same on all replicas.

        Raises:
          tf.errors.OpError: see `CostConsensus.costs`.
        """
        return self._calibration.costs(self.consensus)

    def prepare(self) -> None:
        """Connect, and make the process wait for the others when it ends."""
        if self.readers and self._exit_barrier is None:
            self.reader.connect()
            self._exit_barrier = ExitBarrier(self.peers, self.state, self.readers)
