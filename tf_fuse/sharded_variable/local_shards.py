# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Store a replica's shards in place of whole variables; see `shard_group.py`."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from tf_fuse.sharded_variable.named_variables import Named, aside
from tf_fuse.sharded_variable.shard_spec import ShardSpec, window

# Follows the name of a shard: what it was before it was sharded anew.
KEPT = "/kept"
# What a shard group tells the other replicas.
MARKS = ("begun", "ended", "overwritten", "taken")
# For each replica, the version of its shards that this process was handed when that one left; -1 if
# it was handed none, and -2 - the version (`unsure`) if that one has begun another step.
INHERITED = "inherited"


@dataclass(frozen=True)
class ShardRanges:
    """What all replicas have of one variable of the optimizer, or of a weight.

    Attributes:
      shape: of the whole.
      dtype: of it.
      owns: of each replica, its first element, and the one after its last.
      groups: of consecutive replicas, as many in each, that have all elements once.
      is_weight: whether it is a weight, and not of the optimizer.
    """

    shape: tuple[int, ...]
    dtype: Any
    owns: tuple[tuple[int, int], ...]
    groups: int = 1
    is_weight: bool = False

    @classmethod
    def of(cls, shard: ShardSpec) -> ShardRanges:
        """Return what is held of a shard."""
        from tensorflow.python.framework import dtypes

        dtype = dtypes.as_dtype(shard.dtype)
        return cls(shard.shape, dtype, shard.owns, shard.groups, shard.is_weight)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Of the whole."""
        return self.size * int(self.dtype.size)

    def range(self, rank: int) -> tuple[int, int]:
        """Return the elements of a replica's shard: its own, and whole registers around them."""
        return window(self.owns[rank], self.size)


#: What errors say that the handle of such a variable points to.
TYPE_NAME: Final = (
    "tensorflow::Var, unless tf_fuse (shard_weight_update) has its value in shards; then ask the "
    "variable for its handle again, in each step"
)


class LocalShards:
    """The shards of one replica of this process, and the variables that they are of."""

    def __init__(self, scope: str, held: Sequence[ShardRanges], handles: Sequence[Any], rank: int,
                 device: str):  # fmt: skip
        self.rank, self.device, self.held = rank, device, held
        self.refs = [weakref.ref(handle) for handle in handles]
        self.shards = []
        for i, one in enumerate(held):
            begin, end = one.range(rank)
            self.shards.append(Named(shard_name(scope, i), one.dtype, [end - begin], device))
        self.kept: list[Named] = []

    def keep(self) -> None:
        """Keep what the shards contain now for readers of other processes."""
        if not self.kept:  # (A step that failed has kept them already.)
            every = []
            for shard, one in zip(self.shards, self.held, strict=True):
                kept = Named(f"{shard.name}{KEPT}", one.dtype, [], self.device)
                kept.assign(shard.read())
                every.append(kept)
            self.kept = every  # At once: another thread may hand them over.

    def shard(self) -> None:
        """Give the shards the variables' values."""
        for shard, own in zip(self.shards, self._own_slices(), strict=True):
            shard.assign(own)

    def has_moved(self) -> bool:
        """Return whether the shards have other values than the variables."""
        import numpy as np

        def bits(tensor: Any) -> Any:
            return np.ascontiguousarray(np.asarray(tensor)).view(np.uint8)

        return any(
            not np.array_equal(bits(shard.read()), bits(own))
            for shard, own in zip(self.shards, self._own_slices(), strict=True)
        )

    def _own_slices(self) -> list[Any]:
        from tensorflow.python.ops import array_ops, gen_resource_variable_ops

        found = []
        with aside(self.device):
            for shard, one, ref in zip(self.shards, self.held, self.refs, strict=True):
                handle = ref()
                if handle is None:
                    found.append(shard.read())
                    continue
                begin, end = one.range(self.rank)
                value = gen_resource_variable_ops.read_variable_op(handle, one.dtype)
                found.append(
                    array_ops.slice(array_ops.reshape(value, [-1]), [begin], [end - begin])
                )
        return found

    def assign(self, index: int, value: Any) -> None:
        """Give a variable its whole value."""
        from tf_fuse import _native

        handle = self.refs[index]()
        if handle is not None:
            with aside(self.device):
                _native.load().tf_fuse_open_variable(handle, value)

    def release(self) -> None:
        """Free the variables' own values; whoever has kept a handle gets an error."""
        from tf_fuse import _native

        with aside(self.device):
            for ref in self.refs:
                handle = ref()
                if handle is not None:
                    _native.load().tf_fuse_close_variable(handle, type_name=TYPE_NAME)

    def shown(self) -> list[str]:
        """Return the names of what others find: of the shards, or of what was kept of them."""
        return [named.name for named in self.kept or self.shards]

    def free(self) -> None:
        """Free what was kept for others."""
        every, self.kept = self.kept, []
        for kept in every:
            kept.destroy()


def shard_name(scope: str, shard: int) -> str:
    """Shared name of a shard."""
    return f"{scope}/{shard}"


def inherited_name(scope: str, shard: int, rank: int) -> str:
    """Shared name, in another process, of the shard that a replica has handed over."""
    return f"{shard_name(scope, shard)}/of/{rank}"


def mark_name(scope: str, mark: str) -> str:
    """Shared name of a shard group's mark, INHERITED or one of MARKS: the version that it is of.

    Where nothing is overwritten, that of "overwritten" is -1 - the steps that have ended.
    """
    return f"{scope}/{mark}"


def unsure(version: int) -> int:
    """Return the mark of shards whose replica has begun another step, or may have, unnoticed."""
    return -2 - version


def version_of(mark: int) -> int:
    """Return the version of shards that were handed over, given their mark; -1 of none."""
    return mark if mark >= -1 else -2 - mark


def usable(marks: Sequence[int], version: int, has_begun: bool) -> list[int]:
    """Return the replicas whose shards, as handed to a process, belong to those of others.

    Shards change in a step that all replicas have begun. So if a replica is known not to have begun
    it, all shards are of the version before, also those of replicas that are in that step.

    Args:
      marks: of the process, one for each replica.
      version: the last step that has ended where they are read.
      has_begun: whether that one has begun another step.
    """
    if has_begun and version not in marks:
        return [rank for rank, mark in enumerate(marks) if mark >= version]
    return [rank for rank, mark in enumerate(marks) if version_of(mark) >= version]
