# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases of TensorFlow's own ops: one call of each, and many at the same time."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.collectives.member import GROUP_KEY, Base, usage
from tests.cluster.collectives.ranks import Error, Reduce
from tests.cluster.collectives.values import digest, values

# Other cases have smaller keys.
_NEW_INSTANCES = 1_000_000


class OpCases(Base):
    """Cases of `cases.Member`."""

    def reduce(self, specs: Sequence[Reduce]) -> list[str | Error | None]:
        """All-reduces one after the other; None for those of groups without this rank."""
        results: list[str | Error | None] = []
        for spec in specs:
            key = self._key()
            if self.rank >= spec.n:
                results.append(None)
                continue
            x = values(spec.dtype, spec.elements, self.rank, spec.kind)
            with tf.device(self.device):
                results.append(digest(self._all_reduce(spec, key, tf.constant(x))))
        return results

    def reduce_empty(self) -> Any:
        """An all-reduce of nothing."""
        with tf.device(self.device):
            spec = Reduce(self.ranks, "float32", 0)
            return digest(self._all_reduce(spec, self._key(), tf.constant([], tf.float32)))

    def reduce_shaped(self, shape: Sequence[int]) -> str:
        """An all-reduce of a tensor that is not a vector."""
        x = values("float32", int(np.prod(shape)), self.rank).reshape(shape)
        with tf.device(self.device):
            return digest(self._all_reduce(Reduce(self.ranks, "float32", 0), self._key(), x))

    def _keys(self) -> dict[str, int]:
        """Of the next collective of all ranks."""
        return {"group_size": self.ranks, "group_key": GROUP_KEY + self.ranks,
                "instance_key": self._key()}  # fmt: skip

    def gather(self, dtype: str, shape: Sequence[int]) -> str:
        """CollectiveGatherV2."""
        x = values(dtype, int(np.prod(shape)), self.rank).reshape(shape)
        with tf.device(self.device):
            return digest(
                tf.raw_ops.CollectiveGatherV2(
                    input=tf.constant(x),
                    **self._keys(),
                    ordering_token=[],
                    communication_hint="ring",
                )
            )

    def all_to_all(self, dtype: str, elements: int) -> str:
        """CollectiveAllToAllV2 of a row for each rank."""
        x = values(dtype, self.ranks * elements, self.rank).reshape([self.ranks, elements])
        with tf.device(self.device):
            return digest(
                tf.raw_ops.CollectiveAllToAllV2(
                    input=tf.constant(x),
                    **self._keys(),
                    ordering_token=[],
                    communication_hint="ring",
                )
            )

    def broadcast(self, dtype: str, elements: int, source: int) -> str:
        """CollectiveBcastSendV2 in one rank, CollectiveBcastRecvV2 in the others."""
        keys = self._keys()
        with tf.device(self.device):
            if self.rank == source:
                x = tf.constant(values(dtype, elements, source))
                return digest(tf.raw_ops.CollectiveBcastSendV2(input=x, **keys))
            return digest(
                tf.raw_ops.CollectiveBcastRecvV2(shape=[elements], T=getattr(tf, dtype), **keys)
            )

    def local_reduce(self, dtype: str, elements: int) -> list[str]:
        """An all-reduce over all devices of all ranks, at the same time."""
        spec = Reduce(self.ranks * self.devices, dtype, elements)
        key = self._key()
        xs = [tf.constant(values(dtype, elements, self.rank * self.devices + i))
              for i in range(self.devices)]  # fmt: skip

        return self._on_each_device(lambda i: digest(self._all_reduce(spec, key, xs[i])))

    def group_reduce(self, dtype: str, elements: int, members: Sequence[int]) -> str | None:
        """Stock's all-reduce over some ranks, with the keys of no other case."""
        key = self._key()
        if self.rank not in members:
            return None
        spec = Reduce(len(members), dtype, elements, subdivs=-1)  # the op's default
        x = tf.constant(values(dtype, elements, self.rank))
        group_key = 1000 + sum(1 << m for m in members)
        with tf.device(self.device):
            return digest(self._all_reduce(spec, key, x, group_key))

    # --- Many, and at the same time ----------------------------------------------------------

    def concurrent(self, groups: int, calls: int, elements: int) -> list[str]:
        """As many threads as groups, each with all-reduces of its own."""
        base = self._instance
        self._instance += calls
        results: list[Any] = [None] * groups

        def work(index: int) -> None:
            spec = Reduce(self.ranks, "float32", elements + index)
            hashed = hashlib.sha256()
            try:
                for call in range(calls):
                    x = values("float32", spec.elements, self.rank) * np.float32(call + 1)
                    with tf.device(self.device):
                        y = self._all_reduce(
                            spec, base + call + 1, tf.constant(x), 2000 + 10 * index
                        )
                    hashed.update(y.numpy().tobytes())
                results[index] = hashed.hexdigest()
            except tf.errors.OpError as e:
                results[index] = Error(type(e).__name__, e.error_code, str(e))

        threads = [threading.Thread(target=work, args=[i]) for i in range(groups)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def repeat(self, calls: int, elements: int, op: str = "all_reduce", warm: int = 0) -> Any:
        """One function that calls an op again and again.

        Args:
          calls: how many.
          elements: of the tensor.
          op: "all_reduce", "rs_ag"; or "new_instances", at each call 100 all-reduces that have new
            keys, as those of MultiWorkerMirroredStrategy have.
          warm: calls that do not count.

        Returns:
          Whether all results were right, and what the process uses before and after.
        """
        key = self._key()
        x = tf.constant(values("float32", elements, self.rank, "small"))
        step = self._step_of(op, key, elements)

        @tf.function(autograph=False)
        def loop(first: Any, end: Any, x: Any) -> Any:
            return tf.while_loop(
                lambda i, _: i < end,
                lambda i, last: (i + 1, step(i, x + 0.0 * last[0])),
                (first, x),
                shape_invariants=(tf.TensorShape([]), x.shape),
                parallel_iterations=1,
            )[1]

        total = sum(values("float32", elements, r, "small") for r in range(self.ranks))
        right = True
        with tf.device(self.device):
            if warm:
                loop(tf.constant(0), tf.constant(warm), x)
            before = usage()
            for done in range(warm, warm + calls, calls // 10):
                sums = loop(tf.constant(done), tf.constant(done + calls // 10), x)
                right = right and bool(np.array_equal(sums, total))
        return {"right": right, "before": before, "after": usage()}

    def _step_of(self, op: str, key: int, elements: int) -> Callable[[Any, Any], Any]:
        spec = Reduce(self.ranks, "float32", elements)
        if op == "all_reduce":
            return lambda _, x: self._all_reduce(spec, key, x)
        if op == "new_instances":
            return lambda i, x: (
                tf.add_n(
                    [self._all_reduce(spec, _NEW_INSTANCES + 100 * i + k, x) for k in range(100)]
                )
                / 100.0
            )
        from tf_fuse import collectives

        group = collectives.Group(self.ranks)
        return lambda _, x: collectives.all_gather(
            collectives.reduce_scatter(x, group), [elements], group
        )
