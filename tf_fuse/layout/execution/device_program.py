# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""List what the devices do for a plan, in order, with the bytes that they move.

A program is the plan written out: each operation with its strategy, and the relayouts that bring
its inputs from the layouts in which they are made to those in which it reads them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from tf_fuse.layout.operators.random_numbers import STATELESS
from tf_fuse.layout.relayout.redistribution import RelayoutPlan, RelayoutStep, plan_relayout
from tf_fuse.layout.strategies.inner_halos import InnerHalo
from tf_fuse.layout.strategies.insert_forks import SUFFIX
from tf_fuse.layout.strategies.strategy import Strategy
from tf_fuse.layout.types.control_flow import NO_CONTROL_FLOW, OUTSIDE, ControlFlow
from tf_fuse.layout.types.mesh import Mesh
from tf_fuse.layout.types.operation import Operation, Tensor
from tf_fuse.layout.types.tensor_layout import TensorLayout

if TYPE_CHECKING:
    from tf_fuse.layout.planning.pipeline import FunctionPlan


@dataclasses.dataclass(frozen=True)
class Read:
    """A tensor that is read.

    Attributes:
      tensor: its name.
      layout: in which it is read.
      relayout: that brings it there; None where it lies so already.
    """

    tensor: str
    layout: TensorLayout
    relayout: RelayoutPlan | None


@dataclasses.dataclass(frozen=True)
class Instruction:
    """An operation, as all devices run it.

    Attributes:
      operation: with its whole tensors, as without a mesh.
      strategy: how it is run.
      reads: its inputs.
    """

    operation: Operation
    strategy: Strategy
    reads: tuple[Read, ...]


@dataclasses.dataclass(frozen=True)
class DeviceProgram:
    """The operations of all devices, in order.

    Attributes:
      name: of the function.
      mesh: the devices.
      instructions: in their order.
      writes: by name of a variable, what it holds in the end, in its layout.
      results: by name of a tensor that is returned, the tensor that has its value, as it lies.
      observed: the same of tensors that are read beside the plan, as by checks and prints.
      control_flow: the loops and conditionals that some instructions are in.
      carried: by name of a tensor that the body of a loop reads, what it becomes there.
    """

    name: str
    mesh: Mesh
    instructions: tuple[Instruction, ...]
    writes: Mapping[str, Read]
    results: Mapping[str, Read]
    observed: Mapping[str, Read]
    control_flow: ControlFlow = NO_CONTROL_FLOW
    carried: Mapping[str, Read] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def by_name(self) -> dict[str, Instruction]:
        """The instructions, by names of their operations."""
        return {one.operation.name: one for one in self.instructions}

    @functools.cached_property
    def blocks(self) -> dict[str, list[Instruction]]:
        """The instructions of each block, in their order."""
        found: dict[str, list[Instruction]] = {}
        for one in self.instructions:
            found.setdefault(self.control_flow.block(one.operation.name), []).append(one)
        return found

    @functools.cached_property
    def communicating(self) -> frozenset[str]:
        """The names of loops and conditionals in which devices communicate."""
        return self._around(block for _, block, received in self._received() if received)

    @functools.cached_property
    def drawing(self) -> frozenset[str]:
        """The names of loops and conditionals with draws that the number of the call seeds."""
        names = (one.operation.name for one in self.instructions if one.operation.kind in STATELESS)
        return self._around(map(self.control_flow.block, names))

    def _around(self, blocks: Iterable[str]) -> frozenset[str]:
        """Return the names of the loops and conditionals that blocks are in."""
        found = set()
        for block in blocks:
            while block != OUTSIDE:
                region = self.control_flow.by_block[block]
                found.add(region.name)
                block = region.parent
        return frozenset(found)

    @property
    def received_bytes(self) -> int:
        """By all devices together, in one call; without assembling the results.

        A loop whose count is not known runs `ASSUMED_TRIPS` times, and both branches of a
        conditional count.
        """
        return sum(self.received_bytes_by_operation().values())

    @functools.cached_property
    def draws(self) -> bool:
        """Whether it draws random numbers that the number of the call seeds."""
        return any(one.operation.kind in STATELESS for one in self.instructions)

    @property
    def halo_axes(self) -> list[tuple[str, ...]]:
        """The axes over which neighbours exchange rows within operations, sorted."""
        inner = (each for one in self.instructions for each in one.strategy.forward)
        return sorted({one.axes for one in inner if isinstance(one, InnerHalo)})

    def received_bytes_by_operation(self) -> dict[str, int]:
        """Return the same by operations, and by variables that are written; without zeros."""
        found: dict[str, int] = {}
        for name, block, received in self._received():
            found[name] = found.get(name, 0) + self.control_flow.times(block) * received
        return {name: size for name, size in found.items() if size}

    def _received(self) -> Iterator[tuple[str, str, int]]:
        """Return who receives bytes, in which block, and how many when that runs once.

        Steps with which two relayouts of a tensor in a block begin alike are done once, by the
        first one.
        """
        done: set[tuple[str, str, tuple[RelayoutStep, ...]]] = set()

        def received(read: Read, block: str) -> int:
            steps = read.relayout.steps if read.relayout else ()
            keys = [(block, read.tensor, steps[: i + 1]) for i in range(len(steps))]
            found = sum(key[2][-1].received_bytes for key in keys if key not in done)
            done.update(keys)
            return found

        for one in self.instructions:
            name, flow = one.operation.name, self.control_flow
            inner = sum(each.received_bytes for each in one.strategy.forward)
            yield name, flow.block(name), inner
            for i, read in enumerate(one.reads):
                block = flow.reading_block(one.operation, i)
                yield name, block, received(read, block)
        for region in self.control_flow.regions:
            for entered, _ in region.carried:
                body = region.blocks[1]
                yield f"{entered} carried", body, received(self.carried[entered], body)
        for name, write in self.writes.items():
            yield f"{name} kept", OUTSIDE, received(write, OUTSIDE)

    def __str__(self) -> str:
        lines = [f"{self.name} on {self.mesh}"]
        for one in self.instructions:
            lines += [f"  {read.relayout}" for read in one.reads if read.relayout]
            lines.append(f"{one.operation}: {one.strategy}")
        lines += [f"{name} kept: {one.relayout or one.layout}" for name, one in self.writes.items()]
        return "\n".join(lines)


def program_of(plan: FunctionPlan) -> DeviceProgram:
    """Write a plan out.

    Args:
      plan: with the steps and links of its relayouts.
    """
    made: dict[str, tuple[Tensor, TensorLayout]] = {}

    def read(name: str, layout: TensorLayout) -> Read:
        tensor, source = made[name]
        if source == layout:
            return Read(name, layout, None)
        links = plan.rates.links
        return Read(
            name, layout, plan_relayout(source, layout, tensor.item_bytes, links, plan.steps)
        )

    instructions = []
    control_flow = plan.function.control_flow.of(plan.graph.operations, SUFFIX)
    for one, strategy in zip(plan.graph.operations, plan.graph.chosen(plan.plan), strict=True):
        both = zip(one.inputs, strategy.inputs, strict=True)
        reads = tuple(read(tensor.name, layout) for tensor, layout in both)
        instructions.append(Instruction(one, strategy, reads))
        for tensor, layout in zip(one.outputs, strategy.outputs, strict=True):
            made[tensor.name] = tensor, layout

    def as_it_lies(name: str) -> Read:
        result = f"result {name}"
        return read(result, made[result][1])

    results = {name: as_it_lies(name) for name in plan.function.results}
    observed = {name: as_it_lies(name) for name in plan.function.observed}
    writes = {
        variable: read(tensor, made[variable][1]) for variable, tensor in plan.function.writes
    }
    carried = {
        entered: read(last, made[entered][1])
        for one in control_flow.regions
        for entered, last in one.carried
    }
    return DeviceProgram(
        plan.function.name, plan.rates.mesh, tuple(instructions), writes, results, observed,
        control_flow, carried,
    )  # fmt: skip
