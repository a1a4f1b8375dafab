# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whether cutting the update of a pack saves more than it costs.

Section 3.2 of Xu et al. (2020), for CPUs: what is saved is the time of the update on the elements
that others take; what it costs is that a reduce-scatter and an all-gather take longer than an
all-reduce, and that there are more operations. The figures are fixed, so that all replicas decide
alike; they are rounded from measurements on a machine with two cores, to the side on which nothing
is cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.families import Pack
from tf_fuse.shard_update.waiting import is_sharded

# An elementwise operation, per byte of its result, on one of two cores.
_OPERATION_S_PER_BYTE = 0.08e-9
# Reduce-scatter and all-gather in place of an all-reduce, per byte: between two replicas the shard
# is half of the vector, and a tensor of its own; between more it makes no difference.
_WIRE_S_PER_BYTE = 0.15e-9
_COLLECTIVE_S = 0.5e-3
# One exchange more, if there are several groups: the sums go to all that hold them.
_SHARE_S = 0.2e-3
_GRADIENT_S = 30e-6


@dataclass(frozen=True)
class Profit:
    """An estimate for one step.

    Attributes:
      saved: seconds of the update that others take.
      cost: seconds that are spent for that.
      passes: bytes of all results and assignments of the update.
      gradients: how many the pack has.
      wire: bytes for which two collectives take longer than one.
      replicas: how many take part.
      groups: into how many groups they are divided.
    """

    saved: float
    cost: float
    passes: int = 0
    gradients: int = 0
    wire: int = 0
    replicas: int = 0
    groups: int = 1

    def __bool__(self) -> bool:
        """Whether there is one."""
        return self.saved > self.cost

    def __str__(self) -> str:
        """With both figures."""
        return f"it would save {1e3 * self.saved:.2f} ms and cost {1e3 * self.cost:.2f} ms"

    def arithmetic(self) -> str:
        """How both figures come about."""
        return (
            f"saves {1e3 * self.saved:.2f} ms = {1e9 * _OPERATION_S_PER_BYTE:g} ns x "
            f"{self.passes:,} bytes of the update x (1 - {self.groups}/{self.replicas}); "
            f"costs {1e3 * self.cost:.2f} ms = {1e3 * _COLLECTIVE_S:g} ms + "
            f"{1e6 * _GRADIENT_S:g} us x {self.gradients} gradients + "
            f"{1e9 * _WIRE_S_PER_BYTE:g} ns x {self.wire:,} bytes on the wire"
            + (f" + {1e3 * _SHARE_S:g} ms" if self.groups > 1 else "")
        )


def profit(
    pack: Pack,
    shapes: Mapping[str, Shape | None],
    width: int,
    replicas: int,
    groups: int = 1,
    is_one: bool = False,
) -> Profit:
    """Estimates what cutting a pack saves.

    Args:
      pack: that can be cut.
      shapes: of the function's tensors.
      width: of an element, in bytes.
      replicas: how many take part.
      groups: in how many groups, each of which does the whole update once.
      is_one: whether one operation does the update of a weight, in one pass over memory.

    Returns:
      The estimate. A pack that cannot be cut has none to make.
    """
    operations = 0
    for family in pack.families:
        if family.reason is None:
            whole = [t for t in family.members if math.prod(shapes.get(t) or ()) == family.size]
            # What is assigned is a pass over memory, too.
            passes = len(whole) + len(family.sinks)
            if is_one:  # The gradient is read; the weight and its slots are read and written.
                passes = min(passes, 1 + 2 * len({*family.weights, *family.slots}))
            operations += width * family.size * passes
    total = width * sum(family.size for family in pack.families)
    wire = total if replicas == 2 else 0
    share = _SHARE_S if groups > 1 else 0.0
    return Profit(
        saved=_OPERATION_S_PER_BYTE * operations * (1 - groups / replicas),
        cost=_COLLECTIVE_S + _GRADIENT_S * len(pack.families) + _WIRE_S_PER_BYTE * wire + share,
        passes=operations,
        gradients=len(pack.families),
        wire=wire,
        replicas=replicas,
        groups=groups,
    )


def leave_unprofitable(
    packs: list[Pack],
    shapes: Mapping[str, Shape | None],
    width: int,
    replicas: int,
    groups: int = 1,
    always: bool = False,
    is_one: bool = False,
) -> None:
    """Notes what packs would save, and leaves those alone that would take longer if they were cut.

    Args:
      packs: of a function.
      shapes: of its tensors.
      width: of an element, in bytes.
      replicas: how many take part.
      groups: as of `profit`.
      always: whether to leave none alone.
      is_one: as of `profit`.
    """
    for pack in filter(is_sharded, packs):
        # (An update in a branch was not looked at from here.)
        if any(family.branches for family in pack.families):
            continue
        estimate = pack.profit = profit(pack, shapes, width, replicas, groups, is_one)
        if not estimate and not always:
            pack.reason, pack.detail = "no_profit", str(estimate)
