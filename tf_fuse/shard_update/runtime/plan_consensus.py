# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Check that all replicas made the same plan, before the first step.

A replica that shards what another one does not would wait for it for ever, or get wrong sums. So
each publishes its n-th decision that is not like one before, and reads what the others did, before
the first step.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tf_fuse.shard_update.cost_figures import UpdateCosts
from tf_fuse.shard_update.plan import Bucket, ShardedUpdate, UpdateCluster
from tf_fuse.shard_update.runtime import collective_order
from tf_fuse.sharded_variable.named_variables import Named, handle_in_graph, read_in_graph
from tf_fuse.sharded_variable.peers import Peers, Reader

_log = logging.getLogger("tf_fuse")

_FIRST_WAIT_S = 0.005
_LONGEST_WAIT_S = 0.5
_BEHIND_KEY = "\t"
_NOTHING = f"{_BEHIND_KEY}(nothing)"
_PATIENCE_S = 30.0
_WAIT_VARIABLE = "TF_FUSE_PLAN_WAIT_S"
_WAIT_S = 600.0
# There as long as the option is on; its value is a word for others.
_ON = "tf_fuse/plan/on"


def _unknown(name: str) -> None:
    """Of a function, by name."""


class PlanConsensus:
    """What was decided here, and what others decided."""

    def __init__(self, peers: Peers, readers: Mapping[int, Reader], word: str = ""):
        """Publish that the option is on here; there are no decisions yet.

        Args:
          peers: of all replicas.
          readers: of the others, by rank.
          word: what `first_word` is for others, of the first replica.
        """
        self._peers, self._readers = peers, readers
        self._published: list[Named] = []
        self._agreed: set[str] = set()
        self._on = Named(_ON, "string", [], peers.devices[self._own()])
        self._on.assign(word)
        # Of other replicas, those that have told so.
        self._seen: set[int] = set()

    def first_word(self) -> str:
        """Return what the first replica has told with the sign that the option is on there.

        Waits until it has.

        Raises:
          tf.errors.FailedPreconditionError: the option is off there, as far as can be seen.
          tf.errors.OpError: it has died.
        """
        return self._wait_for(_ON, 0)

    def refuse(self, why: str) -> None:
        """Publish that this process decides nothing about a function: no other waits for it.

        Args:
          why: what their errors say.
        """
        self._publish(f"refused{_BEHIND_KEY}{' '.join(why.split())}")

    def reach(self, text: str) -> None:
        """Wait until all replicas have decided alike about a function; at once if they have.

        Args:
          text: what was decided, as `describe` says it.

        Raises:
          tf.errors.FailedPreconditionError: another one decided otherwise; the text has the first
            line in which they differ, of both. Or the option is off there, as far as can be seen.
          tf.errors.OpError: another one has died.
        """
        key = _keys(text)
        # One replica may trace a function anew, as for a shorter batch, that others have not; what
        # is sharded is the same, so all fits together.
        if key in self._agreed:
            return
        name = self._publish(text)
        for rank in sorted(self._readers):
            self._compare(text, rank, self._wait_for(name, rank))
        self._agreed.add(key)

    def _publish(self, text: str) -> str:
        """Publish a text for the other replicas, and return the name by which they read it."""
        name = _plan_name(len(self._published))
        mine = Named(name, "string", [], self._peers.devices[self._own()])
        mine.assign(text)
        self._published.append(mine)
        return name

    def _own(self) -> int:
        return self._peers.own[0]

    def _wait_for(self, name: str, rank: int) -> str:
        began = told = time.monotonic()
        wait = _FIRST_WAIT_S
        pause = threading.Event()
        run = self._readers[rank].run
        while not run(("is there", name), lambda: self._is_there(name, rank)):
            now = time.monotonic()
            self._check_on(rank, now - began)
            pause.wait(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)
            if now - told > _PATIENCE_S:
                told = now
                _log.warning(
                    "This replica has waited %d s for %s to decide how to shard the update of "
                    "weights%s.",
                    now - began,
                    self._peers.devices[rank],
                    "" if rank in self._seen else "; is the option shard_weight_update on there?",
                )
        value = run(("read", name), lambda: self._read(name, rank))
        return str(value.decode())

    def _check_on(self, rank: int, waited: float) -> None:
        """Raise an error if the option is not on in another process after a while."""
        from tensorflow.python.framework import errors

        if rank not in self._seen:
            if self._readers[rank].run(("is there", _ON), lambda: self._is_there(_ON, rank)):
                # It comes to the function some time, as to its collectives in stock TensorFlow.
                self._seen.add(rank)
            elif waited > (limit := float(os.environ.get(_WAIT_VARIABLE, _WAIT_S))):
                raise errors.FailedPreconditionError(
                    None,
                    None,
                    f"tf_fuse: {self._peers.devices[self._own()]} is to shard the update of the "
                    "weights, since the option shard_weight_update is on here. After "
                    f"{limit:g} s ({_WAIT_VARIABLE}) {self._peers.devices[rank]} has not called "
                    "any function with the option on, so it is probably off there. Set it in the "
                    "same way in all processes, before training begins.",
                )

    def _is_there(self, name: str, rank: int) -> Any:
        import tensorflow as tf

        with tf.device(self._peers.devices[rank]):
            return tf.raw_ops.VarIsInitializedOp(resource=handle_in_graph(name, tf.string))

    def _read(self, name: str, rank: int) -> Any:
        import tensorflow as tf

        with tf.device(self._peers.devices[rank]):
            return read_in_graph(name, tf.string)

    def _compare(self, mine: str, rank: int, theirs: str) -> None:
        if _keys(mine) == _keys(theirs):
            return
        from tensorflow.python.framework import errors

        here, there = mine.splitlines(), theirs.splitlines()
        longest = max(len(here), len(there))
        here += [_NOTHING] * (longest - len(here))
        there += [_NOTHING] * (longest - len(there))
        line = next(i for i in range(longest) if _keys(here[i]) != _keys(there[i]))
        words = [one[line].partition(_BEHIND_KEY)[2] for one in (here, there)]
        raise errors.FailedPreconditionError(
            None,
            None,
            "tf_fuse: the replicas shard the update of the weights in different ways. "
            f"{self._peers.devices[self._own()]} (digest {digest(mine)}): {words[0]!r}; "
            f"{self._peers.devices[rank]} (digest {digest(theirs)}): {words[1]!r}. All "
            "replicas have to run the same program, with the same options and the same versions.",
        )


def _keys(text: str) -> str:
    """Return what has to be equal on all replicas."""
    return "\n".join(line.partition(_BEHIND_KEY)[0] for line in text.splitlines())


def digest(text: str) -> str:
    """Return a short name of what has to be equal in a decision."""
    return hashlib.sha256(_keys(text).encode()).hexdigest()[:12]


def describe(
    function: str,
    plan: ShardedUpdate | None,
    reason: str | None,
    is_compiled: bool = False,
    costs: UpdateCosts | None = None,
    called: Callable[[str], Any | None] = _unknown,
) -> str:
    """Return in lines what was decided about a function; its collectives come last, in order.

    Each line has what is equal on replicas that fit together, and, after a tab, words for people,
    with names: those of functions and layers depend on what else a process has made.

    Args:
      function: its name.
      plan: what is sharded; None if nothing was looked at.
      reason: why nothing is sharded, a key of FUNCTION_REASONS; None if something is.
      is_compiled: whether the update is compiled, which changes the last bits.
      costs: by which it was decided; None if by none.
      called: the `FunctionDef` of a function that the plan has not made, or None.
    """
    is_sharded_here = plan is not None and plan.function is not None
    compiled = ", compiled" if is_compiled else ""
    lines = [
        (
            f"{is_sharded_here} {is_compiled} {reason or ''}",
            f"{function}: {reason or 'sharded'}{compiled}",
        )
    ]
    if costs is not None:
        # Near the edge, other figures decide otherwise: what differs then is their fault.
        lines.insert(0, (f"costs {costs.text()}", f"it decides by {costs.text()}: {costs.origin}"))
    ops = _ops(plan)
    for bucket in plan.buckets if plan is not None else []:
        lines.append((f"bucket {bucket.reason}", f"all-reduce {bucket.node}: {_why(bucket)}"))
        for cluster in bucket.clusters:
            counts = [len(part) for part in (cluster.nodes, cluster.sinks, cluster.slots)]
            gather = ("first_use" if cluster.gather.is_first else "end", cluster.gather.dtype)
            lines.append(
                (
                    f"gradient {list(cluster.shape)} {cluster.reason} {counts} {gather} "
                    f"{_digest_of(cluster, ops)}",
                    f"gradient {cluster.root} {list(cluster.shape)}: {_why(cluster)}, {counts[0]} "
                    f"operations, {counts[1]} assignments, {counts[2]} slots, the weight is "
                    f"gathered at {gather[0]}{f' as type {gather[1]}' if gather[1] else ''}",
                )
            )
    for slot in plan.shards if plan is not None else []:
        what = f"{list(slot.shape)}: {list(slot.owns)}"
        lines.append((f"slot {what}", f"slot {slot.argument} {what}"))
    if plan is not None and plan.function is not None:
        # What all replicas have to take part in, also for sums and early gradients.
        lines += collective_order.lines(collective_order.collectives_in_order(plan, called))
    return "\n".join(f"{key}{_BEHIND_KEY}{' '.join(words.split())}" for key, words in lines)


def _ops(plan: ShardedUpdate | None) -> dict[str, str]:
    """Return the operations of what is run instead, by node."""
    if plan is None or plan.function is None:
        return {}
    functions = [*plan.functions, plan.function]
    return {node.name: node.op for function in functions for node in function.node_def}


def _digest_of(cluster: UpdateCluster, ops: Mapping[str, str]) -> str:
    """Distinguish updates that have as many operations, but other ones."""
    names = sorted(ops.get(name, "") for name in cluster.nodes)
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]


def _why(one: Bucket | UpdateCluster) -> str:
    return "sharded" if one.reason is None else f"left alone ({one.reason} {one.detail})"


def _plan_name(number: int) -> str:
    return f"tf_fuse/plan/{number}"
