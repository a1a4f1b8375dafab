# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""All replicas decide for themselves; here they make sure that they decided alike.

A replica that cuts what another one does not would wait for it for ever, or get wrong sums. So each
publishes what it decided about its n-th function with an all-reduce, and reads what the others did,
before the first step.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from tf_fuse.shard_update.cluster import Cluster, Reader
from tf_fuse.shard_update.named import Named
from tf_fuse.shard_update.plan import Plan

_log = logging.getLogger("tf_fuse")

_FIRST_WAIT_S = 0.005
_LONGEST_WAIT_S = 0.5
_PATIENCE_S = 30.0


class Agreement:
    """What was decided here, and what others decided."""

    def __init__(self, cluster: Cluster, readers: Mapping[int, Reader]):
        """Starts without decisions.

        Args:
          cluster: of all replicas.
          readers: of the others, by rank.
        """
        self._cluster, self._readers = cluster, readers
        self._published: list[Named] = []

    def reach(self, function: str, plan: Plan | None, reason: str) -> None:
        """Waits until all replicas have decided about the same function.

        Raises:
          tf.errors.FailedPreconditionError: another one decided otherwise; the text has the first
            line in which they differ, of both.
          tf.errors.OpError: another one has died.
        """
        text = describe(function, plan, reason)
        number = len(self._published)
        mine = Named(f"tf_fuse/plan/{number}", "string", [], self._cluster.devices[self._own()])
        mine.assign(text)
        self._published.append(mine)
        for rank in sorted(self._readers):
            self._compare(text, rank, self._wait_for(number, rank))

    def _own(self) -> int:
        return self._cluster.own[0]

    def _wait_for(self, number: int, rank: int) -> str:
        began = told = time.monotonic()
        wait = _FIRST_WAIT_S
        pause = threading.Event()
        run = self._readers[rank].run
        while not run(("is there", number), lambda: self._is_there(number, rank)):
            pause.wait(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)
            if time.monotonic() - told > _PATIENCE_S:
                told = time.monotonic()
                _log.warning(
                    "tf_fuse: has waited %d s for %s to decide how to cut the update of weights; "
                    "is the option shard_weight_update on there?",
                    told - began,
                    self._cluster.devices[rank],
                )
        value = run(("plan", number), lambda: self._read(number, rank))
        return str(value.decode())

    def _handle(self, number: int, rank: int) -> Any:
        import tensorflow as tf

        return tf.raw_ops.VarHandleOp(
            dtype=tf.string, shape=[], shared_name=f"tf_fuse/plan/{number}"
        )

    def _is_there(self, number: int, rank: int) -> Any:
        import tensorflow as tf

        with tf.device(self._cluster.devices[rank]):
            return tf.raw_ops.VarIsInitializedOp(resource=self._handle(number, rank))

    def _read(self, number: int, rank: int) -> Any:
        import tensorflow as tf

        with tf.device(self._cluster.devices[rank]):
            return tf.raw_ops.ReadVariableOp(resource=self._handle(number, rank), dtype=tf.string)

    def _compare(self, mine: str, rank: int, theirs: str) -> None:
        if mine == theirs:
            return
        from tensorflow.python.framework import errors

        here, there = mine.splitlines(), theirs.splitlines()
        longest = max(len(here), len(there))
        here += ["(nothing)"] * (longest - len(here))
        there += ["(nothing)"] * (longest - len(there))
        line = next(i for i in range(longest) if here[i] != there[i])
        raise errors.FailedPreconditionError(
            None,
            None,
            "tf_fuse: the replicas cut the update of the weights in different ways. "
            f"{self._cluster.devices[self._own()]} (digest {digest(mine)}): {here[line]!r}; "
            f"{self._cluster.devices[rank]} (digest {digest(theirs)}): {there[line]!r}. All "
            "replicas have to run the same program, with the same options and the same versions.",
        )


def digest(text: str) -> str:
    """A short name of a decision."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def describe(function: str, plan: Plan | None, reason: str) -> str:
    """What was decided about a function, in lines; equal on replicas that fit together."""
    # Its name has a number that depends on what else a process has traced.
    base = function.rpartition("_")[0] or function
    lines = [f"function {base}: {reason or 'sharded'}"]
    if plan is None:
        return "\n".join(lines)
    for pack in plan.packs:
        lines.append(f"all-reduce {pack.node}: {pack.reason or 'sharded'} {pack.detail}".rstrip())
        for family in pack.families:
            what = f"left alone ({family.reason} {family.detail})" if family.reason else "sharded"
            lines.append(f"gradient {family.root} {list(family.shape)}: {what}")
    for slot in plan.slots:
        lines.append(f"slot {slot.argument} {list(slot.shape)}: {list(slot.owns)}")
    return "\n".join(lines)
