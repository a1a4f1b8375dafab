# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases that fail, or whose peers do."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.collectives.member import Base
from tests.cluster.collectives.ranks import BEGUN, Error, Reduce
from tests.cluster.collectives.values import digest, values


class FaultCases(Base):
    """Cases of `cases.Member`."""

    def attempt(self, op: str, elements: int, dtype: str = "float32", calls: int = 1,
                timeout_seconds: float = 0.0, key: int = 0, n: int = 0,
                group_key: int = 3000) -> Any:  # fmt: skip
        """Calls of an op, up to the first that fails; its digest, or its error and how far it came.

        All that do not fail must have one value; the first with another ends it, and is reported.

        `key` names the instance, apart from other cases' (0: the next); `n` is the size of the
        group (0: all ranks).
        """
        x = tf.constant(values(dtype, elements, self.rank))
        first = None
        step = self._attempted(
            op, key or self._key(), n or self.ranks, timeout_seconds, group_key, elements
        )
        result = None
        with tf.device(self.device):
            for done in range(calls):
                if done == 3:
                    print(BEGUN, file=sys.stderr, flush=True)
                try:
                    result = step(x)
                except tf.errors.OpError as e:
                    return {"error": Error(type(e).__name__, e.error_code, str(e)), "calls": done}
                first = result if first is None else first
                if not np.array_equal(first.numpy().view(np.uint8), result.numpy().view(np.uint8)):
                    return {"wrong": done}
        return {"digest": digest(result), "calls": calls}

    def _attempted(self, op: str, key: int, n: int, timeout_seconds: float = 0.0,
                   group_key: int = 3000, elements: int = 0) -> Any:  # fmt: skip
        """A function of one op; those with a name of TensorFlow's are TensorFlow's."""
        keys = {"group_size": n, "group_key": group_key + n, "instance_key": key,
                "timeout_seconds": timeout_seconds}  # fmt: skip

        def call(x: Any) -> Any:
            if op == "all_reduce":
                spec = Reduce(n, "", 0)
                return self._all_reduce(spec, key, x, group_key, timeout_seconds=timeout_seconds)
            if op == "CollectiveReduceScatterV2":
                return tf.raw_ops.CollectiveReduceScatterV2(
                    input=x, ordering_token=[], merge_op="Add", final_op="Id", **keys
                )
            if op == "broadcast":
                if self.rank == 0:
                    return tf.raw_ops.CollectiveBcastSend(input=x, shape=x.shape, **keys)
                return tf.raw_ops.CollectiveBcastRecv(T=x.dtype, shape=x.shape, **keys)
            from tf_fuse import _native, collectives

            ops = _native.load()
            if op == "reduce_scatter":
                return ops.tf_fuse_reduce_scatter(inputs=[x], **keys)[0]
            if op == "reduce_scatter_in_groups":
                return ops.tf_fuse_reduce_scatter(inputs=[x], groups=2, **keys)[0]
            begin, end = collectives.shard_range(elements, x.dtype.size, n, self.rank)
            return ops.tf_fuse_all_gather(shards=[x[begin:end]], shapes=[[elements]], **keys)[0]

        return tf.function(call, autograph=False)

    def later(self, members: Sequence[int], group_key: int) -> Any:
        """What a rank gets that uses collectives after a fault: its error, or whether all is right.

        Args:
          members: ranks of a group that has not been used before.
          group_key: its key.
        """
        elements, seconds = 1000, 30.0
        spec = Reduce(len(members), "float32", elements)
        x = tf.constant(values("float32", elements, self.rank, "small"))
        with tf.device(self.device):
            y = self._all_reduce(spec, 1, x, group_key, timeout_seconds=seconds)
        return bool(
            np.array_equal(y, sum(values("float32", elements, r, "small") for r in members))
        )

    def becomes(self, user: int) -> None:
        """Make this process another user's."""
        os.setuid(user)

    def forks(self) -> int:
        """Fork a child that runs no other program and waits to be killed; return its process.

        What is done in children at a fork (`pthread_atfork`) is done: `fork` returns before that.
        """
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, b"1")
            while True:
                signal.pause()
        os.close(writing)
        with open(reading, "rb") as said:
            assert said.read(1) == b"1"
        return child

    def fails(self, kind: str, op: str, elements: int, calls: int) -> Any:
        """Calls of an op that go well, and one that fails while other ranks go on.

        Args:
          kind: "shape" or "type" for another one than theirs, "abort" as a strategy does, "cancel",
            "exit" of the process, "leave" for no call at all.
          op: as of `attempt`.
          elements: of the calls that go well.
          calls: how many these are.
        """
        from tensorflow.python.eager import cancellation, context

        key = self._key()
        x = tf.constant(values("float32", elements, self.rank))
        step = self._attempted(op, key, self.ranks, elements=elements)
        with tf.device(self.device):
            for _ in range(calls):
                step(x)
            if kind == "exit":
                os._exit(1)
            if kind == "abort":
                context.context().abort_collective_ops(tf.errors.UNAVAILABLE, "one had enough")
            if kind == "shape":
                longer = tf.constant(values("float32", elements + 1, self.rank))
                self._attempted(op, key, self.ranks, elements=elements + 1)(longer)
            if kind == "type":
                step(tf.cast(x, tf.float64))
            if kind == "cancel":
                manager = cancellation.CancellationManager()
                timer = threading.Timer(0.001 * (calls % 7), manager.start_cancel)
                timer.start()
                for _ in range(1000):  # one of them is cancelled, unless all ended before
                    manager.get_cancelable_function(step.get_concrete_function(x))(x)

    def cancelled(self, op: str, elements: int, calls: int = 1, key: int = 0) -> list[Error | None]:
        """Calls of an op whose peers never come, each cancelled; their errors. `key`: see above."""
        from tensorflow.python.eager import cancellation

        x = tf.constant(values("float32", elements, self.rank))
        errors: list[Error | None] = []
        with tf.device(self.device):
            function = self._attempted(op, key or self._key(), self.ranks)
            concrete = function.get_concrete_function(x)
            for _ in range(calls):
                manager = cancellation.CancellationManager()
                timer = threading.Timer(0.02, manager.start_cancel)  # it may as well come before
                timer.start()
                try:
                    manager.get_cancelable_function(concrete)(x)
                    errors.append(None)
                except tf.errors.OpError as e:
                    errors.append(Error(type(e).__name__, e.error_code, str(e)))
                timer.join()
        return errors

    def renewed_under_way(self, elements: int, key: int = 0, requests: int = 0) -> Any:
        """A call that not all peers come to; meanwhile collectives are enabled anew.

        Args:
          elements: of the call.
          key: of its instance (0: the next).
          requests: of peers, that are to wait here before (by gRPC).

        Returns:
          The error of the call.
        """
        import tf_fuse

        def begun() -> int:
            return int(tf_fuse.metrics()["direct_collectives"])

        results: list[Any] = []
        before, key = begun(), key or self._key()
        thread = threading.Thread(
            target=lambda: results.append(self.attempt("all_reduce", elements, key=key))
        )
        thread.start()
        deadline = time.monotonic() + 100
        while begun() == before or tf_fuse.metrics()["pending_requests"] < requests:
            assert time.monotonic() < deadline, tf_fuse.metrics()
            time.sleep(0.01)
        self._start_server()
        thread.join()
        return results[0]["error"]

    def aborted(self, op: str, elements: int, text: str) -> Any:
        """A call that the process aborts meanwhile, as a strategy does that misses a peer."""
        from tensorflow.python.eager import context

        timer = threading.Timer(
            0.5, context.context().abort_collective_ops, [tf.errors.UNAVAILABLE, text]
        )
        timer.start()
        result = self.attempt(op, elements)
        timer.join()
        return result
