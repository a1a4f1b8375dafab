# Copyright 2026 The tf_fuse Authors.
# SPDX-License-Identifier: Apache-2.0
"""Costs of single edges, by which tests check strategies and the tables of a search."""

from __future__ import annotations

import dataclasses

from tf_fuse.layout.cost.model import Rates
from tf_fuse.layout.relayout.redistribution import RelayoutPlan, plan_relayout
from tf_fuse.layout.relayout.steps import ALL_STEPS, StepSet
from tf_fuse.layout.strategies.strategy import Strategy
from tf_fuse.layout.types.operation import Operation, Tensor
from tf_fuse.layout.types.tensor_layout import TensorLayout


@dataclasses.dataclass(frozen=True)
class ReshardingCost:
    """The relayout of a tensor from its maker to a reader, and of its gradient back.

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


def resharding_cost(
    tensor: Tensor,
    maker: tuple[Strategy, int],
    reader: tuple[Strategy, int],
    rates: Rates | None = None,
    training: bool = True,
    allowed: StepSet = ALL_STEPS,
) -> ReshardingCost:
    """Return the relayout of a tensor from its maker to a reader, and of its gradient back.

    Args:
      tensor: that is brought.
      maker: the strategy of the operation that makes it, and which of the outputs it is.
      reader: the strategy of the operation that reads it, and which of the inputs it is.
      rates: of the devices; without, relayouts are those with the fewest bytes and take no time.
      training: whether gradients go back.
      allowed: steps of relayouts.
    """
    made, needed = maker[0].outputs[maker[1]], maker[0].output_gradients[maker[1]]
    read, given = reader[0].inputs[reader[1]], reader[0].input_gradients[reader[1]]
    links = None if rates is None else rates.links
    back = None
    if training and given is not None and needed is not None:
        back = plan_relayout(given, needed, tensor.item_bytes, links, allowed)
    return ReshardingCost(
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
    """Return the reductions that an operation alone needs after its gradient.

    In a graph, `resharding_cost` has these, and they go directly to where the gradient is needed.

    Args:
      operation: whose gradient it is.
      strategy: of the operation.
      rates: of the devices; without, relayouts take no time.
    """
    links = None if rates is None else rates.links
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
