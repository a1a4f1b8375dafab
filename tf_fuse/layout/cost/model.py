# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Estimate the seconds of strategies.

The time of a step is the sum of two kinds of terms, so that a search can add them up:

* an operation with a strategy: its floating-point operations, the bytes that it reads and writes, a
  constant, and the collectives within it; all of it again for its gradient;
* an edge, from where a tensor is made to where it is read: the relayout of the tensor, and that of
  its gradient on the way back (`tf_fuse.layout.relayout`).

The sum of compute and memory traffic is at most twice the longer of the two, and is linear in the
rates that `tf_fuse.layout.profile.calibration` fits. Each reader's gradient is charged on its own,
also where readers could add their gradients first.

Only its update waits for the gradient of a parameter. The backward pass goes on while the gradient
is reduced; `Rates.overlap` is the share of this time that the backward pass hides.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tf_fuse.layout.relayout import link_rates as link_module
from tf_fuse.layout.relayout.link_rates import Link, slowest
from tf_fuse.layout.strategies.strategy import InnerAllReduce, Strategy
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.mesh import Mesh


class DeviceRates(NamedTuple):
    """How fast one device computes while the others of its mesh do nothing.

    Attributes:
      seconds_per_flop: of the device.
      seconds_per_byte: that an operation reads or writes in its memory.
      seconds_per_operation: for each, however small.
    """

    seconds_per_flop: float
    seconds_per_byte: float
    seconds_per_operation: float


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
      alone: of one device while the others do nothing, which is faster where devices share a
        processor's cores; None if that is not known.
    """

    mesh: Mesh
    links: tuple[tuple[str, Link], ...]
    seconds_per_flop: float
    seconds_per_byte: float = 0.0
    seconds_per_operation: float = 0.0
    overlap: float = 0.0
    alone: DeviceRates | None = None

    def __init__(
        self,
        mesh: Mesh,
        links: Mapping[str, Link] | Iterable[tuple[str, Link]],
        seconds_per_flop: float,
        seconds_per_byte: float = 0.0,
        seconds_per_operation: float = 0.0,
        overlap: float = 0.0,
        alone: DeviceRates | None = None,
    ):
        """Check the rates.

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
        by_name = alone._asdict() if alone else {}
        of_one = {f"alone.{name}": value for name, value in by_name.items()}
        problems = [
            f"{name} is a finite number, 0 or more, got {value!r}"
            for name, value in {**seconds, **of_one}.items()
            if not (_is_number(value) and value >= 0)
        ]
        if not (_is_number(overlap) and 0 <= overlap <= 1):
            problems.append(f"overlap is a share, from 0 to 1, got {overlap!r}")
        raise_if(problems)
        object.__setattr__(self, "mesh", mesh)
        object.__setattr__(self, "links", tuple(sorted(by_axis.items())))
        for name, value in {**seconds, "overlap": overlap, "alone": alone}.items():
            object.__setattr__(self, name, value)

    def of_one_device(self) -> Rates:
        """Return the rates of a device while the others do nothing, as far as they are known."""
        compute = self.alone or DeviceRates(
            self.seconds_per_flop, self.seconds_per_byte, self.seconds_per_operation
        )
        return Rates(self.mesh, self.links, *compute)

    def compute(self, flops: float, touched_bytes: float, operations: int = 1) -> float:
        """Return the seconds of operations on one device."""
        return (
            self.seconds_per_operation * operations
            + self.seconds_per_flop * flops
            + self.seconds_per_byte * touched_bytes
        )

    def collective(self, one: InnerAllReduce) -> float:
        """Return the seconds of an all-reduce within an operation."""
        by_axis = dict(self.links)
        link = slowest(by_axis[axis] for axis in one.axes)
        # As `steps.Space.handling` has it: a sum of what the members hold.
        members = math.prod(map(self.mesh.size_of, one.axes))
        touched = one.held_bytes * (1 + 1 / members)
        return link.seconds(one.received_bytes / self.mesh.size, one.messages, 1, touched)


@dataclasses.dataclass(frozen=True)
class OperationCost:
    """The cost of an operation with a strategy.

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
    """Return what an operation costs with a strategy, in seconds and bytes.

    Args:
      strategy: of the operation.
      rates: of the devices.
      training: whether its gradient is computed, too.

    Raises:
      LayoutError: the strategy is for another mesh than the rates.
    """
    for layout in (*strategy.inputs, *strategy.outputs)[:1]:
        _check_mesh(layout.mesh, rates)
    touched = strategy.input_bytes + strategy.output_bytes
    # It reads the inputs and the outputs' gradients, and writes the inputs' gradients.
    touched_back = 2 * strategy.input_bytes + strategy.output_bytes
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


def _check_mesh(mesh: Mesh, rates: Rates) -> None:
    if mesh != rates.mesh:
        raise LayoutError(
            f"the strategy is for mesh {str(mesh)!r}, and the rates are for {str(rates.mesh)!r}; "
            "take both for the same one"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
