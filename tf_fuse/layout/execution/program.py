# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""List what the devices do for a plan, in order, with the bytes that they move.

A program is the plan written out: each operation with its strategy, and the relayouts that bring
its inputs from the layouts in which they are made to those in which it reads them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tf_fuse.layout.operators.random_numbers import STATELESS
from tf_fuse.layout.relayout.redistribution import RelayoutPlan, RelayoutStep, plan_relayout
from tf_fuse.layout.strategies.inner_halos import InnerHalo
from tf_fuse.layout.strategies.insert_forks import SUFFIX
from tf_fuse.layout.strategies.strategy import Strategy
from tf_fuse.layout.types.control_flow import NO_CONTROL_FLOW, ControlFlow
from tf_fuse.layout.types.errors import LayoutError
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
class Program:
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

    @property
    def received_bytes(self) -> int:
        """By all devices together, in one call; without assembling the results."""
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
        """Return the same by operations, and by variables that are written; without zeros.

        Steps with which two relayouts of a tensor begin alike are done once, by the first one.
        """
        done: set[tuple[str, tuple[RelayoutStep, ...]]] = set()

        def received(read: Read) -> int:
            steps = read.relayout.steps if read.relayout else ()
            keys = [(read.tensor, steps[: i + 1]) for i in range(len(steps))]
            found = sum(key[1][-1].received_bytes for key in keys if key not in done)
            done.update(keys)
            return found

        found = {}
        for one in self.instructions:
            inner = sum(each.received_bytes for each in one.strategy.forward)
            found[one.operation.name] = inner + sum(map(received, one.reads))
        for name, write in self.writes.items():
            found[f"{name} kept"] = received(write)
        return {name: size for name, size in found.items() if size}

    def __str__(self) -> str:
        lines = [f"{self.name} on {self.mesh}"]
        for one in self.instructions:
            lines += [f"  {read.relayout}" for read in one.reads if read.relayout]
            lines.append(f"{one.operation}: {one.strategy}")
        lines += [f"{name} kept: {one.relayout or one.layout}" for name, one in self.writes.items()]
        return "\n".join(lines)


def program_of(plan: FunctionPlan) -> Program:
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
        if control_flow.reads_locally(one):
            _check_local(one, strategy, reads)
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
    return Program(
        plan.function.name, plan.rates.mesh, tuple(instructions), writes, results, observed,
        control_flow, carried,
    )  # fmt: skip


def _check_local(one: Operation, strategy: Strategy, reads: Sequence[Read]) -> None:
    """Check that an operation within a loop or conditional needs nothing of other devices.

    Raises:
      LayoutError: it does.
    """
    asks = [str(each) for each in strategy.forward]
    asks += [str(read.relayout) for read in reads if read.relayout and read.relayout.received_bytes]
    if asks:
        raise LayoutError(
            f"{one} as {strategy} is within a loop or conditional, where devices do not "
            f"communicate, and needs {asks[0]}; drop the pins that lead to it"
        )
