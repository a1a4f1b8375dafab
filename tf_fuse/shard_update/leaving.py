# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""A process that ends takes its parts of the optimizer's state along.

Often one replica, the chief, goes on after the last step: it saves the model, while the others have
nothing left to do. In stock TensorFlow it needs nobody for that. So a process that ends well stays
until each of the others ends too, has put the values together, or is gone.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping

from tf_fuse.shard_update.bundle import Bundle
from tf_fuse.shard_update.cluster import Cluster, Reader
from tf_fuse.shard_update.named import Named, read_in_graph
from tf_fuse.shard_update.parts import mark_name
from tf_fuse.shard_update.state import State

_log = logging.getLogger("tf_fuse")

_VARIABLE = "TF_FUSE_EXIT_WAIT_S"
_LONGEST_S = 600.0
_ANSWER_S = 5.0
_PATIENCE_S = 10.0
_EXITING = "tf_fuse/state/exiting"


class Leaving:
    """What a process does at its end."""

    def __init__(self, cluster: Cluster, state: State, readers: Mapping[int, Reader]):
        """Registers itself with the interpreter.

        Args:
          cluster: of all replicas.
          state: of this one.
          readers: of the others, by rank; connected.
        """
        self._cluster, self._state, self._readers = cluster, state, readers
        self._mark = Named(_EXITING, "bool", [], cluster.devices[cluster.own[0]])
        self._mark.assign(False)
        atexit.register(self.wait)

    def wait(self) -> None:
        """Returns when nobody needs what this process has, or cannot have it any more."""
        self._mark.assign(True)
        bundles = [bundle for bundle in self._state.bundles() if bundle.version]
        # After an exception nobody is kept waiting: others shall hear of the end.
        if not bundles or getattr(sys, "last_value", None) is not None:
            return
        limit = float(os.environ.get(_VARIABLE, _LONGEST_S))
        began = told = time.monotonic()
        left = sorted(self._readers)
        pause, wait = threading.Event(), 0.01
        while left := [rank for rank in left if self._may_need(rank, bundles)]:
            now = time.monotonic()
            if now - began > limit:
                _log.warning(
                    "tf_fuse: ends although %s may still read the optimizer's state from this "
                    "process, after %g s (%s).",
                    self._cluster.devices[left[0]],
                    limit,
                    _VARIABLE,
                )
                return
            if now - told > _PATIENCE_S:
                told = now
                _log.warning(
                    "tf_fuse: has waited %d s to end, since %s may still read the optimizer's "
                    "state from this process; %s limits it.",
                    now - began,
                    self._cluster.devices[left[0]],
                    _VARIABLE,
                )
            pause.wait(wait)
            wait = min(2 * wait, 0.5)

    def _may_need(self, rank: int, bundles: list[Bundle]) -> bool:
        from tensorflow.python.framework import errors

        needs = False
        for bundle in bundles:
            build = functools.partial(self._ask, rank, bundle.scope)
            try:
                run = self._readers[rank].run
                exiting, begun, taken = run(("leaving", bundle.scope), build, _ANSWER_S)
            except (errors.FailedPreconditionError, errors.NotFoundError):
                continue  # It has no variables of this bundle any more.
            except errors.DeadlineExceededError:
                return True  # It may answer later.
            except errors.OpError:
                return False
            # If it has begun, it waits for a step that will not come; in stock TensorFlow it would
            # hear of the end now.
            if exiting or begun >= bundle.version:
                return False
            needs = needs or taken != bundle.version
        return needs

    def _ask(self, rank: int, scope: str) -> list[object]:
        import tensorflow as tf

        with tf.device(self._cluster.devices[rank]):
            return [
                read_in_graph(_EXITING, tf.bool),
                read_in_graph(mark_name(scope, "begun"), tf.int64),
                read_in_graph(mark_name(scope, "taken"), tf.int64),
            ]
