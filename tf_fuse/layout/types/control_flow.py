# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Define which operations lie in the bodies of loops and conditionals.

A plan has one list of operations, with those of bodies among them. Where a value comes in there is
an `Enter`, where a loop's value comes out an `Exit`, and where those of two branches meet a
`Merge`. A block is a loop's condition or body, or a branch. The predicate is the same on all
devices, since no strategy of a `LoopCond` splits it or leaves it partial. So they run the same
blocks as often, and can communicate within them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Set
from functools import cached_property
from typing import Final

from tf_fuse.layout.types.operation import Operation

ENTER: Final = "Enter"
EXIT: Final = "Exit"
MERGE: Final = "Merge"
PREDICATE: Final = "LoopCond"
# The block of operations that are in no body.
OUTSIDE: Final = ""
# How often a loop runs for costs and bytes, if the count is not known before.
ASSUMED_TRIPS: Final = 10


@dataclasses.dataclass(frozen=True)
class Region:
    """A loop or a conditional.

    Attributes:
      name: of TensorFlow's operation.
      parent: the block that it is in.
      blocks: condition and body of a loop; what runs if the predicate is true, and if not.
      predicate: the tensor that decides; a loop's is made in its first block.
      carried: of a loop, for each value that changes, the tensor that the body reads, and the one
        that it becomes; none of a conditional.
      begins: names of the operations `Enter`.
      ends: names of the operations `Exit` or `Merge`.
      trips: how often the body of a loop runs, `ASSUMED_TRIPS` if it is not known; 1 of a
        conditional.
    """

    name: str
    parent: str
    blocks: tuple[str, str]
    predicate: str
    carried: tuple[tuple[str, str], ...] = ()
    begins: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    trips: int = 1


@dataclasses.dataclass(frozen=True)
class ControlFlow:
    """The loops and conditionals of a function.

    Attributes:
      regions: in their order; one within another after it.
      blocks: of each operation that is in one, by its name.
    """

    regions: tuple[Region, ...] = ()
    blocks: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @cached_property
    def by_block(self) -> dict[str, Region]:
        """The region of each block."""
        return {block: one for one in self.regions for block in one.blocks}

    @cached_property
    def by_end(self) -> dict[str, Region]:
        """The region of each `Exit` and `Merge`."""
        return {end: one for one in self.regions for end in one.ends}

    @cached_property
    def begins(self) -> frozenset[str]:
        """The names of all `Enter`."""
        return frozenset(name for one in self.regions for name in one.begins)

    def block(self, operation: str) -> str:
        """Return the block of an operation."""
        return self.blocks.get(operation, OUTSIDE)

    def repeats(self, operation: str) -> int:
        """Return how often an operation runs in a call of the function; both branches do."""
        return self.times(self.block(operation))

    def times(self, block: str) -> int:
        """Return how often a block runs in a call of the function."""
        count = 1
        while block != OUTSIDE:
            region = self.by_block[block]
            # The condition runs once more, when the loop ends.
            ends = bool(region.carried) and block == region.blocks[0]
            count *= region.trips + ends
            block = region.parent
        return count

    def reads_in_body(self, operation: Operation) -> bool:
        """Return whether an operation reads its inputs within a block."""
        return operation.kind == MERGE or self.block(operation.name) != OUTSIDE

    def reading_block(self, operation: Operation, number: int) -> str:
        """Return the block in which an operation reads an input; a `Merge` reads in branches."""
        if operation.kind == MERGE:
            return self.by_end[operation.name].blocks[number]
        return self.block(operation.name)

    def of(self, operations: Iterable[Operation], forks: str) -> ControlFlow:
        """Return the same with the blocks of forks, which are those of what they copy.

        Args:
          operations: with forks.
          forks: the end of their names.
        """
        makers: dict[str, str] = {}
        blocks = dict(self.blocks)
        for one in operations:
            if one.name.endswith(forks) and one.name not in blocks:
                maker = makers.get(one.inputs[0].name, "")
                if maker in blocks:
                    blocks[one.name] = blocks[maker]
            makers.update((tensor.name, one.name) for tensor in one.outputs)
        return ControlFlow(self.regions, blocks)

    def needed(self, kept: Set[str], tensors: Collection[str]) -> set[str]:
        """Return tensors that kept operations need, beside their inputs.

        Args:
          kept: names of operations.
          tensors: that they make.
        """
        inside = {self.block(name) for name in kept}
        found = set()
        for one in self.regions:
            if not inside.isdisjoint(one.blocks) or not kept.isdisjoint(one.ends):
                found.add(one.predicate)
            found.update(last for entered, last in one.carried if entered in tensors)
        return found

    def only(self, kept: Collection[str], tensors: Collection[str]) -> ControlFlow:
        """Return the same of the operations that are kept; arguments are those of `needed`."""
        regions = [
            dataclasses.replace(
                one,
                carried=tuple(pair for pair in one.carried if pair[0] in tensors),
                begins=tuple(name for name in one.begins if name in kept),
                ends=tuple(name for name in one.ends if name in kept),
            )
            for one in self.regions
            if one.predicate in tensors
        ]
        blocks = {name: block for name, block in self.blocks.items() if name in kept}
        return ControlFlow(tuple(regions), blocks)


NO_CONTROL_FLOW: Final = ControlFlow()
