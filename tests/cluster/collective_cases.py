# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What the ranks of `collective_ranks.py` do: each public method of `Member` is a case.

Tensors are made in the ranks from seeds, and results go back as hashes of all bits.
"""

from __future__ import annotations

import gc
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from cluster.collective_ranks import BEGUN, Error, Reduce
from cluster.shard_update_cases import ShardUpdateCases

# Below the keys that the library chooses for itself, and above those of strategies.
_GROUP_KEY = 500
_DTYPES = {name: getattr(tf, name).as_numpy_dtype for name in
           ("float32", "float64", "float16", "bfloat16", "int32", "int64")}  # fmt: skip


def values(dtype: str, elements: int, rank: int, kind: str = "mixed") -> np.ndarray:
    """What a rank puts in. Rounding makes the order of additions visible in "mixed".

    Args:
      dtype: name of the type.
      elements: of a vector.
      rank: whose.
      kind: "mixed" (magnitudes from 2**-20 to 2**20, both signs), "special" (those, with NaNs of
        several payloads, infinities, zeros of both signs and denormals), or "small" (whole numbers
        whose sums and products are exact).
    """
    rng = np.random.default_rng([elements, rank, sorted(_DTYPES).index(dtype)])
    numpy_type = _DTYPES[dtype]
    if kind == "small":
        return rng.integers(-2, 3, elements).astype(numpy_type)
    if dtype.startswith("int"):
        bits = np.iinfo(numpy_type).bits
        return rng.integers(-(2 ** (bits - 1)), 2 ** (bits - 1), elements, dtype=numpy_type)
    scale = 8 if dtype == "float16" else 20
    mixed = np.ldexp(rng.standard_normal(elements), rng.integers(-scale, scale + 1, elements))
    mixed = mixed.astype(np.float32 if dtype == "bfloat16" else numpy_type).astype(numpy_type)
    if kind == "special" and elements:
        _put_specials(mixed, rng)
    return mixed


def _put_specials(array: np.ndarray, rng: np.random.Generator) -> None:
    size = array.dtype.itemsize
    bits = array.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[size])
    mantissa = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[str(array.dtype)]
    infinity = (1 << (8 * size - 1)) - (1 << mantissa)
    quiet = infinity | (1 << (mantissa - 1))
    sign = 1 << (8 * size - 1)
    # (Signalling NaNs become quiet in arithmetic, with their payload: also a case.)
    specials = [infinity, sign | infinity, quiet, quiet | 3, sign | quiet | 5, infinity | 2,
                0, sign, 1, sign | 1]  # fmt: skip
    at = rng.random(len(array)) < 0.3
    bits[at] = np.array(specials, bits.dtype)[rng.integers(0, len(specials), int(at.sum()))]


def digest(tensor: Any) -> str:
    """Type, shape and all bits."""
    array = np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
    return f"{array.dtype}{list(array.shape)} {hashlib.sha256(array.tobytes()).hexdigest()[:20]}"


def outcome(member: Member, case: str, args: dict[str, Any]) -> Any:
    """What a case returns, or the `Error` that it raised."""
    try:
        return getattr(member, case)(**args)
    except tf.errors.OpError as e:
        return Error(type(e).__name__, e.error_code, str(e))
    except Exception as e:
        import traceback

        traceback.print_exc()
        return Error(type(e).__name__, None, str(e))


class Member(ShardUpdateCases):
    """A rank: its server, and its cases."""

    def __init__(self, spec: dict[str, Any]):
        """Starts the server of a rank, by its specification."""
        self.spec = spec
        self.rank, self.ranks = spec["rank"], len(spec["addresses"])
        self.ours = spec["protocol"] != "grpc"
        self.devices = spec["devices"]
        if self.ours:
            import tf_fuse  # noqa: F401  (registers the protocol)
        if self.devices > 1:
            tf.config.set_logical_device_configuration(
                tf.config.list_physical_devices("CPU")[0],
                [tf.config.LogicalDeviceConfiguration()] * self.devices,
            )
        if spec["server"]:
            self._start_server()
        self.device = self._device(0)
        self._instance = 0
        self._background: list[Any] = []

    def _device(self, index: int) -> str:
        return f"/job:worker/replica:0/task:{self.rank}/device:CPU:{index}"

    def _start_server(self) -> None:
        from tensorflow.core.protobuf import tensorflow_server_pb2
        from tensorflow.python.eager import context

        context.context().configure_collective_ops(collective_leader="/job:worker/replica:0/task:0")
        cluster = tf.train.ClusterSpec({"worker": self.spec["addresses"]})
        context.context().enable_collective_ops(
            tensorflow_server_pb2.ServerDef(
                cluster=cluster.as_cluster_def(),
                job_name="worker",
                task_index=self.rank,
                protocol=self.spec["protocol"],
                port=int(self.spec["addresses"][self.rank].rpartition(":")[2]),
                default_session_config=context.context().config,
            )
        )
        context.context().ensure_initialized()

    # --- What TensorFlow has -----------------------------------------------------------------

    def _key(self) -> int:
        """All ranks that call the same cases count alike."""
        self._instance += 1
        return self._instance

    def _all_reduce(self, spec: Reduce, key: int, x: Any, group_key: int = _GROUP_KEY,
                    **options: Any) -> Any:  # fmt: skip
        return tf.raw_ops.CollectiveReduceV2(
            input=x,
            group_size=spec.n,
            group_key=group_key + spec.n,
            instance_key=key,
            ordering_token=[],
            merge_op=spec.merge,
            final_op=spec.final,
            communication_hint="ring",
            max_subdivs_per_device=spec.subdivs,
            **options,
        )

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
        """An all-reduce of a tensor that is no vector."""
        x = values("float32", int(np.prod(shape)), self.rank).reshape(shape)
        with tf.device(self.device):
            return digest(self._all_reduce(Reduce(self.ranks, "float32", 0), self._key(), x))

    def gather(self, dtype: str, shape: Sequence[int]) -> str:
        """CollectiveGatherV2."""
        x = values(dtype, int(np.prod(shape)), self.rank).reshape(shape)
        with tf.device(self.device):
            return digest(
                tf.raw_ops.CollectiveGatherV2(
                    input=tf.constant(x),
                    group_size=self.ranks,
                    group_key=_GROUP_KEY + self.ranks,
                    instance_key=self._key(),
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
                    group_size=self.ranks,
                    group_key=_GROUP_KEY + self.ranks,
                    instance_key=self._key(),
                    ordering_token=[],
                    communication_hint="ring",
                )
            )

    def broadcast(self, dtype: str, elements: int, source: int) -> str:
        """CollectiveBcastSendV2 in one rank, CollectiveBcastRecvV2 in the others."""
        keys = {"group_size": self.ranks, "group_key": _GROUP_KEY + self.ranks,
                "instance_key": self._key()}  # fmt: skip
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

    def _on_each_device(self, work: Callable[[int], Any]) -> list[Any]:
        """In threads: a function would put its collectives into an order."""
        results: list[Any] = [None] * self.devices

        def on(index: int) -> None:
            try:
                with tf.device(self._device(index)):
                    results[index] = work(index)
            except tf.errors.OpError as e:
                results[index] = Error(type(e).__name__, e.error_code, str(e))

        threads = [threading.Thread(target=on, args=[i]) for i in range(self.devices)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    # --- What the library adds ---------------------------------------------------------------

    def scatter_gather(self, tensors: Sequence[tuple[str, Sequence[int]]],
                       members: Sequence[int] | None = None) -> Any:  # fmt: skip
        """Reduce-scatter of many tensors of one type, then all-gather; and our all_reduce.

        Returns:
          None in a rank that is no member, else digests of the gathered tensors, their all-reduce
          by `tf_fuse.collectives`, and the shards' lengths.
        """
        from tf_fuse import collectives

        members = list(range(self.ranks)) if members is None else members
        group = collectives.Group.of_ranks(members, self.ranks)
        if self.rank not in members:
            return None
        xs = [tf.constant(values(dtype, int(np.prod(shape)), self.rank).reshape(shape))
              for dtype, shape in tensors]  # fmt: skip

        @tf.function(autograph=False)
        def function(xs: Any) -> Any:
            shards = collectives.reduce_scatter(xs, group)
            whole = collectives.all_gather(shards, [x.shape for x in xs], group)
            return shards, whole

        with tf.device(self.device):
            shards, whole = function(xs)
        lengths = [int(x.shape[0]) for x in shards]
        expected = []
        for (_, shape), shard in zip(tensors, shards, strict=True):
            begin, end = collectives.shard_range(
                int(np.prod(shape)), shard.dtype.size, len(members), members.index(self.rank)
            )
            expected.append(end - begin)
        assert lengths == expected, (lengths, expected)
        return {"whole": [digest(x) for x in whole], "shards": [digest(x) for x in shards],
                "lengths": lengths}  # fmt: skip

    def packed(self, dtype: str, lengths: Sequence[int], members: Sequence[int]) -> Any:
        """Reduce-scatter and all-gather of vectors that are cut as one, and their all-reduce.

        Returns:
          None in a rank that is no member, else digests of the concatenated results, and the
          shards' lengths.
        """
        from tf_fuse import collectives

        group = collectives.Group.of_ranks(members, self.ranks)
        if self.rank not in members:
            return None

        @tf.function(autograph=False)
        def function(pack: Any) -> Any:
            xs = tf.split(pack, lengths)
            shards = collectives.reduce_scatter(xs, group, packed=True)
            shapes = [x.shape for x in xs]
            whole = collectives.all_gather(shards, shapes, group, packed=True)
            sums = collectives.all_reduce(xs, group, packed=True)
            return shards, tf.concat(whole, 0), tf.concat(sums, 0)

        with tf.device(self.device):
            pack = tf.constant(values(dtype, sum(lengths), self.rank))
            shards, whole, sums = function(pack)
        rank, size = members.index(self.rank), len(members)
        ranges = collectives.packed_ranges(lengths, pack.dtype.size, size, rank)
        return {"whole": digest(whole), "sums": digest(sums),
                "lengths": [int(x.shape[0]) for x in shards],
                "ranges": [end - begin for begin, end in ranges]}  # fmt: skip

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

    def two_levels(self, elements: int) -> dict[str, Any]:
        """Reduce-scatter within pairs of ranks, all-reduce across; exact whole numbers."""
        from tf_fuse import collectives

        half = self.ranks // 2
        first = self.rank // half * half
        inner = collectives.Group.of_ranks(range(first, first + half), self.ranks)
        outer = collectives.Group.of_ranks(range(self.rank % half, self.ranks, half), self.ranks)
        x = tf.constant(values("float32", elements, self.rank, "small"))
        with tf.device(self.device):
            shard = tf.function(collectives.two_level_reduce_scatter, autograph=False)(
                x, inner, outer
            )
        total = sum(values("float32", elements, r, "small") for r in range(self.ranks))
        begin, end = collectives.shard_range(elements, 4, half, self.rank % half)
        return {"right": bool(np.array_equal(shard.numpy(), total[begin:end])),
                "length": int(shard.shape[0]), "range": [begin, end]}  # fmt: skip

    def gradients(self, elements: int) -> dict[str, bool]:
        """The gradients of both ops beside what they must be, with exact whole numbers."""
        from tf_fuse import collectives

        group = collectives.Group(self.ranks)

        def begin_end(rank: int) -> tuple[int, int]:
            return collectives.shard_range(elements, 4, self.ranks, rank)

        begin, end = begin_end(self.rank)
        # Of each rank: the weights of its shard, and of its copy of the whole.
        small = [values("float32", elements, 10 + r, "small") for r in range(self.ranks)]

        @tf.function(autograph=False)
        def scatter_gradient(x: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                (shard,) = collectives.reduce_scatter([x], group)
                loss = tf.reduce_sum(shard * small[self.rank][begin:end])
            return tape.gradient(loss, x)

        @tf.function(autograph=False)
        def gather_gradient(shard: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(shard)
                whole = collectives.all_gather(shard, [elements], group)
                loss = tf.reduce_sum(whole * small[self.rank])
            return tape.gradient(loss, shard)

        with tf.device(self.device):
            scattered = scatter_gradient(tf.constant(small[self.rank]))
            gathered = gather_gradient(tf.constant(small[self.rank][begin:end]))
        by_owner = [small[r][slice(*begin_end(r))] for r in range(self.ranks)]
        return {
            "scatter": bool(np.array_equal(scattered.numpy(), np.concatenate(by_owner))),
            "gather": bool(np.array_equal(gathered.numpy(), sum(small)[begin:end])),
        }

    def local_scatter(self, elements: int) -> dict[str, Any]:
        """Reduce-scatter and all-gather over all devices of all ranks, at the same time."""
        from tf_fuse import _native

        n = self.ranks * self.devices
        ops = _native.load()
        keys = {"group_size": n, "group_key": 7000 + n, "instance_key": self._key()}
        xs = [tf.constant(values("float32", elements, self.rank * self.devices + i))
              for i in range(self.devices)]  # fmt: skip

        def work(index: int) -> str:
            shards = ops.tf_fuse_reduce_scatter(inputs=[xs[index]], **keys)
            (whole,) = ops.tf_fuse_all_gather(shards=shards, shapes=[[elements]], **keys)
            return digest(whole)

        return self._on_each_device(work)

    # --- Strategies ------------------------------------------------------------------------------

    def mirrored(self, elements: int, calls: int) -> dict[str, Any]:
        """The collectives without a group, in the replicas of a MirroredStrategy."""
        from tf_fuse import collectives

        os.environ.pop("TF_CONFIG", None)
        strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(self.devices)])
        n = self.devices
        small = [values("float32", elements, r, "small") for r in range(n)]
        total = sum(small)

        def replica() -> Any:
            me = tf.distribute.get_replica_context().replica_id_in_sync_group
            x = tf.gather(tf.constant(np.stack(small)), me)
            shards = collectives.reduce_scatter([x, 2.0 * x])
            whole = collectives.all_gather(shards, [[elements], [elements]])
            return shards[0], whole[0], whole[1], collectives.all_reduce(3.0 * x)

        step = tf.function(lambda: strategy.run(replica), autograph=False)
        right = True
        for _ in range(calls):
            results = [strategy.experimental_local_results(one) for one in step()]
            for r in range(n):
                begin, end = collectives.shard_range(elements, 4, n, r)
                wanted = total[begin:end], total, 2 * total, 3 * total
                right = right and all(
                    np.array_equal(got[r].numpy(), want)
                    for got, want in zip(results, wanted, strict=True)
                )
        return {"replicas": strategy.num_replicas_in_sync, "right": right}

    def train(self, kind: str) -> dict[str, Any]:
        """Trains under MultiWorkerMirroredStrategy (from TF_CONFIG): the weights, and losses.

        Args:
          kind: "tf_keras" for its `fit`, "keras" for a loop of one's own with Keras 3.
        """
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        rng = np.random.default_rng(7)
        x = rng.standard_normal([64, 10]).astype(np.float32)
        y = (x @ rng.standard_normal([10, 1]) + 0.1).astype(np.float32)
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16, drop_remainder=True)
        if kind == "tf_keras":
            import tf_keras

            with strategy.scope():
                model = self._model(tf_keras)
                model.compile(optimizer=tf_keras.optimizers.Adam(0.05), loss="mse")
            history = model.fit(data, epochs=2, shuffle=False, verbose=0)
            losses = history.history["loss"]
        else:
            losses = self._loop(strategy, data)
            model = self._trained
        return {"weights": [digest(w) for w in model.get_weights()], "losses": repr(losses),
                "replicas": strategy.num_replicas_in_sync}  # fmt: skip

    def _model(self, keras: Any) -> Any:
        keras.utils.set_random_seed(3)
        layers = [keras.layers.Dense(n, activation="tanh") for n in (700, 50)]
        return keras.Sequential([keras.Input([10]), *layers, keras.layers.Dense(1)])

    def _loop(self, strategy: Any, data: Any) -> list[float]:
        import keras

        with strategy.scope():
            model = self._model(keras)
            optimizer = keras.optimizers.Adam(0.05)
            optimizer.build(model.trainable_variables)

        def replica(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((model(x, training=True) - y) ** 2) / 16.0
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        @tf.function
        def step(x: Any, y: Any) -> Any:
            losses = strategy.run(replica, args=(x, y))
            return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

        self._trained = model
        distributed = strategy.experimental_distribute_dataset(data)
        return [float(step(x, y)) for _ in range(2) for x, y in distributed]

    def in_strategy(self, elements: int) -> dict[str, Any]:
        """The collectives without a group, inside of MultiWorkerMirroredStrategy.run."""
        from tf_fuse import collectives

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        small = [values("float32", elements, r, "small") for r in range(self.ranks)]
        total = sum(small)
        x = tf.constant(small[self.rank])

        def replica() -> Any:
            (shard,) = collectives.reduce_scatter([x])
            return shard, collectives.all_gather(shard, x.shape), collectives.all_reduce(2.0 * x)

        step = tf.function(lambda: strategy.run(replica), autograph=False)
        begin, end = collectives.shard_range(elements, 4, self.ranks, self.rank)
        right = True
        for _ in range(3):
            got = step()
            wanted = total[begin:end], total, 2 * total
            right = right and all(
                np.array_equal(a.numpy(), b) for a, b in zip(got, wanted, strict=True)
            )
        return {"right": right, "replicas": strategy.num_replicas_in_sync}

    def shapes(self) -> dict[str, Any]:
        """What the shape functions say, in a graph that is not run."""
        from tf_fuse import _native

        ops = _native.load()
        keys = {"group_key": 1, "instance_key": 1}

        def of(tensors: Any) -> list[Any]:
            return [None if t.shape.rank is None else t.shape.as_list() for t in tensors]

        def refusal(build: Callable[[], Any]) -> str:
            try:
                build()
            except ValueError as e:
                return str(e).partition(" for ")[0]
            return ""

        with tf.Graph().as_default():
            inputs = [tf.zeros([2, 3]), tf.zeros([0]), tf.compat.v1.placeholder(tf.float32)]
            unknown = tf.compat.v1.placeholder(tf.int64)
            partly = tf.stack([unknown, tf.constant(4, tf.int64)])
            partly.set_shape([2])
            return {
                "shards": of(ops.tf_fuse_reduce_scatter(inputs=inputs, group_size=2, **keys)),
                "shards_of_one": of(
                    ops.tf_fuse_reduce_scatter(inputs=inputs, group_size=1, **keys)
                ),
                "gathered": of(
                    ops.tf_fuse_all_gather(
                        shards=[tf.zeros([3]), tf.zeros([0]), tf.zeros([1]), tf.zeros([4])],
                        shapes=[[2, 3], [0], unknown, partly],
                        group_size=2,
                        **keys,
                    )
                ),
                "vector_of_keys": refusal(
                    lambda: ops.tf_fuse_reduce_scatter(inputs=inputs, group_size=[2], **keys)
                ),
                "matrix_of_shards": refusal(
                    lambda: ops.tf_fuse_all_gather(
                        shards=[tf.zeros([1, 3])], shapes=[[2, 3]], group_size=2, **keys
                    )
                ),
            }

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

        Returns:
          Whether all results were right, and what the process uses before and after.
        """
        key = self._key()
        x = tf.constant(values("float32", elements, self.rank, "small"))
        step = self._step_of(op, key, elements)

        @tf.function(autograph=False)
        def loop(count: Any, x: Any) -> Any:
            return tf.while_loop(
                lambda i, _: i < count,
                lambda i, last: (i + 1, step(x + 0.0 * last[0])),
                (tf.constant(0), x),
                shape_invariants=(tf.TensorShape([]), x.shape),
                parallel_iterations=1,
            )[1]

        total = sum(values("float32", elements, r, "small") for r in range(self.ranks))
        right = True
        with tf.device(self.device):
            if warm:
                loop(tf.constant(warm), x)
            before = usage()
            for _ in range(10):
                right = right and bool(np.array_equal(loop(tf.constant(calls // 10), x), total))
        return {"right": right, "before": before, "after": usage()}

    def _step_of(self, op: str, key: int, elements: int) -> Callable[[Any], Any]:
        if op == "all_reduce":
            spec = Reduce(self.ranks, "float32", elements)
            return lambda x: self._all_reduce(spec, key, x)
        from tf_fuse import collectives

        group = collectives.Group(self.ranks)
        return lambda x: collectives.all_gather(
            collectives.reduce_scatter(x, group), [elements], group
        )

    # --- Faults ------------------------------------------------------------------------------

    def attempt(self, op: str, elements: int, dtype: str = "float32", calls: int = 1,
                timeout_seconds: float = 0.0, key: int = 0, n: int = 0,
                group_key: int = 3000) -> Any:  # fmt: skip
        """Calls of an op, up to the first that fails; its digest, or its error and how far it came.

        `key` names the instance, apart from other cases' (0: the next); `n` is the size of the
        group (0: all ranks).
        """
        x = tf.constant(values(dtype, elements, self.rank))
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
            from tf_fuse import _native, collectives

            ops = _native.load()
            if op == "reduce_scatter":
                return ops.tf_fuse_reduce_scatter(inputs=[x], **keys)[0]
            begin, end = collectives.shard_range(elements, x.dtype.size, n, self.rank)
            return ops.tf_fuse_all_gather(shards=[x[begin:end]], shapes=[[elements]], **keys)[0]

        return tf.function(call, autograph=False)

    def later(self, members: Sequence[int], group_key: int) -> Any:
        """What a rank gets that uses collectives after a fault: its error, or whether all is right.

        Args:
          members: ranks of a group that has not been used before.
          group_key: its key.
        """
        elements, seconds = 1000, 5.0
        spec = Reduce(len(members), "float32", elements)
        x = tf.constant(values("float32", elements, self.rank, "small"))
        with tf.device(self.device):
            y = self._all_reduce(spec, 1, x, group_key, timeout_seconds=seconds)
        return bool(
            np.array_equal(y, sum(values("float32", elements, r, "small") for r in members))
        )

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

    def usage(self) -> dict[str, int]:
        """Memory, threads and descriptors of this process."""
        return usage()

    # --- What is left ------------------------------------------------------------------------

    def skip_keys(self) -> None:
        """Counts a key, where other ranks made a call that this one did not."""
        self._key()

    def counters(self) -> dict[str, int]:
        """The counters of the collectives, and gauges; empty without the plugin."""
        if not self.ours:
            return {}
        import tf_fuse

        return {k: v for k, v in tf_fuse.metrics().items() if isinstance(v, int)}

    def wait_for_gauges(self) -> dict[str, int]:
        """The counters, once nothing is lent or asked for, or 20 seconds have passed."""
        deadline = time.monotonic() + 20
        gauges = ("lent_chunks", "pending_requests")
        while any((now := self.counters())[k] for k in gauges) and time.monotonic() < deadline:
            time.sleep(0.05)
        return now

    def plugin_loaded(self) -> bool:
        """Whether tf_fuse is in this process."""
        return "tf_fuse" in sys.modules


def usage() -> dict[str, int]:
    """Memory that is not shared (KiB), threads and descriptors of this process."""
    gc.collect()
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if line
    )
    return {
        "rss_kib": int(status["RssAnon"].split()[0]),
        "threads": int(status["Threads"]),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }
