# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""The parts of variables that a replica has in their place; see `bundle.py`."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tf_fuse.shard_update.named import Named, aside
from tf_fuse.shard_update.slot import Slot, window

# Behind the name of a part: what it was before it was cut anew.
KEPT = "/kept"
# What a bundle tells the other replicas.
MARKS = ("begun", "ended", "overwritten", "taken")


@dataclass(frozen=True)
class Held:
    """What all replicas have of one variable of the optimizer, or of a weight.

    Attributes:
      shape: of the whole.
      dtype: of it.
      owns: of each replica, its first element, and the one behind its last.
      groups: of consecutive replicas, as many in each, that have all elements once.
      is_weight: whether it is a weight, and not of the optimizer.
    """

    shape: tuple[int, ...]
    dtype: Any
    owns: tuple[tuple[int, int], ...]
    groups: int = 1
    is_weight: bool = False

    @classmethod
    def of(cls, slot: Slot) -> Held:
        """What is held of a slot."""
        from tensorflow.python.framework import dtypes

        dtype = dtypes.as_dtype(slot.dtype)
        return cls(slot.shape, dtype, slot.owns, slot.groups, slot.is_weight)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Of the whole."""
        return self.size * int(self.dtype.size)

    def range(self, rank: int) -> tuple[int, int]:
        """The elements that a replica's part has: its own, and whole registers around them."""
        return window(self.owns[rank], self.size)


class Replica:
    """The parts of one replica of this process, and the variables that they are of."""

    def __init__(self, scope: str, held: Sequence[Held], handles: Sequence[Any], rank: int,
                 device: str):  # fmt: skip
        self.rank, self.device, self.held = rank, device, held
        self.refs = [weakref.ref(handle) for handle in handles]
        self.parts = []
        for i, one in enumerate(held):
            begin, end = one.range(rank)
            self.parts.append(Named(part_name(scope, i), one.dtype, [end - begin], device))
        self.kept: list[Named] = []

    def keep(self) -> None:
        """Has others find what the parts have now, whatever they get."""
        if not self.kept:  # (A step that failed has kept them already.)
            for part, one in zip(self.parts, self.held, strict=True):
                kept = Named(f"{part.name}{KEPT}", one.dtype, [], self.device)
                kept.assign(part.read())
                self.kept.append(kept)

    def cut(self) -> None:
        """Gives the parts the variables' values."""
        for part, own in zip(self.parts, self._own_parts(), strict=True):
            part.assign(own)

    def has_moved(self) -> bool:
        """Whether the parts have other values than the variables."""
        import numpy as np

        def bits(tensor: Any) -> Any:
            return np.ascontiguousarray(np.asarray(tensor)).view(np.uint8)

        return any(
            not np.array_equal(bits(part.read()), bits(own))
            for part, own in zip(self.parts, self._own_parts(), strict=True)
        )

    def _own_parts(self) -> list[Any]:
        from tensorflow.python.ops import array_ops, gen_resource_variable_ops

        found = []
        with aside(self.device):
            for part, one, ref in zip(self.parts, self.held, self.refs, strict=True):
                handle = ref()
                if handle is None:
                    found.append(part.read())
                    continue
                begin, end = one.range(self.rank)
                value = gen_resource_variable_ops.read_variable_op(handle, one.dtype)
                found.append(
                    array_ops.slice(array_ops.reshape(value, [-1]), [begin], [end - begin])
                )
        return found

    def assign(self, index: int, value: Any) -> None:
        """Gives a variable its whole value."""
        from tensorflow.python.ops import gen_resource_variable_ops

        handle = self.refs[index]()
        if handle is not None:
            with aside(self.device):
                gen_resource_variable_ops.assign_variable_op(handle, value)

    def release(self) -> None:
        """Frees the variables' own values."""
        from tf_fuse import _native

        with aside(self.device):
            for ref in self.refs:
                handle = ref()
                if handle is not None:
                    _native.load().tf_fuse_release_variable(handle)

    def free(self) -> None:
        """Frees what was kept for others."""
        for kept in self.kept:
            kept.destroy()
        self.kept.clear()


def part_name(scope: str, slot: int) -> str:
    """Shared name of a part."""
    return f"{scope}/{slot}"


def mark_name(scope: str, mark: str) -> str:
    """Shared name of a bundle's mark, one of MARKS: the version that it is of.

    Where nothing is overwritten, that of "overwritten" is -1 - the steps that have ended.
    """
    return f"{scope}/{mark}"
