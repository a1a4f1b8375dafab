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
import functools
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tf_fuse.layout.operators.contraction import KINDS
from tf_fuse.layout.relayout import link_rates as link_module
from tf_fuse.layout.relayout.link_rates import GroupLinks, Hosts, Link, Links
from tf_fuse.layout.relayout.steps import chain_of_sums
from tf_fuse.layout.strategies.inner_halos import InnerHalo
from tf_fuse.layout.strategies.strategy import InnerAllReduce, Strategy
from tf_fuse.layout.types.errors import LayoutError, raise_if
from tf_fuse.layout.types.mesh import Mesh


class ContractionRates(NamedTuple):
    """How fast a device runs products of matrices, Einstein sums, or convolutions.

    Attributes:
      seconds_per_flop: of the sum.
      seconds_per_byte: that it reads or writes.
      seconds_per_operation: for each, however small.
      seconds_per_transposed_byte: that it transposes.
    """

    seconds_per_flop: float
    seconds_per_byte: float
    seconds_per_operation: float
    seconds_per_transposed_byte: float = 0.0


@dataclasses.dataclass(frozen=True)
class Rates:
    """How fast the devices of a mesh compute and communicate.

    Attributes:
      mesh: the devices.
      links: (axis, link), sorted, for which a mapping will do; or `Hosts`, where the devices are.
      seconds_per_flop: of a device.
      seconds_per_byte: that an operation reads or writes in a device's memory.
      seconds_per_operation: for each, however small.
      overlap: share of the time of reducing parameters' gradients that the backward pass hides.
      contractions: (kind, rates) of `contraction.KINDS`, sorted; a mapping will do. Those that are
        not there take what other operations do.
      seconds_per_call: of a function, from Python and back.
      alone: rates of one device while the others do nothing, which is faster where devices share
        a processor's cores; None if they are not known.
    """

    mesh: Mesh
    links: tuple[tuple[str, Link], ...] | Hosts
    seconds_per_flop: float
    seconds_per_byte: float = 0.0
    seconds_per_operation: float = 0.0
    overlap: float = 0.0
    contractions: tuple[tuple[str, ContractionRates], ...] = ()
    seconds_per_call: float = 0.0
    alone: Rates | None = None

    def __init__(
        self,
        mesh: Mesh,
        links: Links,
        seconds_per_flop: float,
        seconds_per_byte: float = 0.0,
        seconds_per_operation: float = 0.0,
        overlap: float = 0.0,
        contractions: Mapping[str, ContractionRates] | Iterable[tuple[str, ContractionRates]] = (),
        seconds_per_call: float = 0.0,
        alone: Rates | None = None,
    ):
        """Check the rates.

        Raises:
          LayoutError: an axis has no link, or there is none for it; a rate is negative or no finite
            number; the overlap is not between 0 and 1; a kind of contractions is unknown.
        """
        by_kind = dict(contractions)
        if not isinstance(links, Hosts):
            links = tuple(sorted(dict(links).items()))
        link_module.of_mesh(mesh, links)
        seconds = {
            "seconds_per_flop": seconds_per_flop,
            "seconds_per_byte": seconds_per_byte,
            "seconds_per_operation": seconds_per_operation,
            "seconds_per_call": seconds_per_call,
        }
        named = {
            f"contractions[{kind!r}].{name}": value
            for kind, one in by_kind.items()
            for name, value in one._asdict().items()
        }
        problems = [
            f"{name} is a finite number, 0 or more, got {value!r}"
            for name, value in {**seconds, **named}.items()
            if not (_is_number(value) and value >= 0)
        ]
        problems += [
            f"contractions are of {', '.join(map(repr, KINDS))}, got {kind!r}"
            for kind in sorted(by_kind.keys() - {*KINDS})
        ]
        if not (_is_number(overlap) and 0 <= overlap <= 1):
            problems.append(f"overlap is a share, from 0 to 1, got {overlap!r}")
        raise_if(problems)
        rest = {
            "mesh": mesh, "links": links, "overlap": overlap,
            "contractions": tuple(sorted(by_kind.items())), "alone": alone,
        }  # fmt: skip
        for name, value in {**seconds, **rest}.items():
            object.__setattr__(self, name, value)

    @functools.cached_property
    def _groups(self) -> GroupLinks:
        return link_module.of_mesh(self.mesh, self.links)

    def of_one_device(self) -> Rates:
        """Return the rates of a device while the others do nothing, as far as they are known."""
        return self.alone or self

    def compute(
        self,
        flops: float,
        touched_bytes: float,
        operations: int = 1,
        contraction: str = "",
        transposed_bytes: float = 0.0,
    ) -> float:
        """Return the seconds of operations on one device.

        Args:
          flops: floating-point operations.
          touched_bytes: that they read and write.
          operations: their number.
          contraction: one of `contraction.KINDS`, or "" of others.
          transposed_bytes: of what a contraction transposes.
        """
        found = dict(self.contractions).get(contraction)
        rates = found or ContractionRates(
            self.seconds_per_flop, self.seconds_per_byte, self.seconds_per_operation
        )
        return (
            rates.seconds_per_operation * operations
            + rates.seconds_per_flop * flops
            + rates.seconds_per_byte * touched_bytes
            + rates.seconds_per_transposed_byte * transposed_bytes
        )

    def collective(self, one: InnerAllReduce | InnerHalo) -> float:
        """Return the seconds of an all-reduce, or of a halo exchange, within an operation."""
        link = self._groups.of(list(map(self.mesh.index, one.axes)))
        if isinstance(one, InnerHalo):
            # Slices of what is sent, and a concatenation.
            handled = 2 * (one.awaited_bytes + one.joined_bytes)
            return link.seconds(one.awaited_bytes, one.messages, 1 + one.messages, handled)
        # As `steps.Space.handling` has it: sums, or others, of what the members hold.
        members = math.prod(map(self.mesh.size_of, one.axes))
        sums, tensors = chain_of_sums(members)
        operations = sums if one.reduction == "sum" else members - 1
        touched = one.held_bytes * tensors / members
        return link.seconds(one.received_bytes / self.mesh.size, one.messages, operations, touched)


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
    kind = strategy.contraction

    def compute(flops: int, touched: int, transposed: int) -> float:
        return rates.compute(flops, touched, strategy.operations, kind, transposed)

    return OperationCost(
        compute(strategy.flops, touched, strategy.transposed_bytes) if runs else 0.0,
        math.fsum(map(rates.collective, strategy.forward)),
        # The gradient of each factor is a product with the other one transposed.
        compute(strategy.backward_flops, touched_back, strategy.input_bytes if kind else 0)
        if back
        else 0.0,
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
