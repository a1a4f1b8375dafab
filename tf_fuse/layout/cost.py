# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""What strategies and the relayouts between them cost, in seconds.

The time of a step is the sum of two kinds of terms, so that a search can add them up:

* an operation with a strategy: its floating-point operations, the bytes that it reads and writes, a
  constant, and the collectives within it; all of it again for its gradient;
* an edge, from where a tensor is made to where it is read: the relayout of the tensor, and that of
  its gradient on the way back.

The sum of compute and memory traffic is at most twice what takes longer of the two, and is linear
in what is measured (`tf_fuse.layout.calibration`). Each reader's gradient is relayouted by itself;
readers that could add theirs before are charged one by one.

Nothing waits for the gradient of a parameter but its update. While it is reduced, the backward pass
goes on: `Rates.overlap` is the share of this time that is not seen.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping

from tf_fuse.layout import links as link_module
from tf_fuse.layout.errors import LayoutError, raise_if
from tf_fuse.layout.links import Link, slowest
from tf_fuse.layout.mesh import Mesh
from tf_fuse.layout.operation import Operation, Tensor
from tf_fuse.layout.redistribution import RelayoutPlan, plan_relayout
from tf_fuse.layout.steps import ALL_STEPS, StepSet
from tf_fuse.layout.strategy import Collective, Strategy
from tf_fuse.layout.tensor_layout import TensorLayout


@dataclasses.dataclass(frozen=True)
class Rates:
    """How fast the devices of a mesh compute and communicate.

    Attributes:
      mesh: the devices.
      links: (axis, link), sorted. A mapping will do.
      seconds_per_flop: of a device.
      seconds_per_byte: that an operation reads or writes in a device's memory.
      seconds_per_operation: for each, however small.
      overlap: share of the time of reducing parameters' gradients that the backward pass hides.
    """

    mesh: Mesh
    links: tuple[tuple[str, Link], ...]
    seconds_per_flop: float
    seconds_per_byte: float = 0.0
    seconds_per_operation: float = 0.0
    overlap: float = 0.0

    def __init__(
        self,
        mesh: Mesh,
        links: Mapping[str, Link] | Iterable[tuple[str, Link]],
        seconds_per_flop: float,
        seconds_per_byte: float = 0.0,
        seconds_per_operation: float = 0.0,
        overlap: float = 0.0,
    ):
        """Checks the rates.

        Raises:
          LayoutError: an axis has no link, or there is none for it; a rate is negative or no finite
            number; the overlap is not between 0 and 1.
        """
        by_axis = dict(links)
        link_module.of_mesh(mesh, by_axis)
        seconds = {
            "seconds_per_flop": seconds_per_flop,
            "seconds_per_byte": seconds_per_byte,
            "seconds_per_operation": seconds_per_operation,
        }
        problems = [
            f"{name} is a finite number, 0 or more, got {value!r}"
            for name, value in seconds.items()
            if not (_is_number(value) and value >= 0)
        ]
        if not (_is_number(overlap) and 0 <= overlap <= 1):
            problems.append(f"overlap is a share, from 0 to 1, got {overlap!r}")
        raise_if(problems)
        object.__setattr__(self, "mesh", mesh)
        object.__setattr__(self, "links", tuple(sorted(by_axis.items())))
        for name, value in {**seconds, "overlap": overlap}.items():
            object.__setattr__(self, name, value)

    def compute(self, flops: float, touched_bytes: float, operations: int = 1) -> float:
        """Seconds of operations on one device."""
        return (
            self.seconds_per_operation * operations
            + self.seconds_per_flop * flops
            + self.seconds_per_byte * touched_bytes
        )

    def collective(self, one: Collective) -> float:
        """Seconds of an all-reduce within an operation."""
        by_axis = dict(self.links)
        link = slowest(by_axis[axis] for axis in one.axes)
        # As `steps.Space.handling` has it: a sum of what the members hold.
        members = math.prod(map(self.mesh.size_of, one.axes))
        touched = one.held_bytes * (1 + 1 / members)
        return link.seconds(one.received_bytes / self.mesh.size, one.messages, 1, touched)


@dataclasses.dataclass(frozen=True)
class OperationCost:
    """What an operation costs with a strategy.

    Attributes:
      forward_compute: seconds.
      forward_communication: seconds within it.
      backward_compute: seconds of its gradient.
      backward_communication: seconds within its gradient.
      received_bytes: by all devices together, within it and its gradient.
    """

    forward_compute: float
    forward_communication: float
    backward_compute: float
    backward_communication: float
    received_bytes: int

    @property
    def seconds(self) -> float:
        """All together."""
        return (
            self.forward_compute
            + self.forward_communication
            + self.backward_compute
            + self.backward_communication
        )


def operation_cost(strategy: Strategy, rates: Rates, training: bool = True) -> OperationCost:
    """What an operation costs with a strategy.

    Args:
      strategy: of the operation.
      rates: of the devices.
      training: whether its gradient is computed, too.

    Raises:
      LayoutError: the strategy is for another mesh than the rates.
    """
    for layout in (*strategy.inputs, *strategy.outputs)[:1]:
        _check_mesh(layout.mesh, rates)
    touched = strategy.input_bytes + strategy.output_bytes + 2 * strategy.temporary_bytes
    # It reads the inputs and the outputs' gradients, and writes the inputs' gradients.
    touched_back = 2 * strategy.input_bytes + strategy.output_bytes + 2 * strategy.temporary_bytes
    if strategy.view:
        touched = touched_back = 0
    back = training and any(strategy.input_gradients)
    collectives = [*strategy.forward, *(strategy.backward if back else ())]
    # A source runs nothing.
    runs = bool(strategy.inputs)
    return OperationCost(
        rates.compute(strategy.flops, touched, strategy.operations) if runs else 0.0,
        math.fsum(map(rates.collective, strategy.forward)),
        rates.compute(strategy.backward_flops, touched_back, strategy.operations) if back else 0.0,
        math.fsum(map(rates.collective, strategy.backward)) if back else 0.0,
        sum(one.received_bytes for one in collectives),
    )


@dataclasses.dataclass(frozen=True)
class EdgeCost:
    """What it costs to bring a tensor from where it is made to where it is read, and its gradient.

    Attributes:
      forward: the relayout of the tensor.
      backward: the relayout of its gradient; None where there is none.
      hidden: share of the backward relayout's time that is not seen.
    """

    forward: RelayoutPlan
    backward: RelayoutPlan | None
    hidden: float = 0.0

    @property
    def seconds(self) -> float:
        """Time of both, less what is hidden."""
        back = self.backward.seconds if self.backward else 0.0
        return self.forward.seconds + back * (1.0 - self.hidden)

    @property
    def received_bytes(self) -> int:
        """By all devices together, of both."""
        return self.forward.received_bytes + (self.backward.received_bytes if self.backward else 0)


def edge_cost(
    tensor: Tensor,
    maker: tuple[Strategy, int],
    reader: tuple[Strategy, int],
    rates: Rates | None = None,
    training: bool = True,
    allowed: StepSet = ALL_STEPS,
) -> EdgeCost:
    """What it costs to bring a tensor from one operation to another, and its gradient back.

    Args:
      tensor: that is brought.
      maker: the strategy of the operation that makes it, and which of the outputs it is.
      reader: the strategy of the operation that reads it, and which of the inputs it is.
      rates: of the devices; without, relayouts are those with the fewest bytes and take no time.
      training: whether gradients go back.
      allowed: steps of relayouts.

    Raises:
      LayoutError: the two are on meshes of other devices, or of another one than the rates.
    """
    made, needed = maker[0].outputs[maker[1]], maker[0].output_gradients[maker[1]]
    read, given = reader[0].inputs[reader[1]], reader[0].input_gradients[reader[1]]
    if rates is not None:
        _check_mesh(made.mesh, rates)
    links = None if rates is None else dict(rates.links)
    back = None
    if training and given is not None and needed is not None:
        back = plan_relayout(given, needed, tensor.item_bytes, links, allowed)
    return EdgeCost(
        plan_relayout(made, read, tensor.item_bytes, links, allowed),
        back,
        rates.overlap if rates is not None and tensor.parameter else 0.0,
    )


@dataclasses.dataclass(frozen=True)
class GradientReduction:
    """How a partial gradient becomes whole, split as the input is.

    Attributes:
      input: its number.
      plan: from the layout in which it is made.
      hidden: share of its time that is not seen.
    """

    input: int
    plan: RelayoutPlan
    hidden: float

    @property
    def seconds(self) -> float:
        """Time, less what is hidden."""
        return self.plan.seconds * (1.0 - self.hidden)


def gradient_reductions(
    operation: Operation, strategy: Strategy, rates: Rates | None = None
) -> tuple[GradientReduction, ...]:
    """What is to be reduced behind the gradient of an operation that is looked at alone.

    In a graph, `edge_cost` has these, and they go directly to where the gradient is needed.

    Args:
      operation: whose gradient it is.
      strategy: of the operation.
      rates: of the devices; without, relayouts take no time.
    """
    links = None if rates is None else dict(rates.links)
    found = []
    for i, (tensor, gradient) in enumerate(
        zip(operation.inputs, strategy.input_gradients, strict=True)
    ):
        if gradient is None or not gradient.partial:
            continue
        whole = TensorLayout(gradient.mesh, gradient.shape, gradient.splits)
        plan = plan_relayout(gradient, whole, tensor.item_bytes, links)
        hidden = rates.overlap if rates is not None and tensor.parameter else 0.0
        found.append(GradientReduction(i, plan, hidden))
    return tuple(found)


def _check_mesh(mesh: Mesh, rates: Rates) -> None:
    if mesh != rates.mesh:
        raise LayoutError(
            f"the strategy is for mesh {str(mesh)!r}, and the rates are for {str(rates.mesh)!r}; "
            "take both for the same one"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
