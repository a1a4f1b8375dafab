# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The replicas that train together, and what they have in common."""

from __future__ import annotations

import atexit

from tf_fuse.shard_update.agreement import Agreement
from tf_fuse.shard_update.calibration import Calibration
from tf_fuse.shard_update.cluster import Cluster, Reader
from tf_fuse.shard_update.costs import Costs
from tf_fuse.shard_update.leaving import Leaving
from tf_fuse.shard_update.state import State


class World:
    """The replicas that train together."""

    def __init__(self, cluster: Cluster):
        """Takes their devices, and connects to none of them yet."""
        self.cluster = cluster
        self.reader = Reader(cluster)
        others = set(range(len(cluster.devices))) - set(cluster.own)
        self.readers = {rank: Reader(cluster, [rank]) for rank in sorted(others)}
        self.state = State(self.reader, self.readers)
        self._calibration = Calibration(cluster)
        self.agreement = Agreement(cluster, self.readers, self._calibration.word)
        self._leaving: Leaving | None = None
        for each in [self.reader, *self.readers.values()]:
            atexit.register(each.abandon)

    def costs(self) -> Costs:
        """By which updates are weighed, the same on all replicas.

        Raises:
          tf.errors.OpError: see `Calibration.costs`.
        """
        return self._calibration.costs(self.agreement)

    def prepare(self) -> None:
        """Connects, and has the process wait for others at its end."""
        if self.readers and self._leaving is None:
            self.reader.connect()
            self._leaving = Leaving(self.cluster, self.state, self.readers)
