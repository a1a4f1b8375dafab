# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Whether cutting the update of a pack saves more than it costs.

Section 3.2 of Xu et al. (2020), for CPUs: what is saved is the time of the update on the elements
that others take; what it costs is that a reduce-scatter and an all-gather take longer than an
all-reduce, and that there are more operations. The figures are those of `costs.py`, the same on all
replicas, so that all decide alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tf_fuse.shard_update.builder import Shape
from tf_fuse.shard_update.costs import DEFAULTS, Costs
from tf_fuse.shard_update.families import Pack
from tf_fuse.shard_update.waiting import is_sharded


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
      costs: the figures that it is made of.
    """

    saved: float
    cost: float
    passes: int = 0
    gradients: int = 0
    wire: int = 0
    replicas: int = 0
    groups: int = 1
    costs: Costs = DEFAULTS

    def __bool__(self) -> bool:
        """Whether there is one."""
        return self.saved > self.cost

    def __str__(self) -> str:
        """With both figures."""
        return f"it would save {1e3 * self.saved:.2f} ms and cost {1e3 * self.cost:.2f} ms"

    def arithmetic(self) -> str:
        """How both figures come about."""
        costs = self.costs
        return (
            f"saves {1e3 * self.saved:.2f} ms = {costs.operation_ns_per_byte:.3g} ns x "
            f"{self.passes:,} bytes of the update x (1 - {self.groups}/{self.replicas}); "
            f"costs {1e3 * self.cost:.2f} ms = {costs.collective_us / 1e3:.3g} ms + "
            f"{costs.gradient_us:.3g} us x {self.gradients} gradients + "
            f"{costs.wire_ns_per_byte:.3g} ns x {self.wire:,} bytes on the wire"
            + (f" + {costs.share_us / 1e3:.3g} ms" if self.groups > 1 else "")
        )


def profit(
    pack: Pack,
    shapes: Mapping[str, Shape | None],
    width: int,
    replicas: int,
    groups: int = 1,
    is_one: bool = False,
    costs: Costs = DEFAULTS,
) -> Profit:
    """Estimates what cutting a pack saves.

    Args:
      pack: that can be cut.
      shapes: of the function's tensors.
      width: of an element, in bytes.
      replicas: how many take part.
      groups: in how many groups, each of which does the whole update once.
      is_one: whether one operation does the update of a weight, in one pass over memory.
      costs: the figures.

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
    overhead = costs.collective_us + costs.gradient_us * len(pack.families)
    if groups > 1:
        overhead += costs.share_us
    return Profit(
        saved=1e-9 * costs.operation_ns_per_byte * operations * (1 - groups / replicas),
        cost=1e-6 * overhead + 1e-9 * costs.wire_ns_per_byte * wire,
        passes=operations,
        gradients=len(pack.families),
        wire=wire,
        replicas=replicas,
        groups=groups,
        costs=costs,
    )


def leave_unprofitable(
    packs: list[Pack],
    shapes: Mapping[str, Shape | None],
    width: int,
    replicas: int,
    groups: int = 1,
    always: bool = False,
    is_one: bool = False,
    costs: Costs = DEFAULTS,
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
      costs: as of `profit`.
    """
    for pack in filter(is_sharded, packs):
        # (An update in a branch was not looked at from here.)
        if any(family.branches for family in pack.families):
            continue
        estimate = pack.profit = profit(pack, shapes, width, replicas, groups, is_one, costs)
        if not estimate and not always:
            pack.reason, pack.detail = "no_profit", str(estimate)
