# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Cases of what the library adds: reduce-scatter, all-gather, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.cluster.collectives.member import Base
from tests.cluster.collectives.values import digest, values


class LibraryCases(Base):
    """Cases of `cases.Member`."""

    def scatter_gather(self, tensors: Sequence[tuple[str, Sequence[int]]],
                       members: Sequence[int] | None = None) -> Any:  # fmt: skip
        """Reduce-scatter of many tensors of one type, then all-gather; and our all_reduce.

        Returns:
          None in a rank that is not a member; digests of the gathered tensors, their all-reduce
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
          None in a rank that is not a member, else digests of the concatenated results, and the
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

    def grouped(self, dtype: str, lengths: Sequence[int], groups: int) -> dict[str, Any]:
        """Reduce-scatter and all-gather of vectors that are cut as one, in groups that hold all.

        Returns:
          Digests of the concatenated results and of their all-reduce over all ranks; and of each
          shard its length and whether it has the elements that it should.
        """
        from tf_fuse import _native, collectives

        group = collectives.Group(self.ranks)

        @tf.function(autograph=False)
        def function(pack: Any) -> Any:
            xs = tf.split(pack, lengths)
            sums = collectives.all_reduce(xs, group, packed=True)
            library = _native.load()
            shards = library.tf_fuse_reduce_scatter(
                inputs=xs, packed=True, groups=groups, **collectives._parameters(group)
            )
            whole = library.tf_fuse_all_gather(
                shards=shards, shapes=[tf.shape(x, tf.int64) for x in xs], packed=True,
                groups=groups, **collectives._parameters(group),
            )  # fmt: skip
            return shards, tf.concat(whole, 0), tf.concat(sums, 0), sums

        with tf.device(self.device):
            pack = tf.constant(values(dtype, sum(lengths), self.rank))
            shards, whole, total, sums = function(pack)
        size = self.ranks // groups
        held = range(self.rank % size * groups, (self.rank % size + 1) * groups)
        ranges = [
            collectives.packed_ranges(lengths, pack.dtype.size, self.ranks, chunk) for chunk in held
        ]
        wanted = [
            tf.concat([x[slice(*chunk[i])] for chunk in ranges], 0) for i, x in enumerate(sums)
        ]
        return {
            "whole": digest(whole),
            "sums": digest(total),
            "lengths": [int(x.shape[0]) for x in shards],
            "right": [digest(a) == digest(b) for a, b in zip(shards, wanted, strict=True)],
        }

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
