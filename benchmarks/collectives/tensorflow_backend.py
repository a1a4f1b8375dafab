# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The collectives of TensorFlow for `rank.py`: stock ones, and ours by `grpc+fuse`.

With the protocol `grpc` this never imports `tf_fuse`. Where stock TensorFlow lacks an op, it is
composed of those that it has (first stock, then ours):

* all_reduce: CollectiveReduceV2 in both;
* reduce_scatter: CollectiveReduceV2 and a slice of its result; tf_fuse.collectives.reduce_scatter;
* all_gather: CollectiveGatherV2 of equal shards; tf_fuse.collectives.all_gather;
* rs_ag: CollectiveAllToAllV2, a sum and CollectiveGatherV2; the former two of ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import tensorflow_server_pb2
from tensorflow.python.eager import context
from tensorflow.python.ops import collective_ops

from benchmarks.collectives import rank as base

_STOCK_PROTOCOL = "grpc"
# Far from the keys that a library may choose for itself: a key and its tensors' shape are one.
_GROUP_KEY = 7001
_FIRST_INSTANCE_KEY = 70001


class TensorFlow:
    """A process of a group that has no coordinator, as under MultiWorkerMirroredStrategy."""

    def __init__(self, rank: int, addresses: Sequence[str], protocol: str):
        """Start the server of this rank.

        Args:
          rank: of this process.
          addresses: host:port of each rank.
          protocol: "grpc" for stock TensorFlow, "grpc+fuse" for ours.

        Raises:
          PortTakenError: another process has the port.
          ImportError: ours is not installed.
        """
        self._rank, self._ranks, self._ours = rank, len(addresses), protocol != _STOCK_PROTOCOL
        if self._ours:
            import tf_fuse  # noqa: F401  (loading the plugin registers the protocol)
        _start_server(rank, addresses, protocol)
        self._device = f"/job:worker/replica:0/task:{rank}/device:CPU:0"
        self._instance_keys = itertools.count(_FIRST_INSTANCE_KEY)
        self._group: Any = None
        self._inputs: dict[int, Any] = {}
        self._functions: dict[str, tuple[Callable[[Any], Any], Any]] = {}

    def prepare(self, op: str, elements: int) -> None:
        """See `collective_rank.Backend`."""
        self._functions[op] = self._build(op, elements)
        self._check(op, elements, self.call(op)())

    def call(self, op: str) -> Callable[[], Any]:
        """See `collective_rank.Backend`."""
        function, argument = self._functions[op]
        return lambda: function(argument)

    def release(self) -> None:
        """See `collective_rank.Backend`."""
        self._functions.clear()
        self._inputs.clear()

    def counters(self) -> dict[str, int]:
        """Return the counters of our collectives; stock TensorFlow counts nothing."""
        if not self._ours:
            return {}
        import tf_fuse

        metrics = tf_fuse.metrics()
        return {
            name: count
            for name, count in sorted(metrics.items())
            if name.startswith("collective_") and isinstance(count, int)
        }

    # --- Ops -------------------------------------------------------------------------------------

    def _build(self, op: str, elements: int) -> tuple[Callable[[Any], Any], Any]:
        """Return an op as a tf.function, and its argument."""
        composed = self._ours_of(op, elements) if self._ours else self._stock_of(op, elements)
        if op == "all_gather":
            argument = self._tensor(_pattern(*self._shard(elements)))
        else:
            # One for all ops of a size.
            if elements not in self._inputs:
                self._inputs[elements] = self._tensor(_pattern(0, elements, rank=self._rank))
            argument = self._inputs[elements]

        @tf.function(autograph=False)
        def function(x: Any) -> Any:
            with tf.device(self._device):
                return composed(x)

        return function.get_concrete_function(argument), argument

    def _stock_of(self, op: str, elements: int) -> Callable[[Any], Any]:
        if op == "all_reduce":
            return self._all_reduce()
        if op == "reduce_scatter":
            begin, end = base.ring_chunk(elements, self._ranks, self._rank)
            reduce = self._all_reduce()
            return lambda x: reduce(x)[begin:end]
        gather = self._keyed(collective_ops.all_gather_v2)
        if op == "all_gather":
            return lambda shard: gather(_padded(shard, self._equal(elements)))[:elements]
        exchange = self._keyed(collective_ops.all_to_all_v2)
        chunk = self._equal(elements)

        def rs_ag(x: Any) -> Any:
            chunks = tf.reshape(_padded(x, self._ranks * chunk), [self._ranks, chunk])
            return gather(tf.reduce_sum(exchange(chunks), axis=0))[:elements]

        return rs_ag

    def _ours_of(self, op: str, elements: int) -> Callable[[Any], Any]:
        if op == "all_reduce":
            return self._all_reduce()
        try:
            from tf_fuse import collectives
        except ImportError as e:
            import tf_fuse

            raise ImportError(
                f"the tf_fuse in {tf_fuse.__path__[0]} has no module tf_fuse.collectives, which "
                f"the op {op} needs ({e}); install a version that has it, or take --op all_reduce"
            ) from e
        self._group = group = self._group or collectives.Group(self._ranks)
        if op == "reduce_scatter":
            return lambda x: collectives.reduce_scatter(x, group)
        if op == "all_gather":
            return lambda shard: collectives.all_gather(shard, [elements], group)
        return lambda x: collectives.all_gather(
            collectives.reduce_scatter(x, group), [elements], group
        )

    def _all_reduce(self) -> Callable[[Any], Any]:
        reduce = self._keyed(collective_ops.all_reduce_v2)
        return lambda x: reduce(x, communication_hint="ring")

    def _keyed(self, op: Callable[..., Any]) -> Callable[..., Any]:
        """Return a stock op with keys that no other has; all ranks call this in the same order."""
        key = next(self._instance_keys)
        return lambda x, **options: op(x, self._ranks, _GROUP_KEY, key, **options)

    # --- Tensors ---------------------------------------------------------------------------------

    def _equal(self, elements: int) -> int:
        return base.equal_chunk(elements, self._ranks)

    def _shard(self, elements: int) -> tuple[int, int]:
        """Return the part of the tensor that this rank gathers."""
        if self._ours:
            return base.ring_chunk(elements, self._ranks, self._rank)
        chunk = self._equal(elements)
        return min(self._rank * chunk, elements), min((self._rank + 1) * chunk, elements)

    def _tensor(self, values: np.ndarray) -> Any:
        with tf.device(self._device):
            return tf.constant(values)

    def _check(self, op: str, elements: int, result: Any) -> None:
        ranks = 1 if op == "all_gather" else self._ranks
        begin, end = 0, elements
        if op == "reduce_scatter":
            begin, end = base.ring_chunk(elements, self._ranks, self._rank)
        if result.shape != (end - begin,):
            raise base.WrongValueError(
                f"rank {self._rank}, op {op}: the result has the shape {result.shape}, expected "
                f"{(end - begin,)}"
            )
        wrong, first = 0, (0, 0.0, 0.0)
        for at, until in base.blocks(begin, end):
            got, want = result[at - begin : until - begin].numpy(), _pattern(at, until, ranks)
            found = np.flatnonzero(got != want)
            if found.size and not wrong:
                one = int(found[0])
                first = (at - begin + one, float(got[one]), float(want[one]))
            wrong += found.size
        if wrong:
            raise base.WrongValueError(base.mismatch(op, self._rank, wrong, end - begin, *first))


def _padded(x: Any, length: int) -> Any:
    missing = length - x.shape[0]
    return tf.pad(x, [[0, missing]]) if missing else x


def _pattern(begin: int, end: int, ranks: int = 1, rank: int = 0) -> np.ndarray:
    """Return a range of one rank's tensor, or of the sum of all; see `collective_rank.offset`."""
    values = np.empty(end - begin, np.float32)
    for at, until in base.blocks(begin, end):
        whole = np.arange(at, until) % base.PERIOD * ranks + base.offset(ranks, rank)
        values[at - begin : until - begin] = whole
    return values


def _start_server(rank: int, addresses: Sequence[str], protocol: str) -> None:
    """Start the server of the eager context; collectives find their peers by it."""
    context.context().configure_collective_ops(collective_leader="/job:worker/replica:0/task:0")
    cluster = tf.train.ClusterSpec({"worker": list(addresses)})
    context.context().enable_collective_ops(
        tensorflow_server_pb2.ServerDef(
            cluster=cluster.as_cluster_def(),
            job_name="worker",
            task_index=rank,
            protocol=protocol,
            port=int(addresses[rank].rpartition(":")[2]),
            default_session_config=context.context().config,
        )
    )
    try:
        context.context().ensure_initialized()
    except tf.errors.UnknownError as e:
        if "Could not start gRPC server" not in str(e):
            raise
        raise base.PortTakenError(f"{addresses[rank]}: {e}") from e
