# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define the replicas of a function, and which elements of a bucket each one owns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tf_fuse.collectives import packed_ranges
from tf_fuse.function_graph.builder import Range
from tf_fuse.function_graph.function_lookup import REDUCE
from tf_fuse.function_graph.view import GraphView, data_inputs
from tf_fuse.shard_update.plan import Bucket


@dataclass(frozen=True)
class Replicas:
    """All replicas, and which of them the function is of.

    Attributes:
      count: of all.
      ranks: those in the group of all that the function is of, by device.
      groups: in how many groups of consecutive ranks they are, a divisor of their number; each
        group has everything once.
    """

    count: int
    ranks: Mapping[str, int]
    groups: int = 1

    def has(self, node: Any) -> bool:
        """Return whether the replica of a node is known."""
        return len(self.ranks) == 1 or node.device in self.ranks

    def rank(self, node: Any) -> int:
        """Return the rank of the replica that runs a node of the function."""
        if len(self.ranks) == 1:
            return next(iter(self.ranks.values()))
        return self.ranks[node.device]


def ranges_of(replicas: Replicas, bucket: Bucket, rank: int) -> list[Range]:
    """Return the elements of each tensor of a bucket that are a replica's, in its group alone."""
    first = rank % (replicas.count // replicas.groups) * replicas.groups
    return _chunks(replicas, bucket, first, first + replicas.groups - 1)


def summed_of(replicas: Replicas, bucket: Bucket, rank: int) -> list[Range]:
    """Those of `ranges_of` that are a replica's alone: it sums them for all who have them."""
    group, place = divmod(rank, replicas.count // replicas.groups)
    chunk = place * replicas.groups + group
    return _chunks(replicas, bucket, chunk, chunk)


def _chunks(replicas: Replicas, bucket: Bucket, first: int, last: int) -> list[Range]:
    """Return the elements of each tensor of a bucket that are in some chunks of the ring."""
    sizes = [cluster.size for cluster in bucket.clusters]
    width = width_of(bucket.reduce.attr["T"].type)
    begins = packed_ranges(sizes, width, replicas.count, first)
    ends = packed_ranges(sizes, width, replicas.count, last)
    return [(begin, max(begin, end)) for (begin, _), (_, end) in zip(begins, ends, strict=True)]


def reduces_over(count: int) -> Callable[[GraphView, Any], bool]:
    """Return whether a node is a sum over all replicas."""

    def is_full_group(view: GraphView, node: Any) -> bool:
        if node.op != REDUCE:
            return False
        size = view.producer(data_inputs(node)[1])
        return (
            (node.attr["merge_op"].s, node.attr["final_op"].s) == (b"Add", b"Id")
            and size is not None
            and size.op == "Const"
            and list(size.attr["value"].tensor.int_val) == [count]
        )

    return is_full_group


def name_of(dtype: int) -> str:
    """Return the name of a type, by its number."""
    from tensorflow.python.framework import dtypes

    return str(dtypes.as_dtype(dtype).name)


def width_of(dtype: int) -> int:
    """Return bytes of an element of a type, by its number."""
    from tensorflow.python.framework import dtypes

    return int(dtypes.as_dtype(dtype).size)


def groups_of(replicas: int, size: int) -> int | None:
    """In how many groups of a size (0: of all) replicas are; None if they are not."""
    size = size or replicas
    return None if replicas % size else replicas // size


def why_no_groups(replicas: int, size: int) -> str:
    """Return what an error says where replicas cannot be in groups of a size."""
    sizes = [str(one) for one in range(2, replicas) if replicas % one == 0]
    better = f"{', '.join(sizes)}, or 0 for all of them" if sizes else "0, for all of them"
    return f"it is {size}, which does not divide {replicas} replicas evenly; set it to {better}"
