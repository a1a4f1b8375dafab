# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Which replicas there are, and which elements are whose."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tf_fuse.collectives import packed_ranges
from tf_fuse.shard_update.builder import Range, Shape
from tf_fuse.shard_update.families import Pack
from tf_fuse.shard_update.functions import REDUCE
from tf_fuse.shard_update.graph_view import GraphView, data_inputs
from tf_fuse.shard_update.rewrite import Rewriter
from tf_fuse.shard_update.slot import Slot, window
from tf_fuse.shard_update.waiting import is_sharded


@dataclass(frozen=True)
class Replicas:
    """All replicas, and which of them the function is of.

    Attributes:
      count: of all.
      ranks: those in the group of all that the function is of, by device.
      groups: in how many groups of consecutive ranks they are, each of which has everything once;
        a divisor of their number.
    """

    count: int
    ranks: Mapping[str, int]
    groups: int = 1

    def has(self, node: Any) -> bool:
        """Whether it is known of which replica a node is."""
        return len(self.ranks) == 1 or node.device in self.ranks

    def rank(self, node: Any) -> int:
        """Of which replica a node of the function is."""
        if len(self.ranks) == 1:
            return next(iter(self.ranks.values()))
        return self.ranks[node.device]


def slots_of(rewriter: Rewriter, replicas: Replicas, packs: list[Pack]) -> list[Slot]:
    """The slots that have parts, with what each replica has of them."""
    owns: dict[str, tuple[Range, ...]] = {}
    ranks: dict[str, int] = {}
    for pack in filter(is_sharded, packs):
        ranges = [ranges_of(replicas, pack, rank) for rank in range(replicas.count)]
        for index, family in enumerate(pack.families):
            owns.update({slot: tuple(one[index] for one in ranges) for slot in family.held})
            ranks.update(dict.fromkeys(family.held, replicas.rank(pack.reduce)))
    return [
        replace(slot, owns=owns[slot.argument], rank=ranks[slot.argument], groups=replicas.groups)
        for slot in rewriter.slots
    ]


def cut_shapes(
    known: Mapping[str, Shape | None], replicas: Replicas, packs: list[Pack]
) -> dict[str, Shape | None]:
    """The shapes of the tensors of which a replica computes a window."""
    shapes: dict[str, Shape | None] = {}
    for pack in filter(is_sharded, packs):
        ranges = ranges_of(replicas, pack, replicas.rank(pack.reduce))
        for own, family in zip(ranges, pack.families, strict=True):
            begin, end = window(own, family.size)
            for tensor in family.members if family.reason is None else ():
                shape = known.get(tensor)
                if shape is not None and math.prod(shape) == family.size:
                    shapes[tensor] = (end - begin,)
    return shapes


def ranges_of(replicas: Replicas, pack: Pack, rank: int) -> list[Range]:
    """The elements of each part of a pack that are a replica's, in its group alone."""
    first = rank % (replicas.count // replicas.groups) * replicas.groups
    return _chunks(replicas, pack, first, first + replicas.groups - 1)


def summed_of(replicas: Replicas, pack: Pack, rank: int) -> list[Range]:
    """Those of `ranges_of` that are a replica's alone: it sums them for all who have them."""
    group, place = divmod(rank, replicas.count // replicas.groups)
    chunk = place * replicas.groups + group
    return _chunks(replicas, pack, chunk, chunk)


def _chunks(replicas: Replicas, pack: Pack, first: int, last: int) -> list[Range]:
    """The elements of each part of a pack that are in some chunks of the all-reduce's ring."""
    sizes = [family.size for family in pack.families]
    width = width_of(pack.reduce.attr["T"].type)
    begins = packed_ranges(sizes, width, replicas.count, first)
    ends = packed_ranges(sizes, width, replicas.count, last)
    return [(begin, max(begin, end)) for (begin, _), (_, end) in zip(begins, ends, strict=True)]


def reduces_over(count: int) -> Callable[[GraphView, Any], bool]:
    """Whether a node is a sum over all replicas."""

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
    """The name of a type, by its number."""
    from tensorflow.python.framework import dtypes

    return str(dtypes.as_dtype(dtype).name)


def width_of(dtype: int) -> int:
    """Bytes of an element of a type, by its number."""
    from tensorflow.python.framework import dtypes

    return int(dtypes.as_dtype(dtype).size)


def groups_of(replicas: int, size: int) -> int | None:
    """In how many groups of a size (0: of all) replicas are; None if they are not."""
    size = size or replicas
    return None if replicas % size else replicas // size


def why_no_groups(replicas: int, size: int) -> str:
    """What an error says where replicas cannot be in groups of a size."""
    sizes = [str(one) for one in range(2, replicas) if replicas % one == 0]
    better = f"{', '.join(sizes)}, or 0 for all of them" if sizes else "0, for all of them"
    return f"it is {size}, which {replicas} replicas are no multiple of; set it to {better}"
